"""Decides which row is attempted when. A state machine over a clock that is handed in: no sockets, no sleep."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from dataclasses import dataclass

from any2ds.types import Failure, Fetched, Payload, Row

FIRST_BACKOFF = 1.0  # seconds; doubles with each attempt
MAX_BACKOFF = 60.0


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at one row."""

    row: Row
    number: int = 1
    deadline: float = 0.0  # by the schedule's clock
    flying: bool = False


class Schedule:
    """At most `slots` attempts in flight, each for `timeout` seconds (0: no limit), `retries` more after the first."""

    def __init__(self, slots: int, timeout: float, retries: int, rng: random.Random | None = None) -> None:
        self.slots = slots
        self.timeout = timeout or float("inf")
        self.retries = retries
        self.in_flight = 0
        self.fresh: deque[Row] = deque()  # rows that nobody has tried; a feeder may append from another thread
        self._rng = rng or random.Random()
        self._waiting: list[tuple[float, int, Attempt]] = []  # retries, by the time they are due
        self._order = itertools.count()
        self._deadlines: deque[Attempt] = deque()  # in order of start, hence of deadline; the finished drop out late

    @property
    def idle(self) -> bool:
        """Nothing in flight, nothing waiting."""
        return not (self.in_flight or self.fresh or self._waiting)

    def next(self, now: float) -> Attempt | None:
        """The attempt to start now, if there is room and anything to do."""
        if self.in_flight >= self.slots:
            return None
        if self._waiting and self._waiting[0][0] <= now:
            attempt = heapq.heappop(self._waiting)[2]
        elif self.fresh:
            attempt = Attempt(self.fresh.popleft())
        else:
            return None
        attempt.flying = True
        attempt.deadline = now + self.timeout
        self.in_flight += 1
        if attempt.deadline != float("inf"):
            self._deadlines.append(attempt)
        return attempt

    def finish(self, attempt: Attempt, outcome: Payload | Failure, now: float) -> Fetched | None:
        """Record how an attempt ended. None if the row is going to be tried again."""
        attempt.flying = False
        self.in_flight -= 1
        if isinstance(outcome, Failure) and outcome.transient and attempt.number <= self.retries:
            due = now + self.backoff(attempt.number)
            again = Attempt(attempt.row, attempt.number + 1)
            heapq.heappush(self._waiting, (due, next(self._order), again))
            return None
        return Fetched(attempt.row, outcome, attempt.number)

    def overdue(self, now: float) -> list[Attempt]:
        """The attempts whose time is up; each is told once, and is to be finished by the caller."""
        found = []
        while (first := self._first()) and first.deadline <= now:
            found.append(first)
            self._deadlines.popleft()
        return found

    def wait(self, now: float) -> float:
        """Seconds until a deadline or a retry is due; infinite if none is."""
        due = self._waiting[0][0] if self._waiting and self.in_flight < self.slots else float("inf")
        first = self._first()
        return max(0.0, min(due, first.deadline if first else float("inf")) - now)

    def backoff(self, attempt: int) -> float:
        """Seconds before the next attempt: exponential with full jitter, so that failures of one moment spread out."""
        return self._rng.uniform(0, min(MAX_BACKOFF, FIRST_BACKOFF * 2.0 ** (attempt - 1)))

    def _first(self) -> Attempt | None:
        deadlines = self._deadlines
        while deadlines and not deadlines[0].flying:
            deadlines.popleft()
        return deadlines[0] if deadlines else None
