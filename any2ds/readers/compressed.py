"""Decompresses url lists; of a damaged file, everything before the damage but for some kilobytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import BinaryIO, cast

from any2ds.core.compression import LONGEST_SIGNATURE, PieceFile, decompressed, kind_of

_INPUT = 2**16  # bytes read at a time
_PIECE = 2**12  # bytes decompressed at a time: the piece in which damage is found is lost


def opened(stream: BinaryIO, kind: str, by_content: bool = False) -> BinaryIO:
    """`stream`, decompressed. Reading past damage raises EOFError or the exception of a library.

    With `by_content`, the first bytes determine the kind if they are known, or that there is none; else `kind`.
    """
    return cast(BinaryIO, PieceFile(_by_content(stream, kind) if by_content else decompressed(stream, kind, _PIECE)))


def _by_content(stream: BinaryIO, kind: str) -> Iterator[bytes]:
    head = b""
    while len(head) < LONGEST_SIGNATURE and (piece := stream.read(LONGEST_SIGNATURE - len(head))):
        head += piece
    found = kind_of(head)
    pieces = chain([head], iter(partial(getattr(stream, "read1", stream.read), _INPUT), b""))
    if found is None and kind != "br":  # which has no signature
        yield from pieces
    else:
        yield from decompressed(cast(BinaryIO, PieceFile(pieces)), found or kind, _PIECE)
