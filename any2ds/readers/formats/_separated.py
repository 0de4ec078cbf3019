"""Tables as text, with a header and quoted values: pyarrow parses them block by block; a malformed row is a bad row."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from any2ds.core.errors import MissingColumns, ReadError, WrongFormat
from any2ds.readers.bad_rows import BadRow, Leading, excerpt, with_bad_rows
from any2ds.readers.contract import Columns
from any2ds.readers.formats._text import NO_UTF8_IN_URL, blocks, misfit, one_line, require, sliced, to_text, whole_lines

LONGEST_ROW = 2**21  # bytes
_END = 'any2ds: the end of the block"'  # its quote closes a value that is open
_TOO_LONG = f"any2ds: a row of more than {LONGEST_ROW} bytes"
_UNCLOSED = "a quote is opened and never closed"
_STRAY = "a quote is opened and not closed"
_MOST_UNCLOSED = 1000  # in one list; each makes what follows be parsed again
_NOT_A_QUOTE = b'\0"'  # never the begin of a value that is quoted
_END_OF_LINE = re.compile(rb"[\r\n]")
_HAS_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")

Rows = tuple[pa.RecordBatch, dict[int, BadRow]]
"""Good rows, transcoded as `_transcoded` does, and the bad ones by their position among all."""


class Separated:
    """Values may contain newlines where they are quoted. Empty values of columns that are not text are null.

    Rows are counted as spreadsheets do: the header is row 1, blank lines are not counted.
    """

    seekable: ClassVar[bool] = False
    delimiter: ClassVar[str]
    replaced: str | None = None  # the first row with bytes that are not UTF-8 and became U+FFFD

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        pieces = blocks(stream, LONGEST_ROW)
        head = next(pieces, b"")
        if not head.strip():
            return
        if b"\n" not in head:
            head += next(pieces, b"")  # a header that is cut off says nothing of the columns
        raw = self._header(head)
        existing = [_decoded(name) for name in raw]
        self._require(columns, existing)
        raw_names = [raw[existing.index(name)] for name in columns.names]
        types = _Types(columns, schema)
        leading = Leading()
        used = 1
        for rows, bad in self._rows(chain([head], pieces), raw, raw_names):
            first, used = used + 1, used + rows.num_rows + len(bad)
            if schema is None and not types.are_known:
                if not rows.num_rows:
                    leading.hold(bad.values())
                    continue
                bad, first = leading.before(bad), 2
            yield from sliced(self._batch(rows, bad, columns, types, first))
        leading.end()

    def _batch(
        self, rows: pa.RecordBatch, bad: dict[int, BadRow], columns: Columns, types: _Types, first: int
    ) -> pa.RecordBatch:
        """The rows from number `first` on, typed."""
        places = [place for place in range(rows.num_rows + len(bad)) if place not in bad] if bad else None

        def row_of(row: int) -> str:
            return f"row {first + (places[row] if places else row)}"

        replaced: list[int] = []
        texts = []
        for name, array in zip(columns.names, rows.columns, strict=True):
            if name == columns.url:
                texts.append(to_text(_as_in_list(array), NO_UTF8_IN_URL))
            else:
                texts.append(to_text(_as_in_list(array), on_invalid=replaced.append))
        if replaced and self.replaced is None:
            self.replaced = row_of(min(replaced))
        typed, misfits = types.apply(pa.record_batch(texts, names=list(columns.names)), f"row {first}")
        if not misfits:
            return with_bad_rows(typed, bad)
        reasons = {row: BadRow(row_of(row), reason) for row, reason in misfits.items()}
        return with_bad_rows(typed, bad, reasons)

    def _require(self, columns: Columns, existing: Sequence[str]) -> None:
        try:
            require(columns.names, existing)
        except MissingColumns as error:
            if columns.url in error.missing and any(_HAS_SCHEME.match(name) for name in existing):
                raise WrongFormat(
                    f"the first line looks like data, not a header ({excerpt(existing[0], 80)!r}): "
                    + ("" if len(existing) > 1 else "give --input_format=txt if it holds one URL a line, or ")
                    + f"add a header line that names the columns, {columns.url!r} among them"
                ) from error
            raise

    def _rows(self, pieces: Iterator[bytes], names: list[str], wanted: list[str]) -> Iterator[Rows]:
        """All rows, in blocks of moderate size."""
        used, rest, unclosed = 0, "", 0
        header: list[str] | None = None  # pyarrow reads it from the first block
        blocks_of_lines = (self._without_long_line(piece, len(names)) for piece in whole_lines(pieces, LONGEST_ROW))
        for piece in chain(blocks_of_lines, [None]):
            data = rest.encode() + _transcoded(piece or b"")
            rest = ""
            while data:
                rows, bad, opened = self._parsed(data, header, names, wanted, used)
                header = names
                used += rows.num_rows + len(bad)
                if rows.num_rows or bad:
                    yield rows, bad
                if not opened:
                    break
                if piece is not None and len(opened) <= LONGEST_ROW:
                    rest = opened
                    break
                line, _, after = opened.partition("\n")
                why = _UNCLOSED if piece is None else f"a quote is not closed within {LONGEST_ROW} bytes"
                bad_row = BadRow(f"row {used + 2}", f"{why}: {excerpt(_decoded(line))!r}")
                unclosed += 1
                if unclosed > _MOST_UNCLOSED:
                    raise bad_row.error
                yield rows.slice(0, 0), {0: bad_row}
                used += 1
                data = after.encode()

    def _without_long_line(self, piece: bytes, columns: int) -> bytes:
        """A line that is too long, which can only be the first one of a piece, as a malformed row."""
        end = piece.find(b"\n")
        if end <= LONGEST_ROW:
            return piece
        return _TOO_LONG.encode() + self.delimiter.encode() * columns + piece[end:]

    def _without_stray_quotes(self, data: bytes, start: int, columns: int) -> bytes:
        """`data` with each line from `start` on as a malformed row in which a quoted value begins that goes on in other
        lines and whose closing quote is followed by text: such a quote opens another value, so the first one is never
        closed. Text behind a value that is closed in its line (`"Hello" he said`) belongs to it, as in pandas."""
        if _is_regular(data, start, self.delimiter):
            return data
        delimiter = self.delimiter.encode()
        quoted = re.compile(rb'(?:\A|(?<=[%b\r\n]))"[^"]*(?:""[^"]*)*(?:"|\Z)' % delimiter)
        parts, copied = [], 0
        place = row = start  # where the search goes on, and where the row begins
        while found := quoted.search(data, place):
            row = max(row, *(data.rfind(newline, place, found.start()) + 1 for newline in (b"\n", b"\r")))
            place = found.end()
            is_closed = data[place : place + 1] in (b"", delimiter, b"\r", b"\n")
            if is_closed or _END_OF_LINE.search(data, found.start(), place) is None:
                continue
            end = _END_OF_LINE.search(data, found.start())
            place = len(data) if end is None else end.start()
            shown = b" ".join(data[row:place].split(b"\n")).replace(b"\r", b" ").replace(b'"', _NOT_A_QUOTE)
            parts += [data[copied:row], _STRAY.encode(), shown, delimiter * columns]
            copied = place
        return b"".join([*parts, data[copied:]])

    def _parsed(
        self, data: bytes, header: list[str] | None, names: list[str], wanted: list[str], used: int
    ) -> tuple[pa.RecordBatch, dict[int, BadRow], str]:
        """The rows of `data`, which consists of whole lines; and its last row, if a quote is open in it. `used` rows
        stand before it."""
        malformed: list[Any] = []
        data = self._without_stray_quotes(data, 0 if header is not None else _end_of_header(data), len(names))

        def note(row: Any) -> str:
            malformed.append(row)
            return "skip"

        # A malformed row, too: pyarrow reports it alone, or with the row that has an open quote before it.
        end = _END + self.delimiter * len(names)
        text = pa.py_buffer(b"".join((data, end.encode(), b"\n")))
        first = 2 if header is None else 1  # the number of the first row, as pyarrow counts
        try:
            table = pacsv.read_csv(
                pa.BufferReader(text), **self._options(note, wanted, column_names=header, block_size=text.size + 1)
            )
        except pa.ArrowInvalid as error:
            raise ReadError(f"row {used + 2}", one_line(error)) from error
        if not malformed or not malformed[-1].text.endswith(end):
            raise ReadError("row 1", _UNCLOSED)  # which makes all that follows a part of the header
        opened = malformed.pop().text.removesuffix(end)
        bad = {row.number - first: self._bad_row(row, used + row.number - first) for row in malformed}
        found = table.combine_chunks().to_batches()
        schema = pa.schema([pa.field(name, pa.binary()) for name in wanted])
        return found[0] if found else pa.RecordBatch.from_pylist([], schema=schema), bad, opened

    def _bad_row(self, row: Any, position: int) -> BadRow:
        if row.text.startswith(_TOO_LONG):
            reason = _TOO_LONG.removeprefix("any2ds: ")
        elif row.text.startswith(_STRAY):
            line = row.text.removeprefix(_STRAY).removesuffix(self.delimiter * row.expected_columns)
            reason = f"{_STRAY}: {excerpt(_decoded(line.replace(_NOT_A_QUOTE.decode(), chr(34))))!r}"
        else:
            values = f"{row.actual_columns} values for {row.expected_columns} columns"
            reason = f"{values}: {excerpt(_decoded(row.text))!r}"
        return BadRow(f"row {position + 2}", reason)

    def _options(
        self, on_malformed: Any, wanted: Sequence[str] | None = None, **reading: Any
    ) -> dict[str, pacsv.ReadOptions | pacsv.ParseOptions | pacsv.ConvertOptions]:
        return {
            "read_options": pacsv.ReadOptions(use_threads=False, **reading),
            "parse_options": pacsv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=True, invalid_row_handler=on_malformed
            ),
            "convert_options": pacsv.ConvertOptions(
                include_columns=wanted, column_types=dict.fromkeys(wanted or (), pa.binary()), strings_can_be_null=False
            ),
        }

    def _header(self, head: bytes) -> list[str]:
        """The names of the columns, transcoded."""
        record = _transcoded(_first_record(head)) + b"\n"
        try:
            with pacsv.open_csv(
                io.BytesIO(record), **self._options(lambda row: "skip", block_size=2 * LONGEST_ROW)
            ) as reader:
                return list(reader.schema.names)
        except pa.ArrowInvalid as error:
            raise ReadError("row 1", _reason(error)) from error


def _transcoded(data: bytes) -> bytes:
    """`data` as if it were Latin-1, which can hold any bytes, in UTF-8.

    pyarrow gives up at a malformed row that is not UTF-8, with all that stands before it in the block. `_as_in_list`
    turns the values back.
    """
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


def _end_of_header(data: bytes) -> int:
    """Where the first record of `data` ends, which `_first_record` gives."""
    record = _first_record(data)
    return data.find(record) + len(record)


def _is_regular(data: bytes, start: int, delimiter: str) -> bool:
    """Whether all quotes from `start` on, which is in no quoted value, enclose values or are doubled in them, but for
    a last one without a partner. Quotes of even number open a value or follow the one that they double."""
    if data.find(b'"', start) < 0:
        return True
    data = data[start:]
    text = pa.py_buffer(b"".join((b"\n", data, b"\n")))
    characters = pa.Array.from_buffers(pa.uint8(), text.size, [None, text])
    is_quote = pc.equal(characters.slice(1, text.size - 2), pa.scalar(ord('"'), pa.uint8()))
    before = _pairs(characters.slice(0, text.size - 2).filter(is_quote))
    after = _pairs(characters.slice(2).filter(is_quote))
    return {first for first, _ in before} | {second for _, second in after} <= set(f'{delimiter}\r\n"'.encode())


def _pairs(characters: pa.Array) -> set[tuple[int, int]]:
    """The different pairs among the first two bytes, the next two and so on; a last single one is left out."""
    content = characters.buffers()[1].slice(characters.offset)
    pairs = pa.Array.from_buffers(pa.binary(2), len(characters) // 2, [None, content])
    return {(pair[0], pair[1]) for pair in pairs.unique().to_pylist()}


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


class _Types:
    """The types of the columns: declared, those of an earlier file, or told from the first rows."""

    def __init__(self, columns: Columns, schema: pa.Schema | None) -> None:
        self._others = [name for name in columns.names if name not in columns.texts]
        self._declared = {name: columns.types[name] for name in self._others if name in columns.types}
        self._types = None if schema is None else {name: schema.field(name).type for name in self._others}

    @property
    def are_known(self) -> bool:
        return self._types is not None

    def apply(self, texts: pa.RecordBatch, place: str) -> tuple[pa.RecordBatch, dict[int, str]]:
        """The rows in their types; and which rows have a value that does not fit, which is null then, and why.

        Raises ReadError, which names `place`, for a type that no text can have.
        """
        if self._types is None:
            undeclared = [name for name in self._others if name not in self._declared]
            self._types = {**_inferred(texts.select(undeclared)), **self._declared}
        changed = {name: type for name, type in self._types.items() if not pa.types.is_string(type)}
        if not changed:
            return texts, {}
        misfits: dict[int, str] = {}
        try:
            converted = _converted(texts.select(list(changed)), changed)
        except pa.ArrowNotImplementedError as error:
            raise ReadError(place, one_line(error)) from error
        except pa.ArrowException:
            fitting = []
            for name, type in changed.items():
                column = texts.column(name)
                wrong = _misfits(column, type)
                for row in wrong:
                    reason = misfit(name, type, column[row].as_py(), name in self._declared)
                    misfits.setdefault(row, reason)
                is_wrong = pa.array([row in wrong for row in range(len(column))], pa.bool_())
                fitting.append(pc.if_else(is_wrong, "", column))
            converted = _converted(pa.record_batch(fitting, names=list(changed)), changed)
        arrays = [
            converted[name].combine_chunks() if name in changed else texts.column(name) for name in texts.schema.names
        ]
        return pa.record_batch(arrays, names=texts.schema.names), misfits


_PLAUSIBLE: Mapping[str, str] = {
    "int": r"^\s*-?(0[xX][0-9a-fA-F]{1,16}|0*[0-9]{1,20})\s*$",
    "float": r"(?i)^\s*[-+]?([0-9.]+(e[-+]?[0-9]+)?|inf(inity)?|nan)\s*$",
    "bool": r"(?i)^\s*(true|false|0|1)\s*$",
    "time": r"^[-+0-9T:.Z /]*$",
}
"""What all values match that pyarrow takes for one of these. Others need not be tried one by one, which is slow."""


def _misfits(texts: pa.Array, type: pa.DataType) -> frozenset[int]:
    """The rows whose values pyarrow does not take for `type`."""
    kind = (
        "int"
        if pa.types.is_integer(type)
        else "float"
        if pa.types.is_floating(type)
        else "bool"
        if pa.types.is_boolean(type)
        else "time"
        if pa.types.is_temporal(type) and not pa.types.is_duration(type)
        else None
    )
    rows = list(range(len(texts)))
    found = set[int]()
    if kind is not None:
        nulls = pa.array(pacsv.ConvertOptions().null_values, pa.string())
        is_plausible = pc.or_(pc.match_substring_regex(texts, _PLAUSIBLE[kind]), pc.is_in(texts, nulls))
        found = {row for row, plausible in enumerate(is_plausible.to_pylist()) if not plausible}
        rows = [row for row in rows if row not in found]
    parts = [rows]
    while parts:
        part = parts.pop()
        try:
            _converted(pa.record_batch([texts.take(pa.array(part, pa.int64()))], names=["value"]), {"value": type})
        except pa.ArrowException:
            if len(part) == 1:
                found.add(part[0])
            else:
                parts += [part[: len(part) // 2], part[len(part) // 2 :]]
    return frozenset(found)


def _reason(error: Exception) -> str:
    if "straddling" in str(error):
        return f"a quote that is never closed, or a row of more than {LONGEST_ROW} bytes"
    return one_line(error)
