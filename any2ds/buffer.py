"""Owns the bytes between network and writer: in memory up to a bound, in unnamed temporary files beyond it.

Two things make bodies pile up: large files arriving many at once, and rows that wait for an earlier row of their
shard (samples are written in the order of the list). Both spill to disk, so that neither memory nor progress
depends on the slowest host. Everything here belongs to one thread.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

_HEAD = 8192  # bytes, long enough to recognise a file type by
_PIECE = 1 << 20  # bytes written and read at once
_SEGMENT = 64 << 20  # bytes in one file; so many bodies share a file that descriptors do not run out


class Buffer:
    """Accounts for the bodies of one process; `limit` bytes of memory, shared by `transfers` at once."""

    def __init__(self, limit: int, transfers: int, folder: str | None = None) -> None:
        self.used = 0  # bytes of bodies in memory, arriving ones included
        self.limit = limit
        self.half = limit // 2  # from here on, what can go to disk does
        # What a transfer may hold when memory is short; all of them together hold at most half of it.
        self.share = max(1, self.half // transfers)
        self.spool = Spool(folder)

    @property
    def full(self) -> bool:
        """No new transfer should start: what is in flight may still grow to its share."""
        return self.used > self.half + self.half // 2

    def receive(self) -> Receiving:
        return Receiving(self)


@dataclass(frozen=True, slots=True)
class Extent:
    """A piece of a body on disk."""

    segment: Segment
    offset: int
    size: int

    def read(self) -> bytes:
        self.segment.file.seek(self.offset)
        return self.segment.file.read(self.size) or b""

    def release(self) -> None:
        self.segment.live -= self.size
        if not self.segment.live:
            self.segment.size = 0  # used again from the start


class Segment:
    """A temporary file without a name: it is gone with the last extent in it, or the process, however that ends."""

    def __init__(self, file: io.RawIOBase) -> None:
        self.file = file
        self.size = 0
        self.live = 0  # bytes that somebody still wants

    def __del__(self) -> None:
        self.file.close()

    def append(self, data: memoryview) -> Extent:
        self.file.seek(self.size)
        left = data
        while left:
            left = left[self.file.write(left) or 0 :]
        extent = Extent(self, self.size, len(data))
        self.size += len(data)
        self.live += len(data)
        return extent


class Spool:
    """Bodies on disk, many to a file."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._current: Segment | None = None

    def append(self, data: bytes) -> list[Extent]:
        """Raises OSError if the disk is full."""
        return [self._append(piece) for piece in _pieces(data)]

    def _append(self, piece: memoryview) -> Extent:
        segment = self._current
        if segment is None or segment.size >= _SEGMENT:
            file = tempfile.TemporaryFile(prefix="any2ds-", dir=self._folder, buffering=0)  # noqa: SIM115 - Segment does
            segment = self._current = Segment(cast(io.RawIOBase, file))
        return segment.append(piece)


class Receiving:
    """A body that is still arriving."""

    __slots__ = ("_buffer", "_chunks", "_extents", "size")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._chunks: list[bytes] = []
        self._extents: list[Extent] = []
        self.size = 0

    def write(self, chunk: bytes) -> None:
        """Raises OSError if the disk is full."""
        count = len(chunk)
        self.size += count
        if self._extents:
            self._extents += self._buffer.spool.append(chunk)
            return
        self._chunks.append(chunk)
        buffer = self._buffer
        buffer.used += count
        if buffer.used > buffer.half and self.size > buffer.share:
            for held in self._chunks:
                self._extents += buffer.spool.append(held)
            self._forget_chunks()

    def finish(self) -> Body:
        """The body, complete; this object is ready for the next one."""
        size, self.size = self.size, 0
        if self._extents:
            extents, self._extents = self._extents, []
            return Body(self._buffer, size, None, extents)
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        return Body(self._buffer, size, data)

    def discard(self) -> None:
        """Forget what arrived; this object is ready for the next body."""
        for extent in self._extents:
            extent.release()
        self._extents = []
        self._forget_chunks()
        self.size = 0

    def _forget_chunks(self) -> None:
        self._buffer.used -= sum(map(len, self._chunks))
        self._chunks.clear()


class Body:
    """A complete body of `size` bytes. Whoever is done with it calls `release`; nothing can be read after."""

    __slots__ = ("_buffer", "_data", "_extents", "size")

    def __init__(self, buffer: Buffer, size: int, data: bytes | None, extents: list[Extent] | None = None) -> None:
        self._buffer = buffer
        self.size = size
        self._data = data
        self._extents = extents

    def read(self) -> bytes:
        """All of it, in memory."""
        return self._data if self._data is not None else b"".join(self.chunks())

    def head(self) -> bytes:
        """Its beginning, long enough to recognise a file type by."""
        found = b""
        for chunk in self.chunks():
            found += chunk[:_HEAD]
            if len(found) >= _HEAD:
                break
        return found[:_HEAD]

    def chunks(self) -> Iterator[bytes]:
        """All of it, in pieces of at most a megabyte where it lies on disk."""
        if self._data is not None:
            yield self._data
        elif self._extents is not None:
            for extent in self._extents:
                yield extent.read()
        else:
            raise ValueError("this body was released")

    def spill(self) -> None:
        """Move it from memory to disk, to wait there. Raises OSError if the disk is full."""
        if self._data is not None:
            self._extents, self._data = self._buffer.spool.append(self._data), None
            self._buffer.used -= self.size

    def release(self) -> None:
        if self._data is not None:
            self._data = None
            self._buffer.used -= self.size
        for extent in self._extents or ():
            extent.release()
        self._extents = None


def _pieces(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[start : start + _PIECE] for start in range(0, len(data), _PIECE))
