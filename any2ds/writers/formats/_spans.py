"""Shards whose samples are byte ranges of one file: an index says where each begins and ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from any2ds.core.errors import DamagedShard
from any2ds.storage.reading import SeekableFile
from any2ds.writers.formats._builder import check_key

if TYPE_CHECKING:
    from any2ds.writers.contract import ShardData


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


class SpanShard(ABC):
    """An `IndexedShard`: sample n lies between `offsets[n]` and `offsets[n + 1]`, 8 bytes of memory a sample.

    To look at all of them would take longer than to read a sample, so each is checked when it is used.
    """

    def __init__(self, data: ShardData, offsets: Sequence[int]) -> None:
        """Raises DamagedShard if the index does not fit the data."""
        count = len(offsets) - 1
        if data.samples is not None and count != data.samples:
            raise DamagedShard(f"its index has {count:,} samples, its statistics {data.samples:,}")
        if offsets[-1] > data.size:
            raise DamagedShard(f"its index ends at byte {offsets[-1]:,}, and the file at {data.size:,}")
        self.data, self._offsets, self._count, self._stop = data, offsets, count, offsets[-1]
        # Where `get` ends: nowhere, until the first sample that was read has shown that it is one of this shard.
        self._end = 0 if data.key_start else self._stop

    def __len__(self) -> int:
        return self._count

    def keys(self) -> list[str]:
        return [str(self.get(number)["key"]) for number in range(self._count)]

    def get(self, number: int) -> dict[str, Any]:
        offsets = self._offsets
        start, stop = offsets[number], offsets[number + 1]
        if not start < stop <= self._end:
            return self.get_many([number])[0]
        return self.sample(self.data.read(start, stop - start), 0, stop - start)

    def get_many(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        is_scattered = bool(numbers) and numbers[-1] - numbers[0] >= len(numbers)  # no neighbours to join
        if is_scattered and self.data.is_local and self._end:
            return [self.get(number) for number in numbers]
        ranges = self.ranges(numbers)
        return self.samples(ranges, self.data.read_many(ranges))

    def ranges(self, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Start and size of each of these samples, for `data.read_many`. Raises DamagedShard."""
        offsets, last = self._offsets, self._stop
        ranges = [(offsets[number], offsets[number + 1] - offsets[number]) for number in numbers]
        for number, (start, size) in zip(numbers, ranges, strict=True):
            if size <= 0 or start + size > last:
                raise self._wrong(number)
        return ranges

    def samples(self, ranges: Sequence[tuple[int, int]], found: Sequence[tuple[bytes, int]]) -> list[dict[str, Any]]:
        """The samples of these ranges, from what was read for them."""
        samples = [self.sample(buffer, at, at + size) for (buffer, at), (_, size) in zip(found, ranges, strict=True)]
        if samples and not self._end:
            (buffer, at), (_, size) = found[0], ranges[0]
            check_key(self.data, self.key(buffer, at, at + size))
            self._end = self._stop
        return samples

    def _wrong(self, number: int) -> DamagedShard:
        start, stop = self._offsets[number : number + 2]
        return DamagedShard(f"its index says that sample {number:,} goes from byte {start:,} to {stop:,}")

    @abstractmethod
    def sample(self, buffer: bytes, start: int, stop: int) -> dict[str, Any]:
        """What lies between these places of a buffer. Raises DamagedShard."""

    @abstractmethod
    def key(self, buffer: bytes, start: int, stop: int) -> str:
        """That of the sample there, which `sample` has read."""
