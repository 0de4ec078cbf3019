"""Measures how fetching goes: what has ended, and why the thread that drives it slept.

Each turn of the loop sleeps in one place, and only after it has started whatever could be started. So the time of that
sleep belongs to what kept it from starting more, which costs two looks at the clock a turn to know. What transfers wait
for while they take all the places is looked at about twice a second only: on average so many are in each phase as
the phase takes time.
"""

from __future__ import annotations

import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Literal

from any2ds.core.histogram import Histogram
from any2ds.core.metrics import Backlog, Traffic, Wait
from any2ds.fetch.engines.transport import Phases

Cause = Wait | Literal["connections"]
"""`connections`: all are taken, and the transfers that have them say by what."""

_LEISURE = 200.0  # times as long as looking at all hosts has taken, until they are looked at again


class Meter:
    """Between two `take`s; belongs to the thread that fetches."""

    def __init__(self) -> None:
        self.attempts = 0  # that have ended
        self.seconds = array("d")  # of those that succeeded
        self._slept: defaultdict[Cause, float] = defaultdict(float)
        self._backlog = Backlog()
        self._next_look = 0.0

    @property
    def was_full(self) -> bool:
        """Whether all connections were busy at some time."""
        return "connections" in self._slept

    def slept(self, cause: Cause, seconds: float) -> None:
        self._slept[cause] += seconds

    def at_most_now_and_then(self, look: Callable[[], Backlog]) -> Backlog:
        """The result of `look`, now or not long ago: with very many hosts it takes a while."""
        if (began := time.monotonic()) >= self._next_look:
            self._backlog = look()
            now = time.monotonic()
            self._next_look = now + _LEISURE * (now - began)
        return self._backlog

    def take(self, phases: Phases, **now: Any) -> Traffic:
        """The traffic since the last call, with the gauges `now`; `phases` of what is in flight."""
        waits = shared_out(self._slept, phases)
        taken = Traffic(self.attempts, dict(Histogram.of(self.seconds).counts), waits, **now)
        self.attempts = 0
        self.seconds = array("d")
        self._slept.clear()
        return taken


def shared_out(slept: Mapping[Cause, float], phases: Phases) -> dict[Wait, float]:
    """Seconds by cause, with those in which all connections were busy laid to what the transfers waited for."""
    waits: defaultdict[Wait, float] = defaultdict(float)
    for cause, seconds in slept.items():
        if cause != "connections":
            waits[cause] += seconds
            continue
        waiting = phases if phases.total() else Phases({"answers": 1})
        for phase, transfers in waiting.items():
            waits[phase] += seconds * transfers / waiting.total()
    return {cause: seconds for cause, seconds in waits.items() if seconds > 0}
