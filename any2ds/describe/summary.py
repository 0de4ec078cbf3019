"""Contents of a dataset: one `Summary`, which inspect, the report (HTML, Markdown, JSON) and the card show.

Totals are of all shards; outcomes and times are from the statistics of as many as there is time for; types, sizes and
hosts are from the metadata of some. Small datasets are read as a whole; `Coverage` says how much was read.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from any2ds.config.command_line import build_command, dataset_options, download_command, retry_command
from any2ds.config.given import Given
from any2ds.core.errors import printable, redacted, shard_count
from any2ds.core.failures import NO_FAILURES, is_transient
from any2ds.core.histogram import Distribution, Histogram
from any2ds.core.layout import RECIPE_FILE
from any2ds.core.members import MemberFigures, member_figures
from any2ds.core.text import rows as row_count
from any2ds.core.version import __version__
from any2ds.dataset.added_columns import AddedColumns
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.expected import ExpectedShards
from any2ds.dataset.recipe_file import RecipeFile
from any2ds.dataset.shard_sample import ShardSample
from any2ds.dataset.shards import Totals
from any2ds.describe.shown import shown, shown_url
from any2ds.describe.sums import MetadataSums, StatsSums, most, ranges_of, spread
from any2ds.describe.timeline import Timeline, timeline

_LONGEST = 2000  # characters of a value that is shown
_MOST_OUTCOMES = 60  # img2dataset has one for each error message
_MOST_HOSTS, _MOST_TYPES, _MOST_VALUES, _MOST_GROUPS = 100, 60, 20, 10
_MOST_PROBLEMS = 20
_QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class HostFigures:
    """Outcomes of the rows of a host, in the shards whose metadata were read."""

    name: str  # with its port, where URLs name one
    rows: int
    failed: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TypeFigures:
    """The files of a media type, in the shards whose metadata were read."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SameBytes:
    """Files that are the same bytes under several URLs."""

    shard: int  # of one of them
    key: str
    url: str  # without credentials
    files: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the dataset was read."""

    shards_of_stats: int = 0
    rows_of_stats: int = 0
    shards_of_metadata: int = 0
    rows_of_metadata: int = 0  # samples of a row each count


@dataclass(frozen=True, slots=True, repr=False)
class Summary:
    """A row counts once, by its last outcome, however often it was tried."""

    output_folder: str
    made_by: str
    output_format: str | None
    any2ds: str  # version that gathered it
    gathered: float  # Unix seconds
    # The whole dataset:
    shards: int  # finished
    missing: tuple[int, ...]  # shards that are not there; empty where the folder was not listed, as for the report
    unfinished: int  # shards that have files, but no statistics; the same
    pattern: str | None  # of their data files, as a shell and webdataset expand it
    rows: int | None  # None if only some shards were read and there is no list of shards
    samples: int | None  # stored: a row that succeeded has one, or several
    bytes: int | None  # of the files stored; None also if no statistics have it
    measured: int  # samples in `bytes`: the statistics of img2dataset lack it
    exts: Mapping[str, int]  # extension -> files; of the shards that were read where nobody has counted all
    coverage: Coverage
    # Rows, in the shards whose statistics were read:
    successes: int
    failed: int
    dropped: int
    filtered: int
    duplicates: int
    attempts: int  # 0 if unknown
    outcomes: Mapping[str, int]  # the most frequent first; "other" is the sum of the rare ones
    members: tuple[MemberFigures, ...]  # files, where rows have several URLs
    not_processed: Mapping[str, int]  # reason -> files that a step left as they came
    examples: Mapping[str, str]  # failure code -> URL of a row with it, without credentials
    started: float | None  # Unix seconds
    ended: float | None
    timeline: Timeline
    latencies: Mapping[str, float]  # p50 … p99: seconds of transfers that succeeded; empty if unknown
    latency_ranges: tuple[tuple[float, float, int], ...]  # (from, to, transfers), of the same transfers
    # In the shards whose metadata were read:
    columns: Mapping[str, str]  # of the metadata, with their types
    types: Mapping[str, TypeFigures]
    sizes: Distribution  # bytes of the files stored
    widths: Distribution  # pixels
    heights: Distribution
    durations: Distribution  # seconds
    hosts: tuple[HostFigures, ...]  # those with most failures first
    host_count: int
    labels: Mapping[str, Mapping[str, int]]  # column of the list with few values -> value -> samples
    repeated: int  # files that are the same bytes as another one; 0 as well where no hashes are recorded
    same_bytes: tuple[SameBytes, ...]  # the largest groups of these
    metadata_rows: tuple[Mapping[str, Any], ...]  # of samples, to look at
    options: Mapping[str, Any]  # that decide which row is in which shard; without secrets
    given: tuple[str, ...]  # of them, as the command line takes them: --name=value
    lists: tuple[Mapping[str, Any], ...]  # files, rows (None: not read to the end), first_shard, limit
    recipe: Mapping[str, Any] | None  # name, samples by split, skipped by split, trial; None if no recipe has made it
    command: str  # that makes such a dataset; empty if it is not any2ds's
    retry: str  # the command that fetches again what may work now; empty if nothing may
    retryable: int  # rows, in the shards whose statistics were read, that another attempt can help
    problems: tuple[str, ...]

    def __repr__(self) -> str:
        rows = "" if self.rows is None else f", {row_count(self.rows)}"
        outcomes = f": {self.successes:,} stored, {self.failed:,} failed"
        return f"<Summary {self.output_folder}: {self.output_format}, {shard_count(self.shards)}{rows}{outcomes}>"

    def _repr_html_(self) -> str:
        from any2ds.describe.screen import as_html

        return as_html(self)

    @property
    def is_whole(self) -> bool:
        """Whether all shards were read, metadata included."""
        return self.has_all_stats and self.coverage.shards_of_metadata == self.shards

    @property
    def has_all_stats(self) -> bool:
        """Whether outcomes and times are those of all shards."""
        return self.coverage.shards_of_stats == self.shards

    def to_json(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LastRun:
    """Facts that the run which writes the report knows of itself."""

    given: Given = field(default_factory=dict)
    gained_nothing: bool = False  # it was a retry, and no row arrived


def summarize(
    sample: ShardSample,
    shards_of_metadata: int = 64,
    rows: int = 0,
    seconds: float = 60.0,
    last_run: LastRun | None = None,
) -> Summary:
    """Read for about `seconds`, the metadata of so many shards at most, with so many `rows` to look at; the same shards
    each time, as far as there is time for them."""
    started = time.monotonic()
    dataset, whole, last_run = sample.dataset, sample.whole, last_run or LastRun()
    chance = random.Random(0)
    order = chance.sample(dataset.finished, len(dataset.finished))
    stats, metadata = StatsSums(), MetadataSums(dataset, rows)
    stats.read(dataset, order, started + 0.6 * seconds)
    with_metadata = itertools.islice((files for files in order if files.metadata), shards_of_metadata)
    metadata.read(with_metadata, chance, started + seconds)
    totals = _totals(sample, stats)
    outcomes = +stats.outcomes
    retryable = sum(rows for code, rows in outcomes.items() if is_transient(code))
    problems = [*dataset.problems, *stats.problems, *metadata.problems]
    if dataset.run is not None and (added := AddedColumns.of(dataset.folder)) is not None:
        metadata.columns |= {field.name: str(field.type) for field in added.schema}
    lists = tuple(_lists(dataset))
    recipe = _recipe(dataset)
    repeated, groups = metadata.repeated(_MOST_GROUPS)
    spreads: dict[str, Any] = {f"{n}s": metadata.distribution(n) for n in ("size", "width", "height", "duration")}
    return Summary(
        output_folder=redacted(dataset.folder.url),
        made_by=dataset.made_by,
        output_format=dataset.output_format,
        any2ds=__version__,
        gathered=time.time(),
        shards=sample.shards,
        missing=() if whole is None else tuple(ExpectedShards.of(whole, whole.shards.ids).missing),
        unfinished=0 if whole is None else len(whole.shards) - sample.shards,
        pattern=sample.pattern,
        rows=totals.rows if totals else None,
        samples=totals.samples if totals else None,
        bytes=totals.bytes if totals else None,
        measured=stats.samples_with_bytes if sample.shards == stats.shards or totals is None else totals.samples,
        exts=dict(totals.exts if totals else stats.exts.most_common()),
        coverage=Coverage(stats.shards, stats.rows, metadata.shards, metadata.rows),
        successes=stats.successes,
        failed=max(0, stats.failed),
        **{name: getattr(stats, name) for name in ("dropped", "filtered", "duplicates", "attempts")},
        outcomes={shown(code, 200): rows for code, rows in most(outcomes, _MOST_OUTCOMES).items()},
        members=member_figures({member: +outcomes for member, outcomes in stats.members.items()}),
        not_processed={shown(reason, 300): files for reason, files in stats.not_processed.items()},
        examples={shown(code, 100): shown_url(url) for code, url in stats.examples.items()},
        started=min((work.start for work in stats.works), default=None),
        ended=max((work.ended for work in stats.works), default=None),
        timeline=timeline(stats.works),
        latencies={f"p{100 * share:.0f}": stats.latencies.quantile(share) or 0.0 for share in _QUANTILES}
        if len(stats.latencies)
        else {},
        latency_ranges=_latency_ranges(stats.latencies),
        columns={shown(name, _LONGEST): shown(kind, _LONGEST) for name, kind in metadata.columns.items()},
        types=_types(metadata),
        **spreads,
        hosts=tuple(_hosts(metadata)),
        host_count=len(metadata.hosts),
        labels={
            shown(name, 100): {shown(value, 100): count for value, count in most(counts, _MOST_VALUES).items()}
            for name, counts in metadata.labels.items()
        },
        repeated=repeated,
        same_bytes=tuple(
            SameBytes(shard, shown(key, 200), shown_url(url or ""), files) for shard, key, url, files in groups
        ),
        metadata_rows=tuple(_rows(metadata, rows)),
        options=_plain(dataset.run.options) if dataset.run else {},
        given=tuple(dataset_options(dataset.run.given)) if dataset.run else (),
        lists=lists,
        recipe=recipe,
        command=_command(dataset, recipe["name"] if recipe else "", lists, last_run.given),
        retry=_retry(dataset, last_run) if retryable else "",
        retryable=retryable,
        problems=tuple(shown(message, 500) for message in problems[:_MOST_PROBLEMS]),
    )


def _totals(sample: ShardSample, stats: StatsSums) -> Totals | None:
    """By the statistics if all were read, else by the list of shards; None where nobody knows."""
    size = stats.bytes if stats.shards_with_bytes or not stats.shards else None
    if stats.shards == sample.shards:
        return Totals(stats.shards, stats.rows, stats.samples, size, dict(stats.exts.most_common()))
    return sample.totals and replace(sample.totals, bytes=sample.totals.bytes if size is not None else None)


def _recipe(dataset: Dataset) -> dict[str, Any] | None:
    found = RecipeFile.found(dataset.folder, [RECIPE_FILE])  # a sample of shards does not list it
    if found is None:
        return None
    splits = {split.name: split.rows for split in found.splits}
    skipped = {split.name: dict(split.skipped) for split in found.splits if split.skipped}
    return {"name": printable(found.full_name), "splits": splits, "skipped": skipped, "trial": found.trial}


def _rows(metadata: MetadataSums, count: int) -> Iterator[dict[str, Any]]:
    """Samples in the order of the dataset, with values that may be shown."""
    for row in spread(sorted(metadata.samples, key=lambda row: str(row.get("key"))), count):
        yield {
            name: shown_url(value) if name == "url" else shown(value, _LONGEST) if isinstance(value, str) else value
            for name, value in row.items()
            if value is not None
        }


def _lists(dataset: Dataset) -> Iterator[dict[str, Any]]:
    """The url lists: files, rows (None: not read to the end), first_shard, limit (None: all rows)."""
    run = dataset.run
    for first in run.lists if run is not None else ():
        last = (run.parts_of(first.number) or (first,))[-1] if run is not None else first
        files = [shown_url(file.name) for file in last.files]
        yield {"files": files, "rows": last.end_row, "first_shard": first.first_shard, "limit": last.limit}


def with_limit(given: Given, lists: Sequence[Mapping[str, Any]]) -> Given:
    """Options that were given, with the limit of rows of the last list, which later commands may have raised."""
    limit = lists[-1]["limit"] if lists else None
    others = {name: value for name, value in given.items() if name != "limit"}
    return {**others, "limit": (str(limit), "call")} if limit else others


def _command(dataset: Dataset, recipe: str, lists: Sequence[Mapping[str, Any]], last: Given) -> str:
    if dataset.run is None:
        return ""
    is_known = bool({"url_list", "recipe"} & last.keys())  # of the last run, which was no retry
    given, folder = last if is_known else dataset.run.given, redacted(dataset.folder.url)
    if recipe:  # whose data_dir is the folder in which this one lies as name/config/version, unless it was moved
        plain, place = folder.replace(os.sep, "/").rstrip("/"), f"/{recipe.replace(':', '/')}"
        data_dir = plain.removesuffix(place) if plain.endswith(place) else ""
        return build_command(recipe, given, data_dir, for_others=not is_known)
    names = [name for each in lists for name in each["files"]]
    return download_command(folder, names, with_limit(given, lists), for_others=not is_known)


def _retry(dataset: Dataset, last_run: LastRun) -> str:
    """Empty also for the datasets of other tools, and after a retry that gained nothing."""
    if dataset.run is None or last_run.gained_nothing:
        return ""
    return printable(redacted(retry_command(dataset.folder.url, last_run.given)))


def _types(metadata: MetadataSums) -> dict[str, TypeFigures]:
    counts = most(metadata.files, _MOST_TYPES)
    rest = sum(metadata.bytes[name] for name in metadata.files.keys() - counts.keys())
    return {
        shown(name or "unknown", 100): TypeFigures(files, metadata.bytes.get(name, rest))
        for name, files in counts.items()
    }


def _hosts(metadata: MetadataSums) -> list[HostFigures]:
    found = [
        HostFigures(
            shown(name, 260),
            outcomes.total(),
            sum(rows for code, rows in outcomes.items() if code not in NO_FAILURES),
            dict(outcomes.most_common()),
        )
        for name, outcomes in metadata.hosts.items()
    ]
    return sorted(found, key=lambda host: (-host.failed, -host.rows, host.name))[:_MOST_HOSTS]


def _latency_ranges(histogram: Histogram) -> tuple[tuple[float, float, int], ...]:
    """The transfers between round numbers of seconds; those of a bucket count where its middle is."""
    middles = {(start + stop) / 2: count for start, stop, count in histogram.ranges() if count}
    if not middles:
        return ()
    return ranges_of(
        min(middles), max(middles), lambda edge: sum(count for middle, count in middles.items() if middle < edge)
    )


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options, bounded and without control characters and secrets: `.any2ds/run` may come from anybody."""

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return shown(redacted(value), _LONGEST)
        if isinstance(value, Mapping):
            return {shown(str(name), 200): plain(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(each) for each in value[:100]]
        return value if value is None or isinstance(value, (bool, int, float)) else shown(str(value), 200)

    return {shown(str(name), 100): plain(value) for name, value in options.items()}
