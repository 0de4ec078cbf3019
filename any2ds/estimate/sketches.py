"""Random samples of streams that are too long to keep: of distinct values, with their counts, and of rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

_MOST_DISTINCT = 100_000  # values that a sample of distinct ones keeps
_DRAW = " draw "  # the column of random numbers, beside those of the list


class DistinctSample:
    """The values whose hash lies in a part of all hashes that shrinks as they become many, with their exact counts
    (Gibbons): a random sample of the distinct values, however often each occurs."""

    def __init__(self, most: int = _MOST_DISTINCT) -> None:
        self._counts: Counter[str] = Counter()
        self._most, self._bits = most, 0

    def add(self, counts: Mapping[str, int]) -> None:
        self._counts.update(self._in_part(counts))
        while len(self._counts) > self._most:
            self._bits += 1
            self._counts = Counter(self._in_part(self._counts))

    def _in_part(self, counts: Mapping[str, int]) -> Mapping[str, int]:
        """The values in the present part of all hashes."""
        mask = (1 << self._bits) - 1
        return {value: count for value, count in counts.items() if not hash(value) & mask} if mask else counts

    @property
    def distinct(self) -> int:
        """Estimated number of distinct values: within 1 % if there are more than fit."""
        return len(self._counts) << self._bits

    @property
    def repeated_share(self) -> float:
        """Share of the occurrences that are not the first of their value."""
        total = self._counts.total()
        return (total - len(self._counts)) / total if total else 0.0


class Reservoir:
    """`size` rows of a stream, each with the same chance, in their order: those with the smallest random numbers."""

    def __init__(self, size: int, rng: random.Random) -> None:
        self._size, self._rng = size, rng
        self._batches: list[pa.RecordBatch] = []  # rows that are drawn so far, twice as many as wanted at most
        self._count = 0  # of these rows
        self._limit = 1.0  # rows with a larger random number are not drawn

    def add(self, batch: pa.RecordBatch) -> None:
        draws = pc.random(batch.num_rows, initializer=self._rng.getrandbits(63))
        drawn = batch.append_column(_DRAW, draws).filter(pc.less(draws, self._limit))
        if drawn.num_rows:
            self._batches.append(drawn)
            self._count += drawn.num_rows
        if self._count > 2 * self._size:
            self._drop_rest()

    def _drop_rest(self) -> None:
        rows = pa.Table.from_batches(self._batches)
        smallest = pc.array_sort_indices(rows[_DRAW].combine_chunks())[: self._size]
        rows = rows.take(smallest.take(pc.array_sort_indices(smallest))).combine_chunks()
        self._batches, self._count, self._limit = rows.to_batches(), rows.num_rows, pc.max(rows[_DRAW]).as_py()

    def table(self, schema: pa.Schema) -> pa.Table:
        """The rows, with the columns of `schema`."""
        if self._count > self._size:
            self._drop_rest()
        rows = [batch.select(schema.names) for batch in self._batches]
        return pa.Table.from_batches(rows, schema).combine_chunks()
