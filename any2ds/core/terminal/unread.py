"""A standard error that nobody reads: what is written to a pipe that stays full is dropped, and the command ends."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
from typing import Any

_PATIENCE = 5000  # milliseconds for which a full pipe is waited for; then not at all, until somebody reads again
_PIECE = 512  # bytes: as many as POSIX lets a pipe take whole once `poll` says that it has room


class _Dropping(io.RawIOBase):
    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._patience = descriptor, _PATIENCE
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, content: Any) -> int:
        if not self._poll.poll(self._patience):
            self._patience = 0
            return len(content)
        self._patience = _PATIENCE
        return os.write(self._descriptor, content[:_PIECE])


def drop_unread() -> None:
    """Have the standard error of this process drop what nobody reads, if it is a pipe."""
    try:
        descriptor = sys.stderr.fileno()
        if not hasattr(select, "poll") or not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return
    except (AttributeError, OSError, ValueError):  # there is none
        return
    stream = io.BufferedWriter(_Dropping(descriptor))
    sys.stderr = io.TextIOWrapper(stream, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)
