"""Shuffles the rows of a url list, in an order that depends on the seed and the list alone.

Row groups are read in a random order, several at a time (`interleaved`); all rows are mixed within a window (`mixed`).
Batch sizes, timing, processes and library versions have no influence: the random numbers come from SHAKE128 (FIPS 202).
Resumed runs rely on the order, so it must never change.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import ReadError
from any2ds.core.on_disk import Held
from any2ds.core.tables import take

WINDOW = 100_000  # rows that are mixed with each other
_AT_ONCE = 32  # row groups; each takes a page or two of memory for each column
_BATCH_ROWS = 65536
_POOL_BYTES = 64 << 20  # of a window in memory; of more, rows are picked one by one
_PICKED_BYTES = 16 << 20
# A list with row groups within both limits is one window.
_SMALL_ROWS = 1_000_000
_SMALL_BYTES = 128 << 20


class RowGroup(NamedTuple):
    """A part of a file that can be read by itself."""

    file: int  # number of the file in the list
    number: int  # in the file
    rows: int
    size: int  # bytes of the columns that are read, uncompressed


Batches = Generator[pa.RecordBatch, None, None]


def order(seed: int, purpose: str, count: int) -> pa.UInt64Array:
    """A random order of the numbers below `count`."""
    digest = hashlib.shake_128(f"any2ds shuffle {seed} {purpose}".encode()).digest(8 * count)
    return pc.sort_indices(pa.Array.from_buffers(pa.uint64(), count, [None, pa.py_buffer(digest)]))


def mixed(batches: Iterable[pa.RecordBatch], seed: int, window: int = WINDOW) -> Iterator[pa.RecordBatch]:
    """The rows of `batches`, of each `window` rows in a random order.

    An empty batch ends a window. If `batches` raises, the rows of an unfinished window are dropped, so that the rows
    yielded are the first ones of the complete list too.
    """
    rows = number = 0
    with closing(Held(_POOL_BYTES)) as pool:
        for batch in batches:
            while rows + batch.num_rows >= window or (rows and not batch.num_rows):
                pool.add(batch.slice(0, window - rows))
                batch = batch.slice(window - rows)
                yield from _in_random_order(pool.drain(), seed, number)
                rows, number = 0, number + 1
            if batch.num_rows:
                pool.add(batch)
                rows += batch.num_rows
            else:
                yield batch
        if rows:
            yield from _in_random_order(pool.drain(), seed, number)


def _in_random_order(batches: Sequence[pa.RecordBatch], seed: int, number: int) -> Iterator[pa.RecordBatch]:
    rows = pa.Table.from_batches(batches)
    indices = order(seed, f"window {number}", len(rows))
    size = rows.nbytes
    if size > _POOL_BYTES:
        yield from _picked(rows.to_batches(), indices.to_pylist(), max(1, _PICKED_BYTES * len(rows) // size))
        return
    rows = rows.combine_chunks()
    for start in range(0, len(rows), _BATCH_ROWS):
        yield from take(rows, indices.slice(start, _BATCH_ROWS).to_pylist()).to_batches()


def _picked(batches: Sequence[pa.RecordBatch], numbers: Sequence[int], at_once: int) -> Iterator[pa.RecordBatch]:
    """The rows with these numbers, without a copy of the others: Arrow's `take` makes one of all."""
    starts = list(accumulate((batch.num_rows for batch in batches), initial=0))
    for start in range(0, len(numbers), at_once):
        rows = []
        for number in numbers[start : start + at_once]:
            which = bisect_right(starts, number) - 1
            rows.append(batches[which].slice(number - starts[which], 1))
        yield from pa.Table.from_batches(rows).combine_chunks().to_batches()


def shuffled(groups: Sequence[RowGroup], read: Callable[[RowGroup], Batches], seed: int) -> Batches:
    """The rows of all `groups` in a random order; `read` yields the batches of one."""
    rows = sum(group.rows for group in groups)
    is_small = rows <= _SMALL_ROWS and sum(group.size for group in groups) <= _SMALL_BYTES
    with closing(interleaved(groups, read, seed)) as batches:
        yield from mixed(batches, seed, rows + 1 if is_small else WINDOW)


def interleaved(groups: Sequence[RowGroup], read: Callable[[RowGroup], Batches], seed: int) -> Batches:
    """The rows of row groups in a random order, several in turns, in proportion to the rows left in each."""
    waiting = [groups[number] for number in order(seed, "row groups", len(groups)).to_pylist()]
    reading: list[_Reading] = []
    try:
        while waiting or reading:
            while waiting and len(reading) < _AT_ONCE:
                reading.append(_Reading(waiting.pop(), read))
            left = sum(each.left for each in reading)
            wanted, before = min(left, WINDOW), 0
            for each in reading:
                end = before + each.left
                yield from each.next_rows(end * wanted // left - before * wanted // left)
                before = end
            reading = [each for each in reading if each.left]
    finally:
        for each in reading:
            each.close()


class _Reading:
    """A row group that is being read."""

    def __init__(self, group: RowGroup, read: Callable[[RowGroup], Batches]) -> None:
        self.left, self._number = group.rows, group.number
        self._batches = read(group)
        self._rest: pa.RecordBatch | None = None

    def next_rows(self, count: int) -> Iterator[pa.RecordBatch]:
        while count:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            if batch is None:
                raise ReadError(f"row group {self._number}", "it has fewer rows than the file says")
            self._rest = batch.slice(count) if batch.num_rows > count else None
            part = batch.slice(0, count)
            count -= part.num_rows
            self.left -= part.num_rows
            yield part
        if not self.left:
            self.close()

    def close(self) -> None:
        self._batches.close()
