"""Tables as text, with a header and quoted values: parsed by pyarrow, cut precisely where a row is malformed."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from any2ds.errors import ReadError
from any2ds.protocols import Columns
from any2ds.readers._text import NO_UTF8_IN_URL, blocks, misfit, one_line, require, sliced, to_text

LONGEST_ROW = 2**21  # bytes; pyarrow takes no row that is longer than its blocks
_END = "any2ds: the end of the list"
_EMPTY = pa.record_batch([], names=[])


class Separated:
    """Values may contain newlines where they are quoted. Empty values of columns that are not text are null.

    Rows are counted as spreadsheets do: the header is row 1, blank lines are not counted.
    """

    seekable: ClassVar[bool] = False
    delimiter: ClassVar[str]

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        pieces = blocks(stream, LONGEST_ROW)
        head = next(pieces, b"")
        if not head.strip():
            return
        if b"\n" not in head:
            head += next(pieces, b"")  # a header that is cut off says nothing of the columns
        raw = self._header(head)
        existing = [_decoded(name) for name in raw]
        require(columns.names, existing)
        raw_names = [raw[existing.index(name)] for name in columns.names]
        others = [name for name in columns.names if name not in columns.texts]
        types = {name: schema.field(name).type for name in others} if schema is not None else None
        end_mark = _END + self.delimiter * len(existing)  # one value too many
        used = 1
        for batch in self._raw(_Feed(chain([head], pieces), end_mark), raw_names):
            errors = {columns.url: NO_UTF8_IN_URL}
            values = zip(columns.names, batch.columns, strict=True)
            texts = [to_text(_as_in_list(array), errors.get(name, "replace")) for name, array in values]
            table = pa.record_batch(texts, names=list(columns.names))
            if types is None:
                types = _inferred(table.select(others))
            typed, failure = _typed(table, types, used + 1)
            yield from sliced(typed)
            if failure is not None:
                raise failure
            used += batch.num_rows

    def _raw(self, feed: _Feed, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows, transcoded as _Feed does, up to the first that is malformed or not whole; then a ReadError."""
        used, held, unreadable = 0, None, None
        try:
            with self._open(feed, names, feed.note_malformed) as reader:
                for batch in reader:
                    good = feed.malformed[0].number - 2 - used if feed.malformed else batch.num_rows
                    if held is not None:
                        yield held  # one batch waits: whether the very last row is whole shows at the end only
                    held = batch.slice(0, good)
                    used += held.num_rows
                    if good < batch.num_rows:
                        break
        except pa.ArrowInvalid as error:
            unreadable = ReadError(f"row {used + 2}", _reason(error))
            unreadable.__cause__ = error
        last_is_whole, failure = feed.verdict(used) if unreadable is None else (True, feed.failure or unreadable)
        if held is not None:
            yield held if last_is_whole else held.slice(0, held.num_rows - 1)
        if failure is not None:
            raise failure

    def _open(self, source: Any, names: Sequence[str] | None, on_malformed: Any) -> pacsv.CSVStreamingReader:
        return pacsv.open_csv(
            source,
            read_options=pacsv.ReadOptions(use_threads=False, block_size=2 * LONGEST_ROW),  # transcoded
            parse_options=pacsv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=on_malformed
            ),
            convert_options=pacsv.ConvertOptions(
                include_columns=names, column_types=dict.fromkeys(names or (), pa.binary()), strings_can_be_null=False
            ),
        )

    def _header(self, head: bytes) -> list[str]:
        """The names of the columns, transcoded as _Feed does."""
        try:
            with self._open(io.BytesIO(_transcoded(_first_record(head)) + b"\n"), None, lambda row: "skip") as reader:
                return list(reader.schema.names)
        except pa.ArrowInvalid as error:
            raise ReadError("row 1", _reason(error)) from error


class _Feed(io.RawIOBase):
    """The blocks as a file for pyarrow, with an end mark behind them; it also collects what pyarrow cannot use.

    They are transcoded as if they were Latin-1, which can hold any bytes: pyarrow gives up at a malformed row that is
    not UTF-8, with all that stands before it in the block. `_as_in_list` turns the values back.

    The mark is a malformed row: if it is not reported as such, a quoted value has swallowed it. A failure to read is
    kept, and ends the file.
    """

    def __init__(self, pieces: Iterator[bytes], end_mark: str) -> None:
        self.failure: ReadError | None = None
        self.malformed: list[Any] = []  # the first two, as pyarrow.csv.InvalidRow
        self._end_mark = end_mark
        self._pieces = pieces
        self._after_newline = False  # whether the last byte before the mark is a newline
        self._has_ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        try:
            piece = next(self._pieces, b"")
        except ReadError as error:
            self.failure, piece = error, b""
        if piece:
            self._after_newline = piece.endswith(b"\n")
            piece = _transcoded(piece)
        elif not self._has_ended:
            self._has_ended = True
            piece = f"\n{self._end_mark}\n".encode()
        return piece

    def note_malformed(self, row: Any) -> str:
        if len(self.malformed) < 2:
            self.malformed.append(row)
        return "skip"

    def verdict(self, used: int) -> tuple[bool, ReadError | None]:
        """Whether the last of the `used` rows is whole, and what ended the list, if it was not its end."""
        unclosed = "a quote is opened and never closed"
        if not self.malformed:
            return False, self.failure or ReadError(f"row {used + 1}", unclosed)
        row, is_cut = self.malformed[0], self.failure is not None
        if row.text == self._end_mark:
            return self._after_newline or not is_cut, self.failure
        is_last = self._end_mark in row.text or any(
            after.text == self._end_mark and after.number == row.number + 1 for after in self.malformed[1:]
        )
        if is_cut and is_last:
            return True, self.failure
        if self._end_mark in row.text:
            return True, ReadError(f"row {row.number}", unclosed)
        values = f"{row.actual_columns} values for {row.expected_columns} columns"
        return True, ReadError(f"row {row.number}", f"{values}: {one_line(_decoded(row.text))!r}")


def _transcoded(data: bytes) -> bytes:
    return data if data.isascii() else data.decode("latin-1").encode()


def _decoded(transcoded: str) -> str:
    return transcoded.encode("latin-1").decode(errors="replace")


def _as_in_list(array: pa.Array) -> pa.Array:
    """The bytes as they stand in the list, of values that were transcoded."""
    _, offsets, data = array.buffers()
    ends = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, offsets], offset=array.offset)
    start, stop = ends[0].as_py(), ends[-1].as_py()
    if start == stop:
        return array
    transcoded = data.slice(start, stop - start).to_pybytes()
    if transcoded.isascii():
        return array
    lengths = pc.utf8_length(array.cast(pa.string()))  # one character was one byte
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)]).buffers()[1]
    original = transcoded.decode().encode("latin-1")
    return pa.Array.from_buffers(pa.binary(), len(array), [None, offsets, pa.py_buffer(original)])


def _first_record(data: bytes) -> bytes:
    """`data` up to the first newline that is in no quotes, or all of it; blank lines before it are left out."""
    data = data.lstrip(b"\r\n")
    end = data.find(b"\n")
    while end >= 0 and data.count(b'"', 0, end) % 2:
        end = data.find(b"\n", end + 1)
    return data if end < 0 else data[:end]


def _converted(texts: pa.RecordBatch, types: dict[str, pa.DataType]) -> pa.Table:
    """The values as pyarrow reads them from csv, in these types or in those that it infers."""
    sink = pa.BufferOutputStream()
    pacsv.write_csv(texts, sink)
    data = sink.getvalue()
    return pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(use_threads=False, block_size=data.size + 1),
        parse_options=pacsv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pacsv.ConvertOptions(column_types=types),
    )


def _inferred(texts: pa.RecordBatch) -> dict[str, pa.DataType]:
    if not texts.num_columns:
        return {}
    schema = _converted(texts, {}).schema
    return {field.name: pa.string() if pa.types.is_null(field.type) else field.type for field in schema}


def _typed(
    table: pa.RecordBatch, types: dict[str, pa.DataType], first_row: int
) -> tuple[pa.RecordBatch, ReadError | None]:
    """`table` in `types`, as far as its values fit them."""
    changed = {name: type for name, type in types.items() if not pa.types.is_string(type)}
    if not changed:
        return table, None
    try:
        converted = _converted(table.select(list(changed)), changed)
    except pa.ArrowException as error:
        place = re.search(r"column #(\d+): Row #(\d+): .*invalid value '(.*)'", str(error), re.DOTALL)
        row = int(place[2]) - 2 if place else 0
        name = list(changed)[int(place[1])] if place else ""
        failure = ReadError(f"row {first_row + row}", misfit(name, types[name], place[3]) if place else one_line(error))
        if not row:
            return _EMPTY, failure
        good, earlier = _typed(table.slice(0, row), types, first_row)  # of another column
        return good, earlier or failure
    arrays = [converted[name].combine_chunks() if name in changed else table[name] for name in table.schema.names]
    return pa.record_batch(arrays, names=table.schema.names), None


def _reason(error: Exception) -> str:
    if "straddling" in str(error):
        return f"a quote that is never closed, or a row of more than {LONGEST_ROW} bytes"
    return one_line(error)
