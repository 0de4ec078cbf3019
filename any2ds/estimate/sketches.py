"""Random samples of streams that are too long to keep: of distinct values, with their counts, and of rows."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.rows import BAD_ROW_COLUMN as BAD_ROWS

_MOST_DISTINCT = 100_000  # values that a sample of distinct ones keeps


class DistinctSample:
    """The values whose hash lies in a part of all hashes that shrinks as they become many, with their exact counts
    (Gibbons): a random sample of the distinct values, however often each occurs."""

    def __init__(self, most: int = _MOST_DISTINCT) -> None:
        self._counts: Counter[str] = Counter()
        self._most, self._bits = most, 0

    def add(self, counts: Mapping[str, int]) -> None:
        self._counts.update(self._kept(counts))
        while len(self._counts) > self._most:
            self._bits += 1
            self._counts = Counter(self._kept(self._counts))

    def _kept(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """The values in the present part of all hashes, which are the same on each machine."""
        if not self._bits:
            return counts
        limit = 1 << (32 - self._bits)
        return {value: count for value, count in counts.items() if _hash(value) < limit}

    @property
    def distinct(self) -> int:
        """Estimated number of distinct values: within 1 % if there are more than fit."""
        return len(self._counts) << self._bits

    @property
    def repeated_share(self) -> float:
        """Share of the occurrences that are not the first of their value."""
        total = self._counts.total()
        return (total - len(self._counts)) / total if total else 0.0


def _hash(value: str) -> int:
    """32 bits: a CRC, whose bits a multiplication mixes, since URLs that differ in a digit have similar CRCs."""
    crc = zlib.crc32(value.encode("utf-8", "surrogatepass"))
    return ((crc ^ crc >> 15) * 0x2C1B3C6D & 0xFFFFFFFF) * 0x297A2D39 >> 8 & 0xFFFFFFFF


class Reservoir:
    """`size` rows of a stream, each with the same chance, in their order: those with the smallest random numbers."""

    def __init__(self, size: int, rng: random.Random) -> None:
        self._size, self._rng = size, rng
        self._rows: list[tuple[float, int, pa.RecordBatch]] = []  # random number, place in the stream, the row
        self._seen = 0
        self._limit = 1.0  # rows with a larger random number are not drawn

    def add(self, batch: pa.RecordBatch) -> None:
        keys = pc.random(batch.num_rows, initializer=self._rng.getrandbits(63))
        places = pc.indices_nonzero(pc.less(keys, self._limit))
        rows = batch.take(places)
        for number, (place, key) in enumerate(zip(places.to_pylist(), keys.take(places).to_pylist(), strict=True)):
            self._rows.append((key, self._seen + place, rows.slice(number, 1)))
        self._seen += batch.num_rows
        if len(self._rows) > 2 * self._size:
            self._drop_rest()

    def _drop_rest(self) -> None:
        self._rows = sorted(self._rows, key=lambda row: row[0])[: self._size]
        self._limit = self._rows[-1][0]

    def table(self, schema: pa.Schema) -> pa.Table:
        """The rows, without those that could not be read."""
        if len(self._rows) > self._size:
            self._drop_rest()
        batches = [row for _, _, row in sorted(self._rows, key=lambda row: row[1])]
        good = [
            row.select(schema.names)
            for row in batches
            if BAD_ROWS not in row.schema.names or row.column(BAD_ROWS).null_count
        ]
        return pa.Table.from_batches(good, schema).combine_chunks()
