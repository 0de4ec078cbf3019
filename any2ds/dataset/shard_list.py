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
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

    @classmethod
    def of(cls, report: ShardReport) -> ShardEntry:
        figures = (report.shard_id, report.count, report.samples, report.bytes, report.data_bytes)
        return cls(*figures, dict(report.exts), dict(report.splits))

    @classmethod
    def of_stats(cls, shard_id: int, stats: Stats, size: int = 0) -> ShardEntry:
        """`size` is that of the data file, for statistics without it."""
        data_bytes = size if stats.data_bytes is None else stats.data_bytes
        return cls(shard_id, stats.count, stats.samples, stats.size or 0, data_bytes, stats.exts, stats.splits)


def entry_of(shard_id: int, content: bytes | None, size: int = 0) -> ShardEntry:
    """From its `_stats.json`. Raises ValueError."""
    return ShardEntry.of_stats(shard_id, Stats.parse(content or b""), size)


@dataclass(frozen=True, slots=True)
class ShardList:
    """What `.any2ds/shards` holds."""

    entries: Mapping[int, ShardEntry]
    is_open: bool  # a run is at work, or was killed: shards may have changed since
    content: bytes = b""

    def opened(self) -> bytes:
        """The content, marked as open."""
        return self.content.replace(b'"open":false', b'"open":true', 1)

    @classmethod
    def parse(cls, content: bytes) -> ShardList:
        """Raises ValueError if `to_json` has not written it."""
        try:
            found = orjson.loads(content)
            entries = [_entry(each) for each in found["shardlist"]]
            return cls({entry.shard_id: entry for entry in entries}, b'"open":false' not in content, content)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"no list of shards: {type(error).__name__}: {error}") from error


def _entry(found: Mapping[str, Any]) -> ShardEntry:
    shard_id, count, samples, size, data_bytes = numbers = [found[name] for name in _NUMBERS]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise TypeError("not a number")
    exts, splits = (
        {str(name): int(number) for name, number in counts.items()}
        for counts in (found["exts"], found.get("splits", {}))
    )
    return ShardEntry(shard_id, count, samples, size, data_bytes, exts, splits)


def to_json(entries: Sequence[ShardEntry], options: OutputOptions, is_open: bool) -> bytes:
    """`entries` in the order of their numbers."""
    names = options.layout
    extension = plugins.load("writers", options.output_format).extension
    numbers = [entry.shard_id for entry in entries]
    head = {
        **(_KIND if extension == "tar" else {}),
        "any2ds": __version__,
        "open": is_open,
        "pattern": pattern(numbers, names, extension),
        "gaps": gaps(numbers),
        "shards": len(entries),
        "count": sum(entry.count for entry in entries),
        "nsamples": sum(entry.samples for entry in entries),
        "bytes": sum(entry.bytes for entry in entries),
    }
    # Each line is copied at once: orjson returns it in a buffer of 4 KB, which for a million shards take 4 GB.
    content = io.BytesIO()
    content.write(orjson.dumps(head)[:-1] + b',"shardlist":[')
    for number, entry in enumerate(entries):
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
            }
        )
        content.write(b",\n" if number else b"\n")
        content.write(line)
    content.write(b"\n]}\n")
    return content.getvalue()


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
