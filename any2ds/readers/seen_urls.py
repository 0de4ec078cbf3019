"""The URLs of a run, for `dedupe=run`: finds the first row of each in bounded memory, with most of them on disk.

Rows are looked up many at a time, which takes one pass over the URLs before them: in 128 partitions by hash, each with
a filter of the rows to be looked up in front.
"""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat, starmap
from operator import add
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_PARTITIONS = 128
_FILTER = 1 << 18  # bytes, at least
_ROOM = 8  # bytes of it for each row, at least
_PIECE = 1 << 18  # rows that are sorted into partitions at once
_BLOCK = 1 << 14  # URLs of a partition that are written at once
_ROWS = pa.schema([(name, pa.int64()) for name in ("first", "second", "row")])  # two hashes of a text, and its row
_DUPLICATES = pa.schema([(name, pa.int64()) for name in ("row", "first")])


class SeenUrls:
    """The distinct texts of a run, with the number of the first row of each, in a temporary file of 24 bytes for each.

    They are compared by 128 bits of hash: among a billion of them the chance of one mistake is below 1 in 10^20.
    """

    def __init__(self) -> None:
        self.next_row = 0
        self._added: list[pa.RecordBatch] = []  # rows to be looked up, not in partitions yet
        self._partitions = [_Partition() for _ in range(_PARTITIONS)]
        self._file = tempfile.TemporaryFile(prefix="any2ds-")  # noqa: SIM115 - closed by `close`

    def close(self) -> None:
        self._file.close()

    def add(self, texts: pa.StringArray) -> None:
        """Add the next rows. Null and "" are not duplicates of each other."""
        start, self.next_row = self.next_row, self.next_row + len(texts)
        positions = pc.indices_nonzero(pc.fill_null(pc.greater(pc.binary_length(texts), 0), False))
        values = (texts if len(positions) == len(texts) else texts.take(positions)).to_pylist()
        # Python's own hash is SipHash with a key that is random in each process.
        first, second = array("q", map(hash, values)), array("q", map(hash, map(add, values, repeat("\n"))))
        rows = pc.add(positions, start).cast(pa.int64())
        self._added.append(pa.record_batch([_array(first), _array(second), rows], _ROWS))
        if sum(batch.num_rows for batch in self._added) >= _PIECE:
            self._partition()

    def skip_to_multiple(self, rows: int) -> None:
        """Continue counting at the next multiple of `rows`."""
        self.next_row += -self.next_row % rows

    def look_up(self) -> tuple[array[int], array[int]]:
        """The duplicates among the rows that were added since the last call, in order, and the first row of each."""
        self._partition()
        found = [partition.look_up(self._file) for partition in self._partitions if partition.rows]
        duplicates = pa.Table.from_batches(found, _DUPLICATES).sort_by("row").combine_chunks()
        rows, firsts = (array("q", b"".join(map(_bytes, column.chunks))) for column in duplicates.columns)
        return rows, firsts

    def _partition(self) -> None:
        rows = pa.Table.from_batches(self._added, _ROWS).combine_chunks()
        self._added.clear()
        if not rows.num_rows:
            return
        numbers = pc.bit_wise_and(rows["second"], _PARTITIONS - 1).cast(pa.uint8()).combine_chunks()
        order = pc.array_sort_indices(numbers)
        (sorted_rows,) = rows.take(order).combine_chunks().to_batches()
        runs, start = pc.run_end_encode(numbers.take(order)), 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            self._partitions[number].rows.append(sorted_rows.slice(start, end - start))
            start = end


class _Partition:
    """The rows whose hashes have the same last bits."""

    def __init__(self) -> None:
        self.rows: list[pa.RecordBatch] = []  # to be looked up
        self._recent: list[pa.RecordBatch] = []  # distinct, not written yet
        self._blocks: list[tuple[int, int]] = []  # distinct, in the file: where they begin, and their number

    def look_up(self, file: Any) -> pa.RecordBatch:
        """The duplicates among `rows`; the others are kept."""
        rows, self.rows = _joined(self.rows), []
        keys = _keys(rows)
        first = rows["row"].take(pc.index_in(keys, keys))
        if candidates := list(self._candidates(file, rows)):
            before = _joined(candidates)
            before = before.filter(pc.is_in(_keys(before), keys))
            first = pc.coalesce(before["row"].take(pc.index_in(keys, _keys(before))), first)
        is_first = pc.equal(first, rows["row"])
        self._keep(file, rows.filter(is_first))
        return pa.record_batch([rows["row"], first], _DUPLICATES).filter(pc.invert(is_first))

    def _candidates(self, file: Any, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows before, of which most of those are left out that are none of `rows`."""
        size = max(_FILTER, 1 << (_ROOM * rows.num_rows - 1).bit_length())
        filter = bytearray(size)
        for place in pc.bit_wise_and(rows["first"], size - 1).to_pylist():
            filter[place] = 1
        is_among = pa.Array.from_buffers(pa.uint8(), size, [None, pa.py_buffer(filter)])
        for block in chain(starmap(partial(_read, file), self._blocks), self._recent):
            places = pc.bit_wise_and(block["first"], size - 1)
            found = pc.indices_nonzero(pc.take(is_among, places, boundscheck=False))
            if len(found):
                yield block.take(found)

    def _keep(self, file: Any, rows: pa.RecordBatch) -> None:
        self._recent.append(rows)
        if sum(rows.num_rows for rows in self._recent) >= _BLOCK:
            rows, self._recent = _joined(self._recent), []
            self._blocks.append((file.seek(0, os.SEEK_END), rows.num_rows))
            for column in rows.columns:
                file.write(_bytes(column))


def _read(file: Any, start: int, rows: int) -> pa.RecordBatch:
    file.seek(start)
    buffer = pa.py_buffer(file.read(24 * rows))
    return pa.record_batch(
        [pa.Array.from_buffers(pa.int64(), rows, [None, buffer.slice(8 * rows * n, 8 * rows)]) for n in range(3)], _ROWS
    )


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _keys(rows: pa.RecordBatch) -> pa.Array:
    """Both hashes as one value."""
    keys = array("q", bytes(16 * rows.num_rows))
    keys[::2], keys[1::2] = array("q", _bytes(rows["first"])), array("q", _bytes(rows["second"]))
    return pa.Array.from_buffers(pa.binary(16), rows.num_rows, [None, pa.py_buffer(keys)])


def _array(integers: array[int]) -> pa.Int64Array:
    return pa.Array.from_buffers(pa.int64(), len(integers), [None, pa.py_buffer(integers)])


def _bytes(integers: pa.Int64Array) -> bytes:
    return bytes(integers.buffers()[1].slice(8 * integers.offset, 8 * len(integers)))
