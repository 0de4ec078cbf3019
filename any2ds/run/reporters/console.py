"""Reports to a person, or to what reads a log: live on a terminal or in a notebook, in lines elsewhere."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich.text import Text

from any2ds.config.options import WatchOptions
from any2ds.core.terminal.children import ChildOutput
from any2ds.core.terminal.notebook import WIDTH, Cell, kernel
from any2ds.core.terminal.stderr import stderr_console, wrapped
from any2ds.run.reporters import _screen
from any2ds.run.reporters._contract import Facts, Reporter, RunInfo
from any2ds.run.reporters.jsonl import JsonLines

if TYPE_CHECKING:
    from any2ds.core.terminal.live import StatusBlock

_CELL_INTERVAL = 1.0  # seconds between two updates of a notebook
_ASCII = str.maketrans("━─·…", "#-|~")


def console_reporter(watch: WatchOptions, run: RunInfo) -> Reporter:
    """Writes to standard error: standard output is the user's."""
    if watch.log_format == "json":
        return _Json(watch, run)
    return _Notebook(watch, run) if kernel() is not None else _Terminal(watch, run)


class _Terminal(Reporter):
    """A status block on a terminal, elsewhere a line every now and then."""

    _now: Facts | None = None  # the newest progress
    _block: StatusBlock | None = None

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        self._console = stderr_console()
        # Columns at which sentences are wrapped, if they are.
        self._width = (lambda: self._console.width) if self._console.is_terminal else lambda: None

    def report(self, event: str, facts: Facts) -> None:
        if event == "start":
            for line in _screen.beginning(facts):
                self._say(line)
            self._show_status()
        elif event == "progress":
            self._now = facts
            if self.is_due():
                self._record()
        elif event == "shard_failed":
            self._say(_screen.failed(facts), "yellow" if facts["again"] else "red")
        elif event == "stopping":
            self._say(_screen.stopping(facts), "yellow")
        elif event == "finish":
            self._now = None
            if self._block is not None:
                self._block.stop()
            self._show(*_screen.ending(facts, self._width()))

    def _say(self, text: str, style: str = "") -> None:
        width = self._width()
        self._show(Text(wrapped(text, width) if width else text, style))

    def _show(self, *lines: Text) -> None:
        """Lines that stay."""
        for line in lines:
            self._console.print(line)

    def _show_status(self) -> None:
        """Show how the run goes from now on, where that can be redrawn."""
        if self._console.can_redraw:
            from any2ds.core.terminal.live import StatusBlock

            block = StatusBlock(self._console, self._status, self._line, self.interval)
            self._block = block if block.try_start() else None

    def _record(self) -> None:
        """Say how the run goes."""
        if self._block is None:
            self._console.print(self._line())

    def _status(self, columns: int) -> list[Text]:
        lines = _screen.live(self._now, columns) if self._now is not None else []
        for line in lines if self._console.is_ascii else ():
            line.plain = line.plain.translate(_ASCII)
        return lines

    def _line(self) -> str:
        return _screen.plain(self._now) if self._now is not None else ""


class _Notebook(_Terminal):
    """A notebook: the lines in one output of the cell, with the table in the end."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        self.interval, self._width = _CELL_INTERVAL, lambda: WIDTH
        self._cell = Cell()
        self._lines: list[Text] = []  # that stay

    def _show(self, *lines: Text) -> None:
        self._lines += lines
        self._cell.show([*self._lines, *self._status(WIDTH)])

    def _show_status(self) -> None:
        """Show the status block, which is drawn from the first progress on."""

    def _record(self) -> None:
        self._show()


class _Json(JsonLines):
    """Lines of JSON, also for what child processes write."""

    _children: ChildOutput | None = None

    def report(self, event: str, facts: Facts) -> None:
        if event == "start":
            with contextlib.suppress(OSError):  # no more pipes: children write to standard error themselves
                self._children = ChildOutput.of(lambda line: self.write("output", text=line))
        if event == "finish" and self._children is not None:
            self._children.close()
        super().report(event, facts)


PART = console_reporter
