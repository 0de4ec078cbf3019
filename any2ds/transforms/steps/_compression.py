"""Decompressing in pieces of bounded size, of what a stranger has compressed."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from any2ds.core.errors import NotDecodable

_PIECE = 1 << 18  # bytes decompressed at a time
_SMALL = 10 << 10  # bytes given to tarfile at a time
_INPUT = 1 << 16  # bytes given to a decompressor at a time
_XZ_MEMORY = 128 << 20  # bytes that xz may take; its strongest setting takes 65 MiB

Pieces = Iterator[bytes]
New = Callable[[], Any]
"""Makes a decompressor as `bz2` and `lzma` have them."""


class _Inflate:
    """zlib's decompressor in the form of theirs."""

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


def _streams(new: New, signature: bytes = b"") -> Callable[[memoryview], Pieces]:
    """Several compressed streams, each with `signature`, are one file; what else stands behind one is left alone."""

    def pieces(data: memoryview) -> Pieces:
        position = 0
        while True:
            decompressor = new()
            while not decompressor.eof:
                given = b""
                if decompressor.needs_input:
                    given = bytes(data[position : position + _INPUT])
                    position += len(given)
                if piece := decompressor.decompress(given, _PIECE):
                    yield piece
                elif not given and not decompressor.eof:
                    raise EOFError("they end too early")
            position = _behind_zeros(data, position - len(decompressor.unused_data))
            if not signature or data[position : position + len(signature)] != signature:
                return

    return pieces


def _behind_zeros(data: memoryview, position: int) -> int:
    """Files from tapes are padded, and xz has padding of its own."""
    while rest := bytes(data[position : position + _INPUT]):
        if kept := rest.lstrip(b"\0"):
            return position + len(rest) - len(kept)
        position += len(rest)
    return position


def _zstd(data: memoryview) -> Pieces:
    with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), "zstd") as stream:
        while piece := stream.read(_PIECE):
            yield piece


_GZ, _BZ2, _XZ, _ZST = b"\x1f\x8b\x08", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd"
_SIGNATURES = {_GZ: "gz", _BZ2: "bz2", _XZ: "xz", _ZST: "zst"}

_DECOMPRESSED: Mapping[str, Callable[[memoryview], Pieces]] = {
    "gz": _streams(lambda: _Inflate(zlib.MAX_WBITS | 16), _GZ),
    "deflate": _streams(lambda: _Inflate(-zlib.MAX_WBITS)),
    "bz2": _streams(bz2.BZ2Decompressor, _BZ2),
    "xz": _streams(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY), _XZ),
    "zst": _zstd,
}


def kind_of(head: bytes) -> str | None:
    """gz, bz2, xz or zst, by the first bytes."""
    for signature, kind in _SIGNATURES.items():
        if head.startswith(signature):
            return kind
    # zstd may have frames of other things before; they are of sixteen kinds
    return "zst" if len(head) > 3 and 0x50 <= head[0] <= 0x5F and head[1:4] == b"\x2a\x4d\x18" else None


def decompressed(data: memoryview, kind: str) -> Pieces:
    """`data` as it was before compression, in pieces of at most 256 KiB. Raises NotDecodable where it is broken.

    `kind` is as `kind_of` says, or `deflate`, without any header.
    """
    try:
        yield from _DECOMPRESSED[kind](data)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError, pa.ArrowException) as error:
        raise NotDecodable(f"the compressed data are broken: {error}") from error


class PieceReader:
    """Pieces as a stream for `tarfile`, which copies what is left of a piece for each header that it reads."""

    def __init__(self, pieces: Pieces) -> None:
        self._parts = (piece[at : at + _SMALL] for piece in pieces for at in range(0, len(piece), _SMALL))

    def read(self, size: int = -1) -> bytes:
        return next(self._parts, b"")
