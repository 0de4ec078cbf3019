"""Rows of Arrow that wait in a temporary file: the system reads them as they are used, and may forget them again."""

from __future__ import annotations

import errno
import mmap
import tempfile
from collections.abc import Iterable
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import IO

import pyarrow as pa

from any2ds.core.errors import DiskFull

MOST_IN_MEMORY = 32 << 20  # bytes of rows that are not worth a file
_COMPRESSED = pa.ipc.IpcWriteOptions(compression="zstd")


def on_disk(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Equal batches, of any schemas, whose values are in a temporary file that ends with them.

    Raises DiskFull, OSError.
    """
    with closing(_SpillFile()) as file:
        file.add(batches)
        return file.batches()


def held(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Equal batches, of which no more than MOST_IN_MEMORY are in memory. Raises DiskFull, OSError."""
    with closing(Held()) as collected:
        for batch in batches:
            collected.add(batch)
        return collected.drain()


class Held:
    """Collects batches, of which no more than `most` bytes stay in memory; the others are in one temporary file."""

    def __init__(self, most: int = MOST_IN_MEMORY) -> None:
        self._most, self._size = most, 0
        self._in_memory: list[pa.RecordBatch] = []
        self._file = _SpillFile()

    def add(self, batch: pa.RecordBatch) -> None:
        """Raises DiskFull, OSError."""
        self._in_memory.append(batch)
        self._size += batch.nbytes
        if self._size > self._most:
            self._file.add(self._in_memory)
            self._in_memory, self._size = [], 0

    def drain(self) -> list[pa.RecordBatch]:
        """Equal batches to those added since the last call, in order."""
        batches = self._file.batches() + self._in_memory
        self.close()
        return batches

    def close(self) -> None:
        """Forget what was added."""
        self._file.close()
        self._in_memory, self._size = [], 0


class _SpillFile:
    """One temporary file of any number of batches, mapped once: each mapping keeps a file descriptor open."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None  # until there are batches
        self._starts: list[int] = []  # the offset of each stream of batches

    def add(self, batches: Iterable[pa.RecordBatch]) -> None:
        for schema, group in groupby(batches, key=lambda batch: batch.schema):
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="any2ds-")  # noqa: SIM115 - closed by `close`
            self._starts.append(self._file.tell())
            try:
                with pa.ipc.new_stream(self._file, schema) as stream:
                    for batch in group:
                        stream.write_batch(batch)
                self._file.flush()
            except OSError as error:
                raise _full(error) from error

    def batches(self) -> list[pa.RecordBatch]:
        """The batches that were added, in order."""
        if self._file is None:
            return []
        mapped = pa.py_buffer(mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ))
        return [batch for start in self._starts for batch in pa.ipc.open_stream(mapped.slice(start))]

    def close(self) -> None:
        """Begin anew: the mapping of `batches` keeps the file."""
        if self._file is not None:
            self._file.close()
        self._file, self._starts = None, []


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
        return pa.Table.from_batches(on_disk(stream), stream.schema)
