"""Random access to a remote file, with retries."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, TypeVar, cast

from any2ds.core.errors import DamagedShard
from any2ds.storage.patience import PATIENT, Patience, persist

T = TypeVar("T")

_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "mtime", "created")


def version_of(info: Any) -> str | None:
    """The version of a file by what its file system reports of it; None if that has none."""
    if not isinstance(info, Mapping):
        return None
    return next((str(info[key]) for key in _VERSIONS if info.get(key) is not None), None)


def opened(
    name: str, open: Callable[[], BinaryIO], stop: threading.Event | None = None, patience: Patience = PATIENT
) -> BinaryIO:
    """The file that `open` gives, with retries; if it is not seekable, only opening it is retried."""
    file = patiently(f"opening {name}", open, stop, patience)
    return cast(BinaryIO, PatientFile(name, open, file, stop, patience)) if file.seekable() else file


def patiently(
    what: str, attempt: Callable[[], T], stop: threading.Event | None = None, patience: Patience = PATIENT
) -> T:
    """`persist`, but for what is an answer: there is no such file, or no library for it, or it is damaged."""
    return persist(what, attempt, stop or threading.Event(), patience, (FileNotFoundError, ImportError, DamagedShard))


class SeekableFile(io.RawIOBase):
    """A file to be read, of which a subclass knows how to get the bytes at `_position`."""

    _position = 0

    def _size(self) -> int:
        """In bytes."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size()}[whence]
        self._position = max(0, start + offset)
        return self._position


class PatientFile(SeekableFile):
    """A file that is opened again, and read from the same place, when reading breaks off.

    `open` gives it, seekable. Raises what the file system raises, FileNotFoundError at once, and OSError if another
    file has taken its place in between.
    """

    def __init__(
        self,
        name: str,
        open: Callable[[], BinaryIO],
        file: BinaryIO,
        stop: threading.Event | None = None,
        patience: Patience = PATIENT,
    ) -> None:
        """`file` is what `open` has given."""
        self._name, self._open, self._stop, self._patience = name, open, stop, patience
        self._file: Any = file
        self._as_it_was = self._persist(lambda: self._look(self._opened()))

    def _opened(self) -> Any:
        if self._file is None:
            self._file = self._open()
        return self._file

    def _look(self, file: Any) -> tuple[int, str | None]:
        return int(file.seek(0, io.SEEK_END)), version_of(getattr(file, "details", None))

    def _persist(self, attempt: Callable[[], T]) -> T:
        """`patiently`, with the file opened anew for each attempt but the first."""

        def fresh() -> T:
            try:
                return attempt()
            except Exception:
                self._drop()
                raise

        return patiently(f"reading {self._name}", fresh, self._stop, self._patience)

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(Exception):  # it is what failed
                file.close()

    def readinto(self, buffer: Any) -> int:
        wanted = memoryview(buffer).cast("B")

        def attempt() -> bytes | None:
            is_again = self._file is None
            file = self._opened()
            if is_again and self._look(file) != self._as_it_was:
                return None
            file.seek(self._position)
            return bytes(file.read(min(len(wanted), max(0, self._size() - self._position))))

        found = self._persist(attempt)
        if found is None:
            raise OSError(f"{self._name} was replaced while it was read")
        wanted[: len(found)] = found
        self._position += len(found)
        return len(found)

    def _size(self) -> int:
        return self._as_it_was[0]

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()
