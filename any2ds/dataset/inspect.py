"""`inspect()`: what is in a dataset, by the statistics of all shards and the metadata of a few."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TextIO

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from any2ds.config.command_line import given_options
from any2ds.config.options import GROUPS, InspectOptions, ParsedOptions
from any2ds.config.signature import command, with_keywords
from any2ds.core import text
from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.failures import NO_FAILURES, in_order, meaning_of
from any2ds.core.members import MemberFigures, member_figures
from any2ds.core.metadata import STORED_BYTES, without_credentials
from any2ds.core.terminal.notebook import html
from any2ds.core.terminal.stderr import joined, write_parts
from any2ds.dataset.compact import current_index
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.expected import ExpectedShards
from any2ds.dataset.places import located
from any2ds.dataset.recipe_file import RecipeFile, trial_text
from any2ds.dataset.shard_list import pattern, ranges_text
from any2ds.dataset.summary import MetadataSums, StatsSums, lists_of, shards_of_stats, spread
from any2ds.storage.stores import Stores

_SHARDS_OF_METADATA = 4
_OUTCOMES_SHOWN = 20  # of img2dataset each error message is one
_LONGEST_PATTERN = 200  # characters on a terminal; with many gaps it is long
_LONGEST = 2000  # characters of a value that are kept, for whoever reads the JSON
_SIZES = ("smallest", "first_quartile", "median", "third_quartile", "largest")


@dataclass(frozen=True, slots=True, repr=False)
class Overview:
    """What is in a dataset. Counts are sums over the finished shards, or over those of `shards_read`."""

    output_folder: str
    made_by: str
    output_format: str | None
    recipe: Mapping[str, Any] | None  # name, samples by split, skipped by split, trial; None if no recipe has made it
    shards: int  # finished
    shards_read: int  # those whose statistics were read: in stores 10,000 at most, spread over all
    pattern: str | None  # of their data files, as a shell and webdataset expand it
    missing: tuple[int, ...]
    unfinished: int  # shards that have files, but no statistics
    unreadable: int  # of the shards read, those whose statistics cannot be read, and are in no sum
    lists: tuple[Mapping[str, Any], ...]  # files, rows (None: not read to the end), first_shard
    options: Mapping[str, Any]  # that decide which row is in which shard
    rows: int
    successes: int  # rows that are stored
    stored: int  # samples: a row may have several
    failed: int
    dropped: int
    filtered: int
    duplicates: int
    bytes_stored: int | None  # None if unknown
    files_measured: int  # in `bytes_stored`: img2dataset does not record bytes
    started: float | None  # Unix seconds
    ended: float | None
    outcomes: Mapping[str, int]  # by rows, the most frequent first
    members: tuple[MemberFigures, ...]  # where rows have several URLs
    not_processed: Mapping[str, int]  # reason -> files that a step left as they came
    columns: Mapping[str, str]  # of the metadata, with their types
    looked_into: tuple[int, ...]  # shards that mime types, sizes and samples are from
    mime_types: Mapping[str, int]
    sizes: Mapping[str, int]  # in bytes: smallest, quartiles and largest
    widths: Mapping[str, int]  # in pixels, of images and video: the same; empty if unknown
    heights: Mapping[str, int]
    samples: tuple[Mapping[str, Any], ...]
    compacted: tuple[str, ...]  # files of the compacted metadata (`any2ds compact`); empty if there are none
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        rows = f"{text.rows(self.rows)}: {self.successes:,} stored, {self.failed:,} failed"
        return f"<Overview {self.output_folder}: {self.output_format}, {shard_count(self.shards)}, {rows}>"

    def _repr_html_(self) -> str:
        return html(_parts(self, partial(with_keywords, function="download", groups=GROUPS)))


@command([InspectOptions], "Raises UsageError for a folder that holds no dataset.")
def inspect(options: ParsedOptions) -> Overview:
    """Say what is in a dataset: how many rows, what became of them, how much they take, and some samples."""
    (wanted,) = options.groups
    stores = Stores(wanted.storage_options)
    wanted = located(wanted, stores)
    dataset = Dataset(wanted.output_folder, stores)
    return overview(dataset, wanted.output_folder, wanted.samples)


def overview(dataset: Dataset, folder: str, samples: int = 0) -> Overview:
    """Of a dataset in `folder`, with so many samples. In a store it reads the statistics of 10,000 shards at most."""
    finished = dataset.finished
    read = shards_of_stats(dataset)
    stats, metadata = StatsSums(keeps_works=False), MetadataSums(samples)
    stats.read(dataset, read)
    metadata.read(dataset, spread(finished, _SHARDS_OF_METADATA), random.Random(0))
    numbers, names = finished.ids, dataset.layout
    return Overview(
        output_folder=redacted(folder),
        made_by=dataset.made_by,
        output_format=dataset.output_format,
        recipe=_recipe(dataset),
        shards=len(finished),
        shards_read=len(read),
        pattern=pattern(numbers, names, dataset.writer.extension) if names and dataset.writer else None,
        missing=tuple(ExpectedShards.of(dataset, dataset.shards).missing),
        unfinished=len(dataset.shards) - len(finished),
        unreadable=len(read) - stats.shards,
        lists=lists_of(dataset),
        options=dict(dataset.run.options) if dataset.run else {},
        rows=stats.rows,
        successes=stats.successes,
        stored=stats.samples,
        failed=stats.failed,
        dropped=stats.dropped,
        filtered=stats.filtered,
        duplicates=stats.duplicates,
        bytes_stored=stats.bytes if stats.shards_with_bytes or not stats.shards else None,
        files_measured=stats.samples_with_bytes,
        started=stats.started,
        ended=stats.ended,
        outcomes=dict(stats.outcomes.most_common()),
        members=member_figures(stats.members),
        not_processed=stats.not_processed,
        columns={name[:_LONGEST]: kind[:_LONGEST] for name, kind in metadata.columns.items()},
        looked_into=tuple(metadata.shards),
        mime_types={name or "unknown": files for name, files in metadata.files.most_common()},
        sizes=_quartiles(metadata, "size"),
        widths=_quartiles(metadata, "width"),
        heights=_quartiles(metadata, "height"),
        samples=tuple(
            {name: _kept(value) for name, value in sample.items()} for sample in spread(metadata.samples, samples)
        ),
        compacted=_compacted(dataset),
        problems=(*stats.problems, *metadata.problems, *dataset.problems),
    )


def _recipe(dataset: Dataset) -> dict[str, Any] | None:
    if (found := RecipeFile.found(dataset.folder, dataset.entries)) is None:
        return None
    splits = {split.name: split.rows for split in found.splits}
    skipped = {split.name: dict(split.skipped) for split in found.splits if split.skipped}
    return {"name": found.full_name, "splits": splits, "skipped": skipped, "trial": found.trial}


def _compacted(dataset: Dataset) -> tuple[str, ...]:
    index = current_index(dataset)
    return tuple(file.name for file in index.files) if index else ()


def _quartiles(metadata: MetadataSums, column: str) -> dict[str, int]:
    found = metadata.distribution(column)
    return {name: round(getattr(found, name)) for name in _SIZES} if found.count else {}


def _kept(value: Any) -> Any:
    if isinstance(value, str):
        return without_credentials(value)[:_LONGEST]
    return value if value is None or isinstance(value, (int, float, bool)) else str(value)[:_LONGEST]


# --- showing it ---


def show(overview: Overview, stream: TextIO) -> None:
    """For a person, on a terminal or as plain text; control characters from lists and servers are escaped."""
    write_parts(_parts(overview), stream)


def _parts(found: Overview, phrase: Callable[[str], str] = str) -> Iterator[Any]:
    """`phrase` makes of a message that names options one for notebooks."""
    yield Text(printable(found.output_folder), style="bold")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, message in _facts(found):
        facts.add_row(f"  {name}", Text(joined(printable(message))))
    yield facts
    if found.outcomes:
        yield Text("\noutcomes", style="bold")
        yield _outcomes(found, phrase)
    if found.columns:
        yield Text("\ncolumns of the metadata", style="bold")
        columns = ", ".join(f"{printable(name[:60])} {printable(kind[:60])}" for name, kind in found.columns.items())
        yield Padding(Text(columns), (0, 0, 0, 2))
    if found.samples:
        yield Text("\nsamples", style="bold")
        yield _samples(found)
    for problem in found.problems[:5]:
        yield Text(f"problem: {printable(problem)}", style="yellow")
    if len(found.problems) > 5:
        yield Text(f"… and {len(found.problems) - 5:,} more problems: any2ds verify lists all", style="yellow")


def _facts(found: Overview) -> Iterator[tuple[str, str]]:
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
    part = f"; counts are those of {found.shards_read:,} of them" if found.shards_read < found.shards else ""
    yield "shards", f"{found.shards:,} finished{missing}{unfinished}{part}"
    if found.pattern:
        is_long = len(found.pattern) > _LONGEST_PATTERN
        yield "data", f"{found.pattern[:_LONGEST_PATTERN]} …" if is_long else found.pattern
    share = f" ({text.percent(found.successes, found.rows)})" if found.rows else ""
    others = {"dropped": found.dropped, "filtered": found.filtered, "duplicates": found.duplicates}
    counts = "".join(f", {count:,} {name}" for name, count in others.items() if count)
    yield "rows", f"{found.rows:,}: {found.successes:,} stored{share}, {found.failed:,} failed{counts}"
    if found.stored != found.successes:
        yield "samples", f"{found.stored:,} of these rows"
    if found.bytes_stored is not None:
        measured = found.files_measured
        mean = f", {text.size(found.bytes_stored // measured)} on average" if measured else ""
        of = "" if measured == found.stored else f" (of {measured:,} files; the size of the others is unknown)"
        yield "files", f"{text.size(found.bytes_stored)}{mean}{of}"
    for member in found.members:
        yield member.name, member.text
    for reason, count in found.not_processed.items():
        yield "not processed", f"{count:,} {'file' if count == 1 else 'files'} ({reason})"
    if found.sizes:
        yield "sizes", " · ".join(f"{name.replace('_', ' ')} {text.size(size)}" for name, size in found.sizes.items())
    if found.widths and found.heights:
        sides = {"width": found.widths, "height": found.heights}
        yield "pixels", " · ".join(f"{side} {_span(values)}" for side, values in sides.items())
    if found.mime_types:
        total = sum(found.mime_types.values())
        types = [f"{name[:60]} {text.percent(rows, total)}" for name, rows in found.mime_types.items()]
        of = "" if len(found.looked_into) == found.shards else f" (in {len(found.looked_into)} of the shards)"
        yield "types", _first(types, 6, " · ") + of
    if found.started is not None and found.ended is not None:
        span = text.duration(found.ended - found.started)
        first, last = text.moment(found.started), text.moment(found.ended)
        yield "made", f"{first} ({span})" if first == last else f"{first} to {last} ({span})"
    if found.compacted:
        parts = "1 file" if len(found.compacted) == 1 else f"{len(found.compacted):,} files"
        yield "compacted", f"metadata in {parts}: {found.compacted[0].rpartition('/')[0]}"
    if found.options:
        shown = [f"{name}={value}"[:200] for name, value in given_options(found.options).items()]
        yield "options", " ".join(shown) or "the default ones"


def _span(values: Mapping[str, int]) -> str:
    smallest, median, largest = (f"{values[name]:,}" for name in ("smallest", "median", "largest"))
    return smallest if smallest == largest else f"{smallest} to {largest}, median {median}"


def _first(items: Sequence[str], number: int, separator: str = ", ") -> str:
    more = f" … and {len(items) - number:,} more" if len(items) > number else ""
    return separator.join(items[:number]) + more


def _outcomes(found: Overview, phrase: Callable[[str], str]) -> Padding:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(overflow="ellipsis", no_wrap=True, max_width=40)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    total = sum(found.outcomes.values())
    ordered = in_order(found.outcomes)
    for code, rows in ordered[:_OUTCOMES_SHOWN]:
        style = "" if code in NO_FAILURES else "yellow"
        share = text.percent(rows, total)
        table.add_row(Text(printable(code[:200])), f"{rows:,}", share, Text(phrase(meaning_of(code))), style=style)
    if rest := ordered[_OUTCOMES_SHOWN:]:
        rows = sum(count for _, count in rest)
        table.add_row(f"… and {len(rest):,} more", f"{rows:,}", text.percent(rows, total), "")
    return Padding(table, (0, 0, 0, 2))


def _samples(found: Overview) -> Padding:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=30)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for sample in found.samples:
        name = ".".join(str(sample[part]) for part in ("key", "ext") if sample.get(part))
        size = sample.get("bytes") if sample.get(STORED_BYTES.name) is None else sample[STORED_BYTES.name]
        shown_size = text.size(size) if isinstance(size, int) else ""
        table.add_row(Text(printable(name)), shown_size, Text(printable(str(sample.get("url") or ""))))
        if caption := sample.get("caption"):
            table.add_row("", "", Text(printable(str(caption)), style="italic"))
    return Padding(table, (0, 0, 0, 2))
