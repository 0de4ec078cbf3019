"""A dataset on a disk of this machine: files get their final names when they are complete and on the disk."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from any2ds.core import layout
from any2ds.storage.disk.durable import flush, flush_folder, make_folders
from any2ds.storage.disk.regular import check_regular, open_regular, refuse_link
from any2ds.storage.disk.space import Room
from any2ds.storage.disk.staging import remove

_TRIES = 100  # to make a file in a folder that others remove when it is empty


class LocalStore:
    """Its methods are those of `OutputFolder`, whose path is `root`.

    In a temporary folder in it are files that are about to be renamed.
    """

    def __init__(self, fs: Any, root: Path, room: Room, fsync: bool) -> None:
        self.fs = fs
        self._root, self._room, self._fsync = root, room, fsync

    def create(self) -> None:
        """With the folder for the state, whose name is on the disk too: the holder of the lock has made it already."""
        self._flush_folders({*make_folders(self._root / layout.STATE_FOLDER), self._root})

    def create_folder(self, name: str) -> None:
        """Its own name is on the disk, too: what is going to be in it may have to be found after a power failure."""
        self._flush_folders(make_folders(self._path(f"{name}/")))

    def names(self, folder: str) -> Iterator[str]:
        with os.scandir(self._root / folder) as entries:
            yield from (entry.name for entry in entries)

    def listed(self, folder: str) -> Iterator[Mapping[str, Any]]:
        path = self._root / folder
        try:
            with os.scandir(path) as entries:
                yield from map(_described, entries)
        except NotADirectoryError:  # as other file systems do
            yield _described(path)

    def members(self, folder: str) -> list[str]:
        root = self._root / folder
        return [path.relative_to(root).as_posix() for path in root.rglob("*")]

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def read(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError), open_regular(self._root / name) as file:
            return file.read()
        return None

    def read_many(self, names: Sequence[str]) -> list[bytes | None]:
        return [self.read(name) for name in names]

    def local_copy(self, name: str, target: Path, is_folder: bool | None = None) -> Path:
        check_regular(self._root / name)
        return self._root / name

    def write(self, name: str, data: bytes) -> None:
        target = self._path(name)
        changed = {*make_folders(target.parent), target.parent}
        with self._temporary(lambda path: path.write_bytes(data)) as file:
            os.replace(file, target)
        self._flush_folders(changed)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        target = self._path(name)
        changed = {*make_folders(target.parent), target.parent}
        with self._temporary(lambda path: path.write_bytes(data)) as file:
            is_new = _link(file, target)
        self._flush_folders(changed)
        return is_new

    def publish(self, files: Mapping[str, Path]) -> None:
        """The content of each is on the disk before it has its name, and the names are when this returns."""
        changed: set[Path] = set()
        for name, staged in files.items():
            target = self._path(name)
            changed |= {*make_folders(target.parent), target.parent}
            if staged.stat().st_dev == self._root.stat().st_dev:
                self._flush(staged)
            try:
                _replace(staged, target)
            except OSError as error:
                if error.errno != errno.EXDEV:  # another disk, or another mount of this one
                    raise
                self._publish_copy(staged, target)
        self._flush_folders(changed)

    def _publish_copy(self, staged: Path, target: Path) -> None:
        self._room.check(_size(staged))
        copy_all = partial(shutil.copytree, copy_function=shutil.copyfile) if staged.is_dir() else shutil.copyfile
        with self._temporary(lambda path: copy_all(staged, path)) as copy:
            _replace(copy, target)
        remove(staged)

    def remove(self, name: str) -> None:
        path = self._path(name)
        path.unlink()
        self._flush_folders([path.parent])  # nothing that follows may be on the disk before this

    def remove_many(self, names: Sequence[str]) -> None:
        """One after the other: no order of them is on the disk before another."""
        for name in names:
            with suppress(FileNotFoundError):
                self.remove(name)

    def remove_folder(self, name: str) -> None:
        (self._root / name).rmdir()

    def remove_tree(self, name: str) -> None:
        path = self._path(name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        self._flush_folders([path.parent])

    def _path(self, name: str) -> Path:
        """Where something is written or removed. Raises OutputError if a folder on the way there is a link."""
        folder = self._root
        *folders, last = name.split("/")
        for part in folders:
            folder = folder / part
            refuse_link(folder)
        return folder / last

    @contextmanager
    def _temporary(self, make: Callable[[Path], object]) -> Iterator[Path]:
        """The file or folder that `make` makes at a path on the disk of the dataset, flushed; removed in the end."""
        path = self._path(f"{layout.TEMPORARY_FOLDER}/{uuid.uuid4().hex}")
        try:
            for attempt in range(_TRIES):
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    make(path)
                    break
                except FileNotFoundError:  # another process has just removed the empty folder
                    if attempt == _TRIES - 1:
                        raise
            self._flush(path)
            yield path
        finally:
            remove(path)
            with suppress(OSError):  # something else lies there
                path.parent.rmdir()
                path.parent.parent.rmdir()

    def _flush(self, path: Path) -> None:
        if self._fsync:
            flush(path)

    def _flush_folders(self, folders: Iterable[Path]) -> None:
        if self._fsync:
            for folder in folders:
                flush_folder(folder)


def _link(source: Path, target: Path) -> bool:
    """Give a file its name unless that is taken. Returns whether it was not.

    File systems without hard links (exFAT, most of FUSE) take the name in two steps, between which another process may
    take it too.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return os.path.samefile(source, target)  # the answer of a network drive that was asked twice
    except OSError:
        if target.exists():
            return False
        os.replace(source, target)
    return True


def _replace(source: Path, target: Path) -> None:
    """Rename; a folder can only replace one that is empty."""
    if source.is_dir() and target.is_dir():
        shutil.rmtree(target)
    os.replace(source, target)


def _size(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def _described(path: os.DirEntry[str] | Path) -> Mapping[str, Any]:
    """As fsspec describes it. To load that takes longer than a short run, and its dict twice the time."""
    if isinstance(path, os.DirEntry):
        if path.is_file(follow_symlinks=False):
            return {"name": path.path, "size": path.stat(follow_symlinks=False).st_size, "type": "file"}
        if path.is_dir(follow_symlinks=False):
            return {"name": path.path, "size": 0, "type": "directory"}
    from fsspec.implementations.local import LocalFileSystem

    described: Mapping[str, Any] = LocalFileSystem().info(path)
    return described
