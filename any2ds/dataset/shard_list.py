"""The list of the finished shards of a dataset, `.any2ds/shards`. Pure.

    {"__kind__": "wids-shard-index-v1", "wids_version": 1, "any2ds": "…", "open": false,
     "pattern": "{00000..00041}.tar", "gaps": [], "shards": 42, "count": …, "nsamples": …, "bytes": …, "shardlist": [
    {"url": "../00000.tar", "nsamples": 9871, "filesize": …, "shard_id": 0, "count": 10000, "bytes": …, "exts": {…}},
    …]}

The keys `url`, `nsamples` and `filesize` are those of webdataset's `wids`, the others are any2ds's own. Each `url` is
relative to the list, as `wids` takes it; the `pattern` is of names in the folder of the dataset.
"""

from __future__ import annotations

import io
import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from any2ds.config.options import OutputOptions
from any2ds.core import plugins
from any2ds.core.layout import Layout
from any2ds.core.reports import ShardReport
from any2ds.core.stats import Stats
from any2ds.core.version import __version__

_KIND = {"__kind__": "wids-shard-index-v1", "wids_version": 1}  # says that the shards are tar files
_NUMBERS = ("shard_id", "count", "nsamples", "bytes", "filesize")


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """A finished shard."""

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


class ShardEntries(MutableMapping[int, ShardEntry]):
    """Shard number -> entry, in about 200 bytes for each: a dataset may have a million shards."""

    def __init__(self, entries: Iterable[ShardEntry] = ()) -> None:
        self._packed: dict[int, bytes] = {}
        for entry in entries:
            self[entry.shard_id] = entry

    def __setitem__(self, shard_id: int, entry: ShardEntry) -> None:
        numbers = entry.count, entry.samples, entry.bytes, entry.data_bytes
        packed = orjson.dumps((*numbers, dict(entry.exts), dict(entry.splits), entry.replaces))
        self._packed[shard_id] = bytes(memoryview(packed))  # a copy: orjson returns it in a buffer of 4 KB

    def __getitem__(self, shard_id: int) -> ShardEntry:
        return ShardEntry(shard_id, *orjson.loads(self._packed[shard_id]))

    def __delitem__(self, shard_id: int) -> None:
        del self._packed[shard_id]

    def __contains__(self, shard_id: object) -> bool:
        return shard_id in self._packed

    def __iter__(self) -> Iterator[int]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def add_all(self, others: ShardEntries) -> None:
        """`update`, without a look into each."""
        self._packed.update(others._packed)

    def only(self, is_wanted: Callable[[int], bool]) -> ShardEntries:
        """Those that are wanted."""
        found = ShardEntries()
        found._packed = {shard_id: packed for shard_id, packed in self._packed.items() if is_wanted(shard_id)}
        return found

    def in_order(self) -> ShardEntries:
        """The same, by their numbers; itself if they are in order."""
        if all(one < next for one, next in itertools.pairwise(self._packed)):
            return self
        found = ShardEntries()
        found._packed = dict(sorted(self._packed.items()))
        return found


def entry_of(shard_id: int, content: bytes | None, size: int = 0) -> ShardEntry:
    """From its `_stats.json`. Raises ValueError."""
    return ShardEntry.of_stats(shard_id, Stats.parse(content or b""), size)


@dataclass(frozen=True, slots=True)
class ShardList:
    """What `.any2ds/shards` holds."""

    entries: ShardEntries
    is_open: bool  # a run is at work, or was killed: shards may have changed since

    @classmethod
    def parse(cls, content: bytes) -> ShardList:
        """Raises ValueError if `to_json` has not written it."""
        return cls.read(io.BytesIO(content))

    @classmethod
    def read(cls, file: Iterator[bytes]) -> ShardList:
        """From its lines, one after the other. Raises ValueError, or what `file` raises."""
        try:
            head = head_of(next(file, b""))
            entries = ShardEntries(map(_entry, lines_of(file)))
            if len(entries) != head["shards"]:
                raise ValueError("the list of shards is truncated")
            return cls(entries, head["open"] is not False)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"no list of shards: {type(error).__name__}: {error}") from error


def opened(content: bytes) -> bytes:
    """The content of a list, marked as open."""
    return content.replace(b'"open":false', b'"open":true', 1)


def head_of(line: bytes) -> dict[str, Any]:
    """What the first line of a list says of all shards. Raises ValueError."""
    found = orjson.loads(line.rstrip().removesuffix(b',"shardlist":[') + b"}")
    if not isinstance(found, dict):
        raise ValueError("no list of shards")
    return found


def lines_of(file: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """What the lines behind the first one say, of a shard each. Raises ValueError for one that is cut off."""
    for line in file:
        if line.startswith(b"]"):
            return
        yield orjson.loads(line.rstrip().rstrip(b","))


def _entry(found: Mapping[str, Any]) -> ShardEntry:
    shard_id, count, samples, size, data_bytes = numbers = [found[name] for name in _NUMBERS]
    replaces = found.get("replaces", 0)
    if not all(type(number) is int and number >= 0 for number in (*numbers, replaces)):
        raise TypeError("not a number")
    exts, splits = (
        {str(name): int(number) for name, number in counts.items()}
        for counts in (found["exts"], found.get("splits", {}))
    )
    return ShardEntry(shard_id, count, samples, size, data_bytes, exts, splits, replaces)


def to_json(entries: Iterable[ShardEntry], options: OutputOptions, is_open: bool) -> bytes:
    """`entries` in the order of their numbers."""
    names = options.layout
    extension = plugins.load("writers", options.output_format).extension
    numbers = array("q")
    count = samples = size = 0
    # Each line is copied at once: orjson returns it in a buffer of 4 KB, which for a million shards take 4 GB.
    content = io.BytesIO()
    for entry in entries:
        content.write(b",\n" if numbers else b"\n")
        numbers.append(entry.shard_id)
        count, samples, size = count + entry.count - entry.replaces, samples + entry.samples, size + entry.bytes
        line = orjson.dumps(
            {
                "url": f"../{names.data_name(entry.shard_id, extension) or names.metadata_name(entry.shard_id)}",
                "nsamples": entry.samples,
                "filesize": entry.data_bytes,
                "shard_id": entry.shard_id,
                "count": entry.count,
                "bytes": entry.bytes,
                "exts": dict(entry.exts),
                **({"splits": dict(entry.splits)} if entry.splits else {}),
                **({"replaces": entry.replaces} if entry.replaces else {}),
            }
        )
        content.write(line)
    content.write(b"\n]}\n")
    head = {
        **(_KIND if extension == "tar" else {}),
        "any2ds": __version__,
        "open": is_open,
        "pattern": pattern(numbers, names, extension),
        "gaps": gaps(numbers),
        "shards": len(numbers),
        "count": count,
        "nsamples": samples,
        "bytes": size,
    }
    return b"".join((orjson.dumps(head)[:-1], b',"shardlist":[', content.getbuffer()))


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
