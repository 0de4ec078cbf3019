"""Reads a url list as a run would: how many rows, which hosts, how many duplicates, and a random sample of the rows."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.config.options import Config
from any2ds.core.errors import ReadError
from any2ds.fetch.policy.schedule import host_name
from any2ds.fetch.profiles import Profiles
from any2ds.fetch.urls import WEB
from any2ds.forecast.sketches import DistinctSample, FrequentItems
from any2ds.readers.bad_rows import COLUMN as BAD_ROWS
from any2ds.readers.dedupe import comparable
from any2ds.readers.plan import cuts
from any2ds.readers.sources import Source

_PART = 5_000_000  # rows that are read of a list of row groups with more bytes than this:
_LARGE = 2 << 30
_BETWEEN = 0.5  # seconds between two reports of progress
_TOP = 20  # hosts that are named


@dataclass(frozen=True, slots=True)
class Hosts:
    """How the rows are spread over hosts. Rows are those of the whole list, extrapolated if a part was read."""

    count: int = 0  # estimated if there are very many
    largest: Mapping[str, int] = field(default_factory=dict)  # name, "" for rows without a host -> rows, most first
    others: Mapping[str, int] = field(default_factory=dict)  # the same of others, a random part of them
    part: float = 1.0  # of the others that these are
    per_shard: float = 0.0  # mean number of hosts in a shard

    def top(self, count: int) -> dict[str, int]:
        """The largest ones that have a name, and their rows."""
        return dict(itertools.islice(((host, rows) for host, rows in self.largest.items() if host), count))


@dataclass(frozen=True, slots=True)
class Survey:
    """What a url list holds."""

    rows: int
    is_exact: bool  # whether `rows` were counted, rather than extrapolated from bytes
    read: int  # rows that were looked at
    bad: int  # rows of these that are no rows
    schemes: Mapping[str, int]  # of their URLs; "" for one that is missing, or has no host
    hosts: Hosts
    distinct: int  # URLs among the rows that were read
    duplicates: float  # share of the rows whose URL stands in an earlier one
    duplicates_in_shards: float  # the same, counting only earlier rows of the same shard
    urls_per_row: int  # the files of a row
    error: str  # why the list was not read to its end; "" if it was
    seconds: float  # that reading took
    sample: pa.Table  # rows drawn at random, in the order of the list, with the columns of the dataset

    @property
    def urls(self) -> int:
        """Of all rows."""
        return self.rows * self.urls_per_row

    @property
    def is_part(self) -> bool:
        """Whether only a random part of a list was read that has too many rows."""
        return self.read < self.rows


def survey(
    config: Config,
    size: int,
    seed: int = 0,
    progress: Callable[[int, float | None], None] = lambda rows, share: None,
) -> Survey:
    """Read the list that `config` names, and draw `size` of its rows at random, with `seed`.

    `progress` is called now and then with the rows that were read, and the share of the list, if known. Raises
    UsageError as `Source` does, for an empty list as well.
    """
    began = time.monotonic()
    source = Source.of(config)
    is_part = False
    if config.input.shuffle is None and source.has_row_groups and _bytes(source) > _LARGE:
        source.close()
        source = Source.of(replace(config, input=replace(config.input, shuffle=seed)))
        is_part = True
    with closing(source):
        found = _Found(config, size, random.Random(seed))
        error = ""
        said = began
        try:
            for cut in cuts(source.batches(), config.output.number_sample_per_shard):
                found.add(cut.batches)
                if (now := time.monotonic()) - said > _BETWEEN:
                    said = now
                    progress(found.read, source.share_of(found.read))
                if is_part and found.read >= _PART:
                    break
        except ReadError as broken:
            error = str(broken)
        rows, share = source.rows, source.share_of(found.read)
        schema = source.schema
    is_exact = rows is not None and not error
    if rows is None:
        rows = round(found.read / share) if share else found.read
    return found.survey(max(rows, found.read), is_exact, error, time.monotonic() - began, schema)


def _bytes(source: Source) -> int:
    return sum(file.size or 0 for file in source.list_files)


class _Found:
    """Adds up what is read, shard by shard."""

    def __init__(self, config: Config, size: int, rng: random.Random) -> None:
        profiles = Profiles(config.fetch)
        self._columns = config.url_columns
        self._host_of: Callable[[str], str] = (
            (lambda url: profiles.host_of(url)[0]) if profiles.differ else (lambda url: host_name(url))
        )
        self._reservoir = Reservoir(size, rng)
        self._frequent, self._hosts, self._urls = FrequentItems(), DistinctSample(), DistinctSample()
        self._schemes: Counter[str] = Counter()
        self.read = self._bad = self._in_shards = self._shards = self._hosts_in_shards = 0

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        """The rows of a shard."""
        urls_of_shard, hosts_of_shard = [], set[str]()
        for batch in batches:
            self.read += batch.num_rows
            self._reservoir.add(batch)
            bad = batch.column(BAD_ROWS) if BAD_ROWS in batch.schema.names else None
            self._bad += len(bad) - bad.null_count if bad is not None else 0
            urls = _given(batch.column("url"))
            urls_of_shard.append(urls)
            self._urls.add(urls.to_pylist())
            for name in self._columns:
                hosts = self._by_host(urls if name == "url" else _given(batch.column(name)))
                self._schemes[""] += batch.num_rows - sum(hosts.values())
                self._frequent.add(hosts)
                self._hosts.add_counts(hosts)
                hosts_of_shard |= hosts.keys()
        urls = pa.chunked_array(urls_of_shard, pa.string()) if urls_of_shard else pa.chunked_array([], pa.string())
        self._in_shards += len(urls) - len(pc.unique(urls))
        self._shards += 1
        self._hosts_in_shards += len(hosts_of_shard)

    def _by_host(self, urls: pa.StringArray) -> Counter[str]:
        """Host -> rows; counts the schemes as well."""
        found: Counter[str] = Counter()
        for start, rows in _starts(urls):
            scheme, separator, authority = start.partition("://")
            scheme = scheme.lower()
            self._schemes[scheme if separator and (authority or scheme not in WEB) else ""] += rows
            found[self._host_of(start)] += rows
        return found

    def survey(self, rows: int, is_exact: bool, error: str, seconds: float, schema: pa.Schema) -> Survey:
        factor = rows / self.read if self.read else 1.0
        self._schemes += Counter()  # without zeros
        return Survey(
            rows=rows,
            is_exact=is_exact,
            read=self.read,
            bad=self._bad,
            schemes=dict(self._schemes.most_common()),
            hosts=self._spread(factor),
            distinct=self._urls.distinct,
            duplicates=self._urls.repeated_share,
            urls_per_row=len(self._columns),
            duplicates_in_shards=self._in_shards / self.read if self.read else 0.0,
            error=error,
            seconds=seconds,
            sample=self._reservoir.table(schema),
        )

    def _spread(self, factor: float) -> Hosts:
        frequent, sampled = self._frequent, self._hosts
        largest = {host: round(count * factor) for host, count in frequent.counts.most_common(_TOP)}
        others = {host: max(1, round(count * factor)) for host, count in sampled.counts.items() if host not in largest}
        per_shard = self._hosts_in_shards / self._shards if self._shards else 0.0
        count = sampled.distinct - 1 if "" in sampled.counts else sampled.distinct
        return Hosts(count, largest, others, sampled.part, per_shard)


def _given(urls: pa.Array) -> pa.StringArray:
    """Those that are not empty."""
    urls = comparable(urls)
    return urls.filter(pc.fill_null(pc.greater(pc.binary_length(urls), 0), False))


def _starts(urls: pa.StringArray) -> Iterator[tuple[str, int]]:
    """Each scheme with a host, and how many URLs have it."""
    parts = pc.split_pattern(pc.binary_join_element_wise(urls, "///", ""), "/", max_splits=3)
    starts = pc.binary_join_element_wise(pc.list_element(parts, 0), "//", pc.list_element(parts, 2), "")
    yield from ((each["values"], each["counts"]) for each in pc.value_counts(starts).to_pylist())


class Reservoir:
    """`size` rows of a stream, each with the same chance (Li's algorithm L), in their order."""

    def __init__(self, size: int, rng: random.Random) -> None:
        self._size, self._rng = size, rng
        self._rows: list[tuple[int, pa.RecordBatch]] = []  # number in the stream, and a batch of this row
        self._seen = 0
        self._weight = math.exp(math.log(1.0 - rng.random()) / size)
        self._next = size + self._gap()

    def add(self, batch: pa.RecordBatch) -> None:
        first, count = self._seen, batch.num_rows
        self._seen += count
        wanted = list(range(max(0, min(count, self._size - len(self._rows)))))
        replaced: dict[int, int] = {}
        while self._next < first + count:
            replaced[self._rng.randrange(self._size)] = self._next - first
            self._weight *= math.exp(math.log(1.0 - self._rng.random()) / self._size)
            self._next += 1 + self._gap()
        picked = batch.take(pa.array([*wanted, *replaced.values()], pa.int64()))
        for number, row in enumerate(wanted):
            self._rows.append((first + row, picked.slice(number, 1)))
        for number, (place, row) in enumerate(replaced.items(), len(wanted)):
            self._rows[place] = first + row, picked.slice(number, 1)

    def _gap(self) -> int:
        return int(math.log(1.0 - self._rng.random()) / math.log(max(1e-300, 1.0 - self._weight)))

    def table(self, schema: pa.Schema) -> pa.Table:
        """The rows, without those that could not be read."""
        batches = [row for _, row in sorted(self._rows, key=lambda found: found[0])]
        good = [
            row.select(schema.names)
            for row in batches
            if BAD_ROWS not in row.schema.names or row.column(BAD_ROWS).null_count
        ]
        return pa.Table.from_batches(good, schema).combine_chunks()
