"""Tables as text (csv, tsv). A malformed row becomes a bad row.

pyarrow parses blocks in which each line is a row; Python's `csv` those with line breaks in values or malformed rows.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, takewhile
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from any2ds.core.errors import MissingColumns, ReadError, WrongFormat
from any2ds.readers.arrow import NO_UTF8_IN_URL, cast_each, to_text
from any2ds.readers.bad_rows import excerpt, shown
from any2ds.readers.contract import Block, Field, Wanted
from any2ds.readers.formats._text import UNDECODED, TextReader, whole_lines, without_comments

LONGEST_ROW = 2**21  # bytes
_LOOKED_AT = 1000  # first lines that tell whether values are quoted
_NULLS = pa.array(pacsv.ConvertOptions().null_values, pa.string())
_HAS_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")

# For the whole process, and never lowered. A value cannot be longer than an open row and the next block together.
csv.field_size_limit(max(csv.field_size_limit(), 4 * LONGEST_ROW))


class Separated(TextReader):
    """Quoted values may contain newlines. Empty values of columns that are not text are null.

    Rows are counted as spreadsheets do: the header is row 1; blank lines and comments are not counted.
    """

    separator: ClassVar[str]
    is_quoted: ClassVar[bool | None]  # None: if the first rows are

    def blocks(self, stream: BinaryIO, wanted: Wanted) -> Iterator[Block]:
        pieces = whole_lines(self._pieces(stream, size=LONGEST_ROW), LONGEST_ROW)
        pieces = without_comments(pieces, self._form.comment)
        first = next((piece for piece in pieces if piece.strip()), None)
        if first is None:
            return
        lines = _lines(first)
        grammar = self._grammar(lines, wanted.url)
        self.names = self._form.columns or grammar.header(lines)
        names = self._names_in_header(wanted)
        grammar.width, grammar.url = len(self.names), self.names.index(wanted.url)
        rest = _bytes("".join(lines[grammar.used :]))
        texts, used = _Texts(self.notes), 0 if self._form.columns else 1
        for arrays, bad in grammar.parsed(chain([rest] if rest else [], pieces), list(map(self.names.index, names))):
            start = used + 1
            used += len(arrays[0])
            self._tell_of_bytes(
                (array for name, array in zip(names, arrays, strict=True) if name not in wanted.urls), start
            )
            values = {
                name: to_text(array, NO_UTF8_IN_URL if name in wanted.urls else "replace")
                for name, array in zip(names, arrays, strict=True)
            }
            yield Block(values, len(arrays[0]), texts, lambda row, start=start: f"row {start + row}", bad)  # type: ignore[misc]

    def _tell_of_bytes(self, columns: Iterable[pa.Array], start: int) -> None:
        """Tell the user of the first row with bytes that are not UTF-8, where rows count from `start`."""
        binary = [array for array in columns if pa.types.is_binary(array.type)] if UNDECODED not in self.notes else []
        changed = (pc.index(pc.not_equal(array, to_text(array).cast(pa.binary())), True).as_py() for array in binary)
        if (row := min((row for row in changed if row >= 0), default=None)) is not None:
            self.notes[UNDECODED] = (
                f"row {start + row} has bytes that are not UTF-8; such bytes are replaced by U+FFFD."
                " Convert the list to UTF-8."
            )

    def _grammar(self, lines: Sequence[str], url: str) -> Grammar:
        separator = self._form.separator or self.separator
        is_quoted = self.is_quoted if self._form.quoting == "auto" else self._form.quoting == "minimal"
        if is_quoted is None:
            quoted = Grammar(separator, is_quoted=True)
            names = self._form.columns or quoted.header(lines)
            quoted.width, quoted.url = len(names), names.index(url) if url in names else 0
            is_quoted = quoted.fits(lines[quoted.used :][:_LOOKED_AT])
        return Grammar(separator, is_quoted)

    def _names_in_header(self, wanted: Wanted) -> list[str]:
        existing = self.names
        try:
            return wanted.found_in(existing)
        except MissingColumns as error:
            if wanted.url not in error.missing:
                raise
            if any(_HAS_SCHEME.match(name) for name in existing):
                example = ",".join("url" if _HAS_SCHEME.match(name) else f"c{n}" for n, name in enumerate(existing))
                raise WrongFormat(
                    f"the first line looks like data, not a header ({excerpt(existing[0], 80)!r}): "
                    + ("" if len(existing) > 1 else "give --input_format=txt if it holds one URL a line, or ")
                    + f"name its columns, {wanted.url!r} among them, as in --columns={example}"
                ) from error
            mark = next((mark for mark in "\t;|," if len(existing) == 1 and mark in existing[0]), None)
            if mark is not None:
                value = {"\t": "tab"}.get(mark, mark)
                raise WrongFormat(
                    f"its first line, {excerpt(existing[0], 80)!r}, has no {self._form.separator or self.separator!r}: "
                    f"--separator='{value}' reads it"
                ) from error
            raise


class Grammar:
    """How lines become rows of `width` values, of which the one at `url` is a URL."""

    def __init__(self, separator: str, is_quoted: bool) -> None:
        self.width, self.url, self.used = 0, 0, 0  # the lines of the header
        self._is_quoted = is_quoted
        self._delimiter, self._skips_blanks = separator[0], len(separator) > 1
        self._options: dict[str, Any] = {
            "delimiter": self._delimiter,
            "skipinitialspace": self._skips_blanks,
            "quoting": csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
        }

    def header(self, lines: Sequence[str]) -> list[str]:
        """The names of the columns; `used` is set."""
        at = next(number for number, line in enumerate(lines) if line.strip("\r\n"))
        values = self._values(lines[at])
        size = 1
        if self._is_open(values):
            reader = csv.reader((lines[n] for n in range(at, len(lines))), **self._options)
            values, size = next(reader), reader.line_num
        if sum(map(len, lines[at : at + size])) > LONGEST_ROW:
            raise ReadError("row 1", f"the header has more than {LONGEST_ROW >> 20} MiB")
        if self._is_open(values):
            raise ReadError("row 1", "a quote is opened and never closed")
        self.used = at + size
        return [_bytes(name).decode(errors="replace") for name in values]

    def fits(self, lines: Sequence[str]) -> bool:
        """Whether there are quoted values in the rows, and no quotes that are not as a program writes them."""
        field = f'(?:"[^"]*(?:""[^"]*)*"|[^"\r\n{re.escape(self._delimiter)}]*)'
        as_written = re.compile(f"{field}(?:{re.escape(self._delimiter)}{field})*[\r\n]*")
        at, is_quoted = 0, False
        while at < len(lines):
            _, size, reason = self._row(lines, at, is_last=False)
            if not size:
                break
            text = "".join(lines[at : at + size])
            if '"' in text:
                is_quoted = True
                if reason or not as_written.fullmatch(text):
                    return False
            at += size
        return is_quoted

    def parsed(self, pieces: Iterator[bytes], wanted: Sequence[int]) -> Iterator[tuple[list[pa.Array], dict[int, str]]]:
        """The `wanted` columns of all rows as text or binary, and why some are bad. `pieces` are whole lines."""
        rest: list[str] = []  # a row with a quote that may be closed in the next piece
        for piece in chain(pieces, [None]):
            # A line that is too long was cut, and begins its piece.
            is_plain = piece is not None and not rest and piece.find(b"\n") <= LONGEST_ROW
            clean = self._by_pyarrow(piece or b"", wanted) if is_plain else None
            if clean is not None:
                yield clean, {}
                continue
            lines, rows, bad, at = rest + _lines(piece or b""), list[list[str] | None](), dict[int, str](), 0
            rest = []
            while at < len(lines):
                values, size, reason = self._row(lines, at, is_last=piece is None)
                if not size:
                    rest = lines[at:]
                    break
                at += size
                if reason:
                    bad[len(rows)] = reason
                if reason or values:
                    rows.append(None if reason else values)
            yield [_array([None if row is None else row[number] for row in rows]) for number in wanted], bad

    def _row(self, lines: Sequence[str], at: int, is_last: bool) -> tuple[list[str], int, str]:
        """The values of the row that begins at a line, the number of its lines, 0 if more of them are needed, and
        why it is bad. A blank line has no values."""
        line = lines[at]
        if len(line) > LONGEST_ROW:
            return [], 1, f"a row of more than {LONGEST_ROW} bytes"
        values = self._values(line)
        if not self._is_open(values):
            is_row = len(values) == self.width or not values
            return values, 1, "" if is_row else f"{len(values)} values for {self.width} columns: {_shown(line)}"
        # Lines that are rows end a value that is quoted: its closing quote is missing, or stands far behind.
        following = takewhile(lambda text: not self._is_row(text), (lines[n] for n in range(at + 1, len(lines))))
        reader = csv.reader(chain([line], following), strict=True, **self._options)
        try:
            values = next(reader)
        except csv.Error as error:
            is_whole = reader.line_num < len(lines) - at or "end of data" not in str(error)
            size = 0 if is_whole or is_last else sum(map(len, lines[at:]))
            if 0 < size <= LONGEST_ROW:
                return [], 0, ""
            return [], 1, f"a quote is opened and {'not' if is_whole else 'never'} closed: {_shown(line)}"
        if len(values) != self.width:
            text = _shown("".join(lines[at : at + reader.line_num]))
            return values, reader.line_num, f"{len(values)} values for {self.width} columns: {text}"
        return values, reader.line_num, ""

    def _values(self, line: str) -> list[str]:
        """The values of one line; text behind a quoted one (`"Hello" he said`) belongs to it, as in pandas."""
        return next(csv.reader([line], **self._options), [])

    def _is_open(self, values: Sequence[str]) -> bool:
        """Whether a quote is open at the end of a line, which then belongs to the value."""
        return self._is_quoted and bool(values) and values[-1].endswith(("\n", "\r"))

    def _is_row(self, line: str) -> bool:
        """Whether a line is a row by itself, with a URL in front of any quote."""
        values = self._values(line)
        if len(values) != self.width:
            return False
        url = values[self.url]
        return _HAS_SCHEME.match(url) is not None and url in line.partition('"')[0]

    def _by_pyarrow(self, data: bytes, wanted: Sequence[int]) -> list[pa.Array] | None:
        """The columns if each line is one row: then no line has an open quote, and none is malformed."""
        names = [str(number) for number in range(self.width)]
        lines, last = data.count(b"\n"), data[data.rfind(b"\n", 0, -1) + 1 :]
        if (
            not lines
            or self._skips_blanks
            or data.count(b"\r") != data.count(b"\r\n")
            or self._is_open(self._values(_lines(last)[0]))
        ):
            return None
        included = [names[number] for number in wanted]
        try:
            table = pacsv.read_csv(
                pa.BufferReader(data),
                pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
                pacsv.ParseOptions(
                    delimiter=self._delimiter, quote_char='"' if self._is_quoted else False, newlines_in_values=True
                ),
                pacsv.ConvertOptions(
                    include_columns=included,
                    column_types=dict.fromkeys(included, pa.string()),
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid:
            return None
        return table.combine_chunks().to_batches()[0].columns if table.num_rows == lines else None


def _lines(data: bytes) -> list[str]:
    """The lines of `data` with their ends. A byte that is not UTF-8 becomes a surrogate, which `_bytes` turns back."""
    return list(io.StringIO(data.decode("utf-8", "surrogateescape"), newline=""))


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _shown(line: str) -> str:
    return repr(excerpt(_bytes(line)))


def _array(values: list[str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        return pa.array([None if value is None else _bytes(value) for value in values], pa.binary())


_DAY, _CLOCK = "[0-9]{4}-[0-9]{2}-[0-9]{2}", "[0-9]{2}:[0-9]{2}:[0-9]{2}"
_FRACTIONS = ("[0-9]{3}", "[0-9]{6}")  # of a second
# Types that are inferred, and a pattern that all values of a column follow then. Such values come back as they were
# typed: `007`, `1.50` and `0x10` are numbers to a parser, and names to people.
_WRITTEN: Sequence[tuple[pa.DataType, str]] = (
    (pa.int64(), "0|-?[1-9][0-9]*"),
    (pa.float64(), r"0|-?[1-9][0-9]{0,14}|-?(?:0|[1-9][0-9]{0,8})\.(?:0|[0-9]{0,5}[1-9])"),
    *((pa.bool_(), pattern) for pattern in ("true|false", "True|False", "TRUE|FALSE")),
    (pa.date32(), _DAY),
    *((pa.timestamp("s"), f"{_DAY}{between}{_CLOCK}") for between in " T"),
    *((pa.timestamp("s", "UTC"), f"{_DAY}{between}{_CLOCK}Z") for between in " T"),
    *((pa.timestamp("us"), f"{_DAY}{between}{_CLOCK}[.]{digits}") for between in " T" for digits in _FRACTIONS),
)  # fmt: skip
_FLOAT = r"-?(?:inf|[1-9](?:\.[0-9]{0,15}[1-9])?e[+-][0-9]{2,3})"  # as Python writes very large and small ones
_INTEGER = _WRITTEN[0][1]


class _Texts:
    """Values that are texts: a type is inferred if the first values of a column all come back as they are typed."""

    def __init__(self, notes: dict[str, str]) -> None:
        self._notes = notes  # column of integers with a value that became null -> why

    def infer(self, texts: pa.Array) -> pa.DataType:
        values = _without_nulls(texts).drop_null()
        for type, pattern in _WRITTEN if len(values) else ():
            try:
                converted = values.cast(type)
            except pa.ArrowException:
                continue
            fits = _follows(values, pattern)
            if pa.types.is_floating(type):
                shortest = pc.equal(converted.cast(pa.string()), values)  # Arrow writes the fewest digits
                fits = pc.or_(
                    pc.or_(fits, _follows(values, _FLOAT)), pc.and_(shortest, pc.match_substring(values, "."))
                )
            if pc.all(fits).as_py():
                return type
        return pa.string()

    def convert(self, texts: pa.Array, type: pa.DataType, field: Field) -> tuple[pa.Array, Iterable[int]]:
        if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_binary(type):
            return texts.cast(type), ()
        if pa.types.is_large_binary(type):
            return texts.cast(pa.binary()).cast(type), ()
        values = _without_nulls(texts)
        if pa.types.is_integer(type) and field.type is None:
            values = self._without_altered(field.source, values, type)
        try:
            return cast_each(values, type)
        except pa.ArrowException as error:
            raise ReadError("", excerpt(str(error))) from error

    def _without_altered(self, column: str, values: pa.Array, type: pa.DataType) -> pa.Array:
        """Integers that would not come back as they are typed are null; what is no integer is left as it is."""
        follows = pc.fill_null(_follows(values, _INTEGER), True)
        if pc.all(follows).as_py():
            return values
        _, misfits = cast_each(values, type)
        wrong = set(misfits)
        altered = [not follow and row not in wrong for row, follow in enumerate(follows.to_pylist())]
        if any(altered):
            self._notes.setdefault(
                column,
                f"column {column!r}: {shown(values[altered.index(True)].as_py())} would not be kept as it is written in"
                f" {type}, the type of the first rows; --column_types={column}:string keeps it."
                " Rows with such a value have none in that column.",
            )
        return pc.if_else(pa.array(altered, pa.bool_()), None, values)


def _without_nulls(texts: pa.Array) -> pa.Array:
    """The texts without blanks around them, null where they stand for null."""
    return pc.utf8_trim_whitespace(pc.if_else(pc.is_in(texts, _NULLS), None, texts))


def _follows(values: pa.Array, pattern: str) -> pa.Array:
    return pc.match_substring_regex(values, f"^(?:{pattern})$")
