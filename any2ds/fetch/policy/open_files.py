"""Decides how many transfers there may be after no file or socket could be opened; pure, over a clock handed in."""

from __future__ import annotations

import math

from any2ds.core.errors import UnfitWorker

_LESS, _OF = 7, 8  # of the transfers that have sockets, so many go on: other things need files, too
_LONGER = 60.0  # seconds without a shortage after which there may be an eighth more; others may have caused it
_PATIENCE = 60.0  # seconds in which not even one transfer could open a socket


class OpenFiles:
    """Belongs to the loop of one process, whose limit on open files should have left room for its transfers."""

    def __init__(self) -> None:
        self.transfers = math.inf  # that there may be at a time
        self._short_at = 0.0  # when they were changed last
        self._stuck_since: float | None = None  # since when not even one transfer could be begun

    def ran_out(self, now: float, in_flight: int) -> None:
        """A socket could not be opened while `in_flight` others were. Raises UnfitWorker if there is no end to it."""
        self.transfers = max(1, int(min(self.transfers, in_flight) * _LESS // _OF))
        self._short_at = now
        if in_flight:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > _PATIENCE:
            raise UnfitWorker("no file or socket can be opened: too many are open. Raise the limit (ulimit -n)")

    def look(self, now: float) -> bool:
        """Whether there may be more transfers again; to be asked once a turn."""
        if self.transfers == math.inf or now - self._short_at < _LONGER:
            return False
        self.transfers = int(self.transfers) + int(self.transfers) // _OF + 1
        self._short_at = now
        return True

    def opened(self) -> None:
        """A transfer has ended for a reason of its own."""
        self._stuck_since = None
