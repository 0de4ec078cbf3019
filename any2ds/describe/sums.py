"""Sums over the shards of a dataset, of their statistics and of their metadata: what a `Summary` is made of."""

from __future__ import annotations

import bisect
import itertools
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import error_text
from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import Distribution, Histogram
from any2ds.core.members import Members, column
from any2ds.core.metadata import STORED_BYTES
from any2ds.core.reports import most_frequent
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.describe.timeline import Work

NO_HOST = "(no host)"
_STATS_AT_ONCE = 500
_MOST_OUTCOMES = 6000  # img2dataset has one for each error message
_MOST_EXAMPLES = 120
_ROWS_AT_ONCE = 1000  # of the metadata
_MOST_ROWS = 1_000_000  # of metadata
_MOST_GROUPS = 32  # row groups of a shard in a store, each of which takes some requests
_LARGEST = 1e15  # value that is plausible
_COLUMNS = ("url", "status", "error_code", "mime_type", "bytes", STORED_BYTES.name, "width", "height", "duration")
_SAMPLE_COLUMNS = ("key", "status", "ext", "bytes", STORED_BYTES.name, "mime_type", "url", "caption")
_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*)"
_PIXEL_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
_SECOND_STEPS = (1e-3, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 28_800)
_STEPS = {"size": (1.0, 2.0, 5.0), "width": _PIXEL_STEPS, "height": _PIXEL_STEPS, "duration": _SECOND_STEPS}
"""Where the ranges of a distribution begin: steps below ten are multiplied by powers of ten, others are used as is."""

Value = TypeVar("Value")


class StatsSums:
    """The sums over the statistics of shards."""

    def __init__(self) -> None:
        self.shards = self.rows = self.successes = self.samples = self.attempts = 0
        self.failed = self.dropped = self.filtered = self.duplicates = 0
        self.bytes = self.shards_with_bytes = self.samples_with_bytes = 0
        self.outcomes: Counter[str] = Counter()
        self.not_processed: dict[str, int] = {}
        self.examples: dict[str, str] = {}
        self.exts: Counter[str] = Counter()  # extension -> files
        self._members: defaultdict[str, Counter[str]] = defaultdict(Counter)  # member -> outcome -> files
        self.latencies = Histogram()
        self.works: list[Work] = []
        self.started: float | None = None  # Unix seconds
        self.ended: float | None = None
        self.problems: list[str] = []

    def read(self, dataset: Dataset, shards: Sequence[ShardFiles], ends: float = math.inf) -> None:
        """Add those of `shards`, until `ends`, a moment of `time.monotonic`."""
        for start in range(0, len(shards), _STATS_AT_ONCE):
            if start and time.monotonic() >= ends:
                return
            for files, stats in dataset.stats(shards[start : start + _STATS_AT_ONCE]):
                if isinstance(stats, Stats):
                    self._add(stats)
                else:
                    self.problems.append(f"{files.stats} cannot be read: {error_text(stats)}")

    @property
    def members(self) -> Mapping[str, Mapping[str, int]]:
        """Member -> outcome -> files; each row counts once, by its last outcome."""
        return {member: +outcomes for member, outcomes in self._members.items()}

    def _add(self, stats: Stats) -> None:
        self.shards += 1
        replaced = sum(stats.replaces.values())  # a row counts once, by its last outcome
        self.rows += stats.count - replaced
        self.successes += stats.successes
        self.samples += stats.samples
        self.attempts += stats.attempts
        self.failed += sum(stats.failed.values()) - replaced
        self.dropped += stats.dropped
        self.filtered += stats.filtered
        self.duplicates += stats.duplicates
        if stats.size is not None:
            self.bytes += stats.size
            self.shards_with_bytes += 1
            self.samples_with_bytes += stats.samples
        self.outcomes.update(stats.status_dict)
        self.outcomes.subtract(stats.replaces)
        self.exts.update({ext: files for ext, files in stats.exts.items() if ext})
        if len(self.outcomes) > _MOST_OUTCOMES:
            self.outcomes = Counter(most(self.outcomes, _MOST_OUTCOMES // 10))
        if stats.not_processed:
            self.not_processed = most_frequent(Counter(self.not_processed) + Counter(stats.not_processed))
        for member, outcomes in stats.members.items():
            self._members[member].update(outcomes)
        for member, outcomes in stats.replaced_members.items():
            self._members[member].subtract(outcomes)
        if len(self.examples) < _MOST_EXAMPLES:
            self.examples = {**stats.examples, **self.examples}
        self.latencies.update(stats.latencies)
        if stats.has_times:
            self.started = min(self.started or stats.start_time, stats.start_time)
            self.ended = max(self.ended or 0.0, stats.end_time)
            end = stats.start_time + stats.seconds
            self.works.append(Work(stats.start_time, end, stats.status_dict, stats.size or 0))


class MetadataSums:
    """The sums over the metadata of some shards, and some of their samples."""

    def __init__(self, samples: int = 0) -> None:
        """`samples` are the rows to keep of each row group."""
        self.shards: list[int] = []  # those that were read
        self.rows = 0
        self.columns: dict[str, str] = {}  # with their types
        self.hosts: dict[str, Counter[str]] = defaultdict(Counter)  # host -> outcome -> rows
        self.files: Counter[str] = Counter()  # by media type
        self.bytes: Counter[str] = Counter()
        self.samples: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self._most_samples = samples
        self._values: dict[str, list[pa.Array]] = defaultdict(list)
        self._retried: set[str] = set()  # keys of rows that stand in a later shard, with their last outcome

    def read(
        self, dataset: Dataset, shards: Iterable[ShardFiles], chance: random.Random, ends: float = math.inf
    ) -> None:
        """Add those of `shards`, until `ends`, a moment of `time.monotonic`.

        Later shards come first: a row that was tried again has its last outcome there, and counts once.
        """
        for files in sorted(shards, key=lambda files: -files.shard_id):
            if files.metadata is None:
                continue
            try:
                self._read_shard(dataset, files, chance, ends)
                self.shards.append(files.shard_id)
            except Exception as error:  # of Arrow, of the system and of file systems
                self.problems.append(f"{files.metadata} cannot be read: {error_text(error)}")
            if self.rows >= _MOST_ROWS or time.monotonic() >= ends:
                return

    def distribution(self, name: str) -> Distribution:
        """How the values of `size`, `width`, `height` or `duration` are spread."""
        values = pa.chunked_array(self._values[name], pa.float64())
        if not len(values):
            return Distribution()
        at = pc.quantile(values, [0, 0.25, 0.5, 0.75, 1], interpolation="nearest").to_pylist()
        ranges = _ranges(values, _STEPS[name])
        return Distribution(len(values), pc.sum(values).as_py(), at[0], at[1], at[2], at[3], at[4], ranges)

    def _read_shard(self, dataset: Dataset, files: ShardFiles, chance: random.Random, ends: float) -> None:
        """One row group after the other; some of them where each takes requests of its own."""
        members = Members.of(dataset.run.options) if dataset.run else None
        wanted = {"key", *_COLUMNS, *(_SAMPLE_COLUMNS if self._most_samples else ())}
        if members is not None:
            wanted |= members.prefixed(dict.fromkeys(_COLUMNS)).keys()
        with dataset.metadata_file(files) as file:
            schema = file.schema_arrow
            self.columns = self.columns or {field.name: str(field.type) for field in schema}
            names = [name for name in dataset.metadata_columns(schema) if name in wanted]
            groups: Sequence[int] = range(file.num_row_groups)
            if not dataset.folder.is_local and len(groups) > _MOST_GROUPS:
                groups = sorted(chance.sample(groups, _MOST_GROUPS))
            for group in groups:
                # Not all of a row group: captions may be long, and refer to one text in a dictionary.
                samples: list[dict[str, Any]] = []
                for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=names, use_threads=False):
                    table = self._last_outcomes(dataset, files, pa.Table.from_batches([batch]))
                    samples += self._add(table, members)
                self.samples += [samples[number] for number in spread(range(len(samples)), self._most_samples)]
                if time.monotonic() >= ends:
                    return

    def _last_outcomes(self, dataset: Dataset, files: ShardFiles, table: pa.Table) -> pa.Table:
        """The rows that no later shard has."""
        if dataset.is_img2dataset or dataset.layout is None or "key" not in table.schema.names:
            return table
        if self._retried:
            table = table.filter(pc.invert(pc.is_in(table["key"], pa.array(self._retried, pa.string()))))
        is_own = pc.starts_with(table["key"], dataset.layout.shard_name(files.shard_id))
        self._retried.update(table.filter(pc.invert(pc.fill_null(is_own, True)))["key"].to_pylist())
        return table

    def _add(self, table: pa.Table, members: Members | None) -> list[dict[str, Any]]:
        """Adds the figures of some rows, and returns some of these rows."""
        self.rows += table.num_rows
        names = table.schema.names
        if not {"url", "status"} <= set(names):
            return []
        stored = _stored(table)
        if members is None:
            self._add_hosts(table)
            self._add_files(stored)
        else:  # hosts and files are those of each URL
            for name in members.names:
                of_member = _of_member(table, name)
                self._add_hosts(of_member.filter(pc.is_valid(of_member["status"])))
                self._add_files(_stored(_of_member(stored, name)))
        rows = pa.array(spread(range(stored.num_rows), self._most_samples), pa.int64())
        return list(stored.select([name for name in _SAMPLE_COLUMNS if name in names]).take(rows).to_pylist())

    def _add_files(self, stored: pa.Table) -> None:
        names = stored.schema.names
        size = stored["bytes"] if "bytes" in names else None
        if size is not None and STORED_BYTES.name in names:
            size = pc.coalesce(stored[STORED_BYTES.name], size)
        if "mime_type" in names and size is not None:
            for name, count, total in _counts_and_sums(pc.fill_null(stored["mime_type"], ""), pc.fill_null(size, 0)):
                self.files[name] += count
                self.bytes[name] += total
        columns = {"size": size, **{n: stored[n] for n in ("width", "height", "duration") if n in names}}
        for name, values in columns.items():
            if values is not None and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
                self._values[name] += _plausible(values.cast(pa.float64())).chunks

    def _add_hosts(self, table: pa.Table) -> None:
        code = table["status"]
        if "error_code" in table.schema.names:
            code = pc.coalesce(table["error_code"], code)
        # Many URLs begin alike: the expression looks at what comes before the third slash, once for each beginning.
        words = pc.split_pattern(table["url"].combine_chunks(), "/", max_splits=3)
        start = pc.binary_join(pc.list_slice(words, 0, 3), "/").dictionary_encode()
        host = pc.utf8_lower(pc.struct_field(pc.extract_regex(start.dictionary, _HOST), "host")).take(start.indices)
        host = pc.if_else(pc.equal(pc.fill_null(host, ""), ""), NO_HOST, host)
        pairs = pc.value_counts(pc.binary_join_element_wise(host, pc.fill_null(code, ""), "\n"))
        for pair in pairs.to_pylist():
            name, _, code = pair["values"].partition("\n")
            self.hosts[name][code] += pair["counts"]


def _stored(table: pa.Table) -> pa.Table:
    """The rows that are stored."""
    return table.filter(pc.fill_null(pc.equal(table["status"], SUCCESS), False))


def _of_member(table: pa.Table, member: str) -> pa.Table:
    """What the metadata say of one of several files of each row, as they say it of a row with one."""
    own = {column(member, name): name for name in _COLUMNS}
    there = [name for name in own if name in table.schema.names]
    return table.select(there).rename_columns([own[name] for name in there])


def most(counts: Mapping[str, int], number: int) -> dict[str, int]:
    """The most frequent ones, and the sum of the others as "other"."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    found = dict(ordered[:number])
    if rest := sum(count for _, count in ordered[number:]):
        found["other"] = found.get("other", 0) + rest
    return found


def spread(values: Sequence[Value], number: int) -> list[Value]:
    """Up to `number` of them, evenly from the first to the last."""
    if len(values) <= number:
        return list(values)
    return [values[n * (len(values) - 1) // max(1, number - 1)] for n in range(number)]


def _counts_and_sums(names: pa.ChunkedArray, values: pa.ChunkedArray) -> Iterator[tuple[str, int, int]]:
    """How often each name is there, and the sum of its values. `Table.group_by` would load Acero for it."""
    if not len(names):
        return
    order = pc.sort_indices(names)
    runs = pc.run_end_encode(names.take(order).cast(pa.string()).combine_chunks())
    sorted_values = values.take(order).cast(pa.int64(), safe=False).combine_chunks()
    sums = pc.cumulative_sum(sorted_values).take(pc.subtract(runs.run_ends, 1))
    ends = zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), sums.to_pylist(), strict=True)
    end_before = sum_before = 0
    for name, end, total in ends:
        yield name, end - end_before, total - sum_before
        end_before, sum_before = end, total


def _plausible(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Without NaN, negative and huge ones: other tools and the user's own steps write any value."""
    return values.filter(pc.and_(pc.greater_equal(values, 0.0), pc.less(values, _LARGEST)))


def _ranges(values: pa.ChunkedArray, steps: Sequence[float]) -> tuple[tuple[float, float, int], ...]:
    """Between round numbers, see `_STEPS`. The first range includes what is less than its start."""
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
