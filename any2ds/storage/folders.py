"""The folder of a dataset, on a disk or in a store: what every command reads it with and writes to it.

How a kind of store does it is in `local.py` and `remote.py`; here is what holds for all: the guard, room, and errors.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from any2ds.config.options import StorageOptions
from any2ds.core import layout
from any2ds.core.errors import OutputError, error_text
from any2ds.storage.disk.regular import open_regular
from any2ds.storage.disk.space import RemoteSpace, Room
from any2ds.storage.disk.staging import staging
from any2ds.storage.lists import name_of
from any2ds.storage.local import LocalStore
from any2ds.storage.reading import opened
from any2ds.storage.remote import ObjectStore, store_for
from any2ds.storage.stores import Stores, is_local, protocols

T = TypeVar("T")

_TRIES = 100  # to make a folder where another process removes the empty one above it
_AT_ONCE = 1000  # files that a store is asked for in one go


class OutputFolder:
    """The folder of the dataset. Files appear in it complete: by a rename, or by an upload that is atomic.

    `staging_dir` is where shards are made, instead of the usual place. Without `fsync` a power failure may leave files
    that are incomplete. At least `min_free_bytes` stay free; None for what suits the disk. Methods raise whatever the
    file system raises, after it was tried again where that may help, unless they say something else.
    """

    def __init__(
        self,
        url: str,
        staging_dir: str | None = None,
        fsync: bool = True,
        min_free_bytes: int | None = None,
        stores: Stores | None = None,
    ) -> None:
        """Raises OutputError, InputError or MissingExtra if there can be no such folder."""
        try:
            url.encode("utf-8")
        except UnicodeEncodeError as error:
            raise OutputError(f"output folder {url!r} is not text in the encoding of this system: {error}") from error
        self.url = url
        self.pid = os.getpid()  # of the process whose connections it has
        self._given = url, staging_dir, fsync, min_free_bytes, stores
        stores = stores or Stores()
        self.patience = stores.patience
        fs, path = stores.open(os.path.expanduser(url))
        self.path = path.rstrip("/") or "/"
        self.is_local = is_local(fs)
        self.is_private = "memory" in protocols(fs)  # no other process can see it
        self._staging_dir = None if staging_dir is None else Path(os.path.expanduser(staging_dir))
        self._stop = threading.Event()
        # Asked before anything is published or removed; raises if it may not be.
        self.guard: Callable[[], object] = lambda: None
        self.heeds_conditions = self.is_local  # or known, since the store has refused what it should
        self._room: Room = RemoteSpace(url)
        self._store: LocalStore | ObjectStore
        if self.is_local:
            self._room = Room(Path(self.path), min_free_bytes, "go on with a copy of the folder on a bigger disk")
            self._store = LocalStore(fs, Path(self.path), self._room, fsync)
        else:
            self._store = store_for(fs, self.path, self._stop, lambda: self.guard(), self.patience)
        self.staging_room = self._room
        if self._staging_dir is not None or not self.is_local:
            self.staging_room = Room(self.staging_root, min_free_bytes, "have shards made elsewhere (--staging_dir)")

    @classmethod
    def at(cls, url: str, options: StorageOptions) -> OutputFolder:
        """The one that the options of a run ask for. Raises as the constructor does."""
        return cls(url, options.staging_dir, options.fsync, options.min_free_bytes, Stores(options.storage_options))

    def __reduce__(self) -> tuple[type[OutputFolder], tuple[Any, ...], dict[str, Any]]:
        """In another process it is opened anew: locks and connections are of this one, and so is `guard`.

        A process that works in another folder opens the same one, by the name that messages give it here.
        """
        url, *others = self._given
        return OutputFolder, (self.path if self.is_local else url, *others), {"url": self.url}

    @property
    def fs(self) -> Any:
        """The file system of fsspec, with the connection of now."""
        return self._store.fs

    @property
    def identity(self) -> str:
        """The same for each way to write it, as far as that can be known without asking a server."""
        return os.path.realpath(self.path) if self.is_local else name_of(self.fs, self.path)

    @property
    def staging_root(self) -> Path:
        """Where shards are written before they are published: on the disk of the result, if that is local."""
        if self.is_local and self._staging_dir is None:
            return Path(self.path) / layout.TEMPORARY_FOLDER
        return self._staging_dir or Path(tempfile.gettempdir())

    def create(self) -> None:
        """The folder is there, by whoever holds its lock, which was written to it.

        Raises OutputError if it cannot be, or if nothing can be staged, and DiskFull if there is no room.
        """
        if self.staging_room is not self._room:
            self._try_staging()
        try:
            with self._room.watched():
                self._store.create()
        except OSError as error:
            raise OutputError(f"output folder {self.url!r} cannot be written: {error_text(error)}") from error
        self._room.check()

    def _try_staging(self) -> None:
        try:
            with self.staging_room.watched(), staging(self.staging_root) as folder:
                (folder / "probe").write_bytes(b"any2ds")
                self.staging_room.check()
        except OSError as error:
            raise OutputError(f"staging folder {str(self.staging_root)!r}: {error_text(error)}") from error

    # Looking

    def names(self, folder: str = "") -> list[str]:
        """What lies directly in it, or in a folder of it; empty if that does not exist.

        Raises OutputError if it cannot be listed.
        """
        return self._each_name(folder, list, [])

    def finished_shards(self) -> frozenset[int]:
        """The shards whose statistics lie in it. Raises OutputError if it cannot be listed."""
        return self._each_name("", layout.finished_shards, frozenset())

    def _each_name(self, folder: str, gather: Callable[[Iterator[str]], T], nothing: T) -> T:
        try:
            return gather(self._store.names(folder))
        except (FileNotFoundError, NotADirectoryError):
            return nothing
        except Exception as error:  # every file system has exceptions of its own
            raise OutputError(f"output folder {self.url!r} cannot be listed: {error_text(error)}") from error

    def listed(self, folder: str = "") -> Iterator[Mapping[str, Any]]:
        """What fsspec lists directly in it, or in a folder of it: name, size, type, mode. A file lists itself."""
        return self._store.listed(folder)

    def sizes(self) -> dict[str, int]:
        """Bytes of the files that lie directly in it, by name."""
        files = (info for info in self.listed() if info["type"] == "file")
        return {str(info["name"]).rsplit("/", 1)[-1]: int(info.get("size") or 0) for info in files}

    def names_like(self, beginning: str) -> list[str]:
        """`names` in a folder of it, as paths that begin like this."""
        folder, _, start = beginning.rpartition("/")
        return [f"{folder}/{name}" for name in self.names(folder) if name.startswith(start)]

    def members(self, folder: str) -> list[str]:
        """The paths of what lies at any depth in a folder of it, relative to that; none if it is not there."""
        try:
            return self._store.members(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, name: str) -> bool:
        """Whether there is a file, or a folder, of that name."""
        return self._store.exists(name)

    # Reading

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None if it is not there."""
        return self._store.read(name)

    def read_many(self, names: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Small files, many at once where that is faster; None for one that is not there.

        Raises OutputError if one that is there cannot be read.
        """
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            try:
                contents = self._store.read_many(some)
            except Exception as error:  # every file system has exceptions of its own
                raise OutputError(
                    f"{self.url}: {some[0]} or one of the next cannot be read: {error_text(error)}"
                ) from error
            yield from zip(some, contents, strict=True)

    def open(self, name: str) -> BinaryIO:
        """A file of it, for random access."""
        path = f"{self.path.rstrip('/')}/{name}"
        if self.is_local:
            return open_regular(path)
        return opened(name, lambda: self.fs.open(path, "rb", cache_type="none"), self._stop, self.patience)

    def local_copy(self, name: str, folder: Path, is_folder: bool | None = None) -> Path:
        """A file or a folder of it on this machine: itself if it is local, else a copy in `folder`.

        A store need not be asked what it is if `is_folder` says that; a web server cannot.
        """
        return self._store.local_copy(name, folder / f"previous-{name}", is_folder)

    # Writing

    def write(self, name: str, data: bytes) -> None:
        """A small file, complete or absent. Raises DiskFull, or whatever the file system raises."""
        self.guard()
        with self._room.watched():
            self._store.write(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a small file where there is none, complete and for good. Returns whether this call has made it.

        Of several calls at once one gets True, but where the file system or the store cannot tell them apart (no hard
        links, no conditional writes), or where they bring the same data. Raises DiskFull, or whatever the file system
        raises.
        """
        self.guard()
        if not self.heeds_conditions and self.read(name) is not None:
            return False
        with self._room.watched():
            return self._store.put_if_absent(name, data)

    def put(self, name: str, data: bytes) -> None:
        """`write` with one attempt and no guard, for what must not come late.

        The file may be seen incomplete. Not for a local folder.
        """
        self.fs.pipe_file(f"{self.path}/{name}", data)

    def publish(self, staged: Path, name: str) -> None:
        """`publish_all` for one."""
        self.publish_all({name: staged})

    def publish_all(self, files: Mapping[str, Path]) -> None:
        """Move local files, or folders of files, to their final names, which may be in subfolders.

        What an unfinished run left under these names is replaced. Each appears complete; when this returns all are
        stored for good, so that what is published afterwards can rely on them. Raises DiskFull, or whatever the file
        system raises.
        """
        self.guard()
        with self._room.watched():
            self._store.publish(files)

    def create_folder(self, name: str) -> None:
        """Make a folder in it, if it is not there; an object store has none."""
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):  # another process may just be removing an empty parent
                self._store.create_folder(name)
                return

    # Removing; what is gone already is fine

    def remove(self, name: str) -> None:
        """Remove a file."""
        self.guard()
        with contextlib.suppress(FileNotFoundError):
            self._store.remove(name)

    def remove_many(self, names: Sequence[str]) -> None:
        """Remove files."""
        for start in range(0, len(names), _AT_ONCE):
            self.guard()
            self._store.remove_many(names[start : start + _AT_ONCE])

    def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it."""
        self.guard()
        with contextlib.suppress(FileNotFoundError):
            self._store.remove_tree(name)

    def remove_folder_if_empty(self, name: str) -> None:
        """An object store has no folders."""
        with contextlib.suppress(Exception):  # every file system has exceptions of its own
            self._store.remove_folder(name)

    def give_up(self) -> None:
        """Whatever waits to be tried again fails now, in all threads: the run is broken off."""
        self._stop.set()
