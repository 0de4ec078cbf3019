"""What a person wants to know when a run has ended: what arrived, what did not and why, how fast, where it is."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from any2ds.config.retry_command import retry_call, retry_command
from any2ds.core import plugins
from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.failures import NO_FAILURES, SUCCESS, FailureCode, failure_code, in_order
from any2ds.core.layout import Layout, report_file
from any2ds.core.reports import RunReport
from any2ds.core.terminal.text import clock, percent, rate, shortened, size
from any2ds.dataset import shard_list
from any2ds.run.reporters._contract import RunInfo

_MOST = 12  # failures that have a line of their own
_LONGEST_URL = 300
_LONGEST_PATTERN = 200
_UNKNOWN = FailureCode(False, "a failure that this version does not know", "See error_message in the metadata.")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line of the table."""

    code: str
    rows: int
    share: float  # 0 to 1 of all rows
    meaning: str
    advice: str = ""  # of failures
    example: str = ""  # URL of a row with it, where one is known
    transient: bool = False  # whether another attempt can help


@dataclass(frozen=True, slots=True)
class Ending:
    """The figures of a run, where they lead to, and what to do next."""

    total: RunReport
    outcomes: tuple[Outcome, ...]
    folder: str
    pattern: str | None = None  # of the data files of all finished shards
    retry: str | None = None  # the command, or the call, that tries again what may work now
    received: int = 0  # bytes that came in, if anybody knows
    page: str | None = None  # where the report is going to be, written last
    left_to_others: int | None = None  # shards, if there are others who make the dataset as well

    @property
    def retryable(self) -> int:
        """Rows that another attempt can help."""
        return sum(outcome.rows for outcome in self.outcomes if outcome.transient)

    @property
    def failed(self) -> int:
        total = self.total
        return total.count - total.successes - total.dropped - total.filtered - total.duplicates


def ending(total: RunReport, run: RunInfo, done: Iterable[int] = (), received: int = 0) -> Ending:
    """`done` are the shards that this run has finished, in order."""
    folder = printable(redacted(run.output.url))
    found = outcomes(total)
    retry = None
    if any(outcome.transient for outcome in found):
        again = retry_command if run.from_shell else retry_call
        retry = printable(redacted(again(str(run.options.get("output_folder") or run.output.url), run.options)))
    left = len(run.missing()) if run.member and not (total.left_shards or total.failed_shards) else None
    has_page = run.options.get("report") and total.shards and not total.left_shards and not (run.member and left != 0)
    name = report_file(run.made is not None and run.made.preset is not None)
    page = f"{folder.rstrip('/')}/{name}" if has_page else None
    pattern = None if run.member else _pattern(run, done)  # nobody tells it of the shards of others
    return Ending(total, found, folder, pattern, retry, received, page, left)


def outcomes(total: RunReport) -> tuple[Outcome, ...]:
    """Successes first, then what is most frequent."""
    ordered = in_order(total.status_dict)
    return tuple(_outcome(code, rows, total) for code, rows in ordered)


def _outcome(code: str, rows: int, total: RunReport) -> Outcome:
    share = rows / total.count if total.count else 0.0
    if code in NO_FAILURES:
        return Outcome(code, rows, share, NO_FAILURES[code])
    try:
        known = failure_code(code)
    except KeyError:  # shards of other versions, and of other tools
        known = _UNKNOWN
    example = shortened(total.examples.get(code, ""), _LONGEST_URL)
    return Outcome(printable(code), rows, share, known.meaning, known.advice, example, known.transient)


def _pattern(run: RunInfo, done: Iterable[int]) -> str | None:
    if run.made is None:
        return None
    names = Layout(run.made.number_sample_per_shard, run.made.oom_shard_count)
    extension = plugins.load("writers", run.made.output_format).extension
    if extension is None and run.made.preset is not None:  # there is nothing in sight but figures
        return None
    every = (number for number, _ in itertools.groupby(heapq.merge(sorted(run.finished), done)))
    return shard_list.pattern(every, names, extension)


def shown(end: Ending, command: str = "download", codes: str = "") -> tuple[Table | None, list[Text]]:
    """The table, and the lines below it, which are not to be broken: some are to be copied."""
    total = end.total
    if not (total.shards or total.failed_shards or total.left_shards):
        if command == "retry" and not total.count:
            failed = "has failed" if codes == "all" else f"has failed with {codes}"
            return None, [Text(f"nothing to try again: no row in {end.folder} {failed}")]
        if total.skipped_shards:
            were = shard_count(total.skipped_shards, f"in {end.folder} was", f"in {end.folder} were")
            everything = "" if total.skipped_shards == 1 else "all "
            nothing = f"nothing to do: {everything}{were} finished before"
            return None, [Text(line) for line in [nothing, *_of_others(end)]]
    lines = [Text(line) for line in [*_lines(end), *_of_others(end)]]
    if command == "retry" and total.count:
        lines.append(Text(f"{total.successes:,} of the {_rows(total.count)} tried again are stored now"))
    if end.retry and not total.left_shards:  # else it is the same command that goes on first
        lines.append(Text(f"to try again what may work now ({_rows(end.retryable)}): ").append(end.retry, style="bold"))
    return _table(end) if end.outcomes else None, lines


def _of_others(end: Ending) -> list[str]:
    """Who makes a dataset with others is told whether it is whole."""
    if end.left_to_others is None:
        return []
    if not end.left_to_others:
        return ["all shards of the list are there: the dataset is whole"]
    count = shard_count(end.left_to_others, "is", "are")
    return [f"{count} left to others, whose last one writes what tells of the whole dataset (or any2ds finish)"]


def tell(console: Console, end: Ending, command: str = "download", codes: str = "") -> None:
    """Print it."""
    table, lines = shown(end, command, codes)
    if table is not None:
        console.print(table, "")
    for line in lines:
        console.print(line, soft_wrap=True)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _table(end: Ending) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("outcome", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("what it means, and what to do", overflow="fold")
    failures = [outcome for outcome in end.outcomes if outcome.code not in NO_FAILURES]
    left_out = {outcome.code for outcome in failures[_MOST:]} if len(failures) > _MOST + 1 else set()
    for outcome in end.outcomes:
        if outcome.code in left_out:
            continue
        is_failure = outcome.code not in NO_FAILURES
        table.add_row(
            Text(outcome.code, style="yellow" if is_failure else "green" if outcome.code == SUCCESS else ""),
            f"{outcome.rows:,}",
            percent(outcome.rows, end.total.count),
            _explained(outcome),
        )
    if left_out:
        rows = sum(outcome.rows for outcome in failures if outcome.code in left_out)
        words = Text(f"... and {len(left_out)} more: any2ds inspect, or status_dict in the *_stats.json, have them all")
        table.add_row("", f"{rows:,}", percent(rows, end.total.count), words)
    return table


def _explained(outcome: Outcome) -> Text:
    text = Text(outcome.meaning)
    if outcome.advice:
        text.append(f". {outcome.advice}")
    if outcome.example:
        text.append(f"\n{outcome.example}", style="dim")
    return text


def _lines(end: Ending) -> list[str]:
    total = end.total
    seconds = max(total.seconds, 1e-3)
    attempts = f", {rate(total.attempts / seconds)} attempts/s" if total.attempts else ""
    received = f" ({size(end.received)} received)" if end.received > total.bytes else ""
    counted = {"dropped": total.dropped, "filtered": total.filtered, "duplicates": total.duplicates}
    lines = [
        f"{_rows(total.count)}, {total.successes:,} stored"
        + (f" as {total.samples:,} samples" if total.samples != total.successes else "")
        + f", {end.failed:,} failed"
        + "".join(f", {count:,} {name}" for name, count in counted.items() if count),
        f"{size(total.bytes)}{received} in {clock(seconds)}: {rate(total.successes / seconds)} stored/s{attempts}, "
        f"{size(max(total.bytes, end.received) / seconds)}/s",
        f"{shard_count(total.shards)} written to {end.folder}"
        + (f", {total.skipped_shards:,} finished before" if total.skipped_shards else "")
        + (f", {len(total.failed_shards):,} FAILED" if total.failed_shards else "")
        + (f", {total.left_shards:,} open {_one(total.left_shards, 'one', 'ones')} given up" * (total.left_shards > 0))
        + (", whose rows are fetched again" * (total.left_shards > 0)),
    ]
    if end.pattern is not None:
        is_short = len(end.pattern) <= _LONGEST_PATTERN
        where = end.pattern if is_short else "the files that .any2ds/shards lists"
        lines.append(f"to load: {end.folder.rstrip('/')}/{where}" if is_short else f"to load: {where}")
    if end.page:
        lines.append(f"to look at: {end.page}")
    if total.robots.files:
        excluded = sum(total.status_dict.get(code, 0) for code in ("robots", "robots_unreachable"))
        lines.append(
            f"{total.robots.files:,} robots.txt asked for ({size(total.robots.bytes)}, "
            f"{total.robots.seconds / total.robots.files:.2f} s each), {_rows(excluded)} excluded by them"
        )
    lines += [
        f"not processed: {_one(files, '1 file', f'{files:,} files')} ({printable(reason)})"
        for reason, files in total.not_processed.items()
    ]
    return lines


def _one(count: int, one: str, several: str) -> str:
    return one if count == 1 else several


def to_json(end: Ending) -> Mapping[str, Any]:
    """The same for machines: see README, "Watching a run"."""
    total = end.total
    seconds = max(total.seconds, 1e-3)
    return {
        "output_folder": end.folder,
        "pattern": end.pattern,
        "report": end.page,
        "seconds": round(total.seconds, 3),
        "rows": total.count,
        "stored": total.successes,
        "failed": end.failed,
        "dropped": total.dropped,
        "filtered": total.filtered,
        "duplicates": total.duplicates,
        "samples": total.samples,
        "bytes": total.bytes,
        "attempts": total.attempts,
        "successes_per_second": round(total.successes / seconds, 3),
        "attempts_per_second": round(total.attempts / seconds, 3),
        "bytes_per_second": round(total.bytes / seconds, 3),
        "shards": total.shards,
        "shards_before": total.skipped_shards,
        "shards_failed": len(total.failed_shards),
        "shards_given_up": total.left_shards,
        "shards_of_others": end.left_to_others,
        "robots_files": total.robots.files,
        "not_processed": dict(total.not_processed),
        "outcomes": [
            {
                "code": outcome.code,
                "rows": outcome.rows,
                "share": round(outcome.share, 6),
                "meaning": outcome.meaning,
                "advice": outcome.advice or None,
                "example": outcome.example or None,
                "transient": outcome.transient,
            }
            for outcome in end.outcomes
        ],
        "retryable_rows": end.retryable,
        "retry": end.retry,
    }
