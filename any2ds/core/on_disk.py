"""Rows of Arrow that wait in a temporary file: the system reads them as they are used, and may forget them again."""

from __future__ import annotations

import errno
import mmap
import tempfile
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

import pyarrow as pa

from any2ds.core.errors import DiskFull

MOST_IN_MEMORY = 32 << 20  # bytes of rows that are not worth a file
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


def on_disk(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Equal batches, of any schemas, whose values are in temporary files that end with them.

    Raises DiskFull, OSError.
    """
    found = []
    for schema, group in groupby(batches, key=lambda batch: batch.schema):
        found += _on_disk(group, schema)
    return found


def held(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Equal batches, of which no more than MOST_IN_MEMORY are in memory. Raises DiskFull, OSError."""
    found: list[pa.RecordBatch] = []
    in_memory = size = 0
    for batch in batches:
        found.append(batch)
        in_memory, size = in_memory + 1, size + batch.nbytes
        if size > MOST_IN_MEMORY:
            found[-in_memory:] = on_disk(found[-in_memory:])
            in_memory = size = 0
    return found


def _on_disk(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    with tempfile.TemporaryFile(prefix="any2ds-") as file:
        try:
            with pa.ipc.new_stream(file, schema) as stream:
                for batch in batches:
                    stream.write_batch(batch)
            file.flush()
        except OSError as error:
            raise _full(error) from error
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return list(pa.ipc.open_stream(pa.py_buffer(mapped)))


def _full(error: OSError) -> OSError | DiskFull:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    folder = Path(tempfile.gettempdir())
    return DiskFull(str(folder), None, 0, "set TMPDIR to a folder with more room")


def serialized(batches: Iterable[pa.RecordBatch], schema: pa.Schema, size: int) -> bytes:
    """The batches as a stream of Arrow; compressed if their `size` is above MOST_IN_MEMORY."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_COMPRESSED if size > MOST_IN_MEMORY else None) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def deserialized(rows: bytes, size: int) -> pa.Table:
    """The inverse of `serialized`; on disk if their `size` is above MOST_IN_MEMORY."""
    with pa.ipc.open_stream(rows) as stream:
        if size <= MOST_IN_MEMORY:
            return stream.read_all()
        return pa.Table.from_batches(_on_disk(stream, stream.schema), stream.schema)
