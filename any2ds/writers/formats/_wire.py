"""Numbers as binary formats have them: varints of protobuf and Thrift, and the length before a value of parquet."""

from __future__ import annotations

import struct
from collections.abc import Callable

MOST_OF_64_BITS = (1 << 64) - 1
LENGTH = struct.Struct("<I")  # of a value, before it

Read = Callable[[int, int], bytes]
"""`read(offset, size)` gives these bytes of a record, fewer at its end."""


def varint(value: int) -> bytes:
    """7 bits in each byte, the lowest first; the high bit says that there is more."""
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def reader_of(record: bytes) -> Read:
    return lambda offset, size: record[offset : offset + size]


def varint_at(read: Read, start: int, stop: int) -> tuple[int, int]:
    """The number that begins at `start`, and where it ends."""
    value = 0
    for index, byte in enumerate(read(start, min(10, stop - start))):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & MOST_OF_64_BITS, start + index + 1
    raise ValueError(f"a number without an end at byte {start}")
