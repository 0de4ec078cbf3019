"""Decodes a body by its Content-Encoding when it has arrived: in pieces, within a ratio, and to the end of its stream.

libcurl does not report that a stream ended early, nor how many bytes a piece had before it was decoded, so it hands
over what arrives. A stream takes memory, of brotli 16 MiB for its window, however little has come of it: so none is
decoded before its body is whole, and no two at a time.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import BinaryIO, cast

import pyarrow as pa

from any2ds.core.compression import PIECE, PieceFile, decompressed

ACCEPTED = "gzip, deflate, br"
"""The value of the Accept-Encoding header."""

_MOST_RATIO = 200  # decoded bytes for each that came
# Decoded bytes from which the ratio counts. A text of equal lines may well shrink 1,000 times; this many bytes
# do no harm, whatever they were packed in.
_FREE = 16 << 20
_SLICE = 1 << 14  # bytes that are decoded before the ratio is looked at again
_MOST_ENCODINGS = 2  # of one body
_KINDS = {"gzip": "gz", "x-gzip": "gz", "deflate": "deflate", "br": "br"}
# The other encodings of IANA's registry (HTTP Content Coding Registry), and those of programs that pack files.
_UNSUPPORTED = frozenset(
    "aes128gcm bzip2 compress dcb dcz exi lzma pack200-gzip x-bzip2 x-compress xz zstd".split()  # noqa: SIM905
)
_CONTENT_RANGE = re.compile(r"bytes[ =]0-(\d{1,18})/(\d{1,18})", re.ASCII | re.IGNORECASE)


class Undecodable(Exception):
    """The body cannot be decoded, or must not be; `code` is that of the failure."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def decoded(body: Iterable[bytes], content_encoding: str) -> Iterator[bytes]:
    """The pieces of a body that has arrived.

    A token that names no encoding says nothing of the bytes: objects of S3 are served with whatever was uploaded as
    their Content-Encoding, such as `UTF-8` or `aws-chunked`. Raises Undecodable for an encoding that exists and that
    is not decoded here, for bytes that are not what the header says, and where they become too many.
    """
    tokens = [part.strip().lower() for part in content_encoding.split(",")]
    if unsupported := [token for token in tokens if token in _UNSUPPORTED]:
        raise Undecodable("bad_encoding", f"Content-Encoding: {', '.join(unsupported)}")
    kinds = [_KINDS[token] for token in tokens if token in _KINDS]
    if len(kinds) > _MOST_ENCODINGS:
        raise Undecodable("bad_encoding", f"{len(kinds)} content encodings, one in the other")
    ratio = _Ratio()
    pieces = ratio.counted(body)
    for kind in reversed(kinds):  # the first one was applied last
        # The ratio of each stage counts: one that makes a lot of nothing for the next one costs as much time.
        pieces = ratio.bounded(_decompressed(PieceFile(pieces), kind))
    try:
        yield from pieces
    except (EOFError, OSError, zlib.error, pa.ArrowException) as error:
        if isinstance(error, EOFError) or "Truncated" in str(error):  # Arrow's word, of brotli
            raise Undecodable("truncated", "the answer is complete, the compressed stream in it is not") from error
        raise Undecodable("bad_encoding", str(error)) from error


def _decompressed(stream: PieceFile, kind: str) -> Iterator[bytes]:
    if kind == "deflate":  # a zlib stream (RFC 9110), or a bare deflate stream, which some servers send instead
        head = stream.read(2)
        if len(head) == 2 and head[0] & 15 == zlib.DEFLATED and int.from_bytes(head, "big") % 31 == 0:
            kind = "zlib"
        stream = PieceFile(chain([head], iter(partial(stream.read, PIECE), b"")))
    yield from decompressed(cast(BinaryIO, stream), kind, ignores_trailing=True)


class _Ratio:
    """Compares what was decoded with the bytes that were taken for it so far."""

    def __init__(self) -> None:
        self._taken = 0

    def counted(self, body: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in body:
            for start in range(0, len(chunk), _SLICE):
                part = chunk[start : start + _SLICE]
                self._taken += len(part)
                yield part

    def bounded(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        size = 0
        for piece in pieces:
            size += len(piece)
            if size > max(_FREE, _MOST_RATIO * self._taken):
                raise Undecodable("too_large", f"it decodes to more than {_MOST_RATIO} times its bytes")
            yield piece


def whole_size(content_range: str) -> int | None:
    """Bytes of a body that is a whole file by its Content-Range, `bytes 0-9/10`; None for a part, or without a size."""
    match = _CONTENT_RANGE.fullmatch(content_range.strip())
    if match is None:
        return None
    size = int(match[2])
    return size if int(match[1]) == size - 1 else None
