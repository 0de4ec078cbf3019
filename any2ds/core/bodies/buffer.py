"""Owns the bytes between network and writer: in memory up to a bound, in unnamed temporary files beyond it.

Two things make bodies pile up: large files arriving many at once, and rows that wait for an earlier row of their
shard (samples are written in the order of the list). Both go to a spool, first in memory and then on disk, so that
neither memory nor progress depends on the slowest host. A body belongs to one thread at a time; what bodies have in
common is guarded by locks.
"""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple, cast

_HEAD = 8192  # bytes, long enough to recognise a file type by
_PIECE = 1 << 20  # bytes written and read at once
_WORTH_A_FLUSH = 1 << 20  # bytes held by a writer; less would make tiny row groups
_SEGMENT = 16 << 20  # bytes in one file or block; so many bodies share a file that descriptors do not run out


class Buffer:
    """Accounts for the bodies of one process; `limit` bytes of memory, shared by at most `transfers` at once."""

    def __init__(self, limit: int, transfers: int, folder: str | None = None) -> None:
        self.transfers = transfers
        self.received = 0  # bytes that ever arrived
        self.used = 0  # bytes of bodies in memory, those included that arrive
        self.paused = False  # because those who take the bodies have more than enough of them
        self.half = limit // 2  # what is in flight, and what writers hold
        self.share_among(transfers)
        # From here on, bodies that wait go to the spool: many of them scattered over the heap make every allocation
        # and every collection slower (a third of the CPU of a sample, with 3 % of hosts hanging).
        self.few = limit // 16
        self.spool = Spool(limit - self.half - self.few, folder)
        self.lock = threading.Lock()  # guards `received` and `used`

    def share_among(self, transfers: int) -> None:
        """So many may be in flight from now on."""
        # Bytes that a transfer may hold when memory is short; all together hold at most half of it.
        self.share = max(1, self.half // transfers)

    @property
    def full(self) -> bool:
        """No new transfer should start: what is in flight may still grow to its share."""
        return self.paused or self.used > self.half + self.few

    def is_short(self, held: int, writers: int = 1) -> bool:
        """Whether a writer that holds `held` bytes, and is one of so many, should let go of them."""
        # Where writers alone hold more than half of a small buffer, no transfer may begin until one lets go.
        return self.used > self.half and held >= min(_WORTH_A_FLUSH, self.half // writers)

    def close(self) -> None:
        """Give the disk back; no body on it can be read after."""
        self.spool.close()

    def hold(self, data: bytes) -> Body:
        """A body that was made in this process."""
        self.count(held=len(data))
        return Body(self, len(data), [data])

    def count(self, held: int, received: int = 0) -> None:
        """So many bytes more, or less, are held in memory, and so many have arrived."""
        with self.lock:
            self.used += held
            self.received += received


class Body:
    """A body, of which `size` bytes have arrived. Its owner releases it in the end; nothing can be read after."""

    __slots__ = ("_buffer", "_chunks", "_extents", "_other_owners", "size")

    def __init__(self, buffer: Buffer, size: int = 0, chunks: list[bytes] | None = None) -> None:
        self._buffer = buffer
        self.size = size
        # As they arrived: to join them would cost as much as to write them. None when the body is in the spool.
        self._chunks: list[bytes] | None = [] if chunks is None else chunks
        self._extents: list[Extent] | None = None  # where it is in the spool
        self._other_owners = 0

    def write(self, chunk: bytes) -> None:
        """More of it has arrived. Raises OSError if the disk is full."""
        buffer, count = self._buffer, len(chunk)
        self.size += count
        if self._chunks is not None:
            self._chunks.append(chunk)
            with buffer.lock:  # what `count` does, for each piece of each file
                buffer.used += count
                buffer.received += count
            if buffer.used > buffer.half and self.size > buffer.share:
                self.spill()
        elif self._extents is not None:
            buffer.count(held=0, received=count)
            self._extents += buffer.spool.append(chunk)

    def share(self, owners: int) -> None:
        """Add so many owners; the body is free when each of them has released it."""
        self._other_owners += owners

    def read(self) -> bytes:
        """All of it, in memory."""
        return b"".join(self.chunks())

    def head(self) -> bytes:
        """Its beginning, long enough to recognise a file type by."""
        found = b""
        for chunk in self.chunks():
            found = found + chunk[:_HEAD] if found else chunk[:_HEAD]
            if len(found) >= _HEAD:
                break
        return found[:_HEAD]

    def joined(self) -> bytes:
        """All of it, in memory, where it is kept in one piece from now on."""
        data = self.read()
        if self._chunks is not None:
            self._chunks = [data]
        return data

    def chunks(self) -> Iterator[bytes]:
        """All of it, in pieces of at most a megabyte where it waits."""
        if self._chunks is not None:
            return iter(self._chunks)
        if self._extents is not None:
            return map(self._buffer.spool.read, self._extents)
        raise ValueError("this body was released")

    def spill(self) -> None:
        """Move it to the spool, to wait there. Raises OSError if the disk is full."""
        if self._chunks is not None:
            self._extents = self._buffer.spool.append(b"".join(self._chunks))
            self._chunks = None
            self._buffer.count(held=-self.size)

    def release(self) -> None:
        if self._other_owners:
            self._other_owners -= 1
            return
        if self._chunks is not None:
            self._chunks = None
            self._buffer.count(held=-self.size)
        if self._extents is not None:
            self._buffer.spool.release(self._extents)
            self._extents = None


class Segment:
    """A block of memory, or a temporary file without a name, which is gone with the process, however that ends."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.size = 0  # bytes that were written since it was empty
        self.live = 0  # bytes of them that somebody still wants


class Extent(NamedTuple):
    """The place of a piece of a body."""

    segment: Segment
    offset: int
    size: int


class Spool:
    """Bodies that wait, many to a segment: the first `memory` bytes of segments in memory, the others on disk.

    Segments are used again rather than made anew: their pages are there already. Every method may be called from any
    thread.
    """

    def __init__(self, memory: int, folder: str | None) -> None:
        self._folder = folder
        self._in_memory = memory // _SEGMENT  # segments
        self._segments: list[Segment] = []
        self._empty: list[Segment] = []
        self._current: Segment | None = None  # to which the next piece is written if there is room
        self.lock = threading.Lock()  # guards all, with the place in each file

    def append(self, data: bytes) -> list[Extent]:
        """Raises OSError if the disk is full."""
        view = memoryview(data)
        with self.lock:
            return [self._append(view[start : start + _PIECE]) for start in range(0, len(view), _PIECE)]

    def read(self, extent: Extent) -> bytes:
        with self.lock:
            extent.segment.file.seek(extent.offset)
            return extent.segment.file.read(extent.size)

    def release(self, extents: Iterable[Extent]) -> None:
        """Nobody wants these any more: a segment that has no others is written again from its start."""
        with self.lock:
            for segment, _, size in extents:
                segment.live -= size
                if not segment.live:
                    segment.size = 0
                    if segment is not self._current:
                        self._empty.append(segment)

    def close(self) -> None:
        for segment in self._segments:
            segment.file.close()

    def _append(self, piece: memoryview) -> Extent:
        segment = self._current
        if segment is None or segment.size + len(piece) > _SEGMENT:
            segment = self._current = self._empty.pop() if self._empty else self._new()
        extent = Extent(segment, segment.size, len(piece))
        segment.file.seek(segment.size)
        while piece:
            piece = piece[segment.file.write(piece) :]  # a file without a buffer may take less
        segment.size += extent.size
        segment.live += extent.size
        return extent

    def _new(self) -> Segment:
        file: BinaryIO
        if len(self._segments) < self._in_memory:
            file = io.BytesIO()
        else:
            temporary = tempfile.TemporaryFile(prefix="any2ds-", dir=self._folder, buffering=0)  # noqa: SIM115 - `close`
            file = cast(BinaryIO, temporary)
        self._segments.append(Segment(file))
        return self._segments[-1]
