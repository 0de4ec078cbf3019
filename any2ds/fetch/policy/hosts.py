"""The limits of one host: transfers at once and the time between their starts, adapted to its answers.

How much it gets is up to its `Allowance`. A host that only ever lets us wait counts as down for a minute, so that
thousands of its rows cost no more time than a few; so does one that goes on to refuse everything.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from any2ds.core.failures import Failure
from any2ds.core.metrics import HostLoad
from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.fetch.policy.allowance import Allowance
from any2ds.fetch.policy.share import ALONE, LEAST_LEAD, HostShare, Share

if TYPE_CHECKING:
    from any2ds.fetch.policy.window import Trial

UNLIMITED = 1_000_000  # transfers at once to a host; from here on nobody counts
FIRST_AT_ONCE = 16.0  # transfers at once to a host that nothing is known of, of all fetchers together
_LEAST_FIRST = 2.0  # of each of many fetchers
_BUSY = frozenset({"http_429", "http_503"})
TIMEOUTS = frozenset({"timeout_total", "timeout_stalled", "timeout_connect"})
_TROUBLE = _BUSY | TIMEOUTS
SILENCE = 4  # timeouts without any answer after which a host counts as down
_SIGN_OF_LIFE = 1 << 16  # bytes: a transfer that brought so many was slow, and no silence
# Rounds of nothing but 429 and 503 that make it count as down: each after the wait that it asked for, or after pauses
# of ours, which take 62 s together: limits by the minute are usual.
_REFUSALS, _REFUSALS_UNASKED = 5, 10
_DOWN = 60.0  # seconds until a host that is down is asked again
_FEW_TIMEOUTS = 3  # up to here they prove nothing
_MEMORY = 10.0  # seconds after which counts of answers and timeouts are halved


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """What holds for a host whatever it answers; the first two for all fetchers of a run together."""

    max_per_host: int = UNLIMITED  # transfers at once
    host_delay: float = 0.0  # seconds between two starts
    max_retry_after: float = 120.0  # seconds; a host is left alone for no longer, and rows for which it asks more fail


class Host:
    """What is known of one host. Times are those of the schedule's clock."""

    __slots__ = (
        "_answers",
        "_counted_from",
        "_floor",
        "_freed",
        "_fresh",
        "_most",
        "_silence",
        "_spacing",
        "_started",
        "_timeouts",
        "allowance",
        "blocked_at",
        "deferred",
        "down_as",
        "down_until",
        "gated",
        "in_flight",
        "in_turn",
        "name",
        "not_before",
        "policy",
        "queue",
        "share",
        "shared_until",
        "silent",
        "slot",
        "slots",
        "takes_turns",
        "woken_at",
    )

    def __init__(self, name: str, policy: HostPolicy, share: Share = ALONE) -> None:
        self.name = name
        self.queue: deque[Attempt] = deque()  # rows that wait for this host
        self.deferred = 0  # attempts that wait for their time, or for a judgement
        self.in_flight = 0
        self.not_before = 0.0  # when the next transfer may start
        self.in_turn = False  # the schedule has it in line
        self.down_until = 0.0  # until then it is not asked at all
        self.gated = False  # its rows are subject to robots.txt
        self.down_as: Failure | None = None  # the refusal for which it is not; None where it was silent
        self.silent = True  # it has not answered lately, or not after the last timeout
        self._silence = 0  # timeouts since its last answer
        self.woken_at = -1.0  # the pause after which the schedule looks at it again
        self.shared_until = 0.0  # until then it is somebody else's turn
        self.policy = policy
        self._spacing = policy.host_delay  # seconds between two starts of whomever
        self._started = -math.inf  # when a transfer did last
        self.share: HostShare | None = None  # None: all of it is this fetcher's
        self.takes_turns = False  # with other fetchers, by the time of day
        self.slots: set[int] = set()  # that its transfers have, where there are other fetchers
        self._freed: set[int] = set()  # of its own, that transfers had
        self._fresh: Iterator[int] = iter(())  # others of its own
        self.slot: int | None = None  # that the next one gets
        self.blocked_at = -math.inf  # when others were last seen to have all slots
        self._most = policy.max_per_host
        self._floor = policy.host_delay  # seconds between two starts of this fetcher
        self.allowance = Allowance(max(_LEAST_FIRST, FIRST_AT_ONCE / share.fetchers), float(policy.max_per_host))
        if not share.is_all:
            self.divide(share)
        self._answers = self._timeouts = 0  # lately
        self._counted_from = 0.0

    @property
    def limit(self) -> int:
        """Transfers at once that it gets at present."""
        return max(1, int(self.allowance.size))

    @property
    def delay(self) -> float:
        """Seconds between two starts at present."""
        return max(self._floor, self.allowance.delay)

    @property
    def answers(self) -> bool:
        """Whether it has answered lately."""
        return self._answers > 0

    @property
    def has_slot(self) -> bool:
        return self.in_flight < self.allowance.size

    def may_start(self, now: float, time_of_day: float = 0.0, lead: float = LEAST_LEAD) -> bool:
        """Whether a transfer may start; `time_of_day` is what to add to the schedule's clock for `time.time()`, and
        `lead` the seconds that it takes to announce what outlasts a turn."""
        if self.in_flight >= self.allowance.size or self.not_before > now:
            return False
        return not self.takes_turns or self._has_turn(now, time_of_day, lead)

    @property
    def has_slots(self) -> bool:
        """Whether fetchers take turns because there are more of them than transfers."""
        return self.share is not None and self.share.has_turns

    def turn(self, time_of_day: float) -> tuple[int, float]:
        """The number of the present turn, and the seconds that it takes, where it `has_slots`."""
        assert self.share is not None
        length = self.share.turn_seconds(self._spacing)
        return math.floor(time_of_day / length), length

    def own_slots(self, turn: int) -> frozenset[int]:
        """The slots that are this fetcher's in a turn."""
        assert self.share is not None
        return self.share.slots(turn)

    def owns(self, slot: int, turn: int) -> bool:
        """Whether it is among `own_slots(turn)`."""
        assert self.share is not None
        return self.share.owns(slot, turn)

    def take_slot(self, slot: int | None) -> int | None:
        """Have a transfer in this slot, or if it is None in one of its own that is free, whoever's turn it is."""
        if slot is None:
            slot = self._freed.pop() if self._freed else next(self._fresh, None)
        if slot is not None:
            self.slots.add(slot)
        return slot

    def free_slot(self, slot: int) -> None:
        self.slots.discard(slot)
        if self.share is not None and any(slot in part.slots for part in self.share.parts):
            self._freed.add(slot)

    @property
    def excess(self) -> int:
        """Transfers that are more than its share."""
        return self.in_flight - self._most

    def wait_for_others(self, until: float) -> None:
        """Nothing starts before, because of what other fetchers have in flight."""
        self.not_before = self.shared_until = until

    def divide(self, share: Share) -> None:
        """Keep from now on to this share of what the host allows."""
        own = share.of_host(self.name, self.policy.max_per_host)
        self.share = None if share.is_all else own
        self._freed = set()
        self._fresh = (slot for part in own.parts for slot in part.slots if slot not in self.slots)
        self._most = own.most
        self.allowance.set_most(float(own.most))
        if self.shared_until == self.not_before:
            self.not_before = max(0.0, self._started + self._spacing)
        self._space()

    def raise_delay(self, seconds: float) -> None:
        """Start transfers at least so many seconds apart, because its robots.txt asks for it; also after that file."""
        if seconds > self._spacing:
            self._spacing = seconds
            self._space()
            self.not_before = max(self.not_before, self._started + self._floor)

    def start(self, now: float) -> None:
        self.in_flight += 1
        self._started = max(self.not_before, now)
        if self._floor or self.allowance.size < 1:
            delay = self.delay
            self.not_before = self._started + delay
            if self.share is not None and delay == self._floor:
                self.shared_until = self.not_before

    def learn(self, outcome: Payload | Failure, now: float, started: float) -> None:
        """Take into account how a transfer ended that was started at this time."""
        if now - self._counted_from > _MEMORY:
            self._answers //= 2
            self._timeouts //= 2
            self._counted_from = now
        code = "" if isinstance(outcome, Payload) else outcome.code
        if isinstance(outcome, Payload) or code not in _TROUBLE:
            self._silence = 0
            self._answers += 1
            self.silent = False
            self.allowance.answered(now, started)
        elif code in TIMEOUTS:
            self._learn_timeout(outcome, now, started)
        else:
            self._learn_refusal(outcome, now, started)

    def _learn_refusal(self, refusal: Failure, now: float, started: float) -> None:
        allowance, asked = self.allowance, refusal.retry_after
        self._silence = 0
        self.silent = not self._answers
        pause = allowance.refused(now, started, refusal.code == "http_429", self.in_flight)
        if asked and (refusal.code == "http_429" or pause is not None):
            pause = asked  # one 503 among many answers asks for this file alone
        if pause:
            self.not_before = max(self.not_before, now + min(pause, self.policy.max_retry_after))
        if allowance.fruitless >= (_REFUSALS if asked else _REFUSALS_UNASKED):
            self.down_until, self.down_as = now + _DOWN, refusal

    def _learn_timeout(self, timeout: Failure, now: float, started: float) -> None:
        self._timeouts += 1
        self._silence = self._silence + 1 if timeout.received < _SIGN_OF_LIFE else 0
        if self._silence and not self._answers:
            self.allowance.limit_to(max(1.0, float(SILENCE - self._silence)))
            if self._silence >= SILENCE:
                self.down_until, self.down_as = now + _DOWN, None
        if self._timeouts > max(_FEW_TIMEOUTS, self._answers):
            self.allowance.timed_out(now, started, self.in_flight)
        self.silent = not self._answers or self._silence > 0

    @property
    def waiting(self) -> int:
        """Rows that wait for it, those included that are to be tried again later."""
        return len(self.queue) + self.deferred

    def load(self, now: float) -> HostLoad:
        return HostLoad(self.name, self.waiting, self.in_flight, self.limit, self._why(now))

    def seconds_left(self, now: float) -> float:
        """How long the rows that wait for it take at the present pace."""
        each = max(self.delay, self.allowance.latency / self.limit)
        return max(0.0, self.not_before - now) + self.waiting * each

    def _why(self, now: float) -> str:
        """Why rows wait for it, as text for users."""
        most = self._most
        if self.down_until > now:
            return f"does not answer: it is asked again in {self.down_until - now:.0f} s"
        delay = self.delay
        if self.not_before > now and self.shared_until == self.not_before and not delay:
            return f"it is the turn of other processes for {self.not_before - now:.0f} s"
        if self.not_before > now + max(1.0, delay):
            return f"asks us to come back in {self.not_before - now:.0f} s"
        if delay > self._floor:
            return f"refuses more: asked every {delay:.2g} s"
        if delay:
            whose = "" if self.share is None else f" by this process, every {self._spacing:.2g} s by all"
            return f"asked every {delay:.2g} s{whose}, as it or --host_delay wants it"
        if not self.queue:
            return "its rows are tried again later"
        if self.in_flight >= most:
            return f"{most} at once, by {'our share of ' if self.share else ''}--max_per_host"
        return f"at most {self.limit} at once, by how well it answers"

    @property
    def proven(self) -> bool:
        """Whether it bears a good deal more than one that nothing is known of gets."""
        return self.allowance.size >= 2 * FIRST_AT_ONCE

    def forgettable(self, now: float) -> bool:
        """Whether nothing about it is worth keeping."""
        return not self.allowance.is_reduced and not self.busy and max(self.not_before, self.down_until) <= now

    @property
    def busy(self) -> bool:
        return bool(self.in_flight or self.queue or self.in_turn or self.deferred)

    def _space(self) -> None:
        """Leave as much time between starts as all fetchers together need."""
        share = self.share
        self._floor = self._spacing if share is None else share.interval(self._spacing)
        self.takes_turns = share is not None and (share.has_turns or self._spacing > 0)

    def _has_turn(self, now: float, time_of_day: float, lead: float) -> bool:
        """Whether it is this fetcher's turn; else `not_before` is when that comes."""
        assert self.share is not None
        start = self.share.next_start(now + time_of_day, self._spacing, lead) - time_of_day
        if start <= now:
            return True
        self.wait_for_others(start)
        return False


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at one row, or at a robots.txt."""

    row: Row
    host: Host
    number: int = 1  # of attempts, this one included
    sent: int = 0  # how often it was started, whatever for
    deferrals: int = 0  # how often the host asked for it to come later
    excuses: int = 0  # how often it failed for reasons of ours
    probe: bool = False  # only to see whether anything comes back; its row is none of the list
    started: float = 0.0  # by the schedule's clock, like the next two
    deadline: float = 0.0  # when its time may be up, unless bytes have come
    heard: float = 0.0  # when it was last seen to have more bytes
    received: int = 0  # bytes at that time
    running: bool = False
    url: str | None = None  # of the row, normalised, if somebody has done so
    asks: str = ""  # the origin whose robots.txt this is for; its row is none of the list
    trial: Trial | None = None  # of the window, when it was started
    late: bool = False  # it waits for a silent host for longer than answers take
    slot: int | None = None  # of those of its host, where there are other fetchers
    leaves_at: float = 0.0  # when to look whether it outlasts its turn
    withdrawals: int = 0  # how often it was cancelled because it outlasted a turn, or a share got smaller
