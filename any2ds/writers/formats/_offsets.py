"""The index beside a file of samples, `00000.tar.idx`: where each begins, for whoever wants one without the others.

The form is that of Megatron-Energon: unsigned 64-bit integers, little-endian; for each sample the offset at which it
begins (in a tar file the header of its first member), and at last the offset at which the last one ends.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import cast


def pack(offsets: array[int]) -> bytes:
    if sys.byteorder == "big":
        offsets = offsets[:]
        offsets.byteswap()
    return offsets.tobytes()


def unpack(content: bytes) -> Sequence[int]:
    """The numbers of an index, without a copy where that can be. Raises ValueError if it is none."""
    if len(content) % 8 or not content:
        raise ValueError("the index ends within a number" if content else "the index is empty")
    if sys.byteorder == "little":
        return cast("Sequence[int]", memoryview(content).cast("Q"))
    offsets = array("Q", content)
    offsets.byteswap()
    return offsets
