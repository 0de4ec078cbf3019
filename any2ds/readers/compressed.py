"""Decompresses url lists; of a damaged file, everything before the damage."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, cast

import pyarrow as pa

_INPUT = 2**16  # bytes read at a time
_OUTPUT = 2**18  # bytes decompressed at a time
_CAREFUL = 2**12  # the same for codecs that lose the step in which damage is found

Pieces = Callable[[BinaryIO], Iterator[bytes]]


def decompressed(stream: BinaryIO, suffix: str, by_content: bool = False) -> BinaryIO:
    """`stream`, decompressed. Reading past damage raises EOFError or the codec's own exception.

    With `by_content`, the first bytes determine the codec if they are known, or that there is none; else `suffix`.
    """
    return cast(BinaryIO, _Pieces(_by_content(stream, suffix) if by_content else CODECS[suffix](stream)))


def _by_content(stream: BinaryIO, suffix: str) -> Iterator[bytes]:
    head = b""
    while len(head) < _LONGEST_MAGIC and (piece := stream.read(_LONGEST_MAGIC - len(head))):
        head += piece
    found = next((name for name, magic in _MAGIC.items() if head.startswith(magic)), None)
    if found is None and suffix in _MAGIC:
        yield head
        read = getattr(stream, "read1", stream.read)
        while piece := read(_INPUT):
            yield piece
    else:
        yield from CODECS[found or suffix](cast(BinaryIO, _Prefixed(head, stream)))


class _Prefixed(io.RawIOBase):
    """`stream` with `head` before it."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head, self._stream = head, stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._head:
            return self._stream.read(size)
        data = self._head if size < 0 else self._head[:size]
        self._head = self._head[len(data) :]
        return data


class _Pieces(io.RawIOBase):
    """The pieces as a file; a read is short only at their end."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = bytearray()
        self._failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while self._failure is None and not 0 <= size <= len(self._rest):
            try:
                piece = next(self._pieces, None)
            except Exception as error:  # of any codec; raised after what was decompressed before
                self._failure = error
                break
            if piece is None:
                break
            self._rest += piece
        if self._failure is not None and not self._rest:
            raise self._failure
        part = bytes(self._rest if size < 0 else self._rest[:size])
        del self._rest[: len(part)]
        return part


def _gzip(stream: BinaryIO) -> Iterator[bytes]:
    data = b""
    while data := data.lstrip(b"\0") or stream.read(_INPUT):  # files may be padded with zeros
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        while not member.eof:
            data = data or stream.read(_INPUT)
            if not data:
                yield member.flush()
                raise EOFError("the compressed file ends too early")
            before = member.copy()
            try:
                piece = member.decompress(data, _OUTPUT)
            except zlib.error:
                yield from _up_to_break(before, data)
                raise
            yield piece
            data = member.unconsumed_tail
        data = member.unused_data


def _up_to_break(member: Any, data: bytes) -> Iterator[bytes]:
    try:
        for position in range(len(data)):
            yield member.decompress(data[position : position + 1])
    except zlib.error:
        return


def _stdlib(new: Callable[[], Any]) -> Pieces:
    def pieces(stream: BinaryIO) -> Iterator[bytes]:
        data = b""
        while data := data.lstrip(b"\0") or stream.read(_INPUT):
            member = new()
            while not member.eof:
                if member.needs_input and not data:
                    data = stream.read(_INPUT)
                    if not data:
                        raise EOFError("the compressed file ends too early")
                yield member.decompress(data, _CAREFUL)
                data = b""
            data = member.unused_data

    return pieces


def _pyarrow(codec: str) -> Pieces:
    def pieces(stream: BinaryIO) -> Iterator[bytes]:
        with pa.CompressedInputStream(stream, codec) as inner:
            while piece := inner.read(_CAREFUL):
                yield piece

    return pieces


CODECS: Mapping[str, Pieces] = {
    "gz": _gzip,
    "bz2": _stdlib(bz2.BZ2Decompressor),
    "xz": _stdlib(lzma.LZMADecompressor),
    "zst": _pyarrow("zstd"),
    "lz4": _pyarrow("lz4"),
    "br": _pyarrow("brotli"),
}
"""By the suffix of a file's name."""

_MAGIC = {
    "gz": b"\x1f\x8b",
    "bz2": b"BZh",
    "xz": b"\xfd7zXZ\0",
    "zst": b"\x28\xb5\x2f\xfd",
    "lz4": b"\x04\x22\x4d\x18",
}
"""The first bytes of compressed files; Brotli has none."""
_LONGEST_MAGIC = max(map(len, _MAGIC.values()))
