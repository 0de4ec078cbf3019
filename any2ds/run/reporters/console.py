"""Tells a person, or what reads a log, how a run goes: live on a terminal or in a notebook, in lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Protocol

from rich.text import Text

from any2ds.config.options import WatchOptions
from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.core.terminal.children import ChildrensWords
from any2ds.core.terminal.live import Live
from any2ds.core.terminal.notebook import Cell, kernel
from any2ds.core.terminal.stderr import StderrConsole
from any2ds.core.version import __version__
from any2ds.dataset.shard_list import Numbers
from any2ds.run.reporters import _jsonlines, _status
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporters._ending import Ending, ending, tell, to_json

_NOTEBOOK_WIDTH = 100  # columns


class _Voice(Protocol):
    """A way to tell it. Errors of shards, and the end, stay; progress may be forgotten."""

    def start(self, finished_shards: int) -> None: ...
    def progress(self, now: Snapshot) -> None: ...
    def shard_failed(self, error: ShardError) -> None: ...
    def stopping(self, open_shards: int, grace: float) -> None: ...
    def finish(self, end: Ending) -> None: ...


class ConsoleReporter:
    """Writes to standard error, so that standard output stays the user's."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self._run = run
        self._done = Numbers()
        self._received = 0
        self._voice: _Voice
        if watch.log_format == "json":
            self._voice = _Json(watch, run)
        elif kernel() is not None:
            self._voice = _Notebook(run)
        else:
            self._voice = _Words(watch, run)

    def on_start(self, finished_shards: int) -> None:
        self._voice.start(finished_shards)

    def on_progress(self, now: Snapshot) -> None:
        self._received = now.received
        self._voice.progress(now)

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if isinstance(event, ShardError):
            self._voice.shard_failed(event)
        else:
            self._done.add(event.shard_id)

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._voice.stopping(open_shards, grace)

    def on_finish(self, total: RunReport) -> None:
        self._voice.finish(ending(total, self._run, self._done, self._received))


class _Words:
    """For people: on a terminal a few lines that change, elsewhere a line every now and then."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self._run, self._interval = run, watch.log_interval
        self._console = StderrConsole()
        self._glyphs = _status.ASCII if self._console.is_ascii else _status.UNICODE
        self._now: Snapshot | None = None
        self._live: Live | None = None
        if self._console.can_redraw:
            self._live = Live(self._console, self._lines, self._line, self._interval)
        self._logged = 0.0

    def start(self, finished_shards: int) -> None:
        self._say(_beginning(self._run, finished_shards))
        self._logged = time.monotonic()
        if self._live is not None and not self._live.start():
            self._live = None

    def progress(self, now: Snapshot) -> None:
        self._now = now
        if self._live is not None:
            self._live.refresh()
        elif time.monotonic() - self._logged >= self._interval:
            self._logged = time.monotonic()
            self._say(self._line())

    def shard_failed(self, error: ShardError) -> None:
        self._say(_failed(error), "yellow" if error.again else "red")

    def stopping(self, open_shards: int, grace: float) -> None:
        self._say(_stopping(open_shards, grace), "yellow")

    def finish(self, end: Ending) -> None:
        if self._live is not None:
            self._live.stop()
        tell(self._console, end, self._run.command, _codes(self._run))

    def _say(self, words: str, style: str = "") -> None:
        self._console.print(Text(words, style=style), soft_wrap=True)

    def _line(self) -> str:
        return _status.plain(self._now) if self._now is not None else "starting"

    def _lines(self, columns: int) -> list[Text]:
        now = self._now
        return _live(now, columns, self._run, self._glyphs) if now is not None else [Text(" starting")]


class _Notebook:
    """For people at a notebook: the same lines in one output, in the end the table."""

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._cell = Cell()
        self._kept: list[str] = []  # lines that stay
        self._now: Snapshot | None = None
        self._shown = 0.0
        self._lock = threading.RLock()

    def start(self, finished_shards: int) -> None:
        self._keep(_beginning(self._run, finished_shards))

    def progress(self, now: Snapshot) -> None:
        self._now = now
        if time.monotonic() - self._shown >= 1.0:
            self._show()

    def shard_failed(self, error: ShardError) -> None:
        self._keep(_failed(error))

    def stopping(self, open_shards: int, grace: float) -> None:
        self._keep(_stopping(open_shards, grace))

    def finish(self, end: Ending) -> None:
        self._now = None
        console = StderrConsole(width=_NOTEBOOK_WIDTH)
        console.no_color = True
        with console.capture() as captured:
            tell(console, end, self._run.command, _codes(self._run))
        plain = Text.from_ansi(captured.get()).plain
        self._keep("\n".join(line.rstrip() for line in plain.splitlines()))

    def _keep(self, line: str) -> None:
        self._kept.append(line)
        self._show()

    def _show(self) -> None:
        with self._lock:
            self._shown = time.monotonic()
            lines = (
                [line.plain for line in _live(self._now, _NOTEBOOK_WIDTH, self._run)] if self._now is not None else []
            )
            self._cell.show("\n".join([*self._kept, *lines]))


class _Json:
    """For machines: a line for whatever happens, and one every now and then."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self._run, self._interval = run, watch.log_interval
        self._logged = 0.0
        self._children: ChildrensWords | None = None

    def start(self, finished_shards: int) -> None:
        with contextlib.suppress(OSError):  # no more pipes: they write themselves
            self._children = ChildrensWords(lambda line: _jsonlines.say("output", text=line))
        self._logged = time.monotonic()
        _jsonlines.say(
            "start",
            any2ds=__version__,
            command=self._run.command,
            output_folder=redacted(self._run.output.url),
            shards_before=finished_shards,
            **({"member": self._run.member} if self._run.member else {}),
        )

    def progress(self, now: Snapshot) -> None:
        if time.monotonic() - self._logged >= self._interval:
            self._logged = time.monotonic()
            _jsonlines.say("progress", **_jsonlines.progress(now))

    def shard_failed(self, error: ShardError) -> None:
        _jsonlines.say(
            "shard_failed",
            shard_id=error.shard_id,
            reason=redacted(error.reason),
            attempt=error.attempt,
            again=error.again,
        )

    def stopping(self, open_shards: int, grace: float) -> None:
        _jsonlines.say("stopping", shards_open=open_shards, grace=grace)

    def finish(self, end: Ending) -> None:
        if self._children is not None:
            self._children.close()
        _jsonlines.say("finish", command=self._run.command, **to_json(end))


def _live(now: Snapshot, columns: int, run: RunInfo, glyphs: _status.Glyphs = _status.UNICODE) -> list[Text]:
    return _status.live(now, columns, glyphs, "the shards" if run.command == "retry" else "the list")


def _codes(run: RunInfo) -> str:
    """That a retry is about."""
    return ", ".join(run.options.get("codes") or ())


def _beginning(run: RunInfo, finished_shards: int) -> str:
    folder = printable(redacted(run.output.url))
    if run.command == "retry":
        return f"any2ds tries again what failed ({_codes(run)}) in {shard_count(finished_shards)} of {folder}"
    already = f", where {shard_count(finished_shards, 'is', 'are')} finished already" if finished_shards else ""
    who = f"any2ds, {_words(run.member)}," if run.member else "any2ds"
    return f"{who} writes to {folder}{already}"


def _words(member: str) -> str:
    return member.replace("-", " ")


def _failed(error: ShardError) -> str:
    again = " (it is tried again at the end)" if error.again else ""
    return f"shard {error.shard_id} failed: {printable(redacted(error.reason))}{again}"


def _stopping(open_shards: int, grace: float) -> str:
    if not open_shards:
        return "stopping: no shard is open; again to stop at once"
    open_ones = (
        "the open shard may be finished if its"
        if open_shards == 1
        else (f"of {open_shards:,} open shards those may be finished whose")
    )
    return f"stopping: {open_ones} last rows are under way, for up to {grace:g} s; again to stop at once"


PART = ConsoleReporter
