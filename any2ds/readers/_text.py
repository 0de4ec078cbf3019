"""What the readers of text share: blocks, lines, and bytes that become text."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from any2ds.errors import InputError, MissingColumns, ReadError, printable

BATCH_ROWS = 65536
BLOCK = 2**20  # bytes; small enough to be there at once, large enough for vectorised work
NO_UTF8_IN_URL = "any2ds.percent"  # an error handler for `bytes.decode`: the byte E9 becomes %E9


def _percent(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(f"%{byte:02X}" for byte in error.object[error.start : error.end]), error.end


codecs.register_error(NO_UTF8_IN_URL, _percent)


def blocks(stream: BinaryIO, size: int = BLOCK, held: int | None = None) -> Iterator[bytes]:
    """`stream` in blocks of `size` bytes, the last one shorter, without a byte order mark.

    With `held`, nothing is waited for after so many bytes: a block is then what one `read` gives, which is less than
    was asked for where more has not arrived yet.

    A last line without newline is given one, unless a ReadError cuts it off; what was read before that comes first.
    """
    block, is_first, given, last = bytearray(), True, 0, b"\n"
    failure: ReadError | None = None
    while failure is None:
        try:
            piece = stream.read(size - len(block))
        except ReadError as error:
            failure, piece = error, b""
        block += piece
        has_arrived = held is not None and given + len(block) >= max(held, len(codecs.BOM_UTF8))
        if len(block) == size or not piece or has_arrived:
            data, block = bytes(block), bytearray()
            given += len(data)
            if is_first:
                data, is_first = data.removeprefix(codecs.BOM_UTF8), False
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

    Of a line of more than `longest` bytes only the first `longest` + 1 are surely there. A last line without newline
    is whole, unless `pieces` ends with a ReadError: then it is left out.
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


def to_text(array: pa.Array, errors: str = "replace") -> pa.Array:
    """A binary or string array as valid strings. `errors` says, as for `bytes.decode`, what other bytes become."""
    binary = array.cast(pa.binary())
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", errors) for v in binary.to_pylist()], pa.string())


def require(wanted: Sequence[str], existing: Sequence[str]) -> None:
    """Raises MissingColumns, or InputError if the name of a wanted column is there twice."""
    missing = [name for name in wanted if name not in existing]
    if missing:
        raise MissingColumns(missing, existing)
    twice = [name for name in wanted if existing.count(name) > 1]
    if twice:
        raise InputError(f"the url list has several columns called {twice[0]!r}")


def sliced(batch: pa.RecordBatch, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """`batch` in parts of at most `rows` rows."""
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def one_line(text: Any, at_most: int = 200) -> str:
    """`text` for an error message."""
    words = printable(" ".join(str(text).split()))
    return words if len(words) <= at_most else f"{words[:at_most]}…"


def misfit(column: str, type: pa.DataType, value: Any) -> str:
    """What is wrong with a value of a list whose types were told from its first rows, and what helps."""
    return (
        f"column {column!r} holds {type}, to judge by the first rows, which {one_line(repr(value), 50)} is not; "
        "give the list as parquet, which says its types, or leave the column out"
    )
