"""When a transfer counts as stalled; pure, over a clock that stands still while nobody reads from the sockets.

libcurl's own rule (`LOW_SPEED_TIME`) does not hold: it is looked at only when something else wakes the transfer, so
that two hosts that sent nothing were waited for without end; and it takes the mean of five seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

_ABSENCE = 0.25  # seconds: of a longer time between two calls the rest is not held against the servers
_PER_LIMIT = 8  # how often a transfer is judged in the time that it may be slow


@dataclass(slots=True)
class Flow:
    """How far one transfer had come when it was last fast enough."""

    since: float = 0.0  # by the rule's clock
    size: int = 0  # bytes


class StallRule:
    """A transfer may be slower than `speed` bytes per second for `limit` seconds; 0 for no limit."""

    def __init__(self, limit: float, speed: int) -> None:
        self._limit = limit or float("inf")
        self._speed = speed
        self._now = 0.0
        self._called_at: float | None = None
        self._pause = min(1.0, self._limit / _PER_LIMIT)
        self._next = self._pause

    def due(self, now: float) -> bool:
        """Whether the transfers are to be judged; to be asked several times a second, with the time on any clock."""
        if self._called_at is not None:
            self._now += min(now - self._called_at, _ABSENCE)
        self._called_at = now
        if self._now < self._next:
            return False
        self._next = self._now + self._pause
        return True

    def begin(self, flow: Flow) -> None:
        flow.since = self._now
        flow.size = 0

    def stalled(self, flow: Flow, size: int) -> bool:
        """Judge a transfer that has `size` bytes by now."""
        elapsed = self._now - flow.since
        if size - flow.size >= self._speed * elapsed:
            flow.since, flow.size = self._now, size
            return False
        return elapsed >= self._limit
