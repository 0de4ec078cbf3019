"""Shows a run to a person: live on a terminal, in plain lines elsewhere, and in a report at the end."""

from __future__ import annotations

import time
from collections import Counter, deque

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from any2ds.config import Config
from any2ds.errors import redacted
from any2ds.reporters._stderr import StderrConsole
from any2ds.types import DUPLICATE, SUCCESS, Event, Progress, RunReport, ShardError, failure_code

_LOG_INTERVAL = 10.0  # seconds between two plain lines
_RATE_WINDOW = 10.0  # seconds over which the live rates are taken
_TOP = 5  # failures named while running
_NO_FAILURES = {SUCCESS: "stored", DUPLICATE: "not fetched: its URL stands in an earlier row"}


class ConsoleReporter:
    """Writes to standard error, so that standard output stays the user's."""

    def __init__(self, config: Config) -> None:
        self._output_folder = redacted(config.output.output_folder)
        self._console = StderrConsole()
        self._outcomes: Counter[str] = Counter()
        self._bytes = 0
        self._total = RunReport()
        self._history: deque[tuple[float, int, int]] = deque()  # time, successes, bytes
        self._started = self._logged = time.monotonic()
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4, transient=True)

    def on_start(self, finished_shards: int) -> None:
        self._started = self._logged = time.monotonic()
        already = f", where {finished_shards:,} shards are finished already" if finished_shards else ""
        self._console.print(f"any2ds writes to {self._output_folder}{already}", highlight=False, markup=False)
        if self._console.is_terminal:
            self._live.start()

    def on_event(self, event: Event, total: RunReport) -> None:
        self._total = total
        if isinstance(event, ShardError):
            self._console.print(
                f"shard {event.shard_id} failed: {event.reason}", style="red", markup=False, soft_wrap=True
            )
        if isinstance(event, Progress):
            self._outcomes.update(event.outcomes)
            self._bytes += event.bytes
            self._remember()
        if not self._console.is_terminal and time.monotonic() - self._logged >= _LOG_INTERVAL:
            self._logged = time.monotonic()
            self._console.print(self._status(), soft_wrap=True)

    def on_finish(self, total: RunReport) -> None:
        if self._live.is_started:
            self._live.stop()
        self._console.print(_report(total, self._output_folder))

    def _remember(self) -> None:
        now = time.monotonic()
        self._history.append((now, self._outcomes[SUCCESS], self._bytes))
        while now - self._history[0][0] > _RATE_WINDOW:
            self._history.popleft()

    def _render(self) -> RenderableType:
        failures = [(code, rows) for code, rows in self._outcomes.most_common(_TOP + 2) if code not in _NO_FAILURES]
        named = " · ".join(f"{code} {rows:,}" for code, rows in failures[:_TOP])
        return Group(self._status(), Text(f"  {named}", style="yellow")) if named else self._status()

    def _status(self) -> Text:
        rows, stored = sum(self._outcomes.values()), self._outcomes[SUCCESS]
        duplicates = self._outcomes[DUPLICATE]
        tried = rows - duplicates
        then, stored_then, bytes_then = self._history[0] if self._history else (self._started, 0, 0)
        if len(self._history) < 2:
            then, stored_then, bytes_then = self._started, 0, 0
        seconds = max(1e-3, time.monotonic() - then)
        return Text.assemble(
            (f"{rows:,} rows", "bold"),
            f", {stored:,} stored",
            f" ({stored / tried:.1%})" if tried else "",
            f", {duplicates:,} duplicates" if duplicates else "",
            f", {(stored - stored_then) / seconds:,.0f}/s, {decimal(int((self._bytes - bytes_then) / seconds))}/s",
            f", {self._total.shards:,} shards done, {_clock(time.monotonic() - self._started)}",
        )


def _report(total: RunReport, output_folder: str) -> RenderableType:
    """What a person wants to know at the end: what arrived, what did not and why, how fast, where it is."""
    if not (total.shards or total.failed_shards) and total.skipped_shards:
        return Text(f"nothing to do: all {total.skipped_shards:,} shards in {output_folder} were finished before")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, justify in (("outcome", "left"), ("rows", "right"), ("share", "right"), ("what it means", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for code, rows in sorted(total.status_dict.items(), key=lambda item: (item[0] != SUCCESS, -item[1], item[0])):
        meaning = _NO_FAILURES.get(code) or failure_code(code).meaning
        style = "" if code in _NO_FAILURES else "yellow"
        table.add_row(code, f"{rows:,}", f"{rows / total.count:.1%}", meaning, style=style)
    seconds = max(total.seconds, 1e-3)
    failed = total.count - total.successes - total.duplicates
    lines = [
        f"{total.count:,} rows, {total.successes:,} stored, {failed:,} failed"
        + (f", {total.duplicates:,} duplicates" if total.duplicates else ""),
        f"{decimal(total.bytes)} in {_clock(seconds)}: {total.successes / seconds:,.0f} stored/s, "
        f"{total.count / seconds:,.0f} rows/s, {decimal(int(total.bytes / seconds))}/s",
        f"{total.shards:,} shards written to {output_folder}"
        + (f", {total.skipped_shards:,} were finished before" if total.skipped_shards else "")
        + (f", {len(total.failed_shards):,} FAILED" if total.failed_shards else ""),
    ]
    if total.robots.files:
        excluded = sum(total.status_dict.get(code, 0) for code in ("robots", "robots_unreachable"))
        lines.append(
            f"{total.robots.files:,} robots.txt asked for ({decimal(total.robots.bytes)}, "
            f"{total.robots.seconds / total.robots.files:.2f} s each), {excluded:,} rows excluded by them"
        )
    return Group(table, *map(Text, lines)) if total.status_dict else Group(*map(Text, lines))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if seconds >= 60 else f"{seconds:.1f} s"


PART = ConsoleReporter
