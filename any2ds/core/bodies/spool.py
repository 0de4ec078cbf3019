"""Bodies that wait, one after the other in a temporary file without a name, which is gone with the process."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from any2ds.core.bodies.stored import StoredBody


class Heap:
    """Bodies that wait, one after the other in a temporary file without a name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self.size = 0  # bytes

    def add(self, chunks: Iterable[bytes | memoryview]) -> StoredBody:
        """A body of these bytes, which can be read until the heap is closed. Raises OSError if the disk is full."""
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
