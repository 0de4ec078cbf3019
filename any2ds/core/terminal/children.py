"""Reads what child processes write to standard error, line by line, so that it does not break other output."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable

from any2ds.core.processes import child_process

_LAST_LINES = 1.0  # seconds to wait for the last lines of children that have ended


_listening: ChildOutput | None = None


def listen_ahead() -> ChildOutput:
    """Passes the lines of children on to standard error, until there is somebody who shows them; it has yet to start.
    Raises OSError."""

    def pass_on(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    return ChildOutput(pass_on)


def stop_listening() -> None:
    """Pass on the last lines of children, unless a status block has shown them."""
    if _listening is not None:
        _listening.close()


class ChildOutput:
    """From `start` to `close`, calls `take` in a thread with each line, without its end, that children write."""

    def __init__(self, take: Callable[[str], None]) -> None:
        global _listening
        self._take = take
        inlet, self._outlet = os.pipe()
        self._thread = threading.Thread(target=self._listen, args=(inlet,), name="any2ds-children", daemon=True)
        child_process.let_children_write_to(self._outlet)
        _listening = self

    def start(self) -> ChildOutput:
        self._thread.start()
        return self

    @classmethod
    def of(cls, take: Callable[[str], None]) -> ChildOutput:
        """The one that listens already, from now on to `take`; else a new one."""
        if _listening is None:
            return cls(take).start()
        _listening._take = take
        return _listening

    def close(self) -> None:
        """Children that still run are read until they end."""
        global _listening
        _listening = None
        child_process.let_children_write_to(None)
        os.close(self._outlet)
        self._thread.join(_LAST_LINES)

    def _listen(self, inlet: int) -> None:
        with open(inlet, encoding="utf-8", errors="backslashreplace") as stream:
            for line in stream:
                with contextlib.suppress(OSError, ValueError):  # nobody reads: children must not wait for that
                    self._take(line.rstrip("\n"))
