"""Shared by the readers of text: blocks, lines, decoding."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import BinaryIO, ClassVar

from any2ds.core.errors import ReadError, WrongFormat
from any2ds.core.signatures import type_by_signature
from any2ds.readers.contract import AS_USUAL, Form

BLOCK = 2**20  # bytes; small enough to be there at once, large enough for vectorised work
UNDECODED = "bytes that are not of the encoding"  # a subject of notes
_HEAD = 4096  # bytes that are checked for binary data
_FEW = 4  # bytes of the longest byte order mark
# The longer ones first: that of UTF-16 begins that of UTF-32.
_MARKS = ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
          (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b"))
_COMPRESSIONS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "Zstandard", "lz4": "LZ4"}


def _utf8(pieces: Iterator[bytes], encoding: str | None, notes: dict[str, str]) -> Iterator[bytes]:
    """`pieces` of text as UTF-8, without a byte order mark and zero bytes. UTF-16 and UTF-32 are known by their marks,
    other encodings have to be given. Raises WrongFormat if this is not text."""
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= _FEW:
            break
    encoding = next((known for mark, known in _MARKS if head.startswith(mark)), encoding)
    if encoding is None:
        head = head.removeprefix(codecs.BOM_UTF8)
        refuse_binary(head[:_HEAD])
        yield from (text for piece in chain([head], pieces) if (text := piece.replace(b"\0", b"")))
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    is_first = True
    for piece in chain([head], pieces, [b""]):
        decoded = decoder.decode(piece, not piece)
        decoded = decoded.removeprefix("\ufeff") if is_first else decoded
        is_first = is_first and not decoded
        if "\ufffd" in decoded:
            notes.setdefault(
                UNDECODED,
                f"some bytes are not {encoding}, and are replaced by U+FFFD, also in URLs: --encoding names another",
            )
        if decoded := decoded.replace("\0", ""):
            yield decoded.encode()


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
    """The common part of readers of text."""

    seekable: ClassVar[bool] = False

    def __init__(self, form: Form = AS_USUAL) -> None:
        self.names: Sequence[str] = ()  # of the columns, once they are read
        self.notes: dict[str, str] = {}
        self._form = form

    def _pieces(self, stream: BinaryIO, held: int | None = None, size: int = BLOCK) -> Iterator[bytes]:
        """`stream` in blocks of `size` bytes, the last one shorter, as UTF-8 without a byte order mark.

        With `held`, after so many bytes a block is what one `read` returns, so that rows of a pipe are not waited for.
        A last line without newline gets one, unless a ReadError cuts it off; what was read before the error comes
        first. Raises WrongFormat if this is not text.
        """
        pieces = iter(partial(stream.read, size), b"")
        block, used, last = b"", 0, b"\n"
        try:
            for piece in _utf8(pieces, self._form.encoding, self.notes):
                block, last = block + piece, piece[-1:]
                while len(block) >= size or (block and held is not None and used + len(block) >= held):
                    data, block = block[:size], block[size:]
                    used += len(data)
                    yield data
        except ReadError:
            if block:
                yield block
            raise
        if block or last != b"\n":
            yield block + b"\n" * (last != b"\n")


def whole_lines(pieces: Iterator[bytes], longest: int) -> Iterator[bytes]:
    """The bytes of `pieces`, cut only after newlines.

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
