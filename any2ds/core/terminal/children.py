"""What child processes write to standard error, read line by line, so that it gets between nobody's lines."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from any2ds.core.processes import child_process

_FAREWELL = 1.0  # seconds for their last words, once they are gone


class ChildrensWords:
    """From now on, until `close`, child processes that are started are heard by `take`, in a thread of its own.

    It is given lines without their ends. Those of children that live on are given to it afterwards as well.
    """

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        inlet, self._outlet = os.pipe()
        self._thread = threading.Thread(target=self._listen, args=(inlet,), name="any2ds-words", daemon=True)
        self._thread.start()
        child_process.let_children_write_to(self._outlet)

    def close(self) -> None:
        child_process.let_children_write_to(None)
        os.close(self._outlet)
        self._thread.join(_FAREWELL)

    def _listen(self, inlet: int) -> None:
        with open(inlet, encoding="utf-8", errors="backslashreplace") as stream:
            for line in stream:
                with contextlib.suppress(OSError, ValueError):  # nobody reads: they must not wait for that
                    self._take(line.rstrip("\n"))
