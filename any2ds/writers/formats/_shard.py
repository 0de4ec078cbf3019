"""Common parts of the shards of all formats, as they are read: files of this machine, keys, and byte ranges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, access_text
from any2ds.storage.disk.regular import open_regular
from any2ds.storage.reading import SeekableFile
from any2ds.writers.contract import Fields, Shard, ShardData

T = TypeVar("T")


class LocalData(ShardData):
    """The `ShardData` of a file or folder that is read as a whole, once, as `verify` does; indexes are made anew."""

    is_local, key_start = True, ""
    samples: int | None = None

    def __init__(self, path: Path) -> None:
        """Raises DamagedShard if there is nothing that can be read."""
        self.name, self._path = path.name, path
        self.indexes: dict[str, bytes] = {}  # end of the name of a sidecar -> its content
        self._file: IO[bytes] | None = None  # opened by the first read, and closed with this object
        try:
            self.size = 0 if path.is_dir() else path.stat().st_size
        except OSError as error:
            raise DamagedShard(access_text(error)) from error

    def read(self, start: int, size: int) -> bytes:
        try:
            self._file = self._file or open_regular(self._path)
            self._file.seek(start)
            found = self._file.read(size)
        except OSError as error:
            raise DamagedShard(access_text(error)) from error
        if len(found) != size:
            raise DamagedShard(f"it ends at byte {start + len(found):,}, where a sample goes on to {start + size:,}")
        return found

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[bytes, int]]:
        return [(self.read(start, size), 0) for start, size in ranges]

    def index(self, end: str, make: Callable[[Path], bytes]) -> bytes:
        self.indexes[end] = make(self._path)
        return self.indexes[end]

    def local(self) -> Path:
        return self._path


class RangeFile(SeekableFile):
    """The data file of a shard, for libraries that want a file."""

    def __init__(self, data: ShardData) -> None:
        self._data = data
        self._held: tuple[int, bytes] = (0, b"")

    def hold(self, start: int, size: int) -> None:
        """Read this part at once, and give of it what is read next; nothing is held if `size` is 0."""
        self._held = start, self._data.read(start, size) if size else b""

    def _size(self) -> int:
        return self._data.size

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size() - self._position)
        wanted = left if size < 0 else min(size, left)
        start, held = self._held
        if start <= self._position and self._position + wanted <= start + len(held):
            found = held[self._position - start : self._position - start + wanted]
        else:
            found = self._data.read(self._position, wanted)
        self._position += len(found)
        return found


_last_decoders: dict[Any, tuple[Fields, Any]] = {}


def decoder_of(kind: Callable[[Fields], T], fields: Fields) -> T:
    """A decoder for these fields; that of the shard before if it has the same, since making one takes longer than
    reading a sample."""
    known = _last_decoders.get(kind)
    if known is None or known[0] is not fields:
        known = _last_decoders[kind] = fields, kind(fields)
    decoder: T = known[1]
    return decoder


def check_key(data: ShardData, key: str) -> None:
    """Raises DamagedShard if a sample of a data file has the key of another shard's."""
    if not key.startswith(data.key_start):
        raise DamagedShard(f"it has the sample {key!r}, which is none of this shard: another shard lies in its place")


def check_count(data: ShardData, count: int, what: str = "it has") -> None:
    """Raises DamagedShard if a data file has not as many samples as it should."""
    if data.samples is not None and count != data.samples:
        raise DamagedShard(f"{what} {count:,} samples, its statistics {data.samples:,}")


class BaseShard(Shard, ABC):
    """A shard that reads one sample after the other."""

    def keys(self) -> list[str]:
        return [self.files(number)[0] for number in range(len(self))]

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [self.row(number) for number in numbers]


class SpanShard(BaseShard):
    """A shard in which sample n lies between `offsets[n]` and `offsets[n + 1]`, 8 bytes of memory a sample.

    To look at all of them would take longer than to read a sample, so each is checked when it is used.
    """

    def __init__(self, data: ShardData, offsets: Sequence[int]) -> None:
        """Raises DamagedShard if the index does not fit the data."""
        count = len(offsets) - 1
        check_count(data, count, "its index has")
        if offsets[-1] > data.size:
            raise DamagedShard(f"its index ends at byte {offsets[-1]:,}, and the file at {data.size:,}")
        self.data, self._offsets, self._count, self._stop = data, offsets, count, offsets[-1]
        # Where `row` ends: nowhere, until the first sample that was read has shown that it is one of this shard.
        self._end = 0 if data.key_start else self._stop

    def __len__(self) -> int:
        return self._count

    def files(self, number: int) -> tuple[str, Mapping[str, StoredBody]]:
        ((start, size),) = self.ranges([number])
        key, files = self.files_in(self.data.read(start, size), 0, size)
        return key, {ext: StoredBody.of(content) for ext, content in files.items()}

    def row(self, number: int) -> dict[str, Any]:
        offsets = self._offsets
        start, stop = offsets[number], offsets[number + 1]
        if not start < stop <= self._end:
            return self.rows([number])[0]
        return self.row_in(self.data.read(start, stop - start), 0, stop - start)

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        is_scattered = bool(numbers) and numbers[-1] - numbers[0] >= len(numbers)  # no neighbours to join
        if is_scattered and self.data.is_local and self._end:
            return [self.row(number) for number in numbers]
        ranges = self.ranges(numbers)
        found = self.data.read_many(ranges)
        rows = [self.row_in(buffer, at, at + size) for (buffer, at), (_, size) in zip(found, ranges, strict=True)]
        if rows and not self._end:
            (buffer, at), (_, size) = found[0], ranges[0]
            check_key(self.data, self.files_in(buffer, at, at + size)[0])
            self._end = self._stop
        return rows

    def ranges(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Start and size of each of these samples, for `data.read_many`. Raises DamagedShard."""
        found = []
        for number in numbers:
            start, stop = self._offsets[number : number + 2]
            if not start < stop <= self._stop:
                raise DamagedShard(f"its index says that sample {number:,} goes from byte {start:,} to {stop:,}")
            found.append((start, stop - start))
        return found

    @abstractmethod
    def files_in(self, buffer: bytes, start: int, stop: int) -> tuple[str, Mapping[str, bytes]]:
        """Key and files of the sample between these places of a buffer. Raises DamagedShard."""

    @abstractmethod
    def row_in(self, buffer: bytes, start: int, stop: int) -> dict[str, Any]:
        """The sample between these places of a buffer. Raises DamagedShard."""
