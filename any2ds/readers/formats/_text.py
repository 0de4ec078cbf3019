"""Shared by the readers of text: blocks, lines, decoding."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import InputError, MissingColumns, ReadError, WrongFormat, printable
from any2ds.core.signatures import type_by_signature
from any2ds.readers.contract import AS_USUAL, Columns, Form
from any2ds.readers.paths import NUMBER

BATCH_ROWS = 65536
BATCH_BYTES = 2**24  # of the values of a batch
BLOCK = 2**20  # bytes; small enough to be there at once, large enough for vectorised work
NO_UTF8_IN_URL = "any2ds.percent"  # an error handler for `bytes.decode`: the byte E9 becomes %E9


def _percent(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(f"%{byte:02X}" for byte in error.object[error.start : error.end]), error.end


codecs.register_error(NO_UTF8_IN_URL, _percent)


_HEAD = 4096  # bytes that are checked for binary data
_FEW = 4  # bytes of the longest byte order mark
# The longer ones first: that of UTF-16 begins that of UTF-32.
_MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
          (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b"))
_COMPRESSIONS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "Zstandard", "lz4": "LZ4"}


class _Utf8:
    """A stream of text as UTF-8, without a byte order mark and zero bytes. UTF-16 and UTF-32 are known by their marks,
    other encodings have to be given.

    `read` may return less than was asked for. Raises WrongFormat at the first read if the stream is not text.
    """

    def __init__(self, stream: BinaryIO, encoding: str | None, undecoded: list[str]) -> None:
        self._stream, self._encoding, self._undecoded = stream, encoding, undecoded
        self._rest: bytes | None = None  # was read and not given out; None before the first read
        self._decoder: codecs.IncrementalDecoder | None = None
        self._failure: ReadError | None = None

    def read(self, size: int) -> bytes:
        if self._rest is None:
            self._begin(size)
        while not self._rest:
            if self._failure is not None:
                raise self._failure
            if self._decoder is None:
                return self._more(size)
            piece = self._stream.read(max(_FEW, size // 2))
            self._rest = self._encoded(self._decoder.decode(piece, not piece))
            if not piece:
                break
        data, self._rest = (self._rest or b"")[:size], (self._rest or b"")[size:]
        return data

    def _encoded(self, text: str) -> bytes:
        if "\ufffd" in text and not self._undecoded:
            self._undecoded.append(self._encoding or "Unicode")
        return text.replace("\0", "").encode()

    def _more(self, size: int) -> bytes:
        """The next bytes, empty only at the end."""
        while (piece := self._stream.read(size)) and not (text := piece.replace(b"\0", b"")):
            pass
        return text if piece else b""

    def _begin(self, size: int) -> None:
        head = b""
        try:
            while len(head) < _FEW and (piece := self._stream.read(size)):
                head += piece
        except ReadError as error:  # raised after what was read before it
            self._failure = error
        encoding = next((encoding for mark, encoding in _MARKS if head.startswith(mark)), self._encoding)
        if encoding is not None:
            self._decoder = codecs.getincrementaldecoder(encoding)("replace")
            self._rest = self._encoded(self._decoder.decode(head).removeprefix("\ufeff"))
            return
        head = head.removeprefix(codecs.BOM_UTF8)
        refuse_binary(head[:_HEAD])
        self._rest = head.replace(b"\0", b"")


def refuse_binary(head: bytes) -> None:
    """Raises WrongFormat if a list that begins with `head` is not text."""
    if not head or (head[:8].isascii() and not _count(head[:64], _CONTROLS) and not head.startswith(b"%PDF-")):
        return
    if head.startswith(b"PAR1"):
        raise WrongFormat("this is a Parquet file, not text", "parquet")
    if (found := type_by_signature(head)) is not None:
        media_type, ext = found
        if ext in _COMPRESSIONS:
            raise WrongFormat(f"this file is compressed ({_COMPRESSIONS[ext]})", f".{ext}")
        raise WrongFormat(f"this is {media_type}, not text: a url list is text or Parquet")
    zeros = head.count(0)
    if zeros > len(head) // 4:
        raise WrongFormat(
            "this is binary data, or UTF-16 without a byte order mark: a url list is UTF-8 text or Parquet"
        )
    if _count(head, _CONTROLS) - zeros > max(8, len(head) // 20):
        raise WrongFormat("this is binary data, not text: a url list is text or Parquet")


def _count(data: bytes, among: bytes) -> int:
    return len(data) - len(data.translate(None, among))


class TextReader:
    """What readers of text have in common."""

    seekable: ClassVar[bool] = False

    def __init__(self, form: Form = AS_USUAL) -> None:
        self.undecoded: list[str] = []  # the encoding, once some bytes are none of it
        self._form = form

    def _pieces(self, stream: BinaryIO, size: int = BLOCK, held: int | None = None) -> Iterator[bytes]:
        """`stream` in blocks of `size` bytes, the last one shorter, as UTF-8 without a byte order mark.

        With `held`, after so many bytes a block is what one `read` returns, so that rows of a pipe are not waited for.
        A last line without newline gets one, unless a ReadError cuts it off; what was read before the error comes
        first. Raises WrongFormat if this is not text.
        """
        return _blocks(_Utf8(stream, self._form.encoding, self.undecoded), size, held)


def _blocks(text: _Utf8, size: int, held: int | None) -> Iterator[bytes]:
    block, given, last = bytearray(), 0, b"\n"
    failure: ReadError | None = None
    while failure is None:
        try:
            piece = text.read(size - len(block))
        except ReadError as error:
            failure, piece = error, b""
        block += piece
        has_arrived = held is not None and given + len(block) >= held
        if len(block) == size or not piece or has_arrived:
            data, block = bytes(block), bytearray()
            given += len(data)
            last = data[-1:] or last
            if not piece and failure is None and last != b"\n":
                data += b"\n"
            if data:
                yield data
            if not piece and failure is None:
                return
    raise failure


def whole_lines(pieces: Iterator[bytes], longest: int) -> Iterator[bytes]:
    """The same bytes, cut only after newlines.

    A line of more than `longest` bytes may be cut to `longest` + 1. A last line without newline is kept, unless
    `pieces` ends with a ReadError.
    """
    rest, skipping = b"", False
    for piece in pieces:
        if skipping:
            end = piece.find(b"\n")
            if end < 0:
                continue
            piece, skipping = piece[end:], False
        piece = rest + piece
        end = piece.rfind(b"\n") + 1
        rest = piece[end:]
        if end:
            yield piece[:end]
        if len(rest) > longest:
            rest, skipping = rest[: longest + 1], True
    if rest:
        yield rest


def without_comments(pieces: Iterator[bytes], sign: str | None) -> Iterator[bytes]:
    """The lines of `pieces` that do not begin with `sign`. Lines end with LF, CR or both."""
    if sign is None:
        return pieces
    comments = re.compile(rb"(?<![^\r\n])[ \t]*" + re.escape(sign.encode()) + rb"[^\r\n]*(?:\r\n?|\n)")
    return (comments.sub(b"", piece) for piece in pieces)


def to_text(array: pa.Array, errors: str = "replace", invalid: list[int] | None = None) -> pa.Array:
    """A binary or string array as valid strings. `errors` is that of `bytes.decode`; the first row that is not UTF-8
    is added to `invalid`."""
    binary = array.cast(pa.binary())
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        values = binary.to_pylist()
    if invalid is not None:
        invalid.append(
            next(n for n, v in enumerate(values) if v is not None and v.decode("utf-8", "ignore").encode() != v)
        )
    return pa.array([None if v is None else v.decode("utf-8", errors) for v in values], pa.string())


def require(wanted: Sequence[str], existing: Sequence[str]) -> None:
    """Raises MissingColumns, or InputError if the name of a wanted column is there twice."""
    missing = [name for name in wanted if name not in existing]
    if missing:
        raise MissingColumns(missing, [name for name in existing if not name.endswith(NUMBER)])
    twice = [name for name in wanted if existing.count(name) > 1]
    if twice:
        raise InputError(f"the url list has several columns called {twice[0]!r}")


def is_text_or_binary(type: pa.DataType) -> bool:
    kinds = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view())
    return type in kinds


def names_to_read(columns: Columns, existing: Sequence[str], schema: pa.Schema | None) -> list[str]:
    """The wanted columns of a file with the columns `existing`; a later one, with a `schema`, needs `columns.required`.

    Raises MissingColumns, InputError as `require` does.
    """
    names = [name for name in columns.names if schema is None or name in columns.required or name in existing]
    require(names, existing)
    return names


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` in parts of at most BATCH_ROWS rows, and of about BATCH_BYTES where a value that the columns refer to
    several times counts each time."""
    size = sum(map(_row_size, batch.columns))
    rows = max(1, min(BATCH_ROWS, int(BATCH_BYTES / size))) if size else BATCH_ROWS
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _row_size(column: pa.Array) -> float:
    """Bytes that a row takes: the mean, or the largest value of a dictionary or of runs."""
    is_dictionary = pa.types.is_dictionary(column.type)
    if is_dictionary or pa.types.is_run_end_encoded(column.type):
        values = column.dictionary if is_dictionary else column.values
        try:
            return float(pc.max(pc.binary_length(values)).as_py() or 0)
        except pa.ArrowNotImplementedError:  # views, numbers, nested values
            return float(values.nbytes)
    return column.nbytes / len(column) if len(column) else 0.0


def _concatenated(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    try:
        return [pa.concat_batches(batches)]
    except pa.ArrowException:  # dictionaries in nested values, which cannot be joined
        return batches


def joined(batches: Iterable[pa.RecordBatch], most_rows: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Neighbours in one batch, as long as they are within both limits; what was read before an error comes first."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    failure: Exception | None = None
    iterator = iter(batches)
    while failure is None:
        try:
            batch = next(iterator, None)
        except Exception as error:
            failure, batch = error, None
        if waiting and (batch is None or rows + batch.num_rows > most_rows or size + batch.nbytes > most_bytes):
            yield from _concatenated(waiting)
            waiting, rows, size = [], 0, 0
        if batch is None:
            break
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    if failure is not None:
        raise failure


def one_line(text: Any, at_most: int = 200) -> str:
    """`text` for an error message."""
    message = printable(" ".join(str(text).split()))
    return message if len(message) <= at_most else f"{message[:at_most]}…"
