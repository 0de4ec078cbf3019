"""Columns of a metadata table with values of any size: in memory only the last ones, all others in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from any2ds.core.bodies.stored import SpoolFile, StoredBody
from any2ds.core.tables import array_of

_HELD = 8 << 20  # bytes of values in memory
_AT_ONCE = 64 << 20  # bytes of values in one of `pieces`
_OBJECT = 32  # bytes that a number takes in Python


def is_wide(type: pa.DataType) -> bool:
    """Whether its values may be large."""
    return not (pa.types.is_primitive(type) or pa.types.is_null(type))


class WideColumns:
    """Grows by one row at a time. All of it is one thread's at a time."""

    def __init__(self, types: Mapping[str, pa.DataType], folder: Path) -> None:
        """The file is made in `folder`, when it is needed."""
        self._schema = pa.schema(list(types.items()))
        self._columns: dict[str, list[Any]] = {name: [] for name in types}
        self._spool = SpoolFile(folder)
        self._shelved: list[tuple[int, int, StoredBody]] = []  # first row, bytes of values; they, as an Arrow stream
        self._start = 0  # first row that is in memory
        self._stop = 0
        self._held = 0  # bytes

    def add(self, fields: Mapping[str, Any]) -> int:
        """Bytes of the values of a row, about. Raises OSError if the disk is full."""
        size = 0
        for name, column in self._columns.items():
            value = fields.get(name)
            size += _size(value)
            column.append(value)
        self._stop += 1
        self._held += size
        if self._held >= _HELD:
            self._shelve()
        return size

    def columns(self, start: int, stop: int) -> dict[str, pa.ChunkedArray]:
        """The rows from `start` up to `stop`."""
        tables = [self._in_memory(start, stop)]
        ends = [first for first, _, _ in self._shelved[1:]] + [self._start]
        tables[:0] = [
            pa.ipc.open_stream(pa.py_buffer(body.read())).read_all()[max(start - first, 0) : stop - first]
            for (first, _, body), end in zip(self._shelved, ends, strict=False)
            if first < stop and start < end
        ]
        whole = pa.concat_tables(tables)
        return {name: whole.column(name) for name in self._columns}

    def pieces(self) -> Iterator[range]:
        """All rows, in as few ranges as there can be without too many bytes in one of them."""
        start, size = 0, 0
        for first, bytes_of, _ in self._shelved:
            if size and size + bytes_of > _AT_ONCE:
                yield range(start, first)
                start, size = first, 0
            size += bytes_of
        yield range(start, self._stop)

    def close(self) -> None:
        self._spool.close()

    def _in_memory(self, start: int, stop: int) -> pa.Table:
        first, last = max(start - self._start, 0), max(stop - self._start, 0)
        arrays = [array_of(self._columns[field.name][first:last], field.type) for field in self._schema]
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _shelve(self) -> None:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, self._schema) as writer:
            writer.write_table(self._in_memory(self._start, self._stop))
        self._shelved.append((self._start, self._held, self._spool.add([memoryview(stream.getvalue())])))
        for column in self._columns.values():
            column.clear()
        self._start, self._held = self._stop, 0


def _size(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, (list, tuple)):
        is_plain = not value or isinstance(value[0], (int, float))
        return len(value) * _OBJECT if is_plain else sum(map(_size, value))
    return _OBJECT
