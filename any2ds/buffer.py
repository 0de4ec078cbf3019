"""Owns the bytes between network and writer: in memory up to a bound, in unnamed temporary files beyond it.

Two things make bodies pile up: large files arriving many at once, and rows that wait for an earlier row of their
shard (samples are written in the order of the list). Both spill to disk, so that neither memory nor progress
depends on the slowest host. Everything here belongs to one thread, but for `Parcel`, which another one fills.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from typing import IO

_CHUNK = 1 << 20
_HEAD = 8192


class Buffer:
    """Accounts for the bodies of one process; `limit` bytes of memory, shared by `transfers` at once."""

    def __init__(self, limit: int, transfers: int, folder: str | None = None) -> None:
        self.used = 0  # bytes of bodies in memory, those included that arrive in this thread
        self.limit = limit
        self.half = limit // 2  # from here on, what can go to disk does
        # What a transfer may hold when memory is short; all of them together hold at most half of it.
        self.share = max(1, self.half // transfers)
        self.folder = folder
        self._apart = 0  # bytes that are arriving in other threads
        self._lock = threading.Lock()  # guards it

    @property
    def full(self) -> bool:
        """No new transfer should start: what is in flight may still grow to its share."""
        return self.used + self._apart >= self.half + self.half // 2

    def receive(self) -> Receiving:
        return Receiving(self)

    def hold(self, data: bytes) -> Body:
        self.used += len(data)
        return Body(self, len(data), data)

    def parcel(self) -> Parcel:
        """For a body that arrives in another thread."""
        return Parcel(self)

    def adopt(self, parcel: Parcel) -> Body:
        """The body that has arrived in `parcel`, which is not to be used after."""
        if parcel.file is not None:
            return Body(self, parcel.size, None, parcel.file)
        data = b"".join(parcel.chunks)
        parcel.forget_chunks()
        return self.hold(data)

    def count_apart(self, count: int) -> int:
        """From any thread: so many bytes more are in a parcel. The bytes in memory now, all in all."""
        with self._lock:
            self._apart += count
            return self.used + self._apart

    def open_file(self) -> IO[bytes]:
        return tempfile.TemporaryFile(prefix="any2ds-", dir=self.folder)


class Receiving:
    """A body that is still arriving."""

    __slots__ = ("_buffer", "_chunks", "_file", "size")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._chunks: list[bytes] = []
        self._file: IO[bytes] | None = None
        self.size = 0

    def write(self, chunk: bytes) -> None:
        count = len(chunk)
        self.size += count
        if self._file is not None:
            self._file.write(chunk)
            return
        self._chunks.append(chunk)
        buffer = self._buffer
        buffer.used += count
        if buffer.used > buffer.half and self.size > buffer.share:
            self._file = buffer.open_file()
            self._file.writelines(self._chunks)
            self._forget_chunks()

    def finish(self) -> Body:
        """The body, complete; this object is ready for the next one."""
        size, self.size = self.size, 0
        if self._file is not None:
            file, self._file = self._file, None
            return Body(self._buffer, size, None, file)
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        return Body(self._buffer, size, data)

    def discard(self) -> None:
        """Forget what arrived; this object is ready for the next body."""
        if self._file is not None:
            self._file.close()
            self._file = None
        else:
            self._forget_chunks()
        self.size = 0

    def _forget_chunks(self) -> None:
        self._buffer.used -= sum(map(len, self._chunks))
        self._chunks.clear()


class Parcel:
    """A body that arrives in another thread than the buffer's own, under the same rule as `Receiving`."""

    __slots__ = ("_buffer", "chunks", "file", "size")

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self.chunks: list[bytes] = []
        self.file: IO[bytes] | None = None
        self.size = 0

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self.file is not None:
            self.file.write(chunk)
            return
        self.chunks.append(chunk)
        buffer = self._buffer
        if buffer.count_apart(len(chunk)) > buffer.half and self.size > buffer.share:
            self.file = buffer.open_file()
            self.file.writelines(self.chunks)
            self.forget_chunks()

    def discard(self) -> None:
        """Forget what arrived."""
        self.forget_chunks()
        if self.file is not None:
            self.file.close()
            self.file = None
        self.size = 0

    def forget_chunks(self) -> None:
        self._buffer.count_apart(-sum(map(len, self.chunks)))
        self.chunks.clear()


class Body:
    """A complete body of `size` bytes. Whoever is done with it calls `release`, once; nothing can be read after."""

    __slots__ = ("_buffer", "_data", "_file", "size")

    def __init__(self, buffer: Buffer, size: int, data: bytes | None, file: IO[bytes] | None = None) -> None:
        self._buffer = buffer
        self.size = size
        self._data = data
        self._file = file

    def read(self) -> bytes:
        """All of it, in memory."""
        if self._data is not None:
            return self._data
        return b"".join(self.chunks())

    def head(self) -> bytes:
        """Its beginning, long enough to recognise a file type by."""
        if self._data is not None:
            return self._data[:_HEAD]
        file = self._open()
        file.seek(0)
        return file.read(_HEAD)

    def chunks(self) -> Iterator[bytes]:
        """All of it, in pieces of a megabyte where it lies on disk."""
        if self._data is not None:
            yield self._data
            return
        file = self._open()
        file.seek(0)
        while chunk := file.read(_CHUNK):
            yield chunk

    def spill(self) -> None:
        """Move it from memory to disk, to wait there."""
        if self._data is not None:
            file = self._buffer.open_file()
            file.write(self._data)
            self._file, self._data = file, None
            self._buffer.used -= self.size

    def release(self) -> None:
        if self._data is not None:
            self._data = None
            self._buffer.used -= self.size
        elif self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> IO[bytes]:
        if self._file is None:
            raise ValueError("this body was released")
        return self._file
