"""Shows a `Summary` to a person, on a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from any2ds.core import text
from any2ds.core.errors import printable
from any2ds.core.failures import NO_FAILURES, in_order, meaning_of
from any2ds.core.histogram import Distribution
from any2ds.core.metadata import STORED_BYTES
from any2ds.core.terminal.notebook import html
from any2ds.core.terminal.stderr import facts_table, write_parts
from any2ds.dataset.recipe_file import trial_text
from any2ds.dataset.shards import ranges_text

if TYPE_CHECKING:
    from any2ds.describe.summary import Summary

_OUTCOMES_SHOWN = 20  # of img2dataset each error message is one
_LONGEST_PATTERN = 200  # characters on a terminal; with many gaps it is long
_QUANTILES = ("smallest", "first_quartile", "median", "third_quartile", "largest")


def show(summary: Summary, stream: TextIO) -> None:
    """For a person, on a terminal or as plain text; control characters from lists and servers are escaped."""
    write_parts(_parts(summary), stream)


def as_html(summary: Summary) -> str:
    """For notebooks."""
    return html(_parts(summary))


def _parts(found: Summary) -> Iterator[Any]:
    yield Text(printable(found.output_folder), style="bold")
    yield facts_table(_facts(found))
    if found.outcomes:
        yield Text("\noutcomes", style="bold")
        yield _outcomes(found)
    if found.columns:
        yield Text("\ncolumns of the metadata", style="bold")
        columns = ", ".join(f"{printable(name[:60])} {printable(kind[:60])}" for name, kind in found.columns.items())
        yield Padding(Text(columns), (0, 0, 0, 2))
    if found.metadata_rows:
        yield Text("\nsamples", style="bold")
        yield _samples(found)
    for problem in found.problems[:5]:
        yield Text(f"problem: {printable(problem)}", style="yellow")
    if len(found.problems) > 5:
        yield Text(f"… and {len(found.problems) - 5:,} more problems: any2ds verify lists all", style="yellow")


def _facts(found: Summary) -> Iterator[tuple[str, str]]:
    yield "made by", f"{found.made_by}, format {found.output_format or 'unknown'}"
    if found.recipe is not None:
        splits = ", ".join(f"{name} {rows:,}" for name, rows in found.recipe["splits"].items())
        trial = "" if found.recipe["trial"] is None else f"; {trial_text(found.recipe['trial'])}"
        yield "recipe", f"{found.recipe['name']}: {splits}{trial}"
        for split, reasons in found.recipe["skipped"].items():
            yield "left out", f"{split}: " + ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    for each in found.lists if found.recipe is None else ():
        first = "the first " if each["limit"] else ""
        rows = "not read to its end yet" if each["rows"] is None else f"{first}{text.rows(each['rows'])}"
        yield "list", f"{_first(each['files'], 3) or 'given from Python'}: {rows}"
    missing = f", {len(found.missing):,} MISSING ({ranges_text(found.missing)})" if found.missing else ""
    unfinished = f", {found.unfinished:,} unfinished" if found.unfinished else ""
    read = found.coverage.shards_of_stats
    part = "" if found.has_all_stats else f"; outcomes are those of {read:,} of them"
    yield "shards", f"{found.shards:,} finished{missing}{unfinished}{part}"
    if found.pattern:
        is_long = len(found.pattern) > _LONGEST_PATTERN
        yield "data", f"{found.pattern[:_LONGEST_PATTERN]} …" if is_long else found.pattern
    counted = found.coverage.rows_of_stats
    share = f" ({text.percent(found.successes, counted)})" if counted else ""
    others = {"dropped": found.dropped, "filtered": found.filtered, "duplicates": found.duplicates}
    counts = "".join(f", {count:,} {name}" for name, count in others.items() if count)
    total = "" if found.rows in (None, counted) else f"{found.rows:,}; of "
    yield "rows", f"{total}{counted:,}: {found.successes:,} stored{share}, {found.failed:,} failed{counts}"
    if found.samples not in (None, found.successes):
        yield "samples", f"{found.samples:,}"
    if found.bytes is not None:
        measured = found.measured
        mean = f", {text.size(found.bytes // measured)} on average" if measured else ""
        of = "" if measured == found.samples else f" (of {measured:,} files; the size of the others is unknown)"
        yield "files", f"{text.size(found.bytes)}{mean}{of}"
    for member in found.members:
        yield member.name, member.text
    for reason, count in found.not_processed.items():
        yield "not processed", f"{count:,} {'file' if count == 1 else 'files'} ({reason})"
    if found.sizes.count:
        sizes = ((name.replace("_", " "), text.size(getattr(found.sizes, name))) for name in _QUANTILES)
        yield "sizes", " · ".join(f"{name} {size}" for name, size in sizes)
    if found.widths.count and found.heights.count:
        sides = {"width": found.widths, "height": found.heights}
        yield "pixels", " · ".join(f"{side} {_span(values)}" for side, values in sides.items())
    if found.types:
        files = sum(each.files for each in found.types.values())
        types = [f"{name[:60]} {text.percent(each.files, files)}" for name, each in found.types.items()]
        looked = found.coverage.shards_of_metadata
        of = "" if looked == found.shards else f" (in {looked} of the shards)"
        yield "types", _first(types, 6, " · ") + of
    if found.started is not None and found.ended is not None:
        span = text.duration(found.ended - found.started)
        first, last = text.moment(found.started), text.moment(found.ended)
        yield "made", f"{first} ({span})" if first == last else f"{first} to {last} ({span})"
    if found.repeated:
        yield "same bytes", f"{text.number(found.repeated)} files as another one"
    for column, values in found.labels.items():
        yield column[:40], _first([f"{value} {samples:,}" for value, samples in values.items()], 8)
    if found.options:
        shown = [option.removeprefix("--")[:200] for option in found.given]
        yield "options", " ".join(shown) or "the default ones"


def _span(values: Distribution) -> str:
    smallest, median, largest = (f"{round(value):,}" for value in (values.smallest, values.median, values.largest))
    return smallest if smallest == largest else f"{smallest} to {largest}, median {median}"


def _first(items: Sequence[str], number: int, separator: str = ", ") -> str:
    more = f" … and {len(items) - number:,} more" if len(items) > number else ""
    return separator.join(items[:number]) + more


def _outcomes(found: Summary) -> Padding:
    total = sum(found.outcomes.values())
    ordered = in_order(found.outcomes)
    table = _table(40)
    table.add_column()
    for code, rows in ordered[:_OUTCOMES_SHOWN]:
        style = "" if code in NO_FAILURES else "yellow"
        about = Text(f"{text.percent(rows, total):>6}  {meaning_of(code)}")
        table.add_row(Text(printable(code[:200])), f"{rows:,}", about, style=style)
    if rest := ordered[_OUTCOMES_SHOWN:]:
        rows = sum(count for _, count in rest)
        table.add_row(f"… and {len(rest):,} more", f"{rows:,}", f"{text.percent(rows, total):>6}")
    return Padding(table, (0, 0, 0, 2))


def _samples(found: Summary) -> Padding:
    table = _table(30)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for sample in found.metadata_rows:
        name = ".".join(str(sample[part]) for part in ("key", "ext") if sample.get(part))
        size = sample.get("bytes") if sample.get(STORED_BYTES.name) is None else sample[STORED_BYTES.name]
        shown_size = text.size(size) if isinstance(size, int) else ""
        table.add_row(Text(printable(name)), shown_size, Text(printable(str(sample.get("url") or ""))))
        if caption := sample.get("caption"):
            table.add_row("", "", Text(printable(str(caption)), style="italic"))
    return Padding(table, (0, 0, 0, 2))


def _table(longest_name: int) -> Table:
    """A table of a name and a number, to which a column of texts is added."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=longest_name)
    table.add_column(justify="right", no_wrap=True)
    return table
