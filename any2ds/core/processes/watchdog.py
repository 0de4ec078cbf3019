"""Notices that nothing moves any more, over a clock that is handed in."""

from __future__ import annotations

LOOK_SECONDS = 0.5  # between two looks, about
_MOST_PER_LOOK = 1.0  # seconds that one look may add


class Watch:
    """Counts the seconds in which somebody kept looking and saw no change; `limit` of them are too many (0: never).

    Time in which nobody looked adds a second at most: the machine was suspended, this process was stopped, or it had
    other things to do. None of that says anything about what is being watched.
    """

    def __init__(self, limit: float, now: float) -> None:
        self.limit = limit
        self.silent = 0.0  # seconds without a change
        self._looked = now
        self._sign: object = None

    def look(self, now: float, sign: object, expected: bool = True) -> bool:
        """Whether `sign` has not changed for too long, although it was `expected` to."""
        if sign != self._sign or not expected:
            self._sign = sign
            self.silent = 0.0
        else:
            self.silent += min(now - self._looked, _MOST_PER_LOOK)
        self._looked = now
        return 0 < self.limit <= self.silent
