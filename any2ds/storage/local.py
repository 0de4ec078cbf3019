"""A dataset on a disk of this machine: files get their final names when they are complete and on the disk."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from any2ds.config.options import StorageOptions
from any2ds.core import layout
from any2ds.storage.disk.durable import flush, flush_folder, make_folders
from any2ds.storage.disk.regular import check_regular, open_regular, refuse_link
from any2ds.storage.disk.space import Room
from any2ds.storage.disk.staging import remove, staging, temporary_file
from any2ds.storage.folders import OutputFolder
from any2ds.storage.stores import Stores

T = TypeVar("T")


class LocalFolder(OutputFolder):
    """Files are made in its temporary folder, flushed and renamed."""

    is_local = True

    def __init__(self, url: str, options: StorageOptions, stores: Stores, fs: Any, path: str) -> None:
        self._root, self._fsync = Path(path), options.fsync
        self.identity = os.path.realpath(path)
        room = Room(self._root, options.min_free_bytes, "go on with a copy of the folder on a bigger disk")
        super().__init__(url, options, stores, fs, path, room, self._root / layout.TEMPORARY_FOLDER)

    def _names(self, folder: str) -> Iterator[str]:
        with os.scandir(self._root / folder) as entries:
            yield from (entry.name for entry in entries)

    def listed(self, folder: str = "") -> Iterator[Mapping[str, Any]]:
        path = self._root / folder
        try:
            with os.scandir(path) as entries:
                yield from (_described(entry.path) for entry in entries)
        except NotADirectoryError:  # as other file systems do
            yield {**_described(os.path.realpath(path)), "name": str(path)}

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def look(self, name: str) -> bytes | None:
        with suppress(FileNotFoundError), self.open(name) as file:
            return file.read()
        return None

    def open(self, name: str) -> BinaryIO:
        return open_regular(self._root / name)

    def local_copy(self, name: str, folder: Path, is_folder: bool | None = None) -> Path:
        check_regular(self._root / name)
        return self._root / name

    def write(self, name: str, data: bytes) -> None:
        self._change(f"writing {name}", lambda: self._make(name, data, os.replace))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._change(f"writing {name}", lambda: self._make(name, data, _link))

    def version(self, name: str) -> str:
        return "any" if self.look(name) else ""

    def replace(self, name: str, data: bytes, version: str) -> str:
        if not version and self.version(name):
            raise FileExistsError(name)
        path = self._path(name)
        refuse_link(path)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())  # other machines see it then
        return "any"

    def publish(self, files: Mapping[str, Path]) -> None:
        """The content of each is on the disk before it has its name, and the names are when this returns."""

        def rename_all() -> None:
            changed = set[Path]()
            for name, staged in files.items():
                target = self._path(name)
                changed |= {*make_folders(target.parent), target.parent}
                self._rename(staged, target)
            self._flush_folders(changed)

        self._change("publishing", rename_all)

    def _rename(self, staged: Path, target: Path) -> None:
        if staged.stat().st_dev == self._root.stat().st_dev:
            self._flush(staged)
        try:
            _replace(staged, target)
        except OSError as error:
            if error.errno != errno.EXDEV:  # another disk, or another mount of this one
                raise
            self.room.check(sum(file.stat().st_size for file in ([staged] if staged.is_file() else staged.iterdir())))
            copy_all = partial(shutil.copytree, copy_function=shutil.copyfile) if staged.is_dir() else shutil.copyfile
            with staging(self._temporary_folder()) as folder:
                copy = folder / target.name
                copy_all(staged, copy)
                self._flush(copy)
                _replace(copy, target)
            remove(staged)

    def create_folder(self, name: str) -> None:
        """A folder whose own name is on the disk, too: its files may have to be found after a power failure."""
        self._flush_folders(make_folders(self._path(f"{name}/")))

    def discard(self, name: str) -> None:
        self._remove(name, Path.unlink)

    def remove_tree(self, name: str) -> None:
        is_folder = (self._root / name).is_dir() and not (self._root / name).is_symlink()
        self._change(f"removing {name}", lambda: self._remove(name, shutil.rmtree if is_folder else Path.unlink))

    def _remove(self, name: str, how: Callable[[Path], object]) -> None:
        path = self._path(name)
        with suppress(FileNotFoundError):
            how(path)
            self._flush_folders([path.parent])  # nothing that follows may be on the disk before this

    def remove_folder_if_empty(self, name: str) -> None:
        with suppress(OSError):
            (self._root / name).rmdir()

    def _persist(self, what: str, attempt: Callable[[], T]) -> T:
        """A disk is asked once."""
        return attempt()

    def _for_each(self, names: Sequence[str], work: Callable[[str], T]) -> list[T]:
        return [work(name) for name in names]

    def _path(self, name: str) -> Path:
        """Where something is written or removed. Raises OutputError if a folder on the way there is a link."""
        folder = self._root
        *folders, last = name.split("/")
        for part in folders:
            folder = folder / part
            refuse_link(folder)
        return folder / last

    def _temporary_folder(self) -> Path:
        """The folder for files that are not complete, on the disk of the dataset."""
        return self._path(f"{layout.TEMPORARY_FOLDER}/")

    def _make(self, name: str, data: bytes, place: Callable[[Path, Path], T]) -> T:
        """Write a temporary file, flush it and `place` it under its final name."""
        target = self._path(name)
        changed = {*make_folders(target.parent), target.parent}
        with temporary_file(self._temporary_folder()) as temporary:
            temporary.write_bytes(data)
            self._flush(temporary)
            result = place(temporary, target)
        self._flush_folders(changed)
        return result

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
    """A folder can only replace one that is empty."""
    if source.is_dir() and target.is_dir():
        shutil.rmtree(target)
    os.replace(source, target)


def _described(path: str) -> Mapping[str, Any]:
    """As fsspec describes it, which takes a tenth of the time of a short run to load."""
    found = os.lstat(path)
    size = found.st_size
    if stat.S_ISLNK(found.st_mode):  # that of what it leads to
        size = os.path.getsize(path) if os.path.exists(path) else 0
    kind = {stat.S_IFREG: "file", stat.S_IFDIR: "directory"}.get(stat.S_IFMT(found.st_mode), "other")
    return {"name": path, "size": size, "type": kind, "mode": found.st_mode}
