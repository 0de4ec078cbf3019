"""Copies of shards of stores in a folder on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from any2ds.core.errors import DamagedShard, error_text, is_full
from any2ds.load.files import LocalShard, ShardOfFolder
from any2ds.storage.disk.durable import flush
from any2ds.storage.reading import version_of
from any2ds.storage.stores import server_of

_TRIES = 50  # to make and open a copy that others remove
_USED = ".used"  # file whose time says when a copy was last opened
_PARTIAL = ".partial-"
_ABANDONED = 3600.0  # seconds without a byte, after which a download is one of a process that was killed


def version_of_shard(shard: ShardOfFolder) -> str:
    """The version of the data file, by its store (ETag, time); "" for a folder, or if it says nothing.

    Raises DamagedShard.
    """
    return shard.version or _version_now(shard)


def _version_now(shard: ShardOfFolder) -> str:
    info = shard.info()
    return "" if shard.is_folder or info["type"] == "directory" else version_of(info) or ""


@dataclass(frozen=True, slots=True)
class ShardCopies:
    """Copies of shards in a folder that any number of processes share; those used longest ago are removed.

    A copy appears whole under its name; whoever has it open can read it when it is removed.
    """

    folder: Path
    most: int  # bytes; one copy may be larger

    def opened(self, shard: ShardOfFolder) -> LocalShard:
        """The copy of a data file, made if there is none. Raises DamagedShard."""
        version = version_of_shard(shard)
        if (kept := self.kept(shard, version)) is not None:
            return kept
        copy = self._place(shard, version)
        for _ in range(_TRIES):
            self._download(shard, copy, version)
            try:
                return LocalShard(shard, copy, version)
            except DamagedShard as error:
                if not isinstance(error.__cause__, FileNotFoundError):  # another process has just removed it
                    raise
        raise DamagedShard("other processes remove its copy at once to make room: cache_bytes is too small for them")

    def kept(self, shard: ShardOfFolder, version: str) -> LocalShard | None:
        """The copy of a data file, if there is one."""
        copy = self._place(shard, version)
        try:
            opened = LocalShard(shard, copy, version)
        except DamagedShard:  # it is not there, or cut
            return None
        with contextlib.suppress(OSError):
            (copy.parent / _USED).touch()
        return opened

    def _place(self, shard: ShardOfFolder, version: str) -> Path:
        where = f"{server_of(shard.folder.fs)}/{shard.folder.identity}/{shard.name}/{shard.size}/{version}"
        name = hashlib.sha256(where.encode()).hexdigest()[:32]
        return self.folder / "shards" / name / shard.name

    def _download(self, shard: ShardOfFolder, copy: Path, version: str) -> None:
        try:
            self.folder.joinpath("shards").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DamagedShard(f"it cannot be copied, as the cache cannot be written: {error_text(error)}") from error
        with tempfile.TemporaryDirectory(prefix=_PARTIAL, dir=self.folder / "shards") as staging:
            try:
                is_folder = shard.is_folder or (False if version else None)
                found = shard.folder.local_copy(shard.name, Path(staging), is_folder)
            except Exception as error:  # every file system has exceptions of its own
                where = f"no room in the cache {self.folder}: " if is_full(error) else ""
                raise DamagedShard(f"{where}{shard.why(error)}") from error
            if shard.is_folder and not any(found.iterdir()):
                raise DamagedShard("its folder is empty, or the server does not list what is in it")
            if shard.size and found.stat().st_size != shard.size:
                raise DamagedShard(f"{found.stat().st_size:,} of {shard.size:,} bytes arrived")
            shard.folder.fs.invalidate_cache()
            if _version_now(shard) != version:
                raise DamagedShard("it was replaced while it was copied")
            flush(found)  # else a file of its size may be full of zeros after a power failure
            try:
                copy.parent.mkdir(exist_ok=True)
                (copy.parent / _USED).touch()
                os.replace(found, copy)
            except FileNotFoundError:  # another process has just removed the folder to make room
                return
            except OSError as error:  # a folder that another process has just made
                if not copy.exists():
                    raise DamagedShard(error_text(error)) from error
        self._make_room(copy.parent)

    def _make_room(self, kept: Path) -> None:
        """Remove copies, those used longest ago first, until the others fit; and what killed processes have left."""
        sizes: list[tuple[float, int, Path]] = []
        for folder in self.folder.joinpath("shards").iterdir():
            with contextlib.suppress(OSError):  # another process removes it
                files = [file.stat() for file in folder.rglob("*") if file.is_file()]
                if not folder.name.startswith(_PARTIAL):
                    sizes.append(((folder / _USED).stat().st_mtime, sum(file.st_size for file in files), folder))
                elif max(file.st_mtime for file in [folder.stat(), *files]) < time.time() - _ABANDONED:
                    shutil.rmtree(folder, ignore_errors=True)
        total = sum(size for _, size, _ in sizes)
        for _, size, folder in sorted(sizes):
            if total <= self.most:
                break
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)
                total -= size
