"""An output folder on a disk of this machine: files get their final names when they are complete and on the disk."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from any2ds.core import layout
from any2ds.storage.disk.durable import flush, flush_folder, make_folders
from any2ds.storage.disk.regular import check_regular, open_regular, refuse_link
from any2ds.storage.disk.space import Room
from any2ds.storage.disk.staging import remove, staging


class LocalStore:
    """Its methods are those of `OutputFolder`, whose path is `root`.

    In a temporary folder in it are files that are about to be renamed.
    """

    def __init__(self, root: Path, room: Room, fsync: bool) -> None:
        self._root, self._room, self._fsync = root, room, fsync
        self._temporary = root / layout.TEMPORARY_FOLDER

    def create(self) -> None:
        """With the folder for the state, whose name is on the disk too: the holder of the lock has made it already."""
        self._flush_folders({*make_folders(self._temporary.parent), self._root})

    def create_folder(self, name: str) -> None:
        """Its own name is on the disk, too: what is going to be in it may have to be found after a power failure."""
        self._flush_folders(make_folders(self._path(f"{name}/")))

    def names(self, folder: str, beginning: str = "") -> list[str]:
        return os.listdir(self._root / folder)

    def each_name(self) -> Iterator[str]:
        with os.scandir(self._root) as found:
            yield from (entry.name for entry in found)

    def listed(self, folder: str) -> Iterator[Mapping[str, Any]]:
        from fsspec.implementations.local import LocalFileSystem

        path, fs = self._root / folder, LocalFileSystem()
        try:
            with os.scandir(path) as found:
                for entry in found:
                    # fsspec's dict takes twice the time, and a dataset may have millions of files.
                    if entry.is_file(follow_symlinks=False):
                        yield {"name": entry.path, "size": entry.stat(follow_symlinks=False).st_size, "type": "file"}
                    else:
                        yield fs.info(entry)
        except NotADirectoryError:  # as other file systems do
            yield fs.info(path)

    def members(self, folder: str) -> list[str]:
        root = self._root / folder
        return [path.relative_to(root).as_posix() for path in root.rglob("*")]

    def is_folder(self, name: str) -> bool:
        return (self._root / name).is_dir()

    def local_copy(self, name: str, target: Path, is_folder: bool | None = None) -> Path:
        check_regular(self._root / name)
        return self._root / name

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def read_many(self, names: Sequence[str]) -> list[bytes | None]:
        return [self.read(name) for name in names]

    def read(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError), open_regular(self._root / name) as file:
            return file.read()
        return None

    def write(self, name: str, data: bytes) -> None:
        with staging(self._temporary) as folder:
            staged = folder / Path(name).name
            staged.write_bytes(data)
            self.publish({name: staged})

    def publish(self, files: Mapping[str, Path]) -> None:
        """What is in each is on the disk before it has its name, and the names are when this returns."""
        changed: set[Path] = set()
        with ExitStack() as stack:
            for name, staged in files.items():
                target = self._path(name)
                changed.update(make_folders(target.parent))
                here = staged if staged.stat().st_dev == self._root.stat().st_dev else self._brought_over(staged, stack)
                self._flush(here)
                try:
                    _replace(here, target)
                except OSError as error:
                    if error.errno != errno.EXDEV or here is not staged:
                        raise
                    # Two mounts of one disk, which look the same until something is moved.
                    here = self._brought_over(staged, stack)
                    self._flush(here)
                    _replace(here, target)
                if here is not staged:
                    remove(staged)
                changed.add(target.parent)
        self._flush_folders(changed)

    def move(self, name: str, new_name: str) -> None:
        source, target = self._path(name), self._path(new_name)
        changed = make_folders(target.parent)
        _replace(source, target)
        self._flush_folders({*changed, source.parent, target.parent})

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

    def _brought_over(self, staged: Path, stack: ExitStack) -> Path:
        """A copy on the disk of the output, from where it can be renamed."""
        self._room.check(_size(staged))
        copy = stack.enter_context(staging(self._temporary)) / staged.name
        if staged.is_dir():
            shutil.copytree(staged, copy, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(staged, copy)
        return copy

    def _flush(self, path: Path) -> None:
        if self._fsync:
            flush(path)

    def _flush_folders(self, folders: set[Path] | list[Path]) -> None:
        if self._fsync:
            for folder in folders:
                flush_folder(folder)


def _replace(source: Path, target: Path) -> None:
    """Rename; a folder can only replace one that is empty."""
    if source.is_dir() and target.is_dir():
        shutil.rmtree(target)
    os.replace(source, target)


def _size(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
