"""The files of a dataset, as its folder lists them: those of shards by the ends of their names, and all others."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, overload

from any2ds.core import layout

STATS_END = "_stats.json"
_FILE_OF_SHARD = re.compile(r"(\d{1,18})(_stats\.json|\.[A-Za-z0-9_.]+|)", re.ASCII)


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
        self.sizes: dict[str, dict[int, int]] = defaultdict(dict)  # end of a name -> number of a shard -> bytes
        # Digits of the number, and end of a name -> number of a shard -> bytes: until `settle`.
        self._unsettled: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
        for entry in entries:
            self.size += entry.size
            self.folders += entry.is_folder
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        is_hidden = entry.name.startswith(layout.METADATA_FOLDER)
        match = _FILE_OF_SHARD.fullmatch(entry.name.removeprefix(f"{layout.METADATA_FOLDER}/" if is_hidden else ""))
        number, end = match.groups() if match is not None and not entry.is_odd else ("", "")
        if number and entry.is_folder == (end == "") and is_hidden == (end == layout.METADATA_END):
            self._unsettled[len(number), end][int(number)] = entry.size
        else:
            self.others[entry.name] = entry

    def settle(self, digits: int | None) -> None:
        """Say how many digits the numbers of shards have; None: those of the shortest statistics."""
        if digits is None:
            digits = min((length for length, end in self._unsettled if end == STATS_END), default=0)
        self.digits = digits
        for (length, end), sizes in self._unsettled.items():
            least = 0 if length == digits else 10 ** (length - 1)  # more digits than others need no zero in front
            for number, size in sizes.items():
                if length >= digits and number >= least:
                    self.sizes[end][number] = size
                else:
                    name = file_name(f"{number:0{length}d}", end)
                    self.others[name] = Entry(name, size, is_folder=end == "")
        self._unsettled.clear()

    @property
    def ends(self) -> Mapping[str, int]:
        """End of a name of a shard's file -> number of them."""
        return {end: len(sizes) for end, sizes in self.sizes.items()}

    def entries(self, end: str) -> Iterator[Entry]:
        """The shards' files with this end."""
        for number, size in sorted(self.sizes.get(end, {}).items()):
            yield Entry(file_name(f"{number:0{self.digits}d}", end), size, is_folder=end == "")

    def shards(self, data_end: str | None, extra_ends: Sequence[str]) -> Shards:
        """All that have files; `data_end` is that of the data, if it is known."""
        known = (STATS_END, layout.METADATA_END, ".parquet", data_end, *extra_ends)
        sizes = {end: self.sizes[end] for end in dict.fromkeys(known) if end is not None and end in self.sizes}
        ids = array("q", sorted(set().union(*sizes.values())))
        return Shards(self.digits, ids, sizes, data_end, tuple(extra_ends))


def file_name(number: str, end: str) -> str:
    name = f"{number}{end}"
    return f"{layout.METADATA_FOLDER}/{name}" if end == layout.METADATA_END else name


class _AllThere(dict[int, int]):
    """The sizes of files that a list says to be there, at which nobody looked."""

    def __contains__(self, number: object) -> bool:
        return True

    def __missing__(self, number: int) -> int:
        return 0


class Shards(Sequence[ShardFiles]):
    """The files of shards, in the order of their numbers."""

    def __init__(
        self,
        digits: int,
        ids: array[int],
        sizes: Mapping[str, Mapping[int, int]],
        data_end: str | None,
        extra_ends: tuple[str, ...] = (),
    ) -> None:
        """`sizes`: end of a name -> number -> bytes, of the files that are there."""
        self.ids = ids
        self._digits, self._sizes, self._data_end, self._extra_ends = digits, sizes, data_end, extra_ends

    @classmethod
    def finished_by(
        cls, digits: int, ids: array[int], data_end: str | None, with_own_metadata: Iterable[int] = ()
    ) -> Shards:
        """Shards that a list says to be finished, without a look into the folder; some have metadata out of sight."""
        ends = (STATS_END, ".parquet", data_end)
        sizes: dict[str, dict[int, int]] = {end: _AllThere() for end in ends if end is not None}
        sizes[layout.METADATA_END] = dict.fromkeys(with_own_metadata, 0)
        return cls(digits, ids, sizes, data_end)

    @property
    def ends(self) -> frozenset[str]:
        """Ends of the names of their files."""
        return frozenset(self._sizes)

    def finished(self) -> Shards:
        """The shards with statistics."""
        stats = self._sizes.get(STATS_END, {})
        if isinstance(stats, _AllThere):
            return self
        return self.only(array("q", (number for number in self.ids if number in stats)))

    def only(self, shard_ids: Iterable[int]) -> Shards:
        if shard_ids == self.ids:
            return self
        wanted = set(shard_ids)
        ids = array("q", (number for number in self.ids if number in wanted))
        return Shards(self._digits, ids, self._sizes, self._data_end, self._extra_ends)

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
        shard_id = self.ids[place]
        number = f"{shard_id:0{self._digits}d}"
        names = {end: file_name(number, end) for end, sizes in self._sizes.items() if shard_id in sizes}
        own, table = names.get(layout.METADATA_END), names.get(".parquet")
        return ShardFiles(
            shard_id,
            names.get(STATS_END),
            own or table,
            None if self._data_end is None else names.get(self._data_end),
            tuple(names[end] for end in self._extra_ends if end in names),
            table if own else None,
            {name: self._sizes[end][shard_id] for end, name in names.items()},
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
