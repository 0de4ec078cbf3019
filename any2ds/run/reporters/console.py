"""Reports to a person, or to what reads a log: live on a terminal or in a notebook, in lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from any2ds.config.options import GROUPS, WatchOptions
from any2ds.config.signature import with_keywords
from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.core.terminal.children import ChildOutput
from any2ds.core.terminal.notebook import WIDTH, Cell, kernel
from any2ds.core.terminal.stderr import stderr_console
from any2ds.core.version import __version__
from any2ds.run.reporters import _jsonlines, _status
from any2ds.run.reporters._contract import PeriodicReporter, Reporter, RunInfo
from any2ds.run.reporters._summary import Summary, as_place, print_summary, summary_lines, summary_of, to_json

if TYPE_CHECKING:
    from any2ds.core.terminal.live import StatusBlock

_CELL_INTERVAL = 1.0  # seconds between two updates of a notebook
_MOST_NAMES, _LONGEST_NAME = 8, 60  # of columns that are named, and characters of each


def console_reporter(watch: WatchOptions, run: RunInfo) -> Reporter:
    """Writes to standard error: standard output is the user's."""
    if watch.log_format == "json":
        return _Json(watch, run)
    return _Notebook(watch, run) if kernel() is not None else _Terminal(watch, run)


class _Console(PeriodicReporter):
    """What the three have in common."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch.log_interval)
        self._run = run
        self._done: set[int] = set()  # shards
        self._was_stopped = False

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if isinstance(event, ShardError):
            self._shard_failed(event)
        else:
            self._done.add(event.shard_id)

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._was_stopped = True
        self._message(_stopping(open_shards, grace), "yellow")

    def _shard_failed(self, error: ShardError) -> None:
        self._message(_failed(error), "yellow" if error.again else "red")

    def _message(self, text: str, style: str) -> None:
        raise NotImplementedError

    def _summary(self, total: RunReport) -> Summary:
        return summary_of(total, self._run, sorted(self._done), self.now, self._was_stopped)

    def _status(self, columns: int, glyphs: _status.Glyphs = _status.UNICODE) -> list[Text]:
        if self.now is None:
            return [Text(" starting")]
        return _status.live(self.now, columns, glyphs, "the shards" if self._run.command == "retry" else "the list")


class _Terminal(_Console):
    """A status block on a terminal, elsewhere a line every now and then."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        self._console = stderr_console()
        self._glyphs = _status.ASCII if self._console.is_ascii else _status.UNICODE
        self._block: StatusBlock | None = None

    def on_start(self, finished_shards: int) -> None:
        for line in _first_lines(self._run, finished_shards):
            self._console.print_message(line)
        if self._console.can_redraw:
            from any2ds.core.terminal.live import StatusBlock

            block = StatusBlock(
                self._console, lambda columns: self._status(columns, self._glyphs), self._line, self._interval
            )
            self._block = block if block.try_start() else None

    def record(self, now: Snapshot) -> None:
        if self._block is None:
            self._console.print(self._line())

    def _message(self, text: str, style: str) -> None:
        self._console.print_message(text, style)

    def on_finish(self, total: RunReport) -> None:
        if self._block is not None:
            self._block.stop()
        print_summary(self._console, self._summary(total), self._run)

    def _line(self) -> str:
        return _status.plain(self.now) if self.now is not None else "starting"


class _Notebook(_Console):
    """The same lines in one output of the cell, with the table in the end."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        self._interval = _CELL_INTERVAL
        self._cell = Cell()
        self._lines: list[Text] = []  # that stay
        self._lock = threading.Lock()

    def on_start(self, finished_shards: int) -> None:
        self._add(*map(Text, _first_lines(self._run, finished_shards)))

    def record(self, now: Snapshot) -> None:
        self._show()

    def _message(self, text: str, style: str) -> None:
        self._add(Text(text, style=style))

    def on_finish(self, total: RunReport) -> None:
        self.now = None
        self._add(*summary_lines(self._summary(total), self._run, WIDTH))

    def _add(self, *lines: Text) -> None:
        self._lines += lines
        self._show()

    def _show(self) -> None:
        with self._lock:
            self._cell.show([*self._lines, *(self._status(WIDTH) if self.now is not None else [])])


class _Json(_Console):
    """A line for whatever happens, and one about the progress every now and then."""

    _children: ChildOutput | None = None

    def on_start(self, finished_shards: int) -> None:
        with contextlib.suppress(OSError):  # no more pipes: children write to standard error themselves
            self._children = ChildOutput.of(lambda line: _jsonlines.write("output", text=line))
        _jsonlines.write(
            "start",
            any2ds=__version__,
            command=self._run.command,
            output_folder=redacted(self._run.output.url),
            shards_before=finished_shards,
            columns_left_out=list(self._run.left_out),
            **({"member": self._run.member} if self._run.member else {}),
        )

    def record(self, now: Snapshot) -> None:
        _jsonlines.write("progress", **_jsonlines.progress(now))

    def _shard_failed(self, error: ShardError) -> None:
        fields = {"shard_id": error.shard_id, "reason": error.reason, "attempt": error.attempt, "again": error.again}
        _jsonlines.write("shard_failed", **fields)

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._was_stopped = True
        _jsonlines.write("stopping", shards_open=open_shards, grace=grace)

    def on_finish(self, total: RunReport) -> None:
        if self._children is not None:
            self._children.close()
        _jsonlines.write("finish", command=self._run.command, **to_json(self._summary(total)))


def _first_lines(run: RunInfo, finished_shards: int) -> Iterator[str]:
    yield _started(run, finished_shards)
    if run.left_out and not finished_shards:  # which have what they have
        names = ", ".join(printable(name[:_LONGEST_NAME]) for name in run.left_out[:_MOST_NAMES])
        more = f" and {len(run.left_out) - _MOST_NAMES:,} more" if len(run.left_out) > _MOST_NAMES else ""
        options = "--caption_col and --save_additional_columns keep columns"
        if run.options.get("caption_col"):
            options = "--save_additional_columns keeps columns"
        options = options if run.from_shell else with_keywords(options, run.command, GROUPS)
        yield f"not kept from the list: {names}{more} ({options})"


def _started(run: RunInfo, finished_shards: int) -> str:
    folder = as_place(printable(redacted(run.output.url)))
    if run.command == "retry":
        codes = ", ".join(run.options.get("codes") or ())
        return f"any2ds retries failed rows ({codes}) in {shard_count(finished_shards)} of {folder}"
    already = f", where {shard_count(finished_shards, 'is', 'are')} finished already" if finished_shards else ""
    who = f"any2ds, {run.member.replace('-', ' ')}," if run.member else "any2ds"
    return f"{who} writes to {folder}{already}"


def _failed(error: ShardError) -> str:
    again = " (it is tried again at the end)" if error.again else ""
    return f"shard {error.shard_id} failed: {printable(redacted(error.reason))}{again}"


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
