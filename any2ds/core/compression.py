"""Decompresses files in pieces of bounded size, whatever a stranger has compressed."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa

PIECE = 1 << 18  # bytes decompressed at a time
_INPUT = 1 << 14  # bytes given to a decompressor at a time; zlib copies what is left of them in each step
_XZ_MEMORY = 128 << 20  # bytes that xz may take; its strongest setting takes 65 MiB
_SIGNATURES = {
    "gz": b"\x1f\x8b\x08",
    "bz2": b"BZh",
    "xz": b"\xfd7zXZ\0",
    "zst": b"\x28\xb5\x2f\xfd",
    "lz4": b"\x04\x22\x4d\x18",
}
LONGEST_SIGNATURE = max(map(len, _SIGNATURES.values()))
_ARROW = {"zst": "zstd", "lz4": "lz4", "br": "brotli"}


class _Inflate:
    """zlib's decompressor with the interface of those of `bz2` and `lzma`."""

    def __init__(self, window: int) -> None:
        self._inner = zlib.decompressobj(window)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, most)


_DECOMPRESSORS: Mapping[str, Callable[[], Any]] = {
    "gz": partial(_Inflate, zlib.MAX_WBITS | 16),
    "deflate": partial(_Inflate, -zlib.MAX_WBITS),
    "zlib": partial(_Inflate, zlib.MAX_WBITS),
    "bz2": bz2.BZ2Decompressor,
    "xz": partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY),
}


def kind_of(head: bytes) -> str | None:
    """By the first bytes; None if they are those of no compressed file."""
    for kind, signature in _SIGNATURES.items():
        if head.startswith(signature):
            return kind
    # Sixteen kinds of zstd frames hold other things, and may come first.
    return "zst" if len(head) > 3 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18" else None


def decompressed(stream: BinaryIO, kind: str, most: int = PIECE, ignores_trailing: bool = False) -> Iterator[bytes]:
    """The content of `stream` in pieces of at most `most` bytes; what is lost before damage is shorter than that.

    `kind` is the suffix of such files (gz, bz2, xz, zst, lz4, br), zlib, or deflate, which has no header. A file may be
    several compressed streams, with zeros between and after them; with `ignores_trailing` anything else may follow.
    Raises EOFError for a file that is cut off, and the exceptions of the libraries for damage.
    """
    if kind in _ARROW:
        with pa.CompressedInputStream(stream, _ARROW[kind]) as inner:
            while piece := inner.read(most):
                yield piece
        return
    data = stream.read(_INPUT)
    while data:
        decompressor = _DECOMPRESSORS[kind]()
        while not decompressor.eof:
            if decompressor.needs_input and not data and not (data := stream.read(_INPUT)):
                raise EOFError("the compressed file ends too early")
            if piece := decompressor.decompress(data, most):
                yield piece
            data = b""
        data = _behind_zeros(decompressor.unused_data, stream)
        if ignores_trailing and kind_of(data) != kind:
            return


def _behind_zeros(data: bytes, stream: BinaryIO) -> bytes:
    """`data` and what follows, without zeros at the beginning; enough to see what it is, or less at the end."""
    while len(data := data.lstrip(b"\0")) < LONGEST_SIGNATURE and (more := stream.read(_INPUT)):
        data += more
    return data


class PieceFile(io.RawIOBase):
    """Pieces as a file; a read is short only at their end. What they raise is raised after the bytes before it."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = bytearray()
        self._given = 0  # bytes
        self._failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._given

    def read(self, size: int = -1) -> bytes:
        while self._failure is None and not 0 <= size <= len(self._rest):
            try:
                piece = next(self._pieces, None)
            except Exception as error:
                self._failure = error
                break
            if piece is None:
                break
            self._rest += piece
        if self._failure is not None and not self._rest:
            raise self._failure
        part = bytes(self._rest if size < 0 else self._rest[:size])
        del self._rest[: len(part)]
        self._given += len(part)
        return part
