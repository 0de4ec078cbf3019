"""Parquet lists, typed as they are, read page by page: a row group is never in memory whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.errors import ReadError
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
            for block in groups.blocks(*range(len(groups.sizes))):
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
    def sizes(self) -> list[tuple[int, int]]:
        """The rows of each, and the bytes that the columns take uncompressed."""
        metadata = self._file.metadata
        columns = _leaves(metadata, self._read)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [(g.num_rows, sum(g.column(i).total_uncompressed_size for i in columns)) for g in groups]

    def blocks(self, *numbers: int) -> Iterator[Block]:
        """The rows of these, up to one that is a bomb."""
        bomb = next(_bombs(self._file.metadata, self._read, numbers), None)
        safe = numbers if bomb is None else numbers[: numbers.index(bomb[0])]
        rows = _decoded_rows(self._file.metadata, self._read)
        try:
            decoded = self._file.iter_batches(rows, safe, columns=self._read, use_threads=False)
            flat = flat_batches(decoded, self._wanted, self._each, self._size.bytes)
            yield from arrow_blocks(_joined(flat, self._size.rows, self._size.bytes))
        except _DAMAGE as error:
            raise ReadError("", one_line(error)) from error
        if bomb is not None:
            raise ReadError("", bomb[1])


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


def _decoded_rows(metadata: pq.FileMetaData, names: list[str]) -> int:
    columns = _leaves(metadata, names)
    chunks = (metadata.row_group(group).column(i) for group in range(metadata.num_row_groups) for i in columns)
    dense = [
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.total_uncompressed_size > _GREATEST_RATIO * chunk.total_compressed_size
    ]
    return max(_LEAST_DECODED_ROWS, min(_DECODED_ROWS, _DECODED_BYTES // max(1, max(dense, default=1))))


def _bombs(metadata: pq.FileMetaData, names: list[str], numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
    """The row groups that are not decoded, and why."""
    columns = _leaves(metadata, names)
    for number in numbers:
        for i in columns:
            chunk = metadata.row_group(number).column(i)
            small, large = chunk.total_compressed_size, chunk.total_uncompressed_size
            if large > _BOMB_BYTES and large > _BOMB_RATIO * small:
                what = f"row group {number}, column {chunk.path_in_schema!r}"
                yield number, f"{what}: {small:,} bytes that are {large:,} decompressed are not read"


def _leaves(metadata: pq.FileMetaData, names: list[str]) -> list[int]:
    """The numbers of the leaf columns below the columns of these names."""
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    return [i for i, path in enumerate(paths) if any(path == name or path.startswith(f"{name}.") for name in names)]


PART = Parquet
