"""Sums over the shards of a dataset, of their statistics and of their metadata: what a `Summary` is made of."""

from __future__ import annotations

import bisect
import itertools
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import error_text, redacted
from any2ds.core.histogram import Distribution, Histogram
from any2ds.core.members import column
from any2ds.core.metadata import RECIPE_KEY, RESERVED_COLUMNS, STORED_BYTES, stored_rows, without_credentials
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
_MOST_LABELS = 100  # values of a column, beyond which it is no label
_COLUMNS = ("url", "status", "error_code", "mime_type", "bytes", STORED_BYTES.name, "width", "height", "duration")
_SAMPLE_COLUMNS = ("key", "status", "ext", "bytes", STORED_BYTES.name, "mime_type", "url", "caption")
_HASHES = ("sha256", "sha512", "md5")
_NO_LABELS = {*RESERVED_COLUMNS, *_COLUMNS, "caption", "original_width", "original_height", RECIPE_KEY}
_HASH_CHARACTERS = 24  # of a hash, which tell files apart
_HOST = r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(?P<host>[^/?#]*)"  # with its port
_STEPS = (1, 1.5, 2, 3, 5, 7)  # the ranges of a chart begin at these, times a power of ten

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
        self.members: defaultdict[str, Counter[str]] = defaultdict(Counter)  # member -> outcome -> files
        self.latencies = Histogram()
        self.works: list[Work] = []
        self.problems: list[str] = []

    def read(self, dataset: Dataset, shards: Sequence[ShardFiles], ends: float = math.inf) -> None:
        """Add the statistics of `shards`, until `ends`, a moment of `time.monotonic`."""
        for start in range(0, len(shards), _STATS_AT_ONCE):
            if start and time.monotonic() >= ends:
                return
            for files, stats in dataset.stats(shards[start : start + _STATS_AT_ONCE]):
                if isinstance(stats, Stats):
                    self._add(stats)
                else:
                    self.problems.append(f"{files.stats} cannot be read: {error_text(stats)}")

    def _add(self, stats: Stats) -> None:
        """Add a shard. A row that a retry made again counts once, by its last outcome."""
        replaced = sum(stats.replaces.values())
        self.shards += 1
        self.rows += stats.count - replaced
        self.failed += sum(stats.failed.values()) - replaced
        for name in ("successes", "samples", "attempts", "dropped", "filtered", "duplicates"):
            setattr(self, name, getattr(self, name) + getattr(stats, name))
        if stats.size is not None:
            self.bytes += stats.size
            self.shards_with_bytes += 1
            self.samples_with_bytes += stats.samples
        self.outcomes.update(stats.status_dict)
        self.outcomes.subtract(stats.replaces)
        if len(self.outcomes) > _MOST_OUTCOMES:
            self.outcomes = Counter(most(self.outcomes, _MOST_OUTCOMES // 10))
        self.exts.update({ext: files for ext, files in stats.exts.items() if ext})
        if stats.not_processed:
            self.not_processed = most_frequent(Counter(self.not_processed) + Counter(stats.not_processed))
        for member, outcomes in stats.members.items():
            self.members[member].update(outcomes)
        for member, outcomes in stats.replaced_members.items():
            self.members[member].subtract(outcomes)
        if len(self.examples) < _MOST_EXAMPLES:
            self.examples = {**stats.examples, **self.examples}
        self.latencies.update(stats.latencies)
        if stats.has_times:
            end = stats.start_time + stats.seconds
            self.works.append(Work(stats.start_time, end, stats.end_time, stats.status_dict, stats.size or 0))


class MetadataSums:
    """The sums over the metadata of some shards, and some of their samples."""

    def __init__(self, dataset: Dataset, samples: int = 0) -> None:
        """`samples` are the rows to keep of each row group."""
        self.shards = self.rows = 0  # that were read
        self.columns: dict[str, str] = {}  # with their types
        self.hosts: dict[str, Counter[str]] = defaultdict(Counter)  # host -> outcome -> rows
        self.files: Counter[str] = Counter()  # by media type
        self.bytes: Counter[str] = Counter()
        self.samples: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self._dataset, self._members, self._most_samples = dataset, dataset.members, samples
        self._labels: dict[str, Counter[Any] | None] = {}  # column -> value -> samples; None: it has too many values
        self._hashes: list[pa.Array] = []
        self._samples_by_hash: dict[str, tuple[str, str]] = {}  # key and URL of a sample with these bytes
        self._values: dict[str, list[pa.Array]] = defaultdict(list)
        self._retried: set[str] = set()  # keys of rows that stand in a later shard, with their last outcome

    def read(self, shards: Iterable[ShardFiles], chance: random.Random, ends: float = math.inf) -> None:
        """Add the metadata of `shards`, until `ends`, a moment of `time.monotonic`.

        Later shards come first: a row that was tried again has its last outcome there, and counts once.
        """
        for files in sorted(shards, key=lambda files: -files.shard_id):
            try:
                self._read_shard(files, chance, ends)
                self.shards += 1
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
        positive = pc.min(values.filter(pc.greater(values, 0))).as_py() or 1.0
        ranges = ranges_of(positive, at[4], lambda edge: pc.sum(pc.less(values, edge)).as_py() or 0)
        return Distribution(len(values), pc.sum(values).as_py(), at[0], at[1], at[2], at[3], at[4], ranges)

    @property
    def labels(self) -> dict[str, dict[str, int]]:
        """Column -> value -> samples, of columns of the list whose values are few and come often."""
        counted = {name: counts for name, counts in self._labels.items() if counts and len(counts) > 1}
        return {
            name: {without_credentials(redacted(str(value))): count for value, count in counts.most_common()}
            for name, counts in counted.items()
            if 2 * len(counts) <= counts.total()
        }

    def repeated(self, most_groups: int) -> tuple[int, list[tuple[str, str, int]]]:
        """How many files are the same bytes as another one before; and of the largest groups key and URL of a sample,
        and size."""
        counts = pc.value_counts(pa.chunked_array(self._hashes, pa.string()))
        number = counts.field("counts")
        several = counts.filter(pc.greater(number, 1))
        groups = sorted(several.to_pylist(), key=lambda group: -group["counts"])
        known = self._samples_by_hash
        found = [(*known.get(group["values"], ("", "")), group["counts"]) for group in groups[:most_groups]]
        return sum(group["counts"] - 1 for group in groups), found

    def _read_shard(self, files: ShardFiles, chance: random.Random, ends: float) -> None:
        """Read one row group after the other; some of them where each takes requests of its own."""
        dataset = self._dataset
        wanted = {"key", *_COLUMNS, *_HASHES, *(_SAMPLE_COLUMNS if self._most_samples else ())}
        if self._members is not None:
            wanted |= self._members.prefixed(dict.fromkeys(_COLUMNS)).keys()
        with dataset.metadata_file(files) as file:
            schema = file.schema_arrow
            self.columns = self.columns or {field.name: str(field.type) for field in schema}
            for field in filter(self._may_be_label, schema):
                self._labels.setdefault(field.name, Counter())
            wanted |= {name for name, counts in self._labels.items() if counts is not None}
            names = [name for name in dataset.metadata_columns(schema) if name in wanted]
            groups: Sequence[int] = range(file.num_row_groups)
            if not dataset.folder.is_local and len(groups) > _MOST_GROUPS:
                groups = sorted(chance.sample(groups, _MOST_GROUPS))
            for group in groups:
                # Not all of a row group: captions may be long, and refer to one text in a dictionary.
                samples: list[dict[str, Any]] = []
                for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=[group], columns=names, use_threads=False):
                    samples += self._add(self._last_outcomes(files, pa.Table.from_batches([batch])))
                self.samples += spread(samples, self._most_samples)
                if time.monotonic() >= ends:
                    return

    def _may_be_label(self, field: pa.Field) -> bool:
        """Whether a column is of the list or of a step, and not of the files."""
        members = () if self._members is None else self._members.names
        is_own = field.name in _NO_LABELS or any(field.name.startswith(f"{member}_") for member in members)
        of = pa.types
        return not is_own and (of.is_string(field.type) or of.is_integer(field.type) or of.is_boolean(field.type))

    def _last_outcomes(self, files: ShardFiles, table: pa.Table) -> pa.Table:
        """The rows that no later shard has."""
        dataset = self._dataset
        if dataset.is_img2dataset or "key" not in table.schema.names:
            return table
        if self._retried:
            table = table.filter(pc.invert(pc.is_in(table["key"], pa.array(self._retried, pa.string()))))
        segment = dataset.run.segment_of(files.shard_id) if dataset.run is not None else None
        if segment is not None and segment.kind == "retry":
            self._retried.update(table["key"].to_pylist())
        return table

    def _add(self, table: pa.Table) -> list[dict[str, Any]]:
        """Add the figures of some rows, and return some of these rows."""
        self.rows += table.num_rows
        names = table.schema.names
        if not {"url", "status"} <= set(names):
            return []
        stored = stored_rows(table)
        if self._members is None:
            self._add_hosts(table)
            self._add_files(stored)
            self._add_hashes(stored)
        else:  # hosts and files are those of each URL
            for name in self._members.names:
                of_member = _of_member(table, name)
                self._add_hosts(of_member.filter(pc.is_valid(of_member["status"])))
                self._add_files(stored_rows(_of_member(stored, name)))
        self._add_labels(stored)
        rows = pa.array(spread(range(stored.num_rows), self._most_samples), pa.int64())
        return list(stored.select([name for name in _SAMPLE_COLUMNS if name in names]).take(rows).to_pylist())

    def _add_files(self, stored: pa.Table) -> None:
        names = stored.schema.names
        size = stored["bytes"] if "bytes" in names else None
        if size is not None and STORED_BYTES.name in names:
            size = pc.coalesce(stored[STORED_BYTES.name], size)
        if "mime_type" in names and size is not None:
            types = pc.fill_null(stored["mime_type"], "").cast(pa.string())
            for name in pc.unique(types).to_pylist():
                own = size.filter(pc.equal(types, name))
                self.files[name] += len(own)
                self.bytes[name] += pc.sum(own).as_py() or 0
        columns = {"size": size, **{n: stored[n] for n in ("width", "height", "duration") if n in names}}
        for name, values in columns.items():
            if values is not None and (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
                values = values.cast(pa.float64())
                # Other tools and the user's own steps write any value: NaN, negative and huge ones are left out.
                is_plausible = pc.and_(pc.greater_equal(values, 0.0), pc.less(values, _LARGEST))
                self._values[name] += values.filter(is_plausible).chunks

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

    def _add_hashes(self, stored: pa.Table) -> None:
        names = stored.schema.names
        name = next((name for name in _HASHES if name in names and "key" in names), None)
        if name is None or not pa.types.is_string(stored.schema.field(name).type):
            return
        hashes = pc.utf8_slice_codeunits(stored[name], 0, _HASH_CHARACTERS)
        self._hashes += hashes.drop_null().chunks
        if len(self._samples_by_hash) < _MOST_ROWS // 10:
            samples = zip(stored["key"].to_pylist(), stored["url"].to_pylist(), strict=True)
            self._samples_by_hash.update(zip(hashes.to_pylist(), samples, strict=True))

    def _add_labels(self, stored: pa.Table) -> None:
        for name, counts in self._labels.items():
            if counts is None or name not in stored.schema.names:
                continue
            counts.update(
                {each["values"]: each["counts"] for each in pc.value_counts(stored[name].drop_null()).to_pylist()}
            )
            if len(counts) > _MOST_LABELS:
                self._labels[name] = None


def _of_member(table: pa.Table, member: str) -> pa.Table:
    """The metadata of one of several files of each row, with the names of a row with one file."""
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
    """Up to `number` of the values, evenly from the first to the last."""
    if len(values) <= number:
        return list(values)
    return [values[n * (len(values) - 1) // max(1, number - 1)] for n in range(number)]


def ranges_of(
    smallest: float, largest: float, count_below: Callable[[float], int]
) -> tuple[tuple[float, float, int], ...]:
    """(from, to, count) of the ranges between round numbers that values lie in, by how many are below a number.

    The first range includes what is less than its start.
    """
    powers = range(math.floor(math.log10(smallest)), math.ceil(math.log10(max(smallest, largest))) + 2)
    edges = [round(step * 10.0**power, 9) for power in powers for step in _STEPS]
    edges = edges[max(0, bisect.bisect_right(edges, smallest) - 1) : bisect.bisect_right(edges, largest) + 1]
    below = [0, *map(count_below, edges[1:])]
    spans = zip(itertools.pairwise(edges), itertools.pairwise(below), strict=True)
    return tuple((start, stop, after - before) for (start, stop), (before, after) in spans)
