"""The data files of shards in a store: byte ranges of them, or copies in a folder on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from any2ds.core.errors import DamagedShard, error_text
from any2ds.dataset.load.files import LocalShard, ShardOfFolder, joined
from any2ds.storage.reading import patiently

_AT_ONCE = 64  # ranges that are under way
_GAP = 1 << 16  # bytes between two ranges that are read with them: a request costs as much as these
_TRIES = 50  # to make and open a copy that others remove
_USED = ".used"  # file whose time says when a copy was last opened
_PARTIAL = ".partial-"


class RemoteShard:
    """A `ShardData` in a store, with retries; of its file only ranges are read, but for `local`."""

    is_local = False

    def __init__(self, shard: ShardOfFolder, copies: ShardCopies) -> None:
        """Raises DamagedShard if the store says that the file is not there."""
        self.name, self.samples, self.size = shard.name, shard.samples, shard.size
        self._shard, self._copies = shard, copies
        self._copy: LocalShard | None = None
        self._path = f"{shard.folder.path.rstrip('/')}/{shard.name}"
        if not self.size:
            self.size = int(self._asked(lambda: shard.folder.fs.info(self._path))["size"] or 0)

    def read(self, start: int, size: int) -> bytes:
        if not size:
            return b""
        found: bytes = self._asked(lambda: self._shard.folder.fs.cat_file(self._path, start=start, end=start + size))
        return self._checked(found, start, size)

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[bytes, int]]:
        reads = joined(ranges, _GAP)
        if len(reads) == 1:
            (start, size, _) = reads[0]
            buffers = [self.read(start, size)]
        else:
            buffers = self._asked(lambda: self._ranges([(start, size) for start, size, _ in reads]))
        return [
            (buffer, own - start) for buffer, (start, _, several) in zip(buffers, reads, strict=True) for own in several
        ]

    def _ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        fs = self._shard.folder.fs
        starts, ends = [start for start, _ in ranges], [start + size for start, size in ranges]
        limit = {"batch_size": _AT_ONCE} if fs.async_impl else {}
        found = fs.cat_ranges([self._path] * len(ranges), starts, ends, on_error="raise", **limit)
        for each in found:
            if isinstance(each, BaseException):
                raise each
        return [self._checked(bytes(each), start, size) for each, (start, size) in zip(found, ranges, strict=True)]

    def _checked(self, found: bytes, start: int, size: int) -> bytes:
        if len(found) != size:
            raise DamagedShard(f"{len(found):,} of {size:,} bytes arrived from byte {start:,} on")
        return found

    def _asked(self, attempt: Callable[[], Any]) -> Any:
        try:
            return patiently(f"reading {self.name}", attempt)
        except DamagedShard:
            raise
        except Exception as error:  # every file system has exceptions of its own
            raise DamagedShard(error_text(error)) from error

    def index(self, end: str, make: Callable[[Path], bytes]) -> bytes:
        found = self._shard.sidecar(end)
        return found if found is not None else self._local().index(end, make)

    def metadata(self, columns: Sequence[str]) -> pa.Table:
        return self._shard.metadata(columns)

    def local(self) -> Path:
        return self._local().local()

    def _local(self) -> LocalShard:
        if self._copy is None:
            self._copy = self._copies.opened(self._shard)
        return self._copy


@dataclass(frozen=True, slots=True)
class ShardCopies:
    """Copies of shards in a folder that any number of processes share; those used longest ago are removed.

    A copy appears whole under its name; whoever has it open can read it when it is removed.
    """

    folder: Path
    most: int  # bytes; one copy may be larger

    def opened(self, shard: ShardOfFolder) -> LocalShard:
        """The copy of a data file, made if there is none. Raises DamagedShard."""
        for attempt in range(_TRIES):
            try:
                return LocalShard(shard, self._path(shard))
            except (OSError, DamagedShard) as error:  # another process has just removed it to make room
                cause = error.__cause__ if isinstance(error, DamagedShard) else error
                if attempt == _TRIES - 1 or not isinstance(cause, FileNotFoundError) or not self._is_in(cause):
                    raise DamagedShard(error_text(error)) from error
        raise AssertionError

    def _is_in(self, error: OSError) -> bool:
        """Whether it is of a file in the folder of copies, not in the store."""
        return str(error.filename).startswith(str(self.folder))

    def _path(self, shard: ShardOfFolder) -> Path:
        name = hashlib.sha256(f"{shard.folder.identity}/{shard.name}/{shard.size}".encode()).hexdigest()[:32]
        copy = self.folder / "shards" / name / shard.name
        if not copy.exists() or (shard.size and copy.stat().st_size != shard.size):
            self._download(shard, copy)
            self._make_room(copy.parent)
        with contextlib.suppress(OSError):
            (copy.parent / _USED).touch()
        return copy

    def _download(self, shard: ShardOfFolder, copy: Path) -> None:
        self.folder.joinpath("shards").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=self.folder / "shards") as staging:
            try:
                found = shard.folder.local_copy(shard.name, Path(staging))
            except Exception as error:  # every file system has exceptions of its own
                raise DamagedShard(error_text(error)) from error
            if shard.size and found.stat().st_size != shard.size:
                raise DamagedShard(f"{found.stat().st_size:,} of {shard.size:,} bytes arrived")
            copy.parent.mkdir(exist_ok=True)
            (copy.parent / _USED).touch()
            try:
                os.replace(found, copy)
            except OSError:  # a folder that another process has just made
                if not copy.exists():
                    raise

    def _make_room(self, kept: Path) -> None:
        """Remove copies, those used longest ago first, until the others fit."""
        sizes: list[tuple[float, int, Path]] = []
        for folder in self.folder.joinpath("shards").iterdir():
            with contextlib.suppress(OSError):  # another process removes it
                if not folder.name.startswith(_PARTIAL):
                    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
                    sizes.append(((folder / _USED).stat().st_mtime, size, folder))
        total = sum(size for _, size, _ in sizes)
        for _, size, folder in sorted(sizes):
            if total <= self.most:
                break
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)
                total -= size
