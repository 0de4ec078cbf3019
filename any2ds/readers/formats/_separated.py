"""Tables as text with a header (csv, tsv). A malformed row becomes a bad row.

pyarrow parses blocks in which each line is a row; Python's `csv` those with line breaks in values or malformed rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, islice
from types import MappingProxyType
from typing import BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from any2ds.core.errors import MissingColumns, ReadError, WrongFormat
from any2ds.readers.bad_rows import BadRow, Leading, altered, excerpt, misfit, with_bad_rows
from any2ds.readers.contract import Columns
from any2ds.readers.formats._text import NO_UTF8_IN_URL, blocks, one_line, require, sliced, to_text, whole_lines

LONGEST_ROW = 2**21  # bytes
_END = "any2ds: the end of the piece"
_NEVER_CLOSED = "a quote is opened and never closed"
_NULLS = pa.array(pacsv.ConvertOptions().null_values, pa.string())
_HAS_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")

# For the whole process, and never lowered. A value cannot be longer than an open row and the next block together.
csv.field_size_limit(max(csv.field_size_limit(), 4 * LONGEST_ROW))


class Separated:
    """Quoted values may contain newlines. Empty values of columns that are not text are null.

    Rows are counted as spreadsheets do: the header is row 1, blank lines are not counted.
    """

    seekable: ClassVar[bool] = False
    delimiter: ClassVar[str]
    replaced: str | None = None  # the first row with bytes that are not UTF-8 and became U+FFFD
    altered: Mapping[str, str] = MappingProxyType({})  # column of integers with a value that became null -> why
    names: Sequence[str] = ()  # of the columns, once the header is read

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        pieces = whole_lines(blocks(stream, LONGEST_ROW), LONGEST_ROW)
        names, rest = self._header(pieces)
        if not names:
            return
        self._require(columns, names)
        self.names = names
        table = _Table(self.delimiter, len(names), [names.index(name) for name in columns.names])
        types = _Types(columns, schema)
        leading = Leading()
        used = 1
        self.altered = types.altered
        for rows, reasons in table.parsed(chain([rest], pieces)):
            if not rows.num_rows and not reasons:
                continue
            first, used = used + 1, used + rows.num_rows + len(reasons)
            bad = {place: BadRow(f"row {first + place}", reason) for place, reason in reasons.items()}
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
                texts.append(to_text(array, NO_UTF8_IN_URL))
            else:
                texts.append(to_text(array, on_invalid=replaced.append))
        if replaced and self.replaced is None:
            self.replaced = row_of(min(replaced))
        typed, misfits = types.apply(pa.record_batch(texts, names=list(columns.names)), f"row {first}")
        if not misfits:
            return with_bad_rows(typed, bad)
        reasons = {row: BadRow(row_of(row), reason) for row, reason in misfits.items()}
        return with_bad_rows(typed, bad, reasons)

    def _header(self, pieces: Iterator[bytes]) -> tuple[list[str], bytes]:
        """The names of the columns, none if the list is empty; and what follows them in the first piece with text."""
        data = next((piece for piece in pieces if piece.strip()), b"")
        lines = _lines(data)
        for number, line in enumerate(lines):
            if line.strip("\r\n"):
                reader = csv.reader(chain(islice(lines, number, None), [_END]), delimiter=self.delimiter)
                names = next(reader)
                # A longer line is here with its beginning only.
                size = sum(map(len, lines[number : number + reader.line_num]))
                if names[-1].endswith(_END) or size > LONGEST_ROW:
                    why = f"the header has more than {LONGEST_ROW >> 20} MiB"
                    raise ReadError("row 1", why if size > LONGEST_ROW else f"{_NEVER_CLOSED}, or {why}")
                rest = "".join(lines[number + reader.line_num :])
                return [_bytes(name).decode(errors="replace") for name in names], _bytes(rest)
        return [], b""

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


Rows = tuple[pa.RecordBatch, dict[int, str]]
"""Good rows, as text or binary, and why the bad ones are, by their position among all."""


class _Table:
    """Parses what follows a header: `wanted` are the numbers of the columns that are kept, of `width` columns."""

    def __init__(self, delimiter: str, width: int, wanted: list[int]) -> None:
        self._delimiter, self._width, self._wanted = delimiter, width, wanted

    def parsed(self, pieces: Iterator[bytes]) -> Iterator[Rows]:
        """All rows, in blocks of moderate size. `pieces` consist of whole lines, as `whole_lines` gives them."""
        rest = b""
        for piece in chain(pieces, [None]):
            end = -1 if piece is None else piece.find(b"\n")
            if piece is None or end > LONGEST_ROW:
                yield self._by_csv(rest, is_last=True)[0]  # an open quote ends here
                if piece is None:
                    return
                yield self._rows([]), {0: f"a row of more than {LONGEST_ROW} bytes"}
                rest, piece = b"", piece[end + 1 :]
            clean = None if rest else self._by_pyarrow(piece)
            found, rest = (clean, b"") if clean is not None else self._by_csv(rest + piece, is_last=False)
            yield found

    def _by_pyarrow(self, data: bytes) -> Rows | None:
        """The rows if each line is one: then no line has an open quote, and none is malformed."""
        names = [str(number) for number in range(self._width)]
        wanted = [names[number] for number in self._wanted]
        lines, last = data.count(b"\n"), data[data.rfind(b"\n", 0, -1) + 1 :]
        if not lines or data.count(b"\r") != data.count(b"\r\n") or self._is_open(_lines(last)[0]):
            return None
        try:
            table = pacsv.read_csv(
                pa.BufferReader(data),
                pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
                pacsv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True),
                pacsv.ConvertOptions(
                    include_columns=wanted, column_types=dict.fromkeys(wanted, pa.string()), strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid:
            return None
        return (table.combine_chunks().to_batches()[0], {}) if table.num_rows == lines else None

    def _is_open(self, line: str) -> bool:
        """Whether a quote is open at the end of a line, which then belongs to the value."""
        row = self._lenient(line)
        return bool(row) and row[-1].endswith(("\n", "\r"))

    def _lenient(self, line: str) -> list[str]:
        """The values of a row of one line; text behind a quoted one (`"Hello" he said`) belongs to it, as in pandas."""
        return next(csv.reader([line], delimiter=self._delimiter))

    def _by_csv(self, data: bytes, is_last: bool) -> tuple[Rows, bytes]:
        """The rows of `data`; and the last one, if a quote is open in it that may be closed in what follows.

        A quote is open to the end only if no other row opens one behind it, so hardly anything is parsed twice.
        """
        lines = _lines(data)
        rows: list[list[str]] = []
        bad: dict[int, str] = {}
        at = 0  # the line behind the last row
        while at < len(lines):
            start = at
            reader = csv.reader(islice(lines, start, None), delimiter=self._delimiter, strict=True)
            try:
                for row in reader:
                    if len(row) == self._width:
                        rows.append(row)
                    elif row:
                        text = "".join(lines[at : start + reader.line_num])
                        bad[len(rows) + len(bad)] = self._wrong_width(row, text)
                    at = start + reader.line_num
            except csv.Error as error:
                line, at = lines[at], at + 1
                if "end of data" in str(error):
                    opened = _bytes("".join([line, *lines[at:]]))
                    if not is_last and len(opened) <= LONGEST_ROW:
                        return (self._rows(rows), bad), opened
                    why = _NEVER_CLOSED if is_last else f"a quote is not closed within {LONGEST_ROW} bytes"
                    reason = f"{why}: {_shown(line)}"
                elif start + reader.line_num > at or self._is_open(line):
                    reason = f"a quote is opened and not closed: {_shown(line)}"
                elif len(row := self._lenient(line)) == self._width:
                    rows.append(row)
                    continue
                else:
                    reason = self._wrong_width(row, line)
                bad[len(rows) + len(bad)] = reason
        return (self._rows(rows), bad), b""

    def _wrong_width(self, row: list[str], text: str) -> str:
        return f"{len(row)} values for {self._width} columns: {_shown(text)}"

    def _rows(self, rows: list[list[str]]) -> pa.RecordBatch:
        arrays = [_array([row[number] for row in rows]) for number in self._wanted]
        return pa.record_batch(arrays, names=[str(number) for number in self._wanted])


def _lines(data: bytes) -> list[str]:
    """The lines of `data` with their ends. A byte that is not UTF-8 becomes a surrogate, which `_bytes` turns back."""
    return list(io.StringIO(data.decode("utf-8", "surrogateescape"), newline=""))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _shown(line: str) -> str:
    return repr(excerpt(_bytes(line)))


def _array(values: list[str]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array(map(_bytes, values), pa.binary())


def _as_csv(texts: pa.RecordBatch, types: dict[str, pa.DataType]) -> pa.Table:
    """The values as pyarrow reads them from csv, in `types` or in types that it infers."""
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
    """The types of columns; text where a value would not come back as it was typed."""
    schema = _as_csv(texts, {}).schema if texts.num_columns else pa.schema([])
    types = {field.name: field.type for field in schema}
    for name, type in types.items():
        if pa.types.is_null(type) or _altered(texts[name], type, _notation_of(texts[name], type)):
            types[name] = pa.string()
    return types


def _converted(texts: pa.Array, type: pa.DataType) -> pa.Array:
    """The values as pyarrow reads them from csv, where some texts stand for null."""
    if pa.types.is_large_string(type) or pa.types.is_binary(type) or pa.types.is_large_binary(type):
        return texts.cast(type)  # as texts are: none of them stands for null, and blanks are kept
    if pa.types.is_time(type) or pa.types.is_duration(type):  # which no text is cast to
        return _as_csv(pa.record_batch([texts], names=["value"]), {"value": type})["value"].combine_chunks()
    return pc.if_else(pc.is_in(texts, _NULLS), None, pc.utf8_trim_whitespace(texts)).cast(type)


def _misfits(texts: pa.Array, type: pa.DataType) -> set[int]:
    """The rows whose values cannot be converted to `type`."""
    found, parts = set[int](), [(0, len(texts))]
    while parts:
        start, end = parts.pop()
        try:
            _converted(texts.slice(start, end - start), type)
        except pa.ArrowException:
            half = (start + end) // 2
            if half == start:
                found.add(start)
            else:
                parts += [(start, half), (half, end)]
    return found


# --- values that come back as they were typed ---

_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK = "[0-9]{2}:[0-9]{2}:[0-9]{2}"
_TIMESTAMPS = [_DAY] + [
    f"{_DAY}{separator}{_CLOCK}{fraction}{zone}"
    for separator in (" ", "T")
    for fraction in ("", "[.][0-9]{3}", "[.][0-9]{6}", "[.][0-9]{9}")
    for zone in ("", "Z")
]


def _notations(type: pa.DataType) -> Sequence[str]:
    """Patterns of values of `type`: of a column that follows one of them, no two texts become the same value.

    Empty if every text of this type comes back as it was typed, and for types that are not inferred.
    """
    if pa.types.is_integer(type):
        return ["0|-?[1-9][0-9]*"]  # `007` and `0x10` are numbers to a parser, and names to people
    if pa.types.is_boolean(type):
        return ["true|false", "True|False", "TRUE|FALSE"]
    if pa.types.is_time(type):
        return [_CLOCK]
    return _TIMESTAMPS if pa.types.is_timestamp(type) else []


_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)[.][0-9]*[1-9]", re.ASCII)


def _is_shortest(number: str) -> bool:
    """Whether a float is written in the fewest digits: `1`, `1.0` and `0.00001` are, `1.50`, `.5` and `12e4` are not.

    An exponent has to be written as Python does (`1e-05`): the names of things may look like one.
    """
    try:
        shortest = repr(float(number))
    except ValueError:
        return False
    if shortest in (number, f"{number}.0"):
        return True
    return _DECIMAL.fullmatch(number) is not None and Decimal(number) == Decimal(shortest)


def _altered(texts: pa.Array, type: pa.DataType, notation: str) -> set[int]:
    """The rows whose values do not come back as they were typed; blanks around a value do not count."""
    values = pc.utf8_trim_whitespace(pc.if_else(pc.is_in(texts, _NULLS), None, texts))
    if pa.types.is_float64(type):
        return {row for row, value in enumerate(values.to_pylist()) if value is not None and not _is_shortest(value)}
    if not notation:
        return set()
    follows = pc.match_substring_regex(values, f"^(?:{notation})$")
    return set(pc.indices_nonzero(pc.invert(follows)).to_pylist())


def _notation_of(texts: pa.Array, type: pa.DataType) -> str:
    """The pattern that most values follow."""
    return min(_notations(type) or [""], key=lambda notation: len(_altered(texts, type, notation)))


class _Types:
    """The types of the columns: declared, of an earlier file, or inferred from the first rows.

    An inferred type is that of a column whose values all come back as they were typed; other columns are text.
    """

    def __init__(self, columns: Columns, schema: pa.Schema | None) -> None:
        self._others = [name for name in columns.names if name not in columns.texts]
        self._declared = {name: columns.types[name] for name in self._others if name in columns.types}
        self._types = None if schema is None else {name: schema.field(name).type for name in self._others}
        self._notations: dict[str, str] = {}  # column -> the pattern that its values follow
        self.altered: dict[str, str] = {}  # column of integers with a value that became null -> why

    @property
    def are_known(self) -> bool:
        return self._types is not None

    def apply(self, texts: pa.RecordBatch, place: str) -> tuple[pa.RecordBatch, dict[int, str]]:
        """The rows in their types, with nulls for values that do not fit, and the reasons by position.

        Raises ReadError, which names `place`, for a type that text cannot have.
        """
        if self._types is None:
            undeclared = [name for name in self._others if name not in self._declared]
            self._types = {**_inferred(texts.select(undeclared)), **self._declared}
        misfits: dict[int, str] = {}
        arrays = []
        for name, texts_of_it in zip(texts.schema.names, texts.columns, strict=True):
            type = self._types.get(name, pa.string())
            if pa.types.is_string(type):
                arrays.append(texts_of_it)
                continue
            wrong = set[int]()
            try:
                converted = _converted(texts_of_it, type)
            except pa.ArrowNotImplementedError as error:
                raise ReadError(place, one_line(error)) from error
            except pa.ArrowException:
                wrong = _misfits(texts_of_it, type)
                converted = _converted(_without(wrong, texts_of_it), type)
            for row in sorted(wrong):
                misfits.setdefault(row, misfit(name, type, texts_of_it[row].as_py(), name in self._declared))
            if later := self._altered(name, texts_of_it, type) - wrong:
                if pa.types.is_integer(type):
                    self.altered.setdefault(name, altered(name, type, texts_of_it[min(later)].as_py()))
                    converted = _without(later, converted)
                elif not pa.types.is_floating(type):  # a float is the same number in any notation
                    for row in later:
                        misfits.setdefault(row, altered(name, type, texts_of_it[row].as_py()))
            arrays.append(converted)
        return pa.record_batch(arrays, names=texts.schema.names), misfits

    def _altered(self, name: str, texts: pa.Array, type: pa.DataType) -> set[int]:
        """The rows whose values do not come back as they were typed, in a column whose type was not declared."""
        if name in self._declared:
            return set()
        notation = self._notations.get(name) or _notation_of(texts, type)
        if not pc.all(pc.is_in(texts, _NULLS)).as_py():
            self._notations[name] = notation
        return _altered(texts, type, notation)


def _without(rows: set[int], values: pa.Array) -> pa.Array:
    if not rows:
        return values
    return pc.if_else(pa.array([row in rows for row in range(len(values))], pa.bool_()), None, values)
