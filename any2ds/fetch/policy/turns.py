"""Which transfers may start at hosts that several fetchers share, and which outlast this fetcher's turn there."""

from __future__ import annotations

import math

from any2ds.fetch.policy.hosts import UNLIMITED, Attempt, Host
from any2ds.fetch.policy.share import ALONE, CLOCKS, LEAST_LEAD, Announcements, Share, slot_name

PATIENCE = 5.0  # seconds in which what is more than a smaller share may end by itself
_POLLS, _LOOKS_AGAIN = 0.05, 1.0  # seconds until announcements are looked at: those that are coming, and newer ones
_MOST_WITHDRAWALS = 3  # of one row; then its host sees more than its limit for once, so that the row comes to its end


class Turns:
    """This fetcher's share of what hosts allow, and what it has in flight at those that have a limit."""

    def __init__(self) -> None:
        self.share = ALONE
        self.are_shared = False  # there are other fetchers, or may be
        self.announcements: Announcements | None = None  # where others may have transfers that outlast their turns
        self.time_of_day = 0.0  # seconds to add to the clock for `time.time()`; whoever divides the limits sets it
        self.has_begun = False
        self.running: dict[Attempt, None] = {}  # in flight, to hosts with a limit that others share
        self._outlasting: dict[Attempt, str] = {}  # those that are announced, or to be, with the names of their slots
        self._has_news = False  # of these
        self._look_at = 0.0  # at all of these, next
        self._settled_at = -math.inf  # from then on, nobody has more in flight than the last shares allow
        self._looks_for_surplus_at = math.inf

    def divide(self, share: Share, now: float) -> None:
        """Keep from now on to this share of what hosts allow."""
        if self.has_begun and not share.has_all_of(self.share):
            self._settled_at = self._looks_for_surplus_at = now + PATIENCE
        self.share = share
        self.are_shared = any(share.paths)
        for attempt in self.running:
            attempt.leaves_at = now
        self._has_news |= bool(self._outlasting)
        self._outlasting.clear()

    def may_start(self, host: Host, now: float) -> bool:
        """Whether a transfer may start there, and in a slot that no other fetcher has."""
        board = self.announcements
        if not host.may_start(now, self.time_of_day, board.lead if board is not None else LEAST_LEAD):
            return False
        if board is None or not host.has_slots:
            return True
        if now < self._settled_at:
            host.wait_for_others(self._settled_at)
            return False
        time_of_day = now + self.time_of_day
        turn, length = host.turn(time_of_day)
        taken = board.of_others(min(time_of_day - turn * length, now - max(host.blocked_at, self._settled_at)))
        if taken is None:
            host.wait_for_others(now + _POLLS)
            return False
        own = {slot for slot in host.own_slots(turn) if slot_name(host.name, slot) not in taken}
        free = own - host.slots
        if not free:
            host.wait_for_others(now + (_POLLS if own else _LOOKS_AGAIN))
            if not own:
                host.blocked_at = now
            return False
        host.slot = min(free)
        return True

    def begin(self, attempt: Attempt, now: float) -> None:
        """A transfer starts, which `may_start`, in the slot that was found for it."""
        host = attempt.host
        if host.policy.max_per_host < UNLIMITED:
            self.running[attempt] = None
            attempt.slot, host.slot = host.take_slot(host.slot), None
            attempt.leaves_at = now

    def end(self, attempt: Attempt) -> None:
        """It has ended, however it did."""
        self.running.pop(attempt, None)
        if self._outlasting and self._outlasting.pop(attempt, None) is not None:
            self._has_news = True
        if attempt.slot is not None:
            attempt.host.free_slot(attempt.slot)
            attempt.slot = None

    def outlasting(self, now: float) -> list[Attempt]:
        """Announce what outlasts its turn. Returns attempts that the caller has to cancel and to `withdraw`: others do
        not know of them in time, or they are more than a smaller share allows."""
        board = self.announcements
        if now < self._look_at and (self.running or not self._has_news):
            return []
        self._look_at = now + _POLLS
        surplus = self._surplus() if self._looks_for_surplus_at <= now else []
        if board is not None:
            for attempt in self.running:
                if attempt.leaves_at <= now and (slot := self._leaving(attempt, board.lead, now)) is not None:
                    attempt.leaves_at = math.inf
                    self._outlasting[attempt] = slot_name(attempt.host.name, slot)
                    self._has_news = True
            if self._outlasting:
                known = board.announced()
                unknown = (attempt for attempt, name in self._outlasting.items() if name not in known)
                surplus += [attempt for attempt in unknown if self._is_too_late(attempt, now)]
            if self._has_news:
                board.announce(frozenset(self._outlasting.values()))
                self._has_news = False
        return [attempt for attempt in dict.fromkeys(surplus) if attempt.withdrawals < _MOST_WITHDRAWALS]

    def _surplus(self) -> list[Attempt]:
        """What is more than a smaller share allows; those that began last. Asked once for each share."""
        self._looks_for_surplus_at = math.inf
        excess: dict[Host, int] = {}
        found = []
        for attempt in reversed(self.running):
            left = excess.setdefault(attempt.host, attempt.host.excess)
            if left > 0:
                excess[attempt.host] = left - 1
                found.append(attempt)
        return found

    def _leaving(self, attempt: Attempt, lead: float, now: float) -> int | None:
        """Its slot if that has to be announced by now; else `leaves_at` is when to ask again."""
        host, time_of_day = attempt.host, now + self.time_of_day
        if attempt.slot is None or not host.has_slots:
            attempt.leaves_at = math.inf  # until the next share
            return None
        turn, length = host.turn(time_of_day)
        left = (turn + 1) * length - time_of_day
        if host.owns(attempt.slot, turn):
            if host.owns(attempt.slot, turn + 1):
                attempt.leaves_at = now + left
                return None
            if left > CLOCKS + lead:
                attempt.leaves_at = now + (left - CLOCKS - lead) / 2  # by then an announcement may take longer
                return None
        return attempt.slot

    def _is_too_late(self, attempt: Attempt, now: float) -> bool:
        """Whether others may begin in the slot of an attempt that outlasts its turn, unless they know of it."""
        host, time_of_day = attempt.host, now + self.time_of_day
        turn, length = host.turn(time_of_day)
        if attempt.slot is not None and host.owns(attempt.slot, turn):
            return (turn + 1) * length - time_of_day <= CLOCKS
        return now >= self._settled_at
