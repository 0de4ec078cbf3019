"""The figures of a dataset, gathered once, for whatever shows them: the report, the card, pipelines.

Totals are of all shards; outcomes and times are from the stats of as many as there is time for, types, sizes and hosts
from the metadata of some. A dataset of less than some ten thousand shards, or some dozens, is looked at as a whole, and
what was looked at is said beside the figures.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core import layout
from any2ds.core.errors import error_text, redacted
from any2ds.core.failures import DROPPED, DUPLICATE, FILTERED, NO_FAILURES, SUCCESS
from any2ds.core.histogram import Distribution, Histogram
from any2ds.core.metadata import STORED_BYTES
from any2ds.core.reports import most_frequent
from any2ds.core.stats import Stats
from any2ds.core.version import __version__
from any2ds.dataset.dataset import Dataset, ShardFiles
from any2ds.dataset.preview import shown, shown_url
from any2ds.dataset.shard_sample import Survey
from any2ds.dataset.timeline import Timeline, Work, timeline

_SHARDS_LOOKED_INTO = 64
_MOST_ROWS = 1_000_000  # looked into
_MOST_GROUPS = 32  # row groups of a shard on a store, each of which takes some requests
_STATS_AT_ONCE = 500
_MOST_OUTCOMES = 60  # of img2dataset each error message is one
_MOST_HOSTS, _MOST_TYPES = 100, 60
_MOST_PROBLEMS = 20
_LARGEST = 1e15  # magnitude that is believed
_QUANTILES = (0.5, 0.9, 0.95, 0.99)
_COLUMNS = ("url", "status", "error_code", "mime_type", "bytes", STORED_BYTES.name, "width", "height", "duration")
_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*)"
NO_HOST = "(no host)"
_OF_PIXELS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
_OF_SECONDS = (1e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800)
_STEPS = {"size": (1.0, 2.0, 5.0), "width": _OF_PIXELS, "height": _OF_PIXELS, "duration": _OF_SECONDS}
"""Where the ranges of a distribution begin: up to ten these and their products with powers of ten, else these."""


@dataclass(frozen=True, slots=True)
class HostFigures:
    """What became of the rows of a host, in the shards whose metadata were looked into."""

    name: str
    rows: int
    failed: int
    outcomes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TypeFigures:
    """The files of a media type, in the shards whose metadata were looked into."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Looked:
    """How much of the dataset figures are from."""

    shards_of_stats: int = 0
    rows_of_stats: int = 0
    shards_of_metadata: int = 0
    rows_of_metadata: int = 0  # samples of a row each count


@dataclass(frozen=True, slots=True)
class Figures:
    output_folder: str
    made_by: str
    output_format: str | None
    any2ds: str  # version that gathered them
    gathered: float  # Unix seconds
    shards: int  # finished
    rows: int | None  # of the finished shards; None if only some were looked at and nothing tells of the others
    samples: int | None  # stored: a row that succeeded has one, or several
    bytes: int | None  # of the files stored; None also where other tools' stats do not tell
    exts: Mapping[str, int]  # extension -> files; empty where nothing tells
    looked: Looked
    # Rows, in the shards whose stats were looked at:
    successes: int
    failed: int
    dropped: int
    filtered: int
    duplicates: int
    attempts: int  # 0 where they are not told
    outcomes: Mapping[str, int]  # the most frequent first; "other" stands for what is rare beyond some dozens
    not_processed: Mapping[str, int]  # reason -> files that a step of their media has left as they came
    examples: Mapping[str, str]  # failure code -> URL of a row with it, without credentials
    started: float | None  # Unix seconds
    ended: float | None
    timeline: Timeline
    latencies: Mapping[str, float]  # p50 … p99: seconds of transfers that succeeded; empty where they are not told
    latency_ranges: tuple[tuple[float, float, int], ...]
    # In the shards whose metadata were looked into:
    types: Mapping[str, TypeFigures]
    sizes: Distribution  # bytes of the files stored
    widths: Distribution  # pixels
    heights: Distribution
    durations: Distribution  # seconds
    hosts: tuple[HostFigures, ...]  # those with most failures first
    host_count: int
    options: Mapping[str, Any]  # that decide what is in which shard; without secrets
    run_options: Mapping[str, Any]  # of the last run, where it gathers them itself
    lists: tuple[Mapping[str, Any], ...]  # files, rows (None: not read to the end), first_shard
    problems: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether all shards were looked at, metadata included."""
        return self.looked.shards_of_stats == self.looked.shards_of_metadata == self.shards

    def to_json(self) -> dict[str, Any]:
        """Plain values, as JSON has them."""
        return asdict(self)


def gather(survey: Survey, seconds: float = 60.0, run_options: Mapping[str, Any] | None = None) -> Figures:
    """Look for about so long, and at the same things where there is time for all that is to be looked at."""
    started = time.monotonic()
    dataset = survey.dataset
    chance = random.Random(0)
    order = chance.sample(dataset.finished, len(dataset.finished))
    stats = _Stats(dataset, order, started + 0.6 * seconds)
    rows = _Rows(dataset, order[:_SHARDS_LOOKED_INTO], chance, started + seconds)
    is_all = stats.shards == survey.shards
    totals = survey.totals
    problems = [f"{layout.RUN_FILE} cannot be understood: {dataset.run_problem}"] if dataset.run_problem else []
    return Figures(
        output_folder=redacted(dataset.folder.url),
        made_by=dataset.made_by,
        output_format=dataset.output_format,
        any2ds=__version__,
        gathered=time.time(),
        shards=survey.shards,
        rows=totals.rows if totals else stats.rows if is_all else None,
        samples=totals.samples if totals else stats.samples if is_all else None,
        bytes=totals.bytes if totals else stats.bytes if is_all else None,
        exts=dict(totals.exts) if totals else {},
        looked=Looked(stats.shards, stats.rows, rows.shards, rows.rows),
        successes=stats.counts[SUCCESS],
        failed=stats.counts["failed"],
        dropped=stats.counts[DROPPED],
        filtered=stats.counts[FILTERED],
        duplicates=stats.counts[DUPLICATE],
        attempts=stats.attempts,
        outcomes=_most(stats.outcomes, _MOST_OUTCOMES),
        not_processed={shown(reason, 300): files for reason, files in stats.not_processed.items()},
        examples={shown(code, 100): shown_url(url) for code, url in stats.examples.items()},
        started=min((work.start for work in stats.works), default=None),
        ended=stats.ended,
        timeline=timeline(stats.works),
        latencies=_quantiles(stats.latencies),
        latency_ranges=_coarse(stats.latencies),
        types=rows.types(),
        sizes=rows.distribution("size"),
        widths=rows.distribution("width"),
        heights=rows.distribution("height"),
        durations=rows.distribution("duration"),
        hosts=tuple(rows.hosts()),
        host_count=len(rows.by_host),
        options=_plain(dataset.run.options) if dataset.run else {},
        run_options=_plain(run_options or {}),
        lists=tuple(
            {
                "files": [shown_url(file.name) for file in found.files],
                "rows": found.rows,
                "first_shard": found.first_shard,
            }
            for found in (dataset.run.lists if dataset.run else ())
        ),
        problems=tuple(
            shown(message, 500) for message in [*problems, *stats.problems, *rows.problems][:_MOST_PROBLEMS]
        ),
    )


class _Stats:
    """The sums over the stats of shards, up to a time."""

    def __init__(self, dataset: Dataset, order: Sequence[ShardFiles], ends: float) -> None:
        self.shards = self.rows = self.samples = self.attempts = 0
        self.bytes: int | None = 0
        self.counts: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.not_processed: dict[str, int] = {}
        self.examples: dict[str, str] = {}
        self.latencies = Histogram()
        self.works: list[Work] = []
        self.ended: float | None = None
        self.problems: list[str] = []
        for start in range(0, len(order), _STATS_AT_ONCE):
            if start and time.monotonic() >= ends:
                return
            for files, stats in dataset.stats(order[start : start + _STATS_AT_ONCE]):
                if isinstance(stats, Stats):
                    self._take(stats)
                else:
                    self.problems.append(f"{files.stats} cannot be read: {error_text(stats)}")

    def _take(self, stats: Stats) -> None:
        self.shards += 1
        self.rows += stats.count
        self.samples += stats.samples
        self.attempts += stats.attempts
        self.bytes = None if self.bytes is None or stats.size is None else self.bytes + stats.size
        self.counts.update({SUCCESS: stats.successes, DROPPED: stats.dropped, FILTERED: stats.filtered})
        self.counts.update({DUPLICATE: stats.duplicates, "failed": sum(stats.failed.values())})
        self.outcomes.update(stats.status_dict)
        self.not_processed = most_frequent(Counter(self.not_processed) + Counter(stats.not_processed))
        if len(self.outcomes) > 100 * _MOST_OUTCOMES:
            self.outcomes = Counter(_most(self.outcomes, 10 * _MOST_OUTCOMES))
        if len(self.examples) < 2 * _MOST_OUTCOMES:
            self.examples = {**stats.examples, **self.examples}
        self.latencies.update(stats.latencies)
        if stats.has_times:
            self.ended = max(self.ended or 0.0, stats.end_time)
            end = stats.start_time + stats.seconds
            self.works.append(Work(stats.start_time, end, stats.status_dict, stats.size or 0))


class _Rows:
    """What the metadata of some shards tell, up to a time."""

    def __init__(self, dataset: Dataset, order: Sequence[ShardFiles], chance: random.Random, ends: float) -> None:
        self.shards = self.rows = 0
        self.by_host: dict[str, Counter[str]] = defaultdict(Counter)
        self.problems: list[str] = []
        self._files: Counter[str] = Counter()
        self._sizes_of: Counter[str] = Counter()
        self._values: dict[str, list[pa.Array]] = defaultdict(list)
        for files in order:
            if files.metadata is None:
                continue
            try:
                for table in _tables(dataset, files, chance, lambda: time.monotonic() >= ends):
                    self._take(table)
                self.shards += 1
            except Exception as error:  # of Arrow, of the system and of file systems
                self.problems.append(f"{files.metadata} cannot be read: {error_text(error)}")
            if self.rows >= _MOST_ROWS or time.monotonic() >= ends:
                return

    def _take(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        names = table.schema.names
        if not {"url", "status"} <= set(names):
            return
        is_stored = pc.fill_null(pc.equal(table["status"], SUCCESS), False)
        code = pc.coalesce(table["error_code"], table["status"]) if "error_code" in names else table["status"]
        host = pc.utf8_lower(pc.struct_field(pc.extract_regex(table["url"].combine_chunks(), _HOST), "host"))
        host = pc.if_else(pc.equal(pc.fill_null(host, ""), ""), NO_HOST, host)
        pairs = pa.table({"host": host, "code": pc.fill_null(code, "")}).group_by(["host", "code"])
        counted = pairs.aggregate([([], "count_all")])
        for name, outcome, count in zip(*(column.to_pylist() for column in counted.columns), strict=True):
            self.by_host[name][outcome] += count
        stored = table.filter(is_stored)
        size = stored["bytes"] if "bytes" in names else None
        if size is not None and STORED_BYTES.name in names:
            size = pc.coalesce(stored[STORED_BYTES.name], size)
        if "mime_type" in names and size is not None:
            types = pa.table({"type": pc.fill_null(stored["mime_type"], ""), "size": pc.fill_null(size, 0)})
            sums = types.group_by("type").aggregate([([], "count_all"), ("size", "sum")])
            for name, count, total in zip(
                *(sums[c].to_pylist() for c in ("type", "count_all", "size_sum")), strict=True
            ):
                self._files[name] += count
                self._sizes_of[name] += total
        columns = {"size": size, **{n: stored[n] for n in ("width", "height", "duration") if n in names}}
        for name, values in columns.items():
            if values is not None and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
                self._values[name] += _believable(values.cast(pa.float64())).chunks

    def types(self) -> dict[str, TypeFigures]:
        most = _most(self._files, _MOST_TYPES)
        sizes = Counter(self._sizes_of)
        found = {shown(name or "unknown", 100): TypeFigures(count, sizes.pop(name, 0)) for name, count in most.items()}
        if "other" in found and "other" not in self._files:
            found["other"] = TypeFigures(found["other"].files, sizes.total())
        return found

    def distribution(self, name: str) -> Distribution:
        values = pa.chunked_array(self._values[name], pa.float64())
        if not len(values):
            return Distribution()
        at = pc.quantile(values, [0, 0.25, 0.5, 0.75, 1], interpolation="nearest").to_pylist()
        return Distribution(
            len(values), pc.sum(values).as_py(), at[0], at[1], at[2], at[3], at[4], _ranges(values, _STEPS[name])
        )

    def hosts(self) -> Iterator[HostFigures]:
        found = [
            HostFigures(
                shown(name, 260),
                outcomes.total(),
                sum(outcomes[code] for code in outcomes if code not in NO_FAILURES),
                dict(outcomes.most_common()),
            )
            for name, outcomes in self.by_host.items()
        ]
        found.sort(key=lambda host: (-host.failed, -host.rows, host.name))
        yield from found[:_MOST_HOSTS]


def _tables(
    dataset: Dataset, files: ShardFiles, chance: random.Random, is_over: Callable[[], bool]
) -> Iterator[pa.Table]:
    """The metadata of a shard, one row group after the other. Where each takes requests of its own, some of them."""
    with dataset.metadata_file(files) as file:
        names = [name for name in _COLUMNS if name in dataset.metadata_columns(file.schema_arrow)]
        groups = range(file.num_row_groups)
        if not dataset.folder.is_local and len(groups) > _MOST_GROUPS:
            groups = sorted(chance.sample(groups, _MOST_GROUPS))  # type: ignore[assignment]
        for group in groups:
            yield file.read_row_group(group, columns=names)
            if is_over():
                return


def _most(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """The most frequent, and the rest of them as "other"."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    found = {name if most == _MOST_TYPES else shown(name, 200): count for name, count in ordered[:most]}
    if rest := sum(count for _, count in ordered[most:]):
        found["other"] = found.get("other", 0) + rest
    return found


def _believable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Those that are magnitudes: steps of the user's own, and other tools, write whatever they like."""
    is_one = pc.and_(pc.greater_equal(values, 0.0), pc.less(values, _LARGEST))  # neither is true of a NaN
    return values.filter(is_one)


def _ranges(values: pa.ChunkedArray, steps: Sequence[float]) -> tuple[tuple[float, float, int], ...]:
    """Between round numbers, see `_STEPS`. What is less than the first of them is in its range."""
    smallest, largest = max(1e-3, pc.min(values).as_py()), pc.max(values).as_py()
    if steps[-1] < 10:
        powers = range(math.floor(math.log10(smallest)), math.ceil(math.log10(max(smallest, largest))) + 2)
        edges = [round(step * 10.0**power, 6) for power in powers for step in steps]
    else:
        edges = [*steps]
        while edges[-1] <= largest:
            edges.append(2 * edges[-1])
    edges = edges[max(0, bisect.bisect_right(edges, smallest) - 1) : bisect.bisect_right(edges, largest) + 1]
    below = [pc.sum(pc.less(values, edge)).as_py() or 0 for edge in edges]
    below[0] = 0
    return tuple(
        (start, stop, after - before)
        for (start, stop), (before, after) in zip(itertools.pairwise(edges), itertools.pairwise(below), strict=True)
    )


def _coarse(histogram: Histogram) -> tuple[tuple[float, float, int], ...]:
    """Ranges twice as coarse each time until there are few enough to be seen."""
    found = [(start, stop, count) for start, stop, count in histogram.ranges()]
    while len(found) > 40:
        found = [
            (found[n][0], found[min(n + 1, len(found) - 1)][1], sum(count for *_, count in found[n : n + 2]))
            for n in range(0, len(found), 2)
        ]
    return tuple(found)


def _quantiles(histogram: Histogram) -> dict[str, float]:
    found = {f"p{round(100 * share)}": histogram.quantile(share) for share in _QUANTILES}
    return {name: value for name, value in found.items() if value is not None}


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """As they may be shown: `.any2ds/run` may have been written by anybody."""

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return shown(redacted(value), 2000)
        if isinstance(value, Mapping):
            return {shown(str(name), 200): plain(each) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(each) for each in value[:100]]
        return value if value is None or isinstance(value, (bool, int, float)) else shown(str(value), 200)

    return {shown(str(name), 100): plain(value) for name, value in options.items()}
