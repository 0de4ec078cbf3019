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
    file = persist(f"opening {name}", open, stop, patience)
    return cast(BinaryIO, PatientFile(name, open, file, stop, patience)) if file.seekable() else file


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

    Raises what the file system raises, FileNotFoundError at once, and DamagedShard if another file has taken its place
    in between.
    """

    def __init__(
        self, name: str, open: Callable[[], BinaryIO], file: Any, stop: threading.Event | None, patience: Patience
    ) -> None:
        """`file` is what `open` has given, seekable."""
        self._name, self._open, self._stop, self._patience = name, open, stop, patience
        self._file = file
        self._identity: tuple[int, str | None] | None = None  # once it is known
        self._identity = self._with_file(_identity)

    def _with_file(self, attempt: Callable[[Any], T]) -> T:
        """The result of `attempt` at the file, which is opened anew when that has failed."""

        def fresh() -> T:
            try:
                if self._file is None:
                    self._file = self._open()
                    if self._identity not in (None, _identity(self._file)):
                        raise DamagedShard(f"{self._name} was replaced while it was read")
                return attempt(self._file)
            except Exception:
                self._drop()
                raise

        return persist(f"reading {self._name}", fresh, self._stop, self._patience)

    def _drop(self) -> None:
        file, self._file = self._file, None
        with contextlib.suppress(Exception):  # it is what failed
            file.close()
            file.fs.invalidate_cache()  # the version of a file that was listed is remembered

    def readinto(self, buffer: Any) -> int:
        wanted = memoryview(buffer).cast("B")

        def attempt(file: Any) -> bytes:
            file.seek(self._position)
            return bytes(file.read(min(len(wanted), max(0, self._size() - self._position))))

        found = self._with_file(attempt)
        wanted[: len(found)] = found
        self._position += len(found)
        return len(found)

    def _size(self) -> int:
        return self._identity[0] if self._identity else 0

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()


def _identity(file: Any) -> tuple[int, str | None]:
    """The size and the version of an open file."""
    return int(file.seek(0, io.SEEK_END)), version_of(getattr(file, "details", None))
