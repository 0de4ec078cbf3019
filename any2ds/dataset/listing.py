"""The files of a dataset, as its folder lists them: those of shards in columns, since there may be millions of them."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Literal, TypeAlias, overload

from any2ds.core import layout

STATS_END = "_stats.json"
_FILE_OF_SHARD = re.compile(r"(\d{1,18})(_stats\.json|\.[A-Za-z0-9_.]+|)", re.ASCII)
_ABSENT = -1

Column: TypeAlias = "tuple[array[int], array[int]]"
"""Numbers of shards, and the sizes of their files with one end."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder in the folder of the dataset, or in `.any2ds`."""

    name: str
    size: int  # bytes; 0 for a folder
    is_folder: bool
    is_odd: bool = False  # a pipe or device: opening it may block for ever


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """Names of the files of one shard; None for what is not there."""

    shard_id: int
    stats: str | None = None
    metadata: str | None = None  # with all columns
    data: str | None = None  # the same as `metadata` where one file holds both; a folder for the format files
    extra_files: tuple[str, ...] = ()  # sidecars of the data, and metadata in further formats
    visible: str | None = None  # the metadata for other tools, if it is another table; maybe in one file with the data
    sizes: Mapping[str, int] = field(default_factory=dict)  # name -> bytes; 0 for a folder, and where nobody looked

    @property
    def present(self) -> tuple[str, ...]:
        """Each once; the stats, which say that the others are complete, come first."""
        names = (self.stats, self.metadata, self.visible, self.data, *self.extra_files)
        return tuple(dict.fromkeys(name for name in names if name))


class Listing:
    """Sorts what lies in a folder into files of shards, by the ends of their names, and `others`.

    Only names with as many digits as the others count as those of shards (see `settle`); nothing else could have been
    written by the same run.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.others: dict[str, Entry] = {}  # what belongs to no shard, by name
        self.size = self.folders = 0  # bytes of all files, number of folders
        self.digits = 0  # of the numbers of shards; more are for numbers that need them
        # End of a name, and digits before it -> numbers and sizes.
        self._by_digits: dict[tuple[str, int], Column] = defaultdict(_empty)
        self._columns: dict[str, Column] = {}  # end -> numbers, sorted, and sizes
        for entry in entries:
            self.size += entry.size
            self.folders += entry.is_folder
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        name = entry.name
        is_hidden = name.startswith(layout.METADATA_FOLDER)
        match = _FILE_OF_SHARD.fullmatch(name.removeprefix(f"{layout.METADATA_FOLDER}/") if is_hidden else name)
        if match is None or entry.is_odd or entry.is_folder != (match[2] == ""):
            self.others[name] = entry
            return
        number, end = match.groups()
        if (end == layout.METADATA_END) != is_hidden:
            self.others[name] = entry
            return
        numbers, sizes = self._by_digits[end, len(number)]
        numbers.append(int(number))
        sizes.append(entry.size)

    def settle(self, digits: int | None) -> None:
        """Say how many digits the numbers of shards have; None: those of the shortest statistics."""
        if digits is None:
            digits = min((length for end, length in self._by_digits if end == STATS_END), default=0)
        self.digits = digits
        found: dict[str, Column] = defaultdict(_empty)
        for (end, length), (numbers, sizes) in self._by_digits.items():
            least = 0 if length == digits else 10 ** (length - 1)  # more digits than others need no zero in front
            is_regular = [length >= digits and number >= least for number in numbers]
            for number, size, is_kept in zip(numbers, sizes, is_regular, strict=True):
                if not is_kept:
                    name = file_name(f"{number:0{length}d}", end)
                    self.others[name] = Entry(name, size, is_folder=end == "")
            if any(is_regular):
                found[end][0].extend(compress(numbers, is_regular))
                found[end][1].extend(compress(sizes, is_regular))
        self._by_digits.clear()
        for end, (numbers, sizes) in found.items():
            order = sorted(range(len(numbers)), key=numbers.__getitem__)
            self._columns[end] = array("q", map(numbers.__getitem__, order)), array("q", map(sizes.__getitem__, order))

    @property
    def ends(self) -> Mapping[str, int]:
        """End of a name of a shard's file -> number of them."""
        return {end: len(numbers) for end, (numbers, _) in self._columns.items()}

    def entries(self, end: str) -> Iterator[Entry]:
        """The shards' files with this end."""
        for number, size in zip(*self._columns.get(end, ((), ())), strict=True):
            yield Entry(file_name(f"{number:0{self.digits}d}", end), size, is_folder=end == "")

    def shards(self, data_end: str | None, extra_ends: Sequence[str]) -> Shards:
        """All that have files; `data_end` is that of the data, if it is known."""
        known = (STATS_END, layout.METADATA_END, ".parquet", data_end, *extra_ends)
        columns = {end: self._columns[end] for end in dict.fromkeys(known) if end is not None and end in self._columns}
        ids = array("q", sorted({number for numbers, _ in columns.values() for number in numbers}))
        sizes = {end: _aligned(ids, *column) for end, column in columns.items()}
        return Shards(self.digits, ids, sizes, data_end, tuple(extra_ends))


def _empty() -> Column:
    return array("q"), array("q")


def _aligned(ids: array[int], numbers: array[int], sizes: array[int]) -> array[int]:
    """The size for each of `ids`, which have all of the sorted `numbers`."""
    if len(ids) == len(numbers):
        return sizes
    known = dict(zip(numbers, sizes, strict=True))
    return array("q", (known.get(number, _ABSENT) for number in ids))


def file_name(number: str, end: str) -> str:
    name = f"{number}{end}"
    return f"{layout.METADATA_FOLDER}/{name}" if end == layout.METADATA_END else name


class Shards(Sequence[ShardFiles]):
    """The files of shards, in the order of their numbers; 8 bytes for each shard, and for each of its files."""

    def __init__(
        self,
        digits: int,
        ids: array[int],
        sizes: Mapping[str, array[int]],
        data_end: str | None,
        extra_ends: tuple[str, ...] = (),
    ) -> None:
        """`sizes` are those of the files with an end, for each of `ids`; -1 for what is not there."""
        self.ids = ids
        self._digits, self._sizes, self._data_end, self._extra_ends = digits, sizes, data_end, extra_ends

    @classmethod
    def finished_by(
        cls, digits: int, ids: array[int], data_end: str | None, with_own_metadata: Callable[[int], bool] | None
    ) -> Shards:
        """Shards that a list says to be finished, without a look into the folder; some have metadata out of sight."""
        ends = [end for end in (STATS_END, ".parquet", data_end) if end is not None]
        sizes = dict.fromkeys(ends, array("q", bytes(8 * len(ids))))
        if with_own_metadata is not None:
            sizes[layout.METADATA_END] = array("q", (0 if with_own_metadata(number) else _ABSENT for number in ids))
        return cls(digits, ids, sizes, data_end)

    @property
    def ends(self) -> frozenset[str]:
        """Of the names of their files."""
        return frozenset(self._sizes)

    def finished(self) -> Shards:
        """Those with statistics; itself if all have them."""
        stats = self._sizes.get(STATS_END)
        if stats is None:
            return self._where([False] * len(self))
        return self if _ABSENT not in stats else self._where([size != _ABSENT for size in stats])

    def only(self, shard_ids: Iterable[int]) -> Shards:
        if shard_ids == self.ids:
            return self
        wanted = set(shard_ids)
        return self._where([number in wanted for number in self.ids])

    def _where(self, is_wanted: Sequence[bool]) -> Shards:
        sizes = {end: array("q", compress(own, is_wanted)) for end, own in self._sizes.items()}
        return Shards(self._digits, array("q", compress(self.ids, is_wanted)), sizes, self._data_end, self._extra_ends)

    def of(self, shard_id: int) -> ShardFiles:
        """Raises KeyError for a shard that has no files."""
        place = bisect_left(self.ids, shard_id)
        if place == len(self.ids) or self.ids[place] != shard_id:
            raise KeyError(shard_id)
        return self[place]

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, place: int) -> ShardFiles: ...
    @overload
    def __getitem__(self, place: slice) -> list[ShardFiles]: ...
    def __getitem__(self, place: int | slice) -> ShardFiles | list[ShardFiles]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        number = f"{self.ids[place]:0{self._digits}d}"
        there = {end: sizes[place] for end, sizes in self._sizes.items() if sizes[place] != _ABSENT}
        names = {end: file_name(number, end) for end in there}
        own, table = names.get(layout.METADATA_END), names.get(".parquet")
        return ShardFiles(
            self.ids[place],
            names.get(STATS_END),
            own or table,
            None if self._data_end is None else names.get(self._data_end),
            tuple(names[end] for end in self._extra_ends if end in names),
            table if own else None,
            {names[end]: size for end, size in there.items()},
        )


class NamesInOrder(Sequence[str]):
    """The name of one file of each shard, by its place; "" for what is not there."""

    def __init__(self, shards: Shards, field: Literal["data", "metadata"]) -> None:
        self._shards, self._field = shards, field

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        return getattr(self._shards[place], self._field) or ""

    def __len__(self) -> int:
        return len(self._shards)
