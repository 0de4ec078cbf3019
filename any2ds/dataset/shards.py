"""The table of shards: a row for each finished shard of a dataset, with the figures of its statistics.

It is read from the list of shards, `.any2ds/shards`, which a run writes when it ends, or from the statistics:

    {"__kind__": "wids-shard-index-v1", "wids_version": 1, "any2ds": "…", "open": false,
     "pattern": "{00000..00041}.tar", "gaps": [], "shards": 42, "count": …, "nsamples": …, "bytes": …, "shardlist": [
    {"url": "../00000.tar", "nsamples": 9871, "filesize": …, "shard_id": 0, "count": 10000, "bytes": …, "exts": {…}},
    …]}

The keys `url`, `nsamples` and `filesize` are those of webdataset's `wids`, the others are any2ds's own. Each `url` is
relative to the list, as `wids` takes it; the `pattern` is of names in the folder of the dataset. The list is open while
a run makes shards, which it may lack then.
"""

from __future__ import annotations

import io
import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import BinaryIO

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from any2ds.config.options import OutputOptions
from any2ds.core import plugins
from any2ds.core.layout import SHARDS_FILE, Layout
from any2ds.core.reports import ShardReport
from any2ds.core.stats import Stats
from any2ds.core.version import __version__
from any2ds.storage.folders import OutputFolder

_WIDS = {"__kind__": "wids-shard-index-v1", "wids_version": 1}  # says that the shards are tar files
_NUMBERS = ("shard_id", "count", "samples", "bytes", "data_bytes", "replaces")
_COUNTS = ("exts", "splits")  # JSON, since a map for each of a million shards takes gigabytes
_SCHEMA = pa.schema([*((name, pa.int64()) for name in _NUMBERS), *((name, pa.binary()) for name in _COUNTS)])
# A line of the list as `to_json` writes it: Arrow takes a million of them apart in the time in which Python reads half.
_LINE = (
    r'\{"url":"[^"]*","nsamples":(?P<samples>\d+),"filesize":(?P<data_bytes>\d+),"shard_id":(?P<shard_id>\d+)'
    r',"count":(?P<count>\d+),"bytes":(?P<bytes>\d+),"exts":(?P<exts>\{[^{}]*\})(?:,"splits":(?P<splits>\{[^{}]*\}))?'
    r'(?:,"replaces":(?P<replaces>\d+))?\},?'
)
_END = b"]}\n"  # the last line
_BLOCK_BYTES = 1 << 20  # of the list, parsed at once
_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A row of the table."""

    shard_id: int
    count: int  # rows
    samples: int  # in the data: a row that is stored has one, or several
    bytes: int  # of the files stored; 0 in shards of img2dataset, which does not record it
    data_bytes: int  # size of the data file; 0 where that is a folder, or there is none
    exts: Mapping[str, int] = field(default_factory=dict)  # extension -> files; empty if unknown
    splits: Mapping[str, int] = field(default_factory=dict)  # value of the column `split` -> samples; empty: no column
    replaces: int = 0  # rows that earlier shards have, too, as failures: a retry has made them again

    @classmethod
    def of(cls, report: ShardReport) -> ShardEntry:
        figures = (report.shard_id, report.count, report.samples, report.bytes, report.data_bytes)
        return cls(*figures, dict(report.exts), dict(report.splits), sum(report.replaces.values()))

    @classmethod
    def of_stats(cls, shard_id: int, stats: Stats, size: int = 0) -> ShardEntry:
        """`size` is that of the data file, for statistics without it."""
        data_bytes = size if stats.data_bytes is None else stats.data_bytes
        figures = (shard_id, stats.count, stats.samples, stats.size or 0, data_bytes)
        return cls(*figures, stats.exts, stats.splits, sum(stats.replaces.values()))


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over all shards."""

    shards: int = 0
    rows: int = 0  # each once, however often it was tried
    samples: int = 0
    bytes: int | None = 0  # of the files stored; None if unknown
    exts: Mapping[str, int] = field(default_factory=dict)  # extension -> files, the most frequent first


@dataclass(frozen=True)
class ShardTable:
    """Rows in the order of the shard numbers, in about 100 bytes each: a dataset may have a million shards."""

    arrow: pa.Table  # of `_SCHEMA`

    @classmethod
    def of(cls, entries: Iterable[ShardEntry]) -> ShardTable:
        """`entries` in any order; of two with one number the last one counts."""
        rows = sorted({entry.shard_id: entry for entry in entries}.values(), key=lambda entry: entry.shard_id)
        columns: list[pa.Array] = [pa.array([getattr(row, name) for row in rows], pa.int64()) for name in _NUMBERS]
        columns += [pa.array([_packed(getattr(row, name)) for row in rows], pa.binary()) for name in _COUNTS]
        return cls(pa.Table.from_arrays(columns, schema=_SCHEMA))

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    @cached_property
    def ids(self) -> array[int]:
        return self.column("shard_id")

    def column(self, name: str) -> array[int]:
        """The values of a column of numbers, in the order of `ids`."""
        found = array("q")
        for chunk in self.arrow[name].chunks:
            found.frombytes(memoryview(chunk.buffers()[1])[8 * chunk.offset : 8 * (chunk.offset + len(chunk))])
        return found

    def entries(self) -> Iterator[ShardEntry]:
        for batch in self.arrow.to_batches(_ROWS_AT_ONCE):
            for row in batch.to_pylist():
                yield ShardEntry(**{**row, **{name: _unpacked(row[name]) for name in _COUNTS}})

    def only(self, shard_ids: Iterable[int]) -> ShardTable:
        """The rows of these shards, as far as they are there."""
        wanted = array("q", shard_ids)
        if wanted == self.ids:
            return self
        return ShardTable(self.arrow.filter(pc.is_in(self.arrow["shard_id"], pa.array(wanted, pa.int64()))))

    def with_rows(self, other: ShardTable) -> ShardTable:
        """The rows of both, which have none in common."""
        table = pa.concat_tables([self.arrow, other.arrow])
        return ShardTable(table.take(pc.sort_indices(table["shard_id"])))

    @cached_property
    def totals(self) -> Totals:
        exts: Counter[str] = Counter()
        for each in pc.value_counts(self.arrow["exts"]).to_pylist():
            for ext, files in _unpacked(each["values"]).items():
                exts[ext] += files * each["counts"]
        sums = {name: pc.sum(self.arrow[name]).as_py() or 0 for name in _NUMBERS}
        rows = sums["count"] - sums["replaces"]
        return Totals(len(self), rows, sums["samples"], sums["bytes"], dict(exts.most_common()))


@dataclass(frozen=True, slots=True)
class ShardList:
    """Content of `.any2ds/shards`."""

    table: ShardTable
    is_open: bool  # a run is at work, or was killed: shards may have been added since

    @classmethod
    def of(cls, folder: OutputFolder) -> ShardList:
        """Raises ValueError if it cannot be understood, or what the file system raises."""
        with folder.open(SHARDS_FILE) as raw, io.BufferedReader(raw, _BLOCK_BYTES) as file:  # type: ignore[type-var]
            return cls.read(file)

    @classmethod
    def read(cls, file: BinaryIO) -> ShardList:
        """Raises ValueError if it is none, or what `file` raises."""
        try:
            head = orjson.loads(file.readline().rstrip().removesuffix(b',"shardlist":[') + b"}")
            table = pa.Table.from_batches(_batches(file), _SCHEMA)
            if table.num_rows != head["shards"]:
                raise ValueError("the list of shards is truncated")
            return cls(ShardTable(table), head["open"] is not False)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"no list of shards: {type(error).__name__}: {error}") from error


def opened(content: bytes) -> bytes:
    """The content of a list, marked as open."""
    return content.replace(b'"open":false', b'"open":true', 1)


def to_json(table: ShardTable, options: OutputOptions, is_open: bool) -> bytes:
    """The content of a list."""
    names, extension = options.layout, plugins.load("writers", options.output_format).extension
    # Each line is copied at once: orjson returns it in a buffer of 4 KB, which for a million shards take 4 GB.
    lines = io.BytesIO()
    for entry in table.entries():
        lines.write(b",\n" if lines.tell() else b"\n")
        line = {
            "url": f"../{names.data_name(entry.shard_id, extension) or names.metadata_name(entry.shard_id)}",
            "nsamples": entry.samples,
            "filesize": entry.data_bytes,
            "shard_id": entry.shard_id,
            "count": entry.count,
            "bytes": entry.bytes,
            "exts": entry.exts,
            **({"splits": entry.splits} if entry.splits else {}),
            **({"replaces": entry.replaces} if entry.replaces else {}),
        }
        lines.write(orjson.dumps(line))
    lines.write(b"\n" + _END)
    totals = table.totals
    head = {
        **(_WIDS if extension == "tar" else {}),
        "any2ds": __version__,
        "open": is_open,
        "pattern": pattern(table.ids, names, extension),
        "gaps": gaps(table.ids),
        "shards": totals.shards,
        "count": totals.rows,
        "nsamples": totals.samples,
        "bytes": totals.bytes,
    }
    return b"".join((orjson.dumps(head)[:-1], b',"shardlist":[', lines.getbuffer()))


def _batches(file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """The shards on the lines behind the first one."""
    while block := file.read(_BLOCK_BYTES):
        block += file.readline()
        if not (block := block.removesuffix(_END).removesuffix(b"\n")):
            return
        # A value of Python would make pyarrow load pandas where it is installed: as much work as half of the list.
        ends = pa.py_buffer(array("i", (0, len(block))))
        lines = pc.split_pattern(pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(block)]), b"\n")
        found = pc.extract_regex(lines.flatten(), f"^{_LINE}$")
        if found.null_count:
            raise ValueError("a line of the list of shards cannot be understood")
        texts = dict(zip((each.name for each in found.type), found.flatten(), strict=True))
        texts["replaces"] = pc.replace_substring_regex(texts["replaces"], "^$", "0")
        numbers = [texts[name].cast(pa.string()).cast(pa.int64()) for name in _NUMBERS]
        yield pa.RecordBatch.from_arrays([*numbers, *(texts[name] for name in _COUNTS)], schema=_SCHEMA)


def _packed(counts: Mapping[str, int]) -> bytes:
    return orjson.dumps(dict(counts)) if counts else b""


def _unpacked(packed: bytes) -> dict[str, int]:
    return {ext: int(files) for ext, files in orjson.loads(packed).items()} if packed else {}


# --- numbers of shards as text ---


def ranges(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of consecutive numbers. `numbers` are sorted."""
    first = last = None
    for number in numbers:
        if last is None or number != last + 1:
            if first is not None and last is not None:
                yield first, last
            first = number
        last = number
    if first is not None and last is not None:
        yield first, last


def ranges_text(numbers: Iterable[int], most: int = 10) -> str:
    """Sorted numbers for people: `3, 7-9, 12 … and 4 more`."""
    found = list(ranges(numbers))
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found[:most])
    more = sum(last - first + 1 for first, last in found[most:])
    return shown + (f" … and {more:,} more" if more else "")


def gaps(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of shards that are missing below the last of the sorted `numbers`."""
    found, expected = [], 0
    for first, last in ranges(numbers):
        if first > expected:
            found.append((expected, first - 1))
        expected = last + 1
    return found


def pattern(numbers: Iterable[int], names: Layout, extension: str | None) -> str | None:
    """The names of the data files as a shell and webdataset expand them; None if there are none.

    `{00000..00041}.tar`, and with gaps `{{00000..00004},{00006..00041}}.tar`. `numbers` are sorted. Names with more
    digits than others have a range of their own: in one, all would be padded to the longest.
    """
    shown = []
    for _, same_length in itertools.groupby(numbers, key=lambda number: len(names.shard_name(number))):
        for first, last in ranges(same_length):
            start, stop = names.shard_name(first), names.shard_name(last)
            shown.append(start if first == last else f"{{{start}..{stop}}}")
    if not shown:
        return None
    end = "" if extension == "" else f".{extension or 'parquet'}"
    return f"{shown[0] if len(shown) == 1 else '{' + ','.join(shown) + '}'}{end}"
