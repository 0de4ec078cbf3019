"""A status block at the end of a terminal, redrawn by rich while everything else is printed above it."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import ConsoleRenderable, Group
from rich.live import Live
from rich.text import Text

from any2ds.core.terminal.children import ChildOutput
from any2ds.core.terminal.stderr import StderrConsole, is_terminal

_REDRAWS_PER_SECOND = 4
_SUSPENDED = 4.0  # seconds without a redraw after which the process was stopped (Ctrl-Z) and the shell has written

_one_at_a_time = threading.Lock()  # a terminal has one end


class StatusBlock(Live):
    """Shows `render(columns)`. Output of print, logging and child processes appears above it.

    While a shell has the process in the background, `line()` is printed every `interval` seconds instead.
    """

    def __init__(
        self,
        console: StderrConsole,
        render: Callable[[int], Sequence[Text]],
        line: Callable[[], str],
        interval: float,
    ) -> None:
        self._render, self._line, self._interval = render, line, interval
        self._printed = self._drawn = time.monotonic()
        self._children: ChildOutput | None = None
        self._handlers: list[tuple[Any, Any]] = []
        self._stderr = console
        super().__init__(
            console=console,
            refresh_per_second=_REDRAWS_PER_SECOND,
            transient=True,
            redirect_stdout=is_terminal(sys.stdout),
            get_renderable=self._block,
        )

    def try_start(self) -> bool:
        """False, and nothing is shown, if this process shows another block already."""
        if not _one_at_a_time.acquire(blocking=False):
            return False
        streams = {id(stream): name for name in ("stdout", "stderr") if (stream := getattr(sys, name)) is not None}
        self.start()
        with contextlib.suppress(OSError):  # no more pipes: children write to the terminal themselves
            self._children = ChildOutput.of(lambda line: self._stderr.print(Text.from_ansi(line)))
        for handler in logging.getLogger().handlers:
            if isinstance(handler, logging.StreamHandler) and (name := streams.get(id(handler.stream))):
                self._handlers.append((handler, handler.stream))
                handler.setStream(getattr(sys, name))
        return True

    def stop(self) -> None:
        """Remove the block, and let everybody write as before."""
        if not self.is_started:
            return
        if self._children is not None:
            self._children.close()
        for handler, stream in self._handlers:
            handler.setStream(stream)
        try:
            with contextlib.suppress(OSError, ValueError):
                super().stop()
        finally:
            _one_at_a_time.release()

    def refresh(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            if self._is_in_foreground():
                super().refresh()
            elif time.monotonic() - self._printed >= self._interval and self.is_started:
                self._printed = time.monotonic()
                self._stderr.print(self._line())

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        now, is_in_foreground = time.monotonic(), self._is_in_foreground()
        if not is_in_foreground or now - self._drawn > _SUSPENDED:
            self._live_render._shape = None  # what stands above the cursor is not ours to erase
        self._drawn = now
        return super().process_renderables(renderables) if is_in_foreground else renderables

    def _block(self) -> Group:
        """The cursor rests on an empty line below, where a shell goes on if this process is killed."""
        columns, height = self._stderr.size
        lines = list(self._render(columns - 1))[: max(1, height - 2)]
        for line in lines:
            line.truncate(columns - 1, overflow="crop")
        return Group(*lines, Text())

    def _is_in_foreground(self) -> bool:
        if not hasattr(os, "tcgetpgrp"):
            return True
        try:
            return os.tcgetpgrp(self._stderr.file.fileno()) in (os.getpgrp(), 0)
        except (OSError, ValueError):  # not the terminal that this process was started from
            return True
