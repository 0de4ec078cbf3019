"""The folder of a dataset, on a disk or in a store: what every command reads it with and writes to it.

`LocalFolder` (local.py) and `RemoteFolder` (remote.py) are the two kinds of it; `open_folder` (opening.py) opens one.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from any2ds.config.options import StorageOptions
from any2ds.core import layout
from any2ds.core.errors import OutputError, error_text
from any2ds.storage.disk.space import Room
from any2ds.storage.disk.staging import staging
from any2ds.storage.stores import Stores

T = TypeVar("T")

_AT_ONCE = 1000  # files that a store is asked for in one go


class OutputFolder(ABC):
    """The folder of the dataset. Files appear in it complete: by a rename, or by an upload that is atomic.

    Without the option `fsync` a power failure may leave files that are incomplete. Methods raise whatever the file
    system raises, after it was tried again where that may help, unless they say something else; those that change
    something raise DiskFull, and what `guard` raises, which is asked before each attempt. The lock uses `look`,
    `version`, `replace` and `discard`, which are one attempt each and ask no guard.
    """

    is_local = False
    is_private = False  # no other process can see it
    has_conditions = False  # whether a file can be written on condition that it still is, or is not, there

    identity: str  # equal for all ways to write the URL, as far as that can be known without asking a server

    def __init__(
        self, url: str, options: StorageOptions, stores: Stores, fs: Any, path: str, room: Room, staging_root: Path
    ) -> None:
        """`staging_root` is where shards are made if the options do not say that."""
        self.url, self.options, self.stores, self.fs = url, options, stores, fs
        self.path = path.rstrip("/") or "/"
        self.pid = os.getpid()  # of the process whose connections it has
        self.patience = stores.patience
        self.stop = threading.Event()  # whatever waits to be tried again fails: the run is broken off
        # Raises if nothing may be published or removed.
        self.guard: Callable[[], object] = lambda: None
        self.room = self.staging_room = room
        self.staging_root = Path(os.path.expanduser(options.staging_dir)) if options.staging_dir else staging_root
        if options.staging_dir or not self.is_local:
            way_out = "have shards made elsewhere (--staging_dir)"
            self.staging_room = Room(self.staging_root, options.min_free_bytes, way_out)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is opened anew: locks and connections are of this one, and so is `guard`.

        A process that works in another folder opens the same one, by the name that messages give it here.
        """
        url = self.path if self.is_local else self.url
        return _opened_again, (type(self), url, self.options, self.stores), {"url": self.url}

    def create(self) -> None:
        """The folder is there, and shards can be staged for it.

        Raises OutputError if it cannot be, or if nothing can be staged, and DiskFull if there is no room.
        """
        if self.staging_room is not self.room:
            try:
                with self.staging_room.watched(), self.staging() as folder:
                    (folder / "probe").write_bytes(b"any2ds")
                    self.staging_room.check()
            except OSError as error:
                raise OutputError(f"staging folder {str(self.staging_root)!r}: {error_text(error)}") from error
        try:
            with self.room.watched():
                self.create_folder(layout.STATE_FOLDER)
        except OSError as error:
            raise OutputError(f"output folder {self.url!r} cannot be written: {error_text(error)}") from error
        self.room.check()

    def staging(self) -> AbstractContextManager[Path]:
        """A new folder on this machine, for this process alone, where files are made that are published then."""
        return staging(self.staging_root)

    # Looking

    def names(self, folder: str = "") -> list[str]:
        """Names directly in it, or in a folder of it; empty if that does not exist.

        Raises OutputError if it cannot be listed.
        """
        return list(self._each_name(folder))

    def finished_shards(self) -> frozenset[int]:
        """The shards whose statistics lie in it. Raises OutputError if it cannot be listed."""
        return layout.finished_shards(self._each_name(""))

    def state_files(self) -> list[str]:
        """The paths of what lies in its folder for the state. Raises OutputError if that cannot be listed."""
        return [f"{layout.STATE_FOLDER}/{name}" for name in self._each_name(layout.STATE_FOLDER)]

    def _each_name(self, folder: str) -> Iterator[str]:
        try:
            yield from self._names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        except Exception as error:  # every file system has exceptions of its own
            raise OutputError(f"output folder {self.url!r} cannot be listed: {error_text(error)}") from error

    @abstractmethod
    def _names(self, folder: str) -> Iterator[str]:
        """`names`, one by one. Raises FileNotFoundError, or whatever else the file system raises."""

    @abstractmethod
    def listed(self, folder: str = "") -> Iterator[Mapping[str, Any]]:
        """Entries that fsspec lists in it, or in a folder of it: name, size, type, mode. A file lists itself."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file, or a folder, of that name."""

    @abstractmethod
    def version(self, name: str) -> str:
        """The version of a file that `replace` may replace: "" if it is not there, "any" where there are none."""

    # Reading

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None if it is not there."""
        return self._persist(f"reading {name}", lambda: self.look(name))

    def read_many(self, names: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Small files, many at once where that is faster; None for one that is not there.

        Raises OutputError if one that is there cannot be read.
        """
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            try:
                contents = self._for_each(some, self.read)
            except Exception as error:  # every file system has exceptions of its own
                text = f"{self.url}: {some[0]} or one of the next cannot be read: {error_text(error)}"
                raise OutputError(text) from error
            yield from zip(some, contents, strict=True)

    @abstractmethod
    def look(self, name: str) -> bytes | None:
        """`read` with one attempt."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """A file of it, for random access."""

    @abstractmethod
    def local_copy(self, name: str, folder: Path, is_folder: bool | None = None) -> Path:
        """A file or a folder of it on this machine: itself if it is local, else a copy in `folder`.

        A store need not be asked what it is if `is_folder` says that; a web server cannot.
        """

    # Writing

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """A small file, complete or absent."""

    @abstractmethod
    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Write a small file where there is none, complete and for good. Returns whether this call has made it.

        Of several calls at once one gets True, but where the file system or the store cannot tell them apart (no hard
        links, no conditional writes), or where they bring the same data.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes, version: str) -> str:
        """Write a small file over that version of it, with one attempt, and return the new version.

        Where the store has conditional writes, it raises FileExistsError if the file has another version. Elsewhere the
        last one who writes has it. On a disk it is written in place: locks on the file stay.
        """

    @abstractmethod
    def publish(self, files: Mapping[str, Path]) -> None:
        """Move local files, or folders of files, to their final names, which may be in subfolders.

        What an unfinished run left under these names is replaced. Each appears complete; when this returns all are
        stored for good, so that what is published afterwards can rely on them.
        """

    @abstractmethod
    def create_folder(self, name: str) -> None:
        """Make a folder in it, if it is not there; an object store has none."""

    # Removing; what is gone already is fine

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._change(f"removing {name}", lambda: self.discard(name))

    def remove_many(self, names: Sequence[str]) -> None:
        """Remove files."""
        self._for_each(names, self.remove)

    @abstractmethod
    def discard(self, name: str) -> None:
        """`remove` with one attempt."""

    @abstractmethod
    def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it."""

    @abstractmethod
    def remove_folder_if_empty(self, name: str) -> None:
        """Remove a folder in which nothing lies; an object store has none."""

    # Attempts

    def _change(self, what: str, attempt: Callable[[], T]) -> T:
        """`_persist` for what changes something.

        A run that waits for a network that is down may lose the folder meanwhile, and must not write over what another
        run has published there: so the guard is asked before each attempt.
        """

        def guarded() -> T:
            self.guard()
            return attempt()

        with self.room.watched():
            return self._persist(what, guarded)

    @abstractmethod
    def _persist(self, what: str, attempt: Callable[[], T]) -> T:
        """The result of `attempt`, which is tried again where that may help. `what` is for the log."""

    @abstractmethod
    def _for_each(self, names: Sequence[str], work: Callable[[str], T]) -> list[T]:
        """Do it for all, at once where that is faster. Raises what the first one raises that fails for good."""


def _opened_again(kind: Callable[..., OutputFolder], url: str, options: StorageOptions, stores: Stores) -> OutputFolder:
    return kind(url, options, stores, *stores.open(url))
