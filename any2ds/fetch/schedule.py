"""Decides which row is attempted when. A state machine over a clock that is handed in: no sockets, no sleep.

Rows wait in a queue per host. The hosts that may start another transfer take turns, so that a slow host never holds
up the others; how many transfers a host gets, and how far apart, follows from how it answers (`hosts.py`).
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections import deque
from dataclasses import dataclass, replace

from any2ds.config import FetchOptions
from any2ds.fetch.hosts import SILENCE, Host, Manners
from any2ds.types import Failure, Fetched, Payload, Row

FIRST_BACKOFF = 1.0  # seconds; doubles with each attempt
MAX_BACKOFF = 60.0
# A host that says `not now` is asked again later without it counting as an attempt, but not for ever.
MAX_DEFERRALS = 5
_PROVEN_HOSTS = 10_000  # up to so many hosts, those that have shown what they bear need not do so again
# A transfer to a silent host is late after so many times the mean answer, and at least so many seconds.
_LATE, _LEAST_LATE = 3.0, 0.1
_FIRST_LATENCY = 0.3  # seconds, a guess until something was answered
_CROWDED = 8  # while one slot in so many is with a late one, hosts that answer come first
_MANY = 64  # fewer transfers than this are meant as a limit, also for those that hang
_MOST_SOCKETS = 400 if sys.platform == "win32" else 1 << 30  # select() takes 512
_ASIDE = 4  # times the slots: so many silent hosts may wait before no others are looked for
_WAIT_CODES = frozenset({"http_429", "http_503"})


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at one row."""

    row: Row
    host: Host
    number: int = 1  # of attempts, this one included
    deferrals: int = 0  # how often the host said that it should come later
    deadline: float = 0.0  # by the schedule's clock
    flying: bool = False
    late: bool = False  # it waits for a silent host for longer than answers take


def spare_places(options: FetchOptions) -> int:
    """Transfers beyond `thread_count` that may wait for silent hosts; threads, or a small number, are a real limit."""
    if options.fetcher != "curl" or options.thread_count < _MANY:
        return 0
    return max(0, min(options.thread_count, _MOST_SOCKETS - options.thread_count))


class Schedule:
    """At most `slots` attempts in flight, each for `timeout` seconds (0: no limit), `retries` more after the first.

    Up to `spare` more wait for hosts that are silent: they take next to nothing, and would take the slots of others.
    """

    def __init__(
        self,
        slots: int,
        timeout: float,
        retries: int,
        manners: Manners | None = None,
        rng: random.Random | None = None,
        spare: int = 0,
    ) -> None:
        self.slots = slots
        self.spare = spare
        self.timeout = timeout or float("inf")
        self.retries = retries
        self.in_flight = 0
        self.fresh: deque[Row] = deque()  # rows that nobody has looked at; a feeder may append from another thread
        self.queued = 0  # rows that wait for their host
        self.deferred = 0  # rows that wait for their time
        self._manners = manners or Manners()
        self._rng = rng or random.Random()
        self._hosts: dict[str, Host] = {}
        self._turn: deque[Host] = deque()  # hosts with waiting rows that may start one more now
        self._aside: dict[Host, None] = {}  # the same, but they are silent, and come when no other one wants the place
        self._latency = _FIRST_LATENCY  # mean seconds of an answer, lately
        self._to_silent: deque[tuple[float, Attempt]] = deque()  # that are not late yet, by the time of their start
        self._late = 0
        self._paused: list[tuple[float, int, Host]] = []  # hosts with waiting rows, by the time when they may start
        self._later: list[tuple[float, int, Attempt]] = []  # attempts by the time when they are due
        self._given_up: deque[Fetched] = deque()
        self._order = itertools.count()
        self._deadlines: deque[Attempt] = deque()  # in order of start, hence of deadline; the finished drop out late

    @property
    def idle(self) -> bool:
        """Nothing in flight, nothing waiting."""
        return not (self.in_flight or self.fresh or self.queued or self._later or self._given_up)

    @property
    def hosts(self) -> int:
        """Hosts that are remembered: those with rows, those in trouble lately, and some that bear much."""
        return len(self._hosts)

    def next(self, now: float) -> Attempt | None:
        """The attempt to start now, if there is room and a host that may be asked."""
        crowded = self._crowded(now)
        if self._full:
            return None
        while self._later and self._later[0][0] <= now:
            attempt = heapq.heappop(self._later)[2]
            self.deferred -= 1
            if attempt.host.down_until > now:
                self._give_up(attempt, now)
            else:
                self._queue(attempt, now)
        while self._paused and self._paused[0][0] <= now:
            self._offer_turn(heapq.heappop(self._paused)[2], now)
        if self._aside and not crowded:
            self._turn.extend(self._aside)
            self._aside.clear()
        while self._turn:
            host = self._turn.popleft()
            if crowded and self._comes_last(host):
                self._aside[host] = None
                continue
            host.in_turn = False
            if host.queue and host.may_start(now):
                self.queued -= 1
                return self._start(host.queue.popleft(), now)
            self._offer_turn(host, now)
        while self.fresh and len(self._aside) <= _ASIDE * self.slots:
            row = self.fresh.popleft()
            attempt = Attempt(row, self._host_of(row))
            host = attempt.host
            if host.down_until > now:
                self._give_up(attempt, now)
            elif not host.queue and host.may_start(now) and not (crowded and self._comes_last(host)):
                return self._start(attempt, now)
            else:
                self._queue(attempt, now)
        while self._aside or self._turn:  # nobody else wants the place
            host = next(iter(self._aside)) if self._aside else self._turn.popleft()
            self._aside.pop(host, None)
            host.in_turn = False
            if crowded and host.silent and host.in_flight >= SILENCE:
                continue  # enough to tell whether it is down; it comes back when one of them ends
            if host.queue and host.may_start(now):
                self.queued -= 1
                return self._start(host.queue.popleft(), now)
            self._offer_turn(host, now)
        return None

    def given_up(self) -> list[Fetched]:
        """The rows that are not tried at all, because their host is down; each is told once."""
        found = list(self._given_up)
        self._given_up.clear()
        return found

    def finish(self, attempt: Attempt, outcome: Payload | Failure, now: float) -> Fetched | None:
        """Record how an attempt ended. None if the row is going to be tried again."""
        host = attempt.host
        attempt.flying = False
        self.in_flight -= 1
        host.in_flight -= 1
        self._late -= attempt.late
        attempt.late = False
        host.learn(outcome, now)
        if isinstance(outcome, Payload):
            self._latency += 0.05 * (outcome.seconds - self._latency)
        if host.queue:
            if host.down_until > now:
                while host.queue:
                    self.queued -= 1
                    self._give_up(host.queue.popleft(), now)
            self._offer_turn(host, now)
        if isinstance(outcome, Failure) and self._put_off(attempt, outcome, now):
            return None
        if not host.in_flight and host.forgettable(now) and not (host.proven and len(self._hosts) < _PROVEN_HOSTS):
            self._hosts.pop(host.name, None)
        return Fetched(attempt.row, outcome, attempt.number)

    def overdue(self, now: float) -> list[Attempt]:
        """The attempts whose time is up; each is told once, and is to be finished by the caller."""
        found = []
        while (first := self._first()) and first.deadline <= now:
            found.append(first)
            self._deadlines.popleft()
        return found

    def wait(self, now: float) -> float:
        """Seconds until a deadline, a retry or a host is due; infinite if none is."""
        due = float("inf")
        if not self._full:
            due = min(queue[0][0] if queue else due for queue in (self._later, self._paused))
        first = self._first()
        return max(0.0, min(due, first.deadline if first else float("inf")) - now)

    def backoff(self, attempt: int) -> float:
        """Seconds before the next attempt: exponential with full jitter, so that failures of one moment spread out."""
        return self._rng.uniform(0, min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** (attempt - 1)))

    def _crowded(self, now: float) -> bool:
        """Whether those that hang take so many places that hosts that answer should have the others."""
        waiting = self._to_silent
        since = now - max(_LEAST_LATE, _LATE * self._latency)
        while waiting and (waiting[0][0] <= since or not waiting[0][1].flying):
            attempt = waiting.popleft()[1]
            if attempt.flying and attempt.host.silent:
                attempt.late = True
                self._late += 1
        return self._late >= max(1, self.slots // _CROWDED)

    def _comes_last(self, host: Host) -> bool:
        """Where it is crowded: a silent host, but for a first attempt as long as it may wait in a spare place."""
        return host.silent and (host.in_flight > 0 or self._late >= self.spare)

    @property
    def _full(self) -> bool:
        return self.in_flight - min(self._late, self.spare) >= self.slots

    def _give_up(self, attempt: Attempt, now: float) -> None:
        failure = Failure("fetch", "host_down", f"{attempt.host.name} has not answered anything")
        if refusal := attempt.host.down_as:
            failure = replace(refusal, detail="not asked: its host went on to refuse after the wait that it asked for")
        if not self._put_off(attempt, failure, now):
            self._given_up.append(Fetched(attempt.row, failure, attempt.number))

    def _put_off(self, attempt: Attempt, failure: Failure, now: float) -> bool:
        """Line a failed attempt up to be made again later, if it is worth it."""
        if not failure.transient:
            return False
        wait = self.backoff(attempt.number)
        number, deferrals = attempt.number + 1, attempt.deferrals
        if failure.code in _WAIT_CODES and failure.retry_after is not None:
            if failure.retry_after > self._manners.max_retry_after:
                return False
            wait += failure.retry_after
            if attempt.deferrals < MAX_DEFERRALS and attempt.host.down_until <= now:
                number, deferrals = attempt.number, attempt.deferrals + 1
        if number > self.retries + 1:
            return False
        self.deferred += 1
        again = Attempt(attempt.row, attempt.host, number, deferrals)
        heapq.heappush(self._later, (now + wait, next(self._order), again))
        return True

    def _start(self, attempt: Attempt, now: float) -> Attempt:
        host = attempt.host
        attempt.flying = True
        attempt.deadline = now + self.timeout
        self.in_flight += 1
        if host.silent:
            self._to_silent.append((now, attempt))
        host.start(now)
        if attempt.deadline != float("inf"):
            self._deadlines.append(attempt)
        if host.queue:
            self._offer_turn(host, now)
        return attempt

    def _queue(self, attempt: Attempt, now: float) -> None:
        attempt.host.queue.append(attempt)
        self.queued += 1
        self._offer_turn(attempt.host, now)

    def _offer_turn(self, host: Host, now: float) -> None:
        """Line a host up that has waiting rows: for its turn, or for the moment when its pause is over."""
        if host.in_turn:
            if self._aside and not host.silent and host in self._aside:
                del self._aside[host]
                self._turn.append(host)
            return
        if not host.queue or not host.has_slot:
            return
        if host.not_before <= now:
            host.in_turn = True
            self._turn.append(host)
        elif host.woken_at != host.not_before:
            host.woken_at = host.not_before
            heapq.heappush(self._paused, (host.not_before, next(self._order), host))

    def _host_of(self, row: Row) -> Host:
        name = host_name(row.url)
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name, self._manners)
        return host

    def _first(self) -> Attempt | None:
        deadlines = self._deadlines
        while deadlines and not deadlines[0].flying:
            deadlines.popleft()
        return deadlines[0] if deadlines else None


def host_name(url: str | None) -> str:
    """The part of a URL that names the server, roughly: good enough to tell hosts apart, at 0.3 µs."""
    if not url:
        return ""
    authority = url.partition("://")[2].partition("/")[0]
    return authority.rpartition("@")[2].lower()
