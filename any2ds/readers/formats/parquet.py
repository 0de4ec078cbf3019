"""Parquet lists, typed as they are, read page by page: a row group is never in memory whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.errors import ReadError
from any2ds.readers.contract import Columns
from any2ds.readers.formats._text import BATCH_ROWS, one_line, require

BATCH_BYTES = 2**24  # of a batch's values, as the file's own figures tell
BUFFER = 2**20  # bytes read at a time, per column
# The same where many row groups are read in turns:
_GROUP_BATCH_ROWS = 4096
_GROUP_BUFFER = 2**17


class Parquet:
    """Nested columns are wanted by the name of their root."""

    seekable: ClassVar[bool] = True
    rows: int | None = None  # of the file, once it is open
    names: Sequence[str] = ()  # of its columns

    def row_groups(self, stream: BinaryIO, columns: Columns) -> RowGroups:
        return RowGroups(stream, columns)

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        used = 0
        try:
            with pq.ParquetFile(stream, pre_buffer=False, buffer_size=BUFFER) as file:
                self.rows = file.metadata.num_rows
                names = list(columns.names)
                self.names = file.schema_arrow.names
                require(names, self.names)
                rows = _rows_per_batch(file.metadata, names)
                for batch in file.iter_batches(rows, columns=names, use_threads=False):
                    yield batch.select(names)
                    used += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise ReadError(f"row {used}", one_line(error)) from error


class RowGroups:
    """A file whose row groups are read one by one, several of them in turns."""

    def __init__(self, stream: BinaryIO, columns: Columns) -> None:
        """Raises MissingColumns, ReadError."""
        self._names = list(columns.names)
        try:
            self._file = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_GROUP_BUFFER)
        except (pa.ArrowException, OSError) as error:
            raise ReadError("row 0", one_line(error)) from error
        require(self._names, self._file.schema_arrow.names)
        self._rows = min(_GROUP_BATCH_ROWS, _rows_per_batch(self._file.metadata, self._names))

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The rows of each, and the bytes that the columns take uncompressed."""
        metadata = self._file.metadata
        wanted = _wanted(metadata, self._names)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [(g.num_rows, sum(g.column(i).total_uncompressed_size for i in wanted)) for g in groups]

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of one. Raises ReadError."""
        try:
            for batch in self._file.iter_batches(self._rows, [number], columns=self._names, use_threads=False):
                yield batch.select(self._names)
        except (pa.ArrowException, OSError) as error:
            raise ReadError(f"row group {number}", one_line(error)) from error


def _rows_per_batch(metadata: pq.FileMetaData, names: list[str]) -> int:
    wanted = _wanted(metadata, names)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    rows = sum(group.num_rows for group in groups)
    size = 1 + sum(group.column(i).total_uncompressed_size for group in groups for i in wanted)
    return min(BATCH_ROWS, max(1, int(BATCH_BYTES * rows / size)))


def _wanted(metadata: pq.FileMetaData, names: list[str]) -> list[int]:
    """The numbers of the leaf columns below the columns of these names."""
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    return [i for i, path in enumerate(paths) if any(path == name or path.startswith(f"{name}.") for name in names)]


PART = Parquet
