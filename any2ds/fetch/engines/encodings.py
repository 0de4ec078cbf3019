"""Decodes a body by its Content-Encoding: in pieces of bounded size, within a ratio, and to the end of its stream.

libcurl does not report that a stream ended early, nor how many bytes a piece had before it was decoded, so it hands
over what arrives, which is decoded here.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Protocol

import brotli

ACCEPTED = "gzip, deflate, br"
"""The value of the Accept-Encoding header."""

BROKEN_STREAM = "the answer is complete, the compressed stream in it is not"
_PIECE = 1 << 18  # bytes of what is decoded
_MOST_RATIO = 200  # decoded bytes for each that came
_SLICE = 1 << 14  # bytes that are decoded before the ratio is looked at again
_MOST_ENCODINGS = 2  # of one body
# Decoded bytes from which the ratio counts. A text of equal lines may well shrink 1,000 times; this many bytes
# do no harm, whatever they were packed in.
_FREE = 16 << 20
_GZIP = b"\x1f"  # its first byte


class Undecodable(Exception):
    """The body cannot be decoded, or must not be; `code` is that of the failure."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Decoder:
    """Decodes one body.

    A token that names no encoding says nothing of the bytes: objects of S3 are served with whatever was uploaded as
    their Content-Encoding, such as `UTF-8` or `aws-chunked`. Raises Undecodable for an encoding that exists and that
    is not decoded here.
    """

    def __init__(self, content_encoding: str) -> None:
        tokens = [part.strip().lower() for part in content_encoding.split(",")]
        if unsupported := [token for token in tokens if token in _UNSUPPORTED]:
            raise Undecodable("bad_encoding", f"Content-Encoding: {', '.join(unsupported)}")
        names = [token for token in tokens if token in _STAGES]
        if len(names) > _MOST_ENCODINGS:
            raise Undecodable("bad_encoding", f"{len(names)} content encodings, one in the other")
        # A brotli stream takes 16 MiB for its window, and more for its tables, however little has come of it: such a
        # body is decoded when it is there whole, and no other one meanwhile.
        self.needs_all = "br" in names
        self.received = 0  # bytes before decoding
        self._stages = [_STAGES[name]() for name in reversed(names)]  # the first one was applied last
        self._made = [0] * len(names)  # bytes that each stage has produced

    @property
    def finished(self) -> bool:
        """Whether every stream has come to its end."""
        return all(stage.finished for stage in self._stages)

    def decode(self, chunk: bytes | memoryview) -> Iterator[bytes]:
        """What the next bytes of the body decode to, in pieces.

        Raises Undecodable where the bytes are not what the header says, or decode to more than the ratio allows.
        """
        for start in range(0, len(chunk), _SLICE):
            part = bytes(chunk[start : start + _SLICE])
            self.received += len(part)
            yield from self._through(0, part)

    def _through(self, number: int, data: bytes) -> Iterator[bytes]:
        if number == len(self._stages):
            yield data
            return
        for piece in self._stages[number].feed(data):
            # Of each stage: one that makes a lot of nothing for the next one costs as much time.
            self._made[number] += len(piece)
            if self._made[number] > max(_FREE, _MOST_RATIO * self.received):
                raise Undecodable("too_large", f"it decodes to more than {_MOST_RATIO} times its bytes")
            yield from self._through(number + 1, piece)


class _Stage(Protocol):
    @property
    def finished(self) -> bool: ...

    def feed(self, data: bytes) -> Iterator[bytes]: ...


class _Gzip:
    """One gzip member after the other (RFC 1952); what follows the last one and is none is left out."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)

    @property
    def finished(self) -> bool:
        return self._stream.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream.eof:
                if not data.startswith(_GZIP):
                    return
                self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
            yield from _inflated(self._stream, data)
            data = self._stream.unused_data


class _Deflate:
    """A zlib stream (RFC 9110), or a bare deflate stream, which some servers send instead."""

    def __init__(self) -> None:
        self._head = b""
        self._stream: zlib._Decompress | None = None

    @property
    def finished(self) -> bool:
        return self._stream is not None and self._stream.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            data = self._head = self._head + data
            if len(data) < 2:
                return
            is_zlib = data[0] & 15 == zlib.DEFLATED and int.from_bytes(data[:2], "big") % 31 == 0
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if is_zlib else -zlib.MAX_WBITS)
        if not self._stream.eof:
            yield from _inflated(self._stream, data)


def _inflated(stream: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    while True:
        try:
            piece = stream.decompress(data, _PIECE)
        except zlib.error as error:
            raise Undecodable("bad_encoding", str(error)) from error
        data = stream.unconsumed_tail
        if piece:
            yield piece
        if stream.eof or len(piece) < _PIECE:
            return


class _Brotli:
    def __init__(self) -> None:
        self._stream = brotli.Decompressor()

    @property
    def finished(self) -> bool:
        return bool(self._stream.is_finished())

    def feed(self, data: bytes) -> Iterator[bytes]:
        while not self.finished:
            try:
                piece = self._stream.process(data, output_buffer_limit=_PIECE)
            except brotli.error as error:
                raise Undecodable("bad_encoding", str(error)) from error
            data = b""
            if piece:
                yield piece
            elif self._stream.can_accept_more_data():
                return


_STAGES: dict[str, type[_Stage]] = {"gzip": _Gzip, "x-gzip": _Gzip, "deflate": _Deflate, "br": _Brotli}
# The other encodings of IANA's registry (HTTP Content Coding Registry), and those of programs that pack files.
_UNSUPPORTED = frozenset(
    {
        "aes128gcm",
        "bzip2",
        "compress",
        "dcb",
        "dcz",
        "exi",
        "lzma",
        "pack200-gzip",
        "x-bzip2",
        "x-compress",
        "xz",
        "zstd",
    }
)
_CONTENT_RANGE = re.compile(r"bytes[ =]0-(\d{1,18})/(\d{1,18})", re.ASCII | re.IGNORECASE)


def whole_size(content_range: str) -> int | None:
    """Bytes of a body that is a whole file by its Content-Range, `bytes 0-9/10`; None for a part, or without a size."""
    match = _CONTENT_RANGE.fullmatch(content_range.strip())
    if match is None:
        return None
    size = int(match[2])
    return size if int(match[1]) == size - 1 else None
