"""The files of a dataset, as its folder lists them: those of shards in columns, since there may be millions of them."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Literal, overload

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core import layout

STATS_END = "_stats.json"
_FILE_OF_SHARD = re.compile(r"(\d{1,18})(_stats\.json|\.[A-Za-z0-9_.]+|)", re.ASCII)
_ABSENT = -1


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

    @property
    def present(self) -> tuple[str, ...]:
        """Each once; the stats, which say that the others are complete, come first."""
        names = (self.stats, self.metadata, self.visible, self.data, *self.extra_files)
        return tuple(dict.fromkeys(name for name in names if name))


class Listing(Mapping[str, Entry]):
    """Name -> entry. A file of a shard takes 16 bytes: its name is made of a number and an end.

    Only names with as many digits as the others count as those of shards (see `digits`); nothing else could have been
    written by the same run.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.others: dict[str, Entry] = {}  # whatever belongs to no shard
        self.digits = 0  # of the numbers of shards; more are for numbers that need them
        # End of a name, and digits before it -> numbers and sizes.
        self._found: dict[tuple[str, int], tuple[array[int], array[int]]] = {}
        self._columns: dict[str, tuple[array[int], array[int]]] = {}  # end -> numbers, sorted, and sizes
        for entry in entries:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        name = entry.name
        is_hidden = name.startswith(layout.METADATA_FOLDER)
        match = _FILE_OF_SHARD.fullmatch(name.removeprefix(f"{layout.METADATA_FOLDER}/") if is_hidden else name)
        if match is not None and not entry.is_odd and entry.is_folder == (match[2] == ""):
            number, end = match.groups()
            if (end == layout.METADATA_END) == is_hidden:
                kind = end, len(number)
                columns = self._found.get(kind)
                if columns is None:
                    columns = self._found[kind] = array("q"), array("q")
                columns[0].append(int(number))
                columns[1].append(entry.size)
                return
        self.others[name] = entry

    def settle(self, digits: int | None) -> None:
        """Say how many digits the numbers of shards have; None: those of the shortest statistics."""
        if digits is None:
            digits = min((length for end, length in self._found if end == STATS_END), default=0)
        self.digits = digits
        columns: dict[str, list[pa.Table]] = {}
        for (end, length), (numbers, sizes) in self._found.items():
            least = 0 if length == digits else 10 ** (length - 1)  # more digits than others need no zero in front
            if length < digits or (least and min(numbers) < least):
                is_regular = [length >= digits and number >= least for number in numbers]
                for number, size, is_kept in zip(numbers, sizes, is_regular, strict=True):
                    if not is_kept:
                        name = self._name(f"{number:0{length}d}", end)
                        self.others[name] = Entry(name, size, is_folder=end == "")
                numbers, sizes = array("q", compress(numbers, is_regular)), array("q", compress(sizes, is_regular))
            if numbers:
                columns.setdefault(end, []).append(pa.table([_arrow(numbers), _arrow(sizes)], ["number", "size"]))
        self._found.clear()
        for end, tables in columns.items():
            table = pa.concat_tables(tables).sort_by("number")
            self._columns[end] = _plain(table["number"]), _plain(table["size"])

    @property
    def ends(self) -> Mapping[str, int]:
        """End of a name of a shard's file -> number of them."""
        return {end: len(numbers) for end, (numbers, _) in self._columns.items()}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        of_shards = sum(sum(sizes) for _, sizes in self._columns.values())
        return of_shards + sum(entry.size for entry in self.others.values())

    @property
    def folders(self) -> int:
        """Number of folders."""
        return sum(entry.is_folder for entry in self.others.values()) + self.ends.get("", 0)

    def names(self, end: str, most: int | None = None) -> list[str]:
        """Those of the first `most` shards' files with this end, or of all."""
        numbers, _ = self._columns.get(end, (array("q"), array("q")))
        return [self.name(number, end) for number in numbers[:most]]

    def name(self, number: int, end: str) -> str:
        return self._name(f"{number:0{self.digits}d}", end)

    def shards(self, data_end: str | None, extra_ends: Sequence[str]) -> Shards:
        """All that have files; `data_end` is that of the data, if it is known."""
        known = (STATS_END, layout.METADATA_END, ".parquet", data_end, *extra_ends)
        columns = {end: self._columns[end] for end in dict.fromkeys(known) if end is not None and end in self._columns}
        numbers = pc.unique(pa.chunked_array([_arrow(own) for own, _ in columns.values()], pa.int64()))
        ids = numbers.take(pc.array_sort_indices(numbers))
        sizes = {
            end: _plain(pc.fill_null(_arrow(own[1]).take(pc.index_in(ids, _arrow(own[0]))), _ABSENT))
            for end, own in columns.items()
        }
        return Shards(self.digits, _plain(ids), sizes, data_end, tuple(extra_ends))

    @staticmethod
    def _name(number: str, end: str) -> str:
        name = f"{number}{end}"
        return f"{layout.METADATA_FOLDER}/{name}" if end == layout.METADATA_END else name

    def __getitem__(self, name: str) -> Entry:
        if (entry := self.others.get(name)) is not None:
            return entry
        match = _FILE_OF_SHARD.fullmatch(name.removeprefix(f"{layout.METADATA_FOLDER}/"))
        if match is not None and match[2] in self._columns:
            number, end = int(match[1]), match[2]
            numbers, sizes = self._columns[end]
            place = bisect_left(numbers, number)
            if place < len(numbers) and numbers[place] == number and self.name(number, end) == name:
                return Entry(name, sizes[place], is_folder=end == "")
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        yield from self.others
        for end, (numbers, _) in self._columns.items():
            yield from (self.name(number, end) for number in numbers)

    def __len__(self) -> int:
        return len(self.others) + sum(len(numbers) for numbers, _ in self._columns.values())


class Shards(Mapping[int, ShardFiles]):
    """Number -> files, in the order of the numbers; 8 bytes for each, and for each of its files."""

    def __init__(
        self,
        digits: int,
        ids: array[int],
        sizes: Mapping[str, array[int]],
        data_end: str | None,
        extra_ends: tuple[str, ...],
    ) -> None:
        """`sizes` are those of the files with an end, for each of `ids`; -1 for what is not there."""
        self.ids = ids
        self._digits, self._sizes, self._data_end, self._extra_ends = digits, sizes, data_end, extra_ends

    @property
    def ends(self) -> frozenset[str]:
        """Of the names of their files."""
        return frozenset(self._sizes)

    def finished(self) -> Shards:
        """Those with statistics; itself if all have them."""
        stats = self._sizes.get(STATS_END)
        if stats is not None and _ABSENT not in stats:
            return self
        return self._where([size != _ABSENT for size in stats] if stats is not None else [False] * len(self))

    def only(self, is_wanted: Callable[[int], object]) -> Shards:
        """Those that are wanted, by their numbers."""
        return self._where([bool(is_wanted(number)) for number in self.ids])

    def _where(self, is_wanted: Sequence[bool]) -> Shards:
        sizes = {end: array("q", compress(own, is_wanted)) for end, own in self._sizes.items()}
        return Shards(self._digits, array("q", compress(self.ids, is_wanted)), sizes, self._data_end, self._extra_ends)

    def __getitem__(self, shard_id: int) -> ShardFiles:
        return self._at(self._place(shard_id))

    def __contains__(self, shard_id: object) -> bool:
        if not isinstance(shard_id, int):
            return False
        place = bisect_left(self.ids, shard_id)
        return place < len(self.ids) and self.ids[place] == shard_id

    def __iter__(self) -> Iterator[int]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def _place(self, shard_id: int) -> int:
        place = bisect_left(self.ids, shard_id)
        if place == len(self.ids) or self.ids[place] != shard_id:
            raise KeyError(shard_id)
        return place

    def _at(self, place: int) -> ShardFiles:
        number = f"{self.ids[place]:0{self._digits}d}"

        def name(end: str | None) -> str | None:
            if end is None or (sizes := self._sizes.get(end)) is None or sizes[place] == _ABSENT:
                return None
            return Listing._name(number, end)

        own, table = name(layout.METADATA_END), name(".parquet")
        return ShardFiles(
            self.ids[place],
            name(STATS_END),
            own or table,
            name(self._data_end),
            tuple(each for end in self._extra_ends if (each := name(end))),
            table if own else None,
        )

    @property
    def in_order(self) -> FilesInOrder:
        return FilesInOrder(self)


class FilesInOrder(Sequence[ShardFiles]):
    """The files of shards by their place; a slice is a list."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self.ids = shards.ids

    @overload
    def __getitem__(self, place: int) -> ShardFiles: ...
    @overload
    def __getitem__(self, place: slice) -> list[ShardFiles]: ...
    def __getitem__(self, place: int | slice) -> ShardFiles | list[ShardFiles]:
        if isinstance(place, slice):
            return [self._shards._at(each) for each in range(len(self))[place]]
        return self._shards._at(range(len(self))[place])

    def __len__(self) -> int:
        return len(self.ids)


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
        return getattr(self._shards.in_order[place], self._field) or ""

    def __len__(self) -> int:
        return len(self._shards)


class PerShard(Mapping[int, int]):
    """Shard number -> a number, in 16 bytes for each; `ids` are in order."""

    def __init__(self, ids: array[int], values: array[int]) -> None:
        self._ids, self._values = ids, values

    def __getitem__(self, shard_id: int) -> int:
        place = bisect_left(self._ids, shard_id)
        if place == len(self._ids) or self._ids[place] != shard_id:
            raise KeyError(shard_id)
        return self._values[place]

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def _arrow(values: array[int]) -> pa.Int64Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _plain(values: pa.Int64Array | pa.ChunkedArray) -> array[int]:
    found = array("q")
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        found.frombytes(memoryview(chunk.buffers()[1])[8 * chunk.offset : 8 * (chunk.offset + len(chunk))])
    return found
