"""Reads a url list as a run would: how many rows, which hosts, how many duplicates, and a random sample of the rows."""

from __future__ import annotations

import itertools
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.config.options import Config
from any2ds.core.errors import ReadError
from any2ds.core.failures import Failure
from any2ds.core.schemes import FILE_SYSTEMS, WEB
from any2ds.fetch.policy.schedule import host_name
from any2ds.fetch.profiles import Profiles
from any2ds.fetch.urls import normalize
from any2ds.forecast.sketches import DistinctSample, FrequentItems
from any2ds.readers.bad_rows import COLUMN as BAD_ROWS
from any2ds.readers.blocks import RandomPart, can_be_read_in_blocks
from any2ds.readers.dedupe import comparable
from any2ds.readers.plan import cuts
from any2ds.readers.sources import Source

log = logging.getLogger(__name__)

FETCHED = WEB | FILE_SYSTEMS  # schemes
_PART = 5_000_000  # rows that are read of a list of row groups, or blocks of text, with more bytes than this:
_LARGE = 2 << 30
_BETWEEN = 0.5  # seconds between two reports of progress
_TOP = 20  # hosts that are named
_ALL_SHARDS, _EACH_SHARD = 100, 10  # in which duplicates and hosts are counted: in the first, then in each tenth
_STARTS_AT_ONCE = 1_000_000  # schemes with hosts that are counted together
_STARTS_BYTES = 64 << 20
_LONGEST_URL = 2000  # characters that are compared, where most URLs are longer
_PLAIN_START = r"^https?://[^@\s]+$"


@dataclass(frozen=True, slots=True)
class Hosts:
    """How the rows are spread over hosts. Rows are those of the whole list, extrapolated if a part was read."""

    count: int = 0  # estimated if there are very many
    # Name, "" for rows that need none (data: and file:) -> rows, most first.
    largest: Mapping[str, int] = field(default_factory=dict)
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
    schemes: Mapping[str, int]  # of the URLs of the others; "" for one that is missing, or is none
    hosts: Hosts
    distinct: int  # URLs among the rows that were read
    duplicates: float  # share of the rows whose URL stands in an earlier one
    duplicates_in_shards: float  # the same, counting only earlier rows of the same shard
    urls_per_row: int  # the files of a row
    error: str  # why the list was not read to its end; "" if it was
    seconds: float  # that reading took
    sample: pa.Table  # rows drawn at random, in the order of the list, with the columns of the dataset
    files: tuple[str, ...] = ()  # that the list consists of; empty if rows come from elsewhere

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
    source, is_part = _opened(config, seed)
    with closing(source):
        found = _Found(config, size, random.Random(seed))
        error = ""
        said = began
        try:
            for cut in cuts(source.batches(), config.output.number_sample_per_shard):
                found.add(cut.batches)
                if (now := time.monotonic()) - said > _BETWEEN:
                    said = now
                    progress(found.read, None if is_part else source.share_of(found.read))
                if is_part and source.has_row_groups and found.read >= _PART:
                    break
        except ReadError as broken:
            error = str(broken)
        rows, share = source.rows, source.share_of(found.read)
        schema = source.schema
    is_exact = rows is not None and not error
    if rows is None:
        rows = round(found.read / share) if share else found.read
    result = found.survey(max(rows, found.read), is_exact, error, time.monotonic() - began, schema)
    return replace(result, files=tuple(file.name for file in source.list_files))


def _opened(config: Config, seed: int) -> tuple[Source, bool]:
    """The list, or a random part of it if it is large; and whether it is a part."""
    source = Source.of(config)
    if config.input.limit is not None or sum(file.size or 0 for file in source.list_files) <= _LARGE:
        return source, False
    kind = Source if source.has_row_groups else RandomPart if can_be_read_in_blocks(source.inputs) else None
    if kind is None:
        log.warning(
            "the whole list is read, which takes minutes for each 100 million rows: random parts can be read of parquet"
            " and of text that is not compressed"
        )
        return source, False
    source.close()
    return kind.of(replace(config, input=replace(config.input, shuffle=seed)), is_looked_at=True), True


class _Found:
    """Adds up what is read, shard by shard."""

    def __init__(self, config: Config, size: int, rng: random.Random) -> None:
        self._profiles = Profiles(config.fetch)
        self._columns = config.url_columns
        self._reservoir = Reservoir(size, rng)
        self._frequent, self._hosts, self._urls = FrequentItems(), DistinctSample(), DistinctSample()
        self._schemes: Counter[str] = Counter()
        self._starts: list[pa.StringArray] = []  # of URLs, to be counted together: many are the same
        self._waiting = self._bytes_waiting = 0  # of these
        self.read = self._bad = self._shards = 0
        self._in_shards = self._hosts_in_shards = self._shards_compared = self._rows_compared = 0

    def add(self, batches: Sequence[pa.RecordBatch]) -> None:
        """The rows of a shard."""
        urls_of_shard, starts_of_shard = [], []
        for batch in batches:
            self.read += batch.num_rows
            self._reservoir.add(batch)
            bad = batch.column(BAD_ROWS) if BAD_ROWS in batch.schema.names else None
            bad_rows = len(bad) - bad.null_count if bad is not None else 0
            self._bad += bad_rows
            urls = _given(batch.column("url"))
            urls_of_shard.append(urls)
            self._urls.add(urls)
            for name in self._columns:
                of_column = urls if name == "url" else _given(batch.column(name))
                self._schemes[""] += batch.num_rows - bad_rows - len(of_column)
                starts_of_shard.append(_starts(of_column))
        self._starts += starts_of_shard
        if self._shards < _ALL_SHARDS or self._shards % _EACH_SHARD == 0:
            all_urls, starts = (pa.chunked_array(each, pa.string()) for each in (urls_of_shard, starts_of_shard))
            self._in_shards += len(all_urls) - len(pc.unique(all_urls))
            self._hosts_in_shards += len(pc.unique(starts))
            self._shards_compared += 1
            self._rows_compared += sum(batch.num_rows for batch in batches)
        self._shards += 1
        self._waiting += sum(map(len, starts_of_shard))
        self._bytes_waiting += sum(starts.nbytes for starts in starts_of_shard)
        if self._waiting >= _STARTS_AT_ONCE or self._bytes_waiting >= _STARTS_BYTES:
            self._count_starts()

    def _count_starts(self) -> None:
        found: Counter[str] = Counter()  # host -> rows
        counted = pc.value_counts(pa.chunked_array(self._starts, pa.string()))
        self._starts, self._waiting, self._bytes_waiting = [], 0, 0
        starts, rows = counted.field("values"), counted.field("counts")
        is_plain = pc.match_substring_regex(starts, _PLAIN_START)
        if self._profiles.differ:  # in which port and pattern count
            is_plain = pc.and_(is_plain, False)
        plain, rows_of_plain = starts.filter(is_plain), rows.filter(is_plain)
        is_secure = pc.starts_with(plain, "https")
        self._schemes["https"] += pc.sum(rows_of_plain.filter(is_secure)).as_py() or 0
        self._schemes["http"] += pc.sum(rows_of_plain.filter(pc.invert(is_secure))).as_py() or 0
        hosts = pc.ascii_lower(pc.list_element(pc.split_pattern(plain, "//", max_splits=1), 1))
        for host, count in zip(hosts.to_pylist(), rows_of_plain.to_pylist(), strict=True):
            found[host] += count
        others = pc.invert(is_plain)
        for start, count in zip(starts.filter(others).to_pylist(), rows.filter(others).to_pylist(), strict=True):
            scheme = _scheme_of(start)
            self._schemes[scheme] += count
            if scheme in FETCHED:  # the others have none, wherever they seem to
                found[self._host_of(f"{start}/file")] += count  # a bucket alone is no URL
        self._frequent.add(found)
        self._hosts.add_counts(found)

    def _host_of(self, url: str) -> str:
        return self._profiles.host_of(url)[0] if self._profiles.differ else host_name(url)

    def survey(self, rows: int, is_exact: bool, error: str, seconds: float, schema: pa.Schema) -> Survey:
        factor = rows / self.read if self.read else 1.0
        self._count_starts()
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
            duplicates_in_shards=self._in_shards / self._rows_compared if self._rows_compared else 0.0,
            error=error,
            seconds=seconds,
            sample=self._reservoir.table(schema),
        )

    def _spread(self, factor: float) -> Hosts:
        frequent, sampled = self._frequent, self._hosts
        largest = {host: round(count * factor) for host, count in frequent.counts.most_common(_TOP)}
        others = {host: max(1, round(count * factor)) for host, count in sampled.counts.items() if host not in largest}
        per_shard = self._hosts_in_shards / self._shards_compared if self._shards_compared else 0.0
        count = sampled.distinct - 1 if "" in sampled.counts else sampled.distinct
        return Hosts(count, largest, others, sampled.part, per_shard)


def _given(urls: pa.Array) -> pa.StringArray:
    """Those that are not empty."""
    if urls.nbytes > _LONGEST_URL * len(urls):
        urls = pc.utf8_slice_codeunits(urls, 0, _LONGEST_URL)
    urls = comparable(urls)
    is_given = pc.fill_null(pc.greater(pc.binary_length(urls), 0), False)
    return urls if is_given.true_count == len(urls) else urls.filter(is_given)


def _starts(urls: pa.StringArray) -> pa.StringArray:
    """The scheme and the host of each."""
    parts = pc.split_pattern(pc.binary_join_element_wise(urls, "///", ""), "/", max_splits=3)
    starts = pc.binary_join_element_wise(pc.list_element(parts, 0), "//", pc.list_element(parts, 2), "")
    is_data = pc.starts_with(urls, "data:", ignore_case=True)
    return pc.if_else(is_data, "data:,", starts) if pc.any(is_data).as_py() else starts


def _scheme_of(start: str) -> str:
    """In lower case; "" for a URL that begins so and is none."""
    scheme, separator, authority = start.partition("://")
    if separator and scheme.lower() in WEB:
        return scheme.lower() if authority else ""
    normal = normalize(f"{start if separator else start.removesuffix('//')}/file")
    if isinstance(normal, Failure) and normal.code != "unsupported_scheme":
        return ""
    return start.partition(":")[0].lower()


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
