"""Parquet lists, typed as they are, read page by page: a row group is never in memory whole."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.errors import ReadError
from any2ds.core.parquet_footer import Footer
from any2ds.readers.arrow import BATCH_BYTES, BATCH_ROWS, arrow_blocks
from any2ds.readers.bad_rows import one_line
from any2ds.readers.contract import AS_USUAL, Block, Form, Wanted
from any2ds.readers.formats._paths import flat_batches, names_with_paths, roots
from any2ds.readers.paths import list_of

# Rows that are decoded at once. The file's own figures do not tell how large these are: all may refer to one value of
# 60 KB in a dictionary. A column that is compressed beyond all measure may have larger values.
_DECODED_ROWS = 256
_DECODED_BYTES = 2**28
_LEAST_DECODED_ROWS = 4
_GREATEST_RATIO = 50
# Beyond that a row group is a bomb: 37 KB became one text of 1.2 GB, and 3.5 GB of memory. Texts are compressed 3 to 10
# times, and those that repeat lie in a dictionary, whose size counts once.
_BOMB_BYTES, _BOMB_RATIO = 2**28, 1000


class _Size(NamedTuple):
    """What is decoded of a file at a time."""

    rows: int
    bytes: int
    buffer: int  # bytes read at a time, per column


_READ_ALONE = _Size(BATCH_ROWS, BATCH_BYTES, 2**20)
_TAKEN_IN_TURNS = _Size(4096, 2**20, 2**17)  # many row groups at once
_DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)  # of the name of a column


class Parquet:
    """A wanted column may be a path to values in a nested one."""

    seekable: ClassVar[bool] = True
    rows: int | None = None  # of the file, once it is open
    names: Sequence[str] = ()  # of its columns

    def __init__(self, form: Form = AS_USUAL) -> None:
        pass  # Parquet says all of it itself

    def row_groups(self, stream: BinaryIO, wanted: Wanted) -> RowGroups:
        return RowGroups(stream, wanted, _TAKEN_IN_TURNS)

    def blocks(self, stream: BinaryIO, wanted: Wanted) -> Iterator[Block]:
        groups = RowGroups(stream, wanted)
        self.rows, self.names = groups.rows, groups.names
        used = 0
        try:
            for block in groups.blocks(*range(groups.count)):
                yield block
                used += block.rows
        except ReadError as error:
            raise ReadError(f"row {used}", error.reason) from error


class RowGroups:
    """A file of which some row groups are read at a time. Raises MissingColumns, ReadError."""

    def __init__(self, stream: BinaryIO, wanted: Wanted, size: _Size = _READ_ALONE) -> None:
        self._size, self._each = size, list_of(wanted.url)
        try:
            self._file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=size.buffer)
            self._footer = Footer(self._file.metadata, stream.seek(0, io.SEEK_END))
        except _DAMAGE as error:
            raise ReadError("row 0", one_line(error)) from error
        self.schema: pa.Schema = self._file.schema_arrow
        self.names: list[str] = self.schema.names
        self._wanted = wanted.found_in(names_with_paths(self.schema, wanted.names))
        self._read = roots(self._wanted, self.names)

    @property
    def rows(self) -> int | None:
        """Rows of the list, where each row of the file is one."""
        return self._file.metadata.num_rows if self._each is None else None

    @property
    def count(self) -> int:
        return int(self._file.metadata.num_row_groups)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The rows of each, and the bytes that the columns take uncompressed."""
        metadata = self._file.metadata
        return [
            (metadata.row_group(number).num_rows, sum(chunk.total_uncompressed_size for chunk in self._chunks(number)))
            for number in range(self.count)
        ]

    def blocks(self, *numbers: int) -> Iterator[Block]:
        """The rows of these, up to one that is damaged or a bomb."""
        safe, largest, failure = list[int](), 1, None  # row groups; bytes of a column compressed beyond measure
        for number in numbers:
            try:
                chunks = self._chunks(number)
                _refuse_bombs(number, chunks)
            except ReadError as error:
                failure = error
                break
            safe.append(number)
            largest = max([largest, *map(_dense_bytes, chunks)])
        rows = max(_LEAST_DECODED_ROWS, min(_DECODED_ROWS, _DECODED_BYTES // largest))
        try:
            decoded = self._file.iter_batches(rows, safe, columns=self._read, use_threads=False)
            flat = flat_batches(decoded, self._wanted, self._each, self._size.bytes)
            yield from arrow_blocks(_joined(flat, self._size.rows, self._size.bytes))
        except _DAMAGE as error:
            raise ReadError("", one_line(error)) from error
        if failure is not None:
            raise failure

    def _chunks(self, number: int) -> list[pq.ColumnChunkMetaData]:
        """The figures in the footer of the columns of a row group."""
        try:
            return self._footer.chunks(number, self._read)
        except _DAMAGE as error:
            raise ReadError("", one_line(error)) from error


def _joined(batches: Iterable[pa.RecordBatch], most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Neighbours in one batch, as long as they are within both limits; what was read before an error comes first."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    try:
        for batch in batches:
            if waiting and (rows + batch.num_rows > most_rows or size + batch.nbytes > most_bytes):
                yield from _concatenated(waiting)
                waiting, rows, size = [], 0, 0
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
    except Exception:
        yield from _concatenated(waiting)
        raise
    yield from _concatenated(waiting)


def _concatenated(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    try:
        return [pa.concat_batches(batches)] if batches else []
    except pa.ArrowException:  # dictionaries in nested values, which cannot be joined
        return batches


def _dense_bytes(chunk: pq.ColumnChunkMetaData) -> int:
    """Bytes of a column that is compressed beyond measure, else 0."""
    size: int = chunk.total_uncompressed_size
    return size if size > _GREATEST_RATIO * chunk.total_compressed_size else 0


def _refuse_bombs(number: int, chunks: Iterable[pq.ColumnChunkMetaData]) -> None:
    """Raises ReadError if a row group is not to be decoded."""
    for chunk in chunks:
        small, large = chunk.total_compressed_size, chunk.total_uncompressed_size
        if large > _BOMB_BYTES and large > _BOMB_RATIO * small:
            what = f"row group {number}, column {chunk.path_in_schema!r}"
            raise ReadError("", f"{what}: {small:,} bytes that are {large:,} decompressed are not read")


PART = Parquet
