"""The summary of a run: what arrived, what failed and why, how fast, where it is, and what to do next."""

from __future__ import annotations

import heapq
import itertools
import math
import shlex
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from any2ds.config.command_line import load_call, report_call, report_command, retry_call, retry_command
from any2ds.config.options import GROUPS, RETRY_GROUPS, changed
from any2ds.config.signature import with_keywords
from any2ds.core import plugins
from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.failures import NO_FAILURES, SUCCESS, FailureCode, failure_code, in_order
from any2ds.core.filetypes import UNKNOWN_EXT, type_of_name
from any2ds.core.layout import report_file
from any2ds.core.members import member_figures
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport
from any2ds.core.terminal.stderr import wrapped
from any2ds.core.text import duration, number, percent, size
from any2ds.core.text import rows as row_count
from any2ds.dataset import shard_list
from any2ds.dataset.kinds import DRAWN, kind_of_ext
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporters._status import shortened
from any2ds.transforms.contract import STEPS

_MOST_FAILURES = 12  # with a line of their own
_MOST_TYPES = 8  # that are named
_LONGEST_URL = 300
_NARROWEST = 30  # columns for what an outcome means; if there are fewer, it stands below
_LONGEST_PATTERN = 200
_OF_UNKNOWN_STEPS = frozenset({"transform_timeout", "transform_crash"})  # codes
_LARGE = 100  # rows of a shard, from which smaller shards are worth a thought
_UNKNOWN = FailureCode(False, "a failure that this version does not know", "See error_message in the metadata.")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line of the table."""

    code: str
    rows: int
    share: float  # 0 to 1 of all rows
    meaning: str
    advice: str = ""  # of failures
    example: str = ""  # URL of a row with it, if known
    transient: bool = False  # whether another attempt can help


@dataclass(frozen=True, slots=True)
class Summary:
    total: RunReport
    outcomes: tuple[Outcome, ...]  # success first, then the most frequent
    folder: str
    pattern: str | None = None  # of the data files of all finished shards
    load: str | None = None  # the call that loads them, if any2ds.load takes their format
    retry: str | None = None  # the command, or the call, that retries what may work now
    received: int = 0  # bytes, if known
    page: str | None = None  # where the report is going to be
    unused: Mapping[str, str] = field(default_factory=dict)  # options that changed no file -> what they are for
    types: Mapping[str, int] = field(default_factory=dict)  # media type -> stored files, the most frequent first
    are_types_of_all: bool = False  # whether they are those of the whole dataset, of which this run made a part
    of_other_kinds: int = 0  # stored files that are no images, if the options are for images alone
    report: str | None = None  # the command, or the call, that writes it of what is finished, if the run does not
    left_to_others: int | None = None  # shards, if others make the dataset as well
    shard_size: float = 0  # rows of the largest, if the list has so many; 0 if unknown
    limit: int | None = None  # rows of the list that the run read, if it may have more
    phrase: Callable[[str], str] = str  # a message as the user gives options: as flags, or as keywords

    @property
    def place(self) -> str:
        """The folder as it stands in a sentence."""
        return as_place(self.folder)

    @property
    def retryable(self) -> int:
        """Rows that another attempt can help."""
        return sum(outcome.rows for outcome in self.outcomes if outcome.transient)

    @property
    def failed(self) -> int:
        total = self.total
        return total.count - total.successes - total.dropped - total.filtered - total.duplicates


def summary_of(
    total: RunReport,
    run: RunInfo,
    done: Iterable[int] = (),
    now: Snapshot | None = None,
    was_stopped: bool = False,
) -> Summary:
    """`done` are the shards that this run has finished, in order; `now` its metrics in the end."""
    folder = printable(redacted(run.output.url))
    outcomes = tuple(_outcome(code, rows, total) for code, rows in in_order(total.status_dict))
    given_folder = str(run.options.get("output_folder") or run.output.url)
    has_stores = bool(run.storage.storage_options)  # with the lists, files or the folder in one of them
    is_in_store = has_stores and not run.output.is_local
    retry = None
    if any(outcome.transient for outcome in outcomes):
        command = retry_command if run.from_shell else retry_call
        retry = printable(redacted(command(given_folder, run.options, has_stores)))
    left = len(run.missing()) if run.member and not (total.left_shards or total.failed_shards) else None
    wants_page = run.options.get("report") and (total.shards or total.skipped_shards)
    is_whole = not (was_stopped or total.left_shards)
    report = None
    made_nothing = is_whole and total.skipped_shards and not total.shards and run.command != "retry"
    has_page = wants_page and is_whole and not (run.member and left != 0)
    if ((wants_page and not is_whole) or made_nothing) and not (run.member or has_page):
        write = report_command if run.from_shell else report_call
        report = printable(redacted(write(given_folder, run.options, is_in_store)))
    name = report_file(run.made is not None and run.made.preset is not None)
    page = f"{folder.rstrip('/')}/{name}" if has_page else None
    limit = run.options.get("limit")
    total_rows = now.total_rows if now is not None else None
    groups = RETRY_GROUPS if run.command == "retry" else GROUPS
    of_dataset = None if was_stopped else run.stored_exts()
    return Summary(
        total,
        outcomes,
        folder,
        types=_types(total.exts if of_dataset is None else of_dataset),
        are_types_of_all=of_dataset is not None and bool(total.skipped_shards or run.finished),
        pattern=None if run.member else _pattern(run, done),  # shards of other members are unknown here
        load=load_call(printable(redacted(given_folder)), is_in_store) if _has_numbers(run) else None,
        retry=retry,
        received=now.received if now is not None else 0,
        page=page,
        unused=_unused_options(run.steps, total),
        of_other_kinds=_of_other_kinds(total.exts) if _is_for_images(run) else 0,
        report=report,
        left_to_others=left,
        shard_size=min(run.made.number_sample_per_shard, total_rows or math.inf) if run.made is not None else 0,
        limit=limit if limit is not None and total_rows == limit else None,
        phrase=str if run.from_shell else partial(with_keywords, function=run.command, groups=groups),
    )


def as_place(folder: str) -> str:
    """With a slash at its end: `any2ds writes to files` reads like a sentence."""
    return f"{folder.rstrip('/')}/"


def _outcome(code: str, rows: int, total: RunReport) -> Outcome:
    share = rows / total.count if total.count else 0.0
    if code in NO_FAILURES:
        return Outcome(code, rows, share, NO_FAILURES[code])
    try:
        known = failure_code(code)
    except KeyError:  # from shards of other versions or tools
        known = _UNKNOWN
    example = shortened(total.examples.get(code, ""), _LONGEST_URL)
    return Outcome(printable(code), rows, share, known.meaning, known.advice, example, known.transient)


def _pattern(run: RunInfo, done: Iterable[int]) -> str | None:
    if run.made is None:
        return None
    names = run.made.layout
    extension = plugins.load("writers", run.made.output_format).extension
    if extension is None and run.made.preset is not None:  # the preset shows no metadata files
        return None
    shards = (shard for shard, _ in itertools.groupby(heapq.merge(sorted(run.finished), done)))
    return shard_list.pattern(shards, names, extension)


def _has_numbers(run: RunInfo) -> bool:
    """Whether samples of this format can be read by their number, as `any2ds.load` does it."""
    made = run.made
    return made is not None and (
        hasattr(plugins.load("writers", made.output_format), "indexed") and made.tfrecord_compression != "gzip"
    )


def _unused_options(steps: Mapping[str, Sequence[str]], total: RunReport) -> dict[str, str]:
    """The options, such as `--file_size, --resize_mode`, that changed or failed no file of the run -> the kinds of
    files that they are for, such as `image`. Empty if no file came, or if it is unknown which steps one went through.
    """
    has_arrived = total.successes + total.failed_to_subsample + total.filtered > 0
    if not has_arrived or not _OF_UNKNOWN_STEPS.isdisjoint(total.status_dict):
        return {}
    steps_of: dict[str, list[str]] = {}
    for step, options in steps.items():
        for option in options:
            steps_of.setdefault(option, []).append(step)
    unused: dict[str, str] = {}
    for option, own in steps_of.items():
        if not any(total.processed.get(step) for step in own):
            *others, last = [STEPS[step].files for step in own]
            kinds = f"{', '.join(others)} or {last}" if others else last
            unused[kinds] = f"{unused[kinds]}, --{option}" if kinds in unused else f"--{option}"
    return {options: kinds for kinds, options in unused.items()}


def _types(exts: Mapping[str, int]) -> Mapping[str, int]:
    """Media type -> files; of an extension that stands for none, the extension."""
    found = Counter[str]()
    for ext, files in exts.items():
        name = type_of_name(f"file.{ext}") or ("of unknown type" if ext == UNKNOWN_EXT else f".{printable(ext)}")
        found[name] += files
    return dict(found.most_common())


def _is_for_images(run: RunInfo) -> bool:
    """Whether the options ask for a change of images, for nothing of other media, and leave other files as they are."""
    if run.command != "download" or run.options.get("only_images") or run.options.get("preset"):
        return False
    asked = {
        name
        for name, value in changed(run.options).items()
        if any(name in step.options for step in STEPS.values()) or name == "transform"
    }
    return "decode_check" not in asked and bool(asked) and asked <= STEPS["image"].options


def _of_other_kinds(exts: Mapping[str, int]) -> int:
    """Files that are neither images nor drawings, which are counted as not processed."""
    return sum(files for ext, files in exts.items() if kind_of_ext(ext) != "image" and ext.lower() not in DRAWN)


def print_summary(console: Console, summary: Summary, run: RunInfo) -> None:
    """The console does not wrap lines, since some are to be copied; on a terminal others are wrapped here, at words."""
    for line in summary_lines(summary, run, console.width):
        for part in _fitting(line, console.width) if console.is_terminal else [line]:
            console.print(part, soft_wrap=True)


def _fitting(line: Text, width: int) -> list[Text]:
    """The line in as many as it takes; what is to be copied stands on a line of its own."""
    if line.cell_len <= width or line.plain.startswith(" "):  # an example of a failure
        return [line]
    label, colon, value = line.plain.partition(": ")
    if colon and label.startswith("to "):
        return [Text(f"{label}:"), *(Text(f"  {part}", style="bold") for part in _shell_lines(value, width - 2))]
    return [Text(wrapped(line.plain, width))]


def _shell_lines(value: str, width: int) -> list[str]:
    """A command in lines that a POSIX shell takes as one; anything else as it is."""
    if not value.startswith("any2ds ") or sys.platform == "win32":
        return [value]
    lines = ["any2ds"]
    for word in map(shlex.quote, shlex.split(value)[1:]):
        if len(lines[-1]) + len(word) + 1 <= width - 2:  # with the backslash
            lines[-1] += f" {word}"
        else:
            lines.append(f"    {word}")
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


def summary_lines(summary: Summary, run: RunInfo, width: int) -> Iterator[Text]:
    """What became of the rows, then where the dataset is and what to do next."""
    total = summary.total
    if not (total.shards or total.failed_shards or total.left_shards):
        if run.command == "retry" and not total.count:
            codes = ", ".join(run.options.get("codes") or ())
            failed = "has failed" if codes == "all" else f"has failed with {codes}"
            if codes == "transient":
                failed = "has a failure that another attempt can help; --codes=all tries the others again"
            yield Text(summary.phrase(f"nothing to retry: no row in {summary.place} {failed}"))
            yield Text(_types_line(summary))
            return
        if total.skipped_shards:
            were = shard_count(total.skipped_shards, f"in {summary.place} was", f"in {summary.place} were")
            yield Text(f"nothing to do: {'' if total.skipped_shards == 1 else 'all '}{were} finished before")
            yield from map(Text, (_types_line(summary), *_of_others(summary), *_where(summary)))
            return
    if summary.outcomes:
        yield from _outcomes(summary, width)
        yield Text()
    gained_nothing = run.command == "retry" and not total.successes
    figures = (*_rates(summary), _types_line(summary), *_shards(summary, gained_nothing))
    lines = (*figures, *_where(summary), *_notes(summary))
    yield from (Text(summary.phrase(line)) for line in (*lines, *_of_others(summary)))
    if run.command == "retry" and total.count:
        are = "is" if total.successes == 1 else "are"
        yield Text(f"tried again: {row_count(total.count)}, of which {total.successes:,} {are} stored now")
        if not total.successes:
            yield Text(summary.phrase(f"nothing was recovered: {_after_a_retry_in_vain(summary.outcomes)}"))
    if summary.retry and not total.left_shards and not gained_nothing:  # with shards left, that command comes first
        line = Text(f"to retry what may work now ({row_count(summary.retryable)}): ")
        yield line.append(summary.retry, style="bold")


def _after_a_retry_in_vain(outcomes: Iterable[Outcome]) -> str:
    """What another retry can do for rows that have failed once more."""
    transient = {outcome.code for outcome in outcomes if outcome.transient}
    gone = "most hosts that cannot be resolved are gone for good"
    if not transient - {"dns"}:
        return gone if transient else "such failures last"
    timed_out = any(code.startswith("timeout") for code in transient)
    longer = ", or with a longer --timeout" if timed_out else ""
    return f"try again later{longer}{f'; {gone}' if 'dns' in transient else ''}"


def _of_others(summary: Summary) -> list[str]:
    """Whether the dataset that several runs make together is complete."""
    if summary.left_to_others is None:
        return []
    if not summary.left_to_others:
        return ["all shards of the list are there: the dataset is complete"]
    count = shard_count(summary.left_to_others, "is", "are")
    return [f"{count} left to others; the last of them writes the files about the whole dataset (or any2ds finish)"]


def _outcomes(summary: Summary, width: int) -> Iterator[Text]:
    """A line for each outcome: its code, rows and share, then what it means and what to do, wrapped at words. The
    example stands below on a line that is not wrapped, so that it can be copied."""
    count = summary.total.count
    failures = [outcome for outcome in summary.outcomes if outcome.code not in NO_FAILURES]
    rest = failures[_MOST_FAILURES:] if len(failures) > _MOST_FAILURES + 1 else []
    shown = [outcome for outcome in summary.outcomes if outcome not in rest]
    cells = [(outcome.code, f"{outcome.rows:,}", percent(outcome.rows, count)) for outcome in shown]
    if rest:
        rows = sum(outcome.rows for outcome in rest)
        cells.append((f"{len(rest)} more", f"{rows:,}", percent(rows, count)))
    titles = ("outcome", "rows", "share")
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]

    def row(code: str, rows: str, share: str) -> str:
        return f"{code:<{widths[0]}}  {rows:>{widths[1]}}  {share:>{widths[2]}}"

    indent = sum(widths) + 6
    is_narrow = width - indent < _NARROWEST
    indent = 4 if is_narrow else indent
    yield Text(row(*titles), style="bold")
    for outcome, cell in itertools.zip_longest(shown, cells):
        style = "yellow"
        explained = "any2ds inspect, or status_dict in the *_stats.json, show them all"
        if outcome is not None:
            style = "green" if outcome.code == SUCCESS else "" if outcome.code in NO_FAILURES else style
            explained = f"{outcome.meaning}. {outcome.advice}" if outcome.advice else outcome.meaning
        explained = summary.phrase(explained)
        wrapped = textwrap.wrap(explained, width - indent, break_long_words=False, break_on_hyphens=False)
        line = Text(row(*cell))
        line.stylize(style, 0, len(cell[0]))
        yield line if is_narrow else line.append(f"  {wrapped[0]}")
        yield from (Text(" " * indent + part) for part in (wrapped if is_narrow else wrapped[1:]))
        if outcome is not None and outcome.example:
            example = f"e.g. {outcome.example}"
            room = max(4, width - cell_len(example))  # further left rather than broken by the terminal
            yield Text(f"{' ' * min(indent, room)}{example}", style="dim")


def _rates(summary: Summary) -> Iterator[str]:
    """How much, and how fast."""
    total = summary.total
    seconds = _seconds_of_rates(total)
    counted = {"dropped": total.dropped, "filtered": total.filtered, "duplicates": total.duplicates}
    samples = f" as {total.samples:,} samples" if total.samples != total.successes else ""
    others = "".join(f", {count:,} {name}" for name, count in counted.items() if count)
    yield f"{row_count(total.count)}, {total.successes:,} stored{samples}, {summary.failed:,} failed{others}"

    received = f" ({size(summary.received)} received)" if summary.received > total.bytes else ""
    attempts = f", {number(total.attempts / seconds)} attempts/s" if total.attempts else ""
    speed = f"{number(total.successes / seconds)} stored/s{attempts}"
    per_second = size(max(total.bytes, summary.received) / seconds)
    total_time = f" ({duration(total.seconds)} with start-up and end)" if seconds < 0.95 * total.seconds else ""
    yield f"{size(total.bytes)}{received} in {duration(seconds)}{total_time}: {speed}, {per_second}/s"


def _types_line(summary: Summary) -> str:
    """What the stored files are: pages of HTML are no failures, and no images."""
    where = "types in the whole dataset" if summary.are_types_of_all else "types"
    shown = [f"{files:,} {name}" for name, files in summary.types.items()]
    more = [f"{len(shown) - _MOST_TYPES:,} more types"] if len(shown) > _MOST_TYPES else []
    return f"{where}: {', '.join([*shown[:_MOST_TYPES], *more]) or 'none, no file is stored'}"


def _shards(summary: Summary, gained_nothing: bool) -> Iterator[str]:
    """What became of the shards; nothing if a retry left them as they were."""
    total = summary.total
    if gained_nothing and not (total.failed_shards or total.left_shards):
        return
    line = f"{shard_count(total.shards)} written to {summary.place}"
    if total.skipped_shards:
        line += f", {total.skipped_shards:,} finished before"
    if total.failed_shards:
        line += f", {len(total.failed_shards):,} FAILED"
    if total.left_shards:
        line += f", {total.left_shards:,} open given up: their rows are fetched again"
    yield line
    if total.left_shards and summary.shard_size >= _LARGE:
        smaller = f"--number_sample_per_shard={summary.shard_size // 10:.0f} for a new dataset"
        yield f"smaller shards ({smaller}) lose fewer rows when a run is stopped"
    if summary.limit is not None:
        yield f"these are the first {summary.limit:,} rows of the list: the same command without --limit makes the rest"


def _notes(summary: Summary) -> Iterator[str]:
    """What people may not expect."""
    total = summary.total
    if total.robots.files:
        excluded = sum(total.status_dict.get(code, 0) for code in ("robots", "robots_unreachable"))
        each = f"{total.robots.seconds / total.robots.files:.2f} s each"
        files = f"{total.robots.files:,} robots.txt asked for ({size(total.robots.bytes)}, {each})"
        yield f"{files}, {row_count(excluded)} excluded by them"
    for member in member_figures(total.members):
        if member.failed:
            yield f"{member.name}: {member.text}"
    for reason, count in total.not_processed.items():
        yield f"not processed: {count:,} {'file' if count == 1 else 'files'} ({printable(reason)})"
    for options, kinds in summary.unused.items():
        yield summary.phrase(f"{options} changed nothing: no {kinds} was among the files")
    if count := summary.of_other_kinds:
        are = (
            "1 file is no image, stored as it is"
            if count == 1
            else f"{count:,} files are no images, stored as they are"
        )
        yield f"{are}: --only_images refuses such files"


def _where(summary: Summary) -> Iterator[str]:
    """Where the data and the report are."""
    total, folder = summary.total, summary.folder
    if summary.pattern is not None and (total.successes or total.skipped_shards):  # else there is nothing to load
        is_long = len(summary.pattern) > _LONGEST_PATTERN
        where = "the files that .any2ds/shards lists" if is_long else f"{folder.rstrip('/')}/{summary.pattern}"
        if summary.load:
            yield f"to load: {summary.load}"
        yield f"to load without any2ds: {where}"
    if summary.page:
        yield f"to look at: {summary.page}"
    if summary.report:
        yield f"to look at what is finished: {summary.report}"


def _seconds_of_rates(total: RunReport) -> float:
    """What rates are of: the time at work, as on the report page."""
    return max(total.at_work or total.seconds, 1e-3)


def to_json(summary: Summary) -> Mapping[str, Any]:
    """For machines: see docs/watching.md."""
    total = summary.total
    seconds = _seconds_of_rates(total)
    return {
        "output_folder": summary.folder,
        "pattern": summary.pattern,
        "report": summary.page,
        "seconds": round(total.seconds, 3),
        "rows": total.count,
        "stored": total.successes,
        "failed": summary.failed,
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
        "shards_of_others": summary.left_to_others,
        "robots_files": total.robots.files,
        "types": dict(summary.types),
        "not_processed": dict(total.not_processed),
        "unused_options": dict(summary.unused),
        **({"members": {name: dict(of) for name, of in total.members.items()}} if total.members else {}),
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
            for outcome in summary.outcomes
        ],
        "retryable_rows": summary.retryable,
        "retry": summary.retry,
    }
