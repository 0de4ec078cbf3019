"""Texts that stand in several rows: hashes in partitions on disk, each of which is looked through at once."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Iterator
from itertools import repeat
from operator import add
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_PARTITIONS = 128
_PIECE = 1 << 18  # rows that are sorted into partitions at once
_ROWS = pa.schema([(name, pa.int64()) for name in ("first", "second", "row")])  # two hashes of a text, and its row


class SeenTexts:
    """Texts and their rows, in a temporary file of 24 bytes for each.

    They are compared by 128 bits of hash: among a billion of them the chance of one mistake is below 1 in 10^20.
    """

    def __init__(self) -> None:
        self._added: list[pa.RecordBatch] = []  # rows that are in no partition yet
        self._runs: list[list[tuple[int, int]]] = [[] for _ in range(_PARTITIONS)]  # in the file: beginning, and rows
        self._file: Any = tempfile.TemporaryFile(prefix="any2ds-")  # noqa: SIM115 - closed by `close`

    def close(self) -> None:
        self._file.close()

    def add(self, texts: pa.StringArray, start: int) -> None:
        """Add the next rows, from number `start` on. Null and "" are no duplicates of each other."""
        positions = pc.indices_nonzero(pc.fill_null(pc.greater(pc.binary_length(texts), 0), False))
        values = texts.take(positions).to_pylist()
        # Python's own hash is SipHash with a key that is random in each process.
        first, second = array("q", map(hash, values)), array("q", map(hash, map(add, values, repeat("\n"))))
        rows = pc.add(positions, start).cast(pa.int64())
        self._added.append(pa.record_batch([_array(first), _array(second), rows], _ROWS))
        if sum(batch.num_rows for batch in self._added) >= _PIECE:
            self._write()

    def duplicates(self) -> Iterator[tuple[int, int]]:
        """Each row whose text stands in an earlier one, in order, with the first such row."""
        self._write()
        found = pa.Table.from_batches(map(self._in_partition, self._runs)).sort_by("row")
        for batch in found.to_batches(max_chunksize=_PIECE):
            yield from zip(batch["row"].to_pylist(), batch["first"].to_pylist(), strict=True)

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._added, _ROWS).combine_chunks()
        self._added.clear()
        numbers = pc.bit_wise_and(rows["second"], _PARTITIONS - 1).cast(pa.uint8()).combine_chunks()
        rows = rows.take(pc.array_sort_indices(numbers))
        counts = {count["values"].as_py(): count["counts"].as_py() for count in pc.value_counts(numbers)}
        start = 0
        for number, count in sorted(counts.items()):
            part = rows.slice(start, count).combine_chunks()
            start += count
            self._runs[number].append((self._file.seek(0, os.SEEK_END), count))
            for column in part.columns:
                self._file.write(_bytes(column.chunk(0)))

    def _in_partition(self, runs: list[tuple[int, int]]) -> pa.RecordBatch:
        """The duplicates of a partition: `row` and `first`."""
        columns = [bytearray(), bytearray(), bytearray()]
        for start, rows in runs:
            self._file.seek(start)
            for column in columns:
                column += self._file.read(8 * rows)
        keys = array("q", bytes(2 * len(columns[0])))  # both hashes as one value
        keys[::2], keys[1::2] = array("q", columns[0]), array("q", columns[1])
        count = len(keys) // 2
        hashes = pa.Array.from_buffers(pa.binary(16), count, [None, pa.py_buffer(keys)])
        rows = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(columns[2])])
        first = rows.take(pc.index_in(hashes, hashes))
        return pa.record_batch([rows, first], names=["row", "first"]).filter(pc.not_equal(first, rows))


def _array(integers: array[int]) -> pa.Int64Array:
    return pa.Array.from_buffers(pa.int64(), len(integers), [None, pa.py_buffer(integers)])


def _bytes(integers: pa.Int64Array) -> bytes:
    return bytes(integers.buffers()[1].slice(8 * integers.offset, 8 * len(integers)))
