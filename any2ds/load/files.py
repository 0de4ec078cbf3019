"""The data files of shards on this machine, read by byte ranges, and the indexes that were made for them."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from any2ds.core.errors import DamagedShard, access_text, error_text
from any2ds.core.paths import expanded
from any2ds.storage.disk.regular import check_regular
from any2ds.storage.folders import OutputFolder
from any2ds.storage.patience import persist
from any2ds.storage.stores import protocols

_MOST_AT_ONCE = 1 << 30  # bytes; a single read of the system gives no more than 2 GiB
_MOST_JOINED = 8 << 20  # bytes that are read at once for neighbours
_MOST_MARK = (1 << 63) - 1
_REVISION = 2  # of made indexes: another one where they would be others for the same files
_HEADER = struct.Struct("<4Q")  # of a made index: the `Version` of its data file, size of the index

Version = tuple[int, int, int]
"""Of a data file: size, modification time and inode; or size, and a digest of what its store says of it."""


@dataclass(frozen=True, slots=True)
class ShardOfFolder:
    """A shard in a folder: its files, and what its data file should be like."""

    folder: OutputFolder
    name: str  # of the data file
    size: int  # bytes; 0 if unknown
    samples: int | None  # None if unknown
    cache: Path  # folder for indexes
    version: str = ""  # of the data file in its store, if the list of the folder says it
    has_index: bool = True  # False if it is known that no index lies beside it
    mark: int | None = None  # of the data file on this machine, when the dataset was opened, see `mark_of`
    key_start: str = ""  # with what the keys of its samples begin; "" if unknown
    is_folder: bool = False  # as those of the format `files` are

    def info(self) -> Mapping[str, Any]:
        """The file system's description of the data file. Raises DamagedShard."""
        folder, path = self.folder, f"{self.folder.path.rstrip('/')}/{self.name}"
        try:
            found: Mapping[str, Any] = persist(
                f"looking at {self.name}", lambda: folder.fs.info(path), patience=folder.patience
            )
        except Exception as error:  # every file system has exceptions of its own
            raise DamagedShard(self.why(error)) from error
        return found

    def why(self, error: Exception) -> str:
        """What a file system raised, for messages; of a web server with what it takes."""
        is_web = self.is_folder and not protocols(self.folder.fs).isdisjoint(("http", "https"))
        needed = "the server has to list the files of its folder, and does not: " if is_web else ""
        return f"{needed}{access_text(error)}"

    def sidecar(self, end: str) -> bytes | None:
        """The file beside the data with this end of its name; None if it is not there. Raises DamagedShard."""
        if not self.has_index:
            return None
        try:
            return self.folder.read(self.name.rpartition(".")[0] + end)
        except Exception as error:  # every file system has exceptions of its own
            raise DamagedShard(f"its index cannot be read: {error_text(error)}") from error

    def is_outdated(self, end: str, written: int) -> bool:
        """Whether the file with this end of its name is older than the data of another tool, written at that time.

        It may fit by its sizes alone; data of any2ds are compared with their statistics.
        """
        if self.key_start or not self.has_index or not self.folder.is_local:
            return False
        try:
            return os.stat(f"{self.folder.path}/{self.name.rpartition('.')[0]}{end}").st_mtime_ns < written
        except OSError:
            return False

    def kept_index(self, end: str, version: Version) -> bytes | None:
        """The index of the data file in this version, from the cache of indexes; None if it is not there."""
        with suppress(OSError):
            content = self._kept(end).read_bytes()
            if content[: _HEADER.size] == _HEADER.pack(*version, len(content) - _HEADER.size):
                return content[_HEADER.size :]
        return None

    def keep_index(self, end: str, version: Version, content: bytes) -> None:
        """For `kept_index`, in any process."""
        kept = self._kept(end)
        with suppress(OSError):  # without a cache, each process makes it for itself
            kept.parent.mkdir(parents=True, exist_ok=True)
            staged = kept.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            staged.write_bytes(_HEADER.pack(*version, len(content)) + content)
            os.replace(staged, kept)

    def _kept(self, end: str) -> Path:
        name = hashlib.sha256(f"{_REVISION}:{self.folder.identity}/{self.name}{end}".encode()).hexdigest()[:32]
        return self.cache / "indexes" / name[:2] / f"{name}.idx"


def mark_of(found: os.stat_result) -> int:
    """Differs for another file, or another folder, in the place of one: when it was written, or its inode."""
    return found.st_ino & _MOST_MARK if stat.S_ISDIR(found.st_mode) else found.st_mtime_ns


def version_in_store(size: int, version: str) -> Version:
    """By what the store says of a file (ETag, time)."""
    first, second = struct.unpack_from("<2Q", hashlib.sha256(version.encode()).digest())
    return size, first, second


class LocalShard:
    """A `ShardData` on this machine. One descriptor is open for as long as it lives, for positional reads only."""

    is_local = True

    def __init__(self, shard: ShardOfFolder, path: Path, version: str = "") -> None:
        """`version` is that in the store of which it is a copy, if the store says one.

        Raises DamagedShard if the data file is not there, or not of its size.
        """
        self.name, self.samples, self.size, self.key_start = shard.name, shard.samples, 0, shard.key_start
        self._shard, self._path = shard, path
        self._descriptor = -1
        try:
            found = os.stat(path)
            if not stat.S_ISDIR(found.st_mode):
                check_regular(path)
                self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
                found = os.fstat(self._descriptor)
                self.size = found.st_size
        except OSError as error:
            raise DamagedShard(error_text(error)) from error
        if shard.size and self.size != shard.size:
            raise DamagedShard(f"it has {self.size:,} bytes, and had {shard.size:,} when the dataset was opened")
        if shard.mark is not None and mark_of(found) != shard.mark:
            raise DamagedShard("it was replaced, or written to, after the dataset was opened")
        self._version: Version = (found.st_size, found.st_mtime_ns, found.st_ino)
        if version:
            self._version = version_in_store(found.st_size, version)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # which is gone when the interpreter ends
        if self._descriptor >= 0:
            close(self._descriptor)

    def read(self, start: int, size: int) -> bytes:
        try:
            found = _pread(self._descriptor, size if size < _MOST_AT_ONCE else _MOST_AT_ONCE, start)
        except OSError as error:
            raise DamagedShard(error_text(error)) from error
        return found if len(found) == size else self._rest(found, start, size)

    def _rest(self, found: bytes, start: int, size: int) -> bytes:
        """The bytes that the system did not read in one go."""
        parts = [found]
        left = size - len(found)
        while left and parts[-1]:
            parts.append(_pread(self._descriptor, min(left, _MOST_AT_ONCE), start + size - left))
            left -= len(parts[-1])
        if left:
            raise DamagedShard(f"it ends at byte {start + size - left:,}, where a sample goes on to {start + size:,}")
        return b"".join(parts)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[bytes, int]]:
        found: list[tuple[bytes, int]] = []
        for start, size, several in joined(ranges):
            buffer = self.read(start, size)
            found += [(buffer, own - start) for own in several]
        return found

    def index(self, end: str, make: Callable[[Path], bytes]) -> bytes:
        if self._shard.is_outdated(end, self._version[1]) or (found := self._shard.sidecar(end)) is None:
            return self.made_index(end, make)
        return found

    def made_index(self, end: str, make: Callable[[Path], bytes]) -> bytes:
        """From the cache of indexes, else what `make` returns."""
        if (content := self._shard.kept_index(end, self._version)) is None:
            content = make(self._path)
            self._shard.keep_index(end, self._version, content)
        return content

    def local(self) -> Path:
        return self._path

    @property
    def is_removed(self) -> bool:
        """Whether the file is gone, as a copy is that had to make room."""
        return not os.path.exists(self._path)


def joined(ranges: Sequence[tuple[int, int]], gap: int = 0) -> list[tuple[int, int, list[int]]]:
    """Start, size and the starts of its ranges for each read, in the order of `ranges`, of which neighbours share one.

    Ranges with up to `gap` bytes between them are neighbours.
    """
    found: list[tuple[int, int, list[int]]] = []
    for start, size in ranges:
        if found:
            first, total, starts = found[-1]
            if first + total <= start <= first + total + gap and start + size - first <= _MOST_JOINED:
                starts.append(start)
                found[-1] = first, start + size - first, starts
                continue
        found.append((start, size, [start]))
    return found


def cache_folder() -> Path:
    """For what can be made again: `ANY2DS_CACHE`, else the user's."""
    if own := os.environ.get("ANY2DS_CACHE"):
        return Path(own)
    home = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return expanded(home or "~/.cache") / "any2ds"


if hasattr(os, "pread"):
    _pread = os.pread
else:  # Windows
    _LOCK = threading.Lock()

    def _pread(descriptor: int, size: int, start: int, /) -> bytes:
        with _LOCK:
            os.lseek(descriptor, start, os.SEEK_SET)
            return os.read(descriptor, size)
