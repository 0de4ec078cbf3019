"""Some lines at the end of a terminal, drawn over and over, while whatever else is written goes above them.

The cursor rests below them, where a shell goes on if we are killed. They are written over in one go, without being
cleared first, so that nothing flickers.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

from any2ds.core.terminal.children import ChildrensWords
from any2ds.core.terminal.stderr import StderrConsole, is_terminal

_AT_LEAST, _AT_MOST = 0.1, 1.0  # seconds between two drawings
_STOPPED = 4.0  # seconds without one after which we were stopped (Ctrl-Z), and a shell has written to the terminal
_LONGEST_LINE = 1 << 16  # characters of somebody else's line that may wait for its end

_one_at_a_time = threading.Lock()  # a terminal has one end


class Live:
    """Shows what `render` returns for a number of columns. Meanwhile print, logging and child processes write above.

    While the terminal is somebody else's, most often a shell's that has put us into the background, a `line` is written
    every `interval` seconds.

    Drawing is done in a thread of its own: a terminal that is stopped (Ctrl-S), or behind a line that is dead, holds
    nobody up who does not write to it.
    """

    def __init__(
        self,
        console: StderrConsole,
        render: Callable[[int], Sequence[Text]],
        line: Callable[[], str],
        interval: float,
    ) -> None:
        self._console, self._render, self._line, self._interval = console, render, line, interval
        self._told = time.monotonic()  # when there was such a line
        self._stream: Any = sys.stderr
        self._painter = Console(
            file=io.StringIO(),  # its words are captured
            force_terminal=True,
            force_jupyter=False,
            color_system=None if console.no_color else _colours(console),
            legacy_windows=False,
            highlight=False,
        )
        self._lock = threading.RLock()
        self._shown: list[int] = []  # cells of each line that stands there
        self._drawn = 0.0
        self._wanted, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="any2ds-live", daemon=True)
        self._above: list[_Above] = []
        self._children: ChildrensWords | None = None
        self._handlers: list[tuple[Any, Any]] = []
        self.is_started = False

    def start(self) -> bool:
        """False, and nothing is shown, if somebody else shows something already."""
        if not _one_at_a_time.acquire(blocking=False):
            return False
        self.is_started = True
        with contextlib.suppress(OSError):  # no more pipes: they write themselves
            self._children = ChildrensWords(lambda line: self._between(self._stream, line + "\n"))
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if is_terminal(stream):
                above = _Above(name, stream, self._between)
                self._above.append(above)
                setattr(sys, name, above)
                for handler in logging.getLogger().handlers:
                    if isinstance(handler, logging.StreamHandler) and handler.stream is stream:
                        self._handlers.append((handler, stream))
                        handler.setStream(above)
        self._thread.start()
        return True

    def refresh(self) -> None:
        """There is something new to be shown."""
        self._wanted.set()

    def stop(self) -> None:
        """Take the lines away, and let everybody write as before."""
        if not self.is_started:
            return
        self.is_started = False
        self._ended.set()
        self._wanted.set()
        self._thread.join(_AT_MOST)
        if self._children is not None:
            self._children.close()
        for handler, stream in self._handlers:
            handler.setStream(stream)
        for above in self._above:
            if getattr(sys, above.name) is above:
                setattr(sys, above.name, above.stream)
        with self._lock:
            for above in self._above:
                above.end()
            self._put(self._back(self._columns()))
            self._shown = []
        _one_at_a_time.release()

    def _run(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(OSError, ValueError):  # the terminal is gone
                self._draw()
            self._ended.wait(_AT_LEAST)
            self._wanted.wait(_AT_MOST)
            self._wanted.clear()

    def _draw(self) -> None:
        with self._lock:
            now = time.monotonic()
            if self._ended.is_set():
                return
            is_in_front = self._is_in_front()
            if not is_in_front or (self._drawn and now - self._drawn > _STOPPED):
                self._shown = []
            self._drawn = now
            if is_in_front:
                self._put(self._lines())
            elif now - self._told >= self._interval:
                self._told = now
                self._put(f"{self._line()}\n")

    def _between(self, stream: Any, text: str) -> None:
        """Write somebody's whole lines to `stream`, above ours."""
        with self._lock:
            if self._shown:
                self._put(self._back(self._columns()))
            has_shown, self._shown = bool(self._shown), []
            stream.write(text)
            stream.flush()
            if has_shown and not self._ended.is_set():
                self._put(self._lines())

    def _lines(self) -> str:
        """What draws our lines over those that stand there."""
        columns, height = self._console.size
        lines = list(self._render(columns - 1))[: max(1, height - 1)]
        parts = [self._up(columns)]
        for line in lines:
            line.truncate(columns - 1, overflow="crop")
            with self._painter.capture() as captured:
                self._painter.print(line, end="", soft_wrap=True)
            parts.append(f"{captured.get()}\x1b[K\n")
        parts.append("\x1b[J")
        self._shown = [line.cell_len for line in lines]
        return "".join(parts)

    def _back(self, columns: int) -> str:
        """What takes the lines away that stand there."""
        return self._up(columns) + "\x1b[J" if self._shown else ""

    def _up(self, columns: int) -> str:
        """To where they begin. A terminal that has become narrower has broken those that are longer now."""
        rows = sum(max(1, -(-cells // columns)) for cells in self._shown)
        return f"\r\x1b[{rows}A" if rows else "\r"

    def _columns(self) -> int:
        return max(1, self._console.width)

    def _put(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        self._stream.flush()

    def _is_in_front(self) -> bool:
        """Whether the terminal is ours, and not the shell's that has put us into the background."""
        if not hasattr(os, "tcgetpgrp"):
            return True
        try:
            return os.tcgetpgrp(self._stream.fileno()) in (os.getpgrp(), 0)
        except (OSError, ValueError):  # not the terminal that we were started from
            return True


class _Above:
    """Stands in the place of a stream to the terminal: whole lines go above ours, and the rest waits for its end."""

    def __init__(self, name: str, stream: Any, write: Callable[[Any, str], None]) -> None:
        self.name, self.stream, self._write = name, stream, write
        self._waiting = ""
        self._has_ended = False
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            if self._has_ended:
                self.stream.write(text)
                return len(text)
            self._waiting += text
            cut = len(self._waiting) if len(self._waiting) > _LONGEST_LINE else self._waiting.rfind("\n") + 1
            whole, self._waiting = self._waiting[:cut], self._waiting[cut:]
        if whole:
            self._write(self.stream, whole)
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        if self._has_ended:
            self.stream.flush()

    def end(self) -> None:
        """From now on it is that stream; an unfinished line is shown."""
        with self._lock:
            self._has_ended = True
            waiting, self._waiting = self._waiting, ""
        if waiting:
            self._write(self.stream, waiting + "\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _colours(console: Console) -> Literal["standard"] | None:
    """The sixteen that a terminal has its own idea of: they go with its background."""
    return "standard" if console.color_system else None
