"""Bodies on disk: members of a shard that was written, and those that wait in a temporary file."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

from any2ds.core.errors import DamagedShard, error_text

_HEAD = 8192  # bytes, long enough to recognise a file type by
_PIECE = 1 << 20  # bytes read at once


class StoredBody:
    """The bytes of one member, read when they are asked for; a `buffer.Body` for whoever writes it again.

    `read_at(offset, size)` gives up to `size` of its bytes. It can be read until the next sample is asked for. Raises
    DamagedShard where it cannot be read, or ends early.
    """

    __slots__ = ("_read_at", "size")

    def __init__(self, size: int, read_at: Callable[[int, int], bytes]) -> None:
        self.size = size
        self._read_at = read_at

    @classmethod
    def of(cls, data: bytes) -> StoredBody:
        return cls(len(data), partial(_slice, data))

    def read(self) -> bytes:
        """All of it, in memory."""
        return self._piece(0, self.size)

    def head(self) -> bytes:
        """Its beginning, long enough to recognise a file type by."""
        return self._piece(0, min(_HEAD, self.size))

    def chunks(self) -> Iterator[bytes]:
        """All of it, in pieces of at most a megabyte."""
        for start in range(0, self.size, _PIECE):
            yield self._piece(start, min(_PIECE, self.size - start))

    def _piece(self, start: int, wanted: int) -> bytes:
        try:
            piece = self._read_at(start, wanted)
        except OSError as error:
            raise DamagedShard(error_text(error)) from error
        if len(piece) != wanted:
            raise DamagedShard(f"a member ends after {start + len(piece)} of {self.size} bytes")
        return piece

    def spill(self) -> None:
        """Nothing to do: it is on disk already."""

    def share(self, owners: int) -> None:
        """Nothing to do: it takes no memory."""

    def release(self) -> None:
        """Nothing to give back."""


def _slice(data: bytes, offset: int, size: int) -> bytes:
    return data if size == len(data) else data[offset : offset + size]


class SpoolFile:
    """Bodies that wait, one after the other in a temporary file without a name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self.size = 0  # bytes

    def add(self, chunks: Iterable[bytes | memoryview]) -> StoredBody:
        """A body of these bytes, which can be read until this is closed. Raises OSError if the disk is full."""
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="any2ds-", dir=self._folder)  # noqa: SIM115 - closed by `close`
        file, start = self._file, self.size
        file.seek(start)
        for chunk in chunks:
            self.size += file.write(chunk)

        def read_at(offset: int, size: int) -> bytes:
            file.seek(start + offset)
            return file.read(size)

        return StoredBody(self.size - start, read_at)

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # what is lost with a full disk is not wanted any more
                self._file.close()
