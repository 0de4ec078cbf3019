"""Owns the bytes between network and writer: in memory up to a bound, in unnamed temporary files beyond it.

Two things make bodies pile up: large files arriving many at once, and rows that wait for an earlier row of their
shard (samples are written in the order of the list). Both go to a spool, first in memory and then on disk, so that
neither memory nor progress depends on the slowest host. Everything here belongs to one thread, but for `ThreadBody`,
which another one fills.
"""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import cast

_HEAD = 8192  # bytes, long enough to recognise a file type by
_PIECE = 1 << 20  # bytes written and read at once
_WORTH_A_FLUSH = 1 << 20  # bytes held by a writer; less would make tiny row groups
_MOST_TAKEN_OVER = 16  # files with one body each; more bodies are copied to files with many, since files are few
_SEGMENT = 16 << 20  # bytes in one file or block; so many bodies share a file that descriptors do not run out


class Buffer:
    """Accounts for the bodies of one process; `limit` bytes of memory, shared by at most `transfers` at once."""

    def __init__(self, limit: int, transfers: int, folder: str | None = None) -> None:
        self.transfers = transfers
        self.received = 0  # bytes that ever arrived
        self.used = 0  # bytes of bodies in memory, those included that arrive in this thread
        self.paused = False  # because those who take the bodies have more than enough of them
        self.half = limit // 2  # what is in flight, and what writers hold
        self.share_among(transfers)
        # From here on, bodies that wait go to the spool: many of them scattered over the heap make every allocation
        # and every collection slower (a third of the CPU of a sample, with 3 % of hosts hanging).
        self.few = limit // 16
        self.spool = Spool(limit - self.half - self.few, folder)
        self._isolated = 0  # bytes in memory that are arriving in other threads
        self._lock = threading.Lock()  # guards it

    def share_among(self, transfers: int) -> None:
        """So many may be in flight from now on."""
        # What a transfer may hold when memory is short; all of them together hold at most half of it.
        self.share = max(1, self.half // transfers)

    @property
    def full(self) -> bool:
        """No new transfer should start: what is in flight may still grow to its share."""
        return self.paused or self.used + self._isolated > self.half + self.few

    def is_short(self, held: int, writers: int = 1) -> bool:
        """Whether a writer that holds `held` bytes, and is one of so many, should let go of them."""
        # Where writers alone hold more than half of a small buffer, no transfer may begin until one lets go.
        return self.used > self.half and held >= min(_WORTH_A_FLUSH, self.half // writers)

    def close(self) -> None:
        """Give the disk back; no body on it can be read after."""
        self.spool.close()

    def hold(self, data: bytes) -> Body:
        """A body that was made in this process."""
        self.used += len(data)
        return Body(self, len(data), [data])

    def adopt(self, body: ThreadBody) -> Body:
        """The body that has arrived in `body`, which is not to be used after."""
        if body.file is not None:
            return Body(self, body.size, None, self.spool.take_over(body.file, body.size))
        chunks = body.chunks.copy()
        body.forget_chunks()
        self.used += body.size
        return Body(self, body.size, chunks)

    def count_in_threads(self, count: int) -> int:
        """From any thread: so many bytes more are in a ThreadBody. The bytes in memory now, all in all."""
        with self._lock:
            self._isolated += count
            return self.used + self._isolated


@dataclass(frozen=True, slots=True)
class Extent:
    """A piece of a body on disk."""

    segment: Segment
    offset: int
    size: int

    def read(self) -> bytes | memoryview:
        return self.segment.read(self.offset, self.size)

    def release(self) -> None:
        self.segment.live -= self.size
        if not self.segment.live:
            self.segment.give_back()


class Segment:
    """A block of memory, or a temporary file without a name, which is gone with the process, however that ends."""

    def __init__(self, spool: Spool, file: io.RawIOBase | None) -> None:
        self._spool = spool
        self._file = file
        self._memory = memoryview(bytearray(_SEGMENT)) if file is None else None
        self.size = 0
        self.live = 0  # bytes that somebody still wants

    def has_room(self, size: int) -> bool:
        return self.size + size <= _SEGMENT

    def append(self, data: memoryview) -> Extent:
        if self._memory is not None:
            self._memory[self.size : self.size + len(data)] = data
        elif self._file is not None:
            self._file.seek(self.size)
            _write_all(self._file, data)
        extent = Extent(self, self.size, len(data))
        self.size += len(data)
        self.live += len(data)
        return extent

    def read(self, offset: int, size: int) -> bytes | memoryview:
        if self._memory is not None:
            return self._memory[offset : offset + size]
        if self._file is None:
            raise ValueError("a segment is in memory or on disk")
        self._file.seek(offset)
        return self._file.read(size) or b""

    def give_back(self) -> None:
        """Nobody wants anything of it any more: it is written again from its start."""
        self.size = 0
        self._spool.free(self)


class WrittenFile(Segment):
    """A file with one body, which is closed and not used again."""

    def give_back(self) -> None:
        if self._file is not None:
            self._spool.done_with(self._file)


class Spool:
    """Bodies that wait, many to a segment: the first `memory` bytes of segments in memory, the others on disk.

    Segments are used again rather than made anew: their pages are there already.
    """

    def __init__(self, memory: int, folder: str | None) -> None:
        self._folder = folder
        self._memory_segments = memory // _SEGMENT
        self._files: list[io.RawIOBase] = []
        self._taken_over: set[io.RawIOBase] = set()
        self._free: list[Segment] = []
        self._current: Segment | None = None

    def append(self, data: bytes) -> list[Extent]:
        """Raises OSError if the disk is full."""
        return [self._writable(len(piece)).append(piece) for piece in _pieces(data)]

    def take_over(self, file: io.RawIOBase, size: int) -> list[Extent]:
        """The `size` bytes in a file that somebody else has written; it is not written again."""
        if len(self._taken_over) >= _MOST_TAKEN_OVER:
            file.seek(0)
            found = [extent for piece in iter(partial(file.read, _PIECE), b"") for extent in self.append(piece or b"")]
            file.close()
            return found
        segment = WrittenFile(self, file)
        self._taken_over.add(file)
        segment.size = segment.live = size
        return [Extent(segment, start, min(_PIECE, size - start)) for start in range(0, size, _PIECE)]

    def open_file(self) -> io.RawIOBase:
        """May be called from any thread."""
        return cast(io.RawIOBase, tempfile.TemporaryFile(prefix="any2ds-", dir=self._folder, buffering=0))

    def done_with(self, file: io.RawIOBase) -> None:
        self._taken_over.discard(file)
        file.close()

    def free(self, segment: Segment) -> None:
        if segment is not self._current:
            self._free.append(segment)

    def close(self) -> None:
        for file in (*self._files, *self._taken_over):
            file.close()

    def _writable(self, size: int) -> Segment:
        if self._current is None or not self._current.has_room(size):
            self._current = self._free.pop() if self._free else self._new()
        return self._current

    def _new(self) -> Segment:
        if self._memory_segments:
            self._memory_segments -= 1
            return Segment(self, None)
        self._files.append(self.open_file())
        return Segment(self, self._files[-1])


class ThreadBody:
    """A body that arrives in another thread than the buffer's own, under the same rule as `Body.write`."""

    __slots__ = ("_buffer", "chunks", "file", "size")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.chunks: list[bytes] = []
        self.file: io.RawIOBase | None = None
        self.size = 0

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self._buffer.received += len(chunk)  # not exact, with so many threads, but it grows
        if self.file is not None:
            _write_all(self.file, memoryview(chunk))
            return
        self.chunks.append(chunk)
        buffer = self._buffer
        if buffer.count_in_threads(len(chunk)) > buffer.half and self.size > buffer.share:
            self.file = buffer.spool.open_file()
            for held in self.chunks:
                _write_all(self.file, memoryview(held))
            self.forget_chunks()

    def pieces(self) -> Iterator[bytes | memoryview]:
        """What arrived, from its start."""
        if self.file is None:
            yield from self.chunks
            return
        self.file.seek(0)
        while piece := self.file.read(_PIECE):
            yield piece

    def discard(self) -> None:
        """Forget what arrived."""
        self.forget_chunks()
        if self.file is not None:
            self.file.close()
            self.file = None
        self.size = 0

    def forget_chunks(self) -> None:
        self._buffer.count_in_threads(-sum(map(len, self.chunks)))
        self.chunks.clear()


class Body:
    """A body, of which `size` bytes have arrived. Its owner releases it in the end; nothing can be read after."""

    __slots__ = ("_buffer", "_chunks", "_extents", "_other_owners", "size")

    def __init__(
        self, buffer: Buffer, size: int = 0, chunks: list[bytes] | None = None, extents: list[Extent] | None = None
    ) -> None:
        self._buffer = buffer
        self.size = size
        # As they arrived: to join them would cost as much as to write them. None where they are in the spool.
        self._chunks = [] if chunks is None and extents is None else chunks
        self._extents = extents
        self._other_owners = 0

    def write(self, chunk: bytes) -> None:
        """More of it has arrived. Raises OSError if the disk is full."""
        buffer, count = self._buffer, len(chunk)
        self.size += count
        buffer.received += count
        if self._chunks is not None:
            self._chunks.append(chunk)
            buffer.used += count
            if buffer.used > buffer.half and self.size > buffer.share:
                self.spill()
        elif self._extents is not None:
            self._extents += buffer.spool.append(chunk)

    def share(self, owners: int) -> None:
        """It gets so many more owners; it is free when each of them has released it."""
        self._other_owners += owners

    def read(self) -> bytes:
        """All of it, in memory."""
        return b"".join(self.chunks())

    def head(self) -> bytes:
        """Its beginning, long enough to recognise a file type by."""
        if (chunks := self._chunks) and (len(chunks) == 1 or len(chunks[0]) >= _HEAD):
            return chunks[0][:_HEAD]
        found = b""
        for chunk in self.chunks():
            found += chunk[:_HEAD]
            if len(found) >= _HEAD:
                return found[:_HEAD]
        return found

    def joined(self) -> bytes:
        """All of it, in memory, where it is kept in one piece from now on."""
        data = self.read()
        if self._chunks is not None:
            self._chunks = [data]
        return data

    def chunks(self) -> Iterator[bytes | memoryview]:
        """All of it, in pieces of at most a megabyte where it waits; each is valid until the body is released."""
        if self._chunks is not None:
            return iter(self._chunks)
        if self._extents is not None:
            return (extent.read() for extent in self._extents)
        raise ValueError("this body was released")

    def spill(self) -> None:
        """Move it to the spool, to wait there. Raises OSError if the disk is full."""
        if self._chunks is not None:
            self._extents = self._buffer.spool.append(b"".join(self._chunks))
            self._chunks = None
            self._buffer.used -= self.size

    def release(self) -> None:
        if self._other_owners:
            self._other_owners -= 1
            return
        if self._chunks is not None:
            self._chunks = None
            self._buffer.used -= self.size
        for extent in self._extents or ():
            extent.release()
        self._extents = None


def _write_all(file: io.RawIOBase, data: memoryview) -> None:
    while data:
        data = data[file.write(data) or 0 :]


def _pieces(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    return (view[start : start + _PIECE] for start in range(0, len(data), _PIECE))
