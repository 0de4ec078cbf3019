"""Reports to a person, or to what reads a log: live on a terminal or in a notebook, in lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from rich.text import Text

from any2ds.config.options import GROUPS, RETRY_GROUPS, WatchOptions
from any2ds.config.signature import with_keywords
from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.core.terminal.children import ChildOutput
from any2ds.core.terminal.notebook import WIDTH, Cell, kernel
from any2ds.core.terminal.stderr import stderr_console
from any2ds.run.reporters import _screen
from any2ds.run.reporters._contract import PeriodicReporter, Reporter, RunInfo
from any2ds.run.reporters._facts import finish, progress
from any2ds.run.reporters._jsonlines import JsonLines

if TYPE_CHECKING:
    from any2ds.core.terminal.live import StatusBlock

_CELL_INTERVAL = 1.0  # seconds between two updates of a notebook
_MOST_NAMES, _LONGEST_NAME = 8, 60  # of columns that are named, and characters of each
_ASCII = str.maketrans("━─·…", "#-|~")


def console_reporter(watch: WatchOptions, run: RunInfo) -> Reporter:
    """Writes to standard error: standard output is the user's."""
    if watch.log_format == "json":
        return _Json(watch, run)
    return _Notebook(watch, run) if kernel() is not None else _Terminal(watch, run)


class _Screen(PeriodicReporter):
    """What terminals and notebooks have in common."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        groups = RETRY_GROUPS if run.command == "retry" else GROUPS
        self._phrase = str if run.from_shell else partial(with_keywords, function=run.command, groups=groups)

    def on_shard(self, event: ShardReport | ShardError) -> None:
        super().on_shard(event)
        if isinstance(event, ShardError):
            again = " (it is tried again at the end)" if event.again else ""
            reason = printable(redacted(event.reason))
            self._message(f"shard {event.shard_id} failed: {reason}{again}", "yellow" if event.again else "red")

    def on_stopping(self, open_shards: int, grace: float) -> None:
        super().on_stopping(open_shards, grace)
        self._message(_stopping(open_shards, grace), "yellow")

    def _message(self, text: str, style: str = "") -> None:
        raise NotImplementedError

    def _status(self, columns: int) -> list[Text]:
        return _screen.live(progress(self.now), columns)

    def _first_lines(self, finished_shards: int) -> Iterator[str]:
        run, folder = self.run, _screen.as_place(printable(redacted(self.run.output.url)))
        if run.command == "retry":
            yield f"any2ds retries failed rows ({', '.join(run.options.get('codes') or ())}) of {folder}"
            return
        already = f", where {shard_count(finished_shards, 'is', 'are')} finished already" if finished_shards else ""
        who = f"any2ds, {run.member.replace('-', ' ')}," if run.member else "any2ds"
        yield f"{who} writes to {folder}{already}"
        if run.left_out and not finished_shards:  # which have what they have
            names = ", ".join(printable(name[:_LONGEST_NAME]) for name in run.left_out[:_MOST_NAMES])
            more = f" and {len(run.left_out) - _MOST_NAMES:,} more" if len(run.left_out) > _MOST_NAMES else ""
            caption = "" if run.options.get("caption_col") else "--caption_col and "
            options = f"{caption}--save_additional_columns keep{'' if caption else 's'} columns"
            yield f"not kept from the list: {names}{more} ({self._phrase(options)})"


class _Terminal(_Screen):
    """A status block on a terminal, elsewhere a line every now and then."""

    _block: StatusBlock | None = None

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        self._console = stderr_console()

    def on_start(self, finished_shards: int) -> None:
        for line in self._first_lines(finished_shards):
            self._message(line)
        if self._console.can_redraw:
            from any2ds.core.terminal.live import StatusBlock

            block = StatusBlock(self._console, self._status, self._line, self.interval)
            self._block = block if block.try_start() else None

    def record(self) -> None:
        if self._block is None:
            self._console.print(self._line())

    def on_finish(self, total: RunReport) -> None:
        if self._block is not None:
            self._block.stop()
        width = self._console.width if self._console.is_terminal else None
        for line in _screen.ending(finish(total, self), width, self._phrase):
            self._console.print(line)

    def _message(self, text: str, style: str = "") -> None:
        self._console.print_message(text, style)

    def _status(self, columns: int) -> list[Text]:
        lines = super()._status(columns)
        for line in lines if self._console.is_ascii else ():
            line.plain = line.plain.translate(_ASCII)
        return lines

    def _line(self) -> str:
        return _screen.plain(progress(self.now))


class _Notebook(_Screen):
    """The same lines in one output of the cell, with the table in the end."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        self.interval = _CELL_INTERVAL
        self._cell = Cell()
        self._lines: list[Text] = []  # that stay
        self._lock = threading.Lock()

    def on_start(self, finished_shards: int) -> None:
        self._add(*map(Text, self._first_lines(finished_shards)))

    def record(self) -> None:
        self._add(status=True)

    def on_finish(self, total: RunReport) -> None:
        self._add(*_screen.ending(finish(total, self), WIDTH, self._phrase))

    def _message(self, text: str, style: str = "") -> None:
        self._add(Text(text, style=style), status=True)

    def _add(self, *lines: Text, status: bool = False) -> None:
        """Lines that stay, above the status if it is to be seen."""
        with self._lock:
            self._lines += lines
            self._cell.show([*self._lines, *(self._status(WIDTH) if status else [])])


class _Json(JsonLines):
    """Lines of JSON, also for what child processes write."""

    _children: ChildOutput | None = None

    def on_start(self, finished_shards: int) -> None:
        with contextlib.suppress(OSError):  # no more pipes: children write to standard error themselves
            self._children = ChildOutput.of(lambda line: self.write("output", text=line))
        super().on_start(finished_shards)

    def on_finish(self, total: RunReport) -> None:
        if self._children is not None:
            self._children.close()
        super().on_finish(total)


def _stopping(open_shards: int, grace: float) -> str:
    if not open_shards:
        return "stopping: no shard is open; press Ctrl-C again to stop at once"
    shards = shard_count(open_shards, "is", "are")
    if not grace:
        return f"stopping: {shards} open and given up; finished shards are kept"
    return (
        f"stopping: {shards} open; one whose last rows are being downloaded gets up to {grace:g} s to finish, any "
        "other is given up now; finished shards are kept; press Ctrl-C again to stop at once"
    )


PART = console_reporter
