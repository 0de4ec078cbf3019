"""Every path that any2ds opens goes through here, on fsspec: url lists in, shards and run files out."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from any2ds.config.options import StorageOptions
from any2ds.core import layout, plugins, suggestions
from any2ds.core.errors import DiskFull, InputError, OutputError, UsageError, error_text, redacted
from any2ds.core.manifest import ListFile
from any2ds.storage.disk.regular import open_regular
from any2ds.storage.disk.space import RemoteSpace, Room
from any2ds.storage.disk.staging import shared_root, staging
from any2ds.storage.local import LocalStore
from any2ds.storage.patience import PATIENT
from any2ds.storage.reading import opened, patiently, version_of
from any2ds.storage.remote import FileServer, GoogleStore, Memory, ObjectStore, S3Store, renames
from any2ds.storage.stores import Stores, appears_whole, is_local, protocols

_TRIES = 100  # to make a folder where another process removes the empty one above it
_AT_ONCE = 1000  # files that a store is asked for in one go
_MOST_NAMES = 1000  # that are compared with one that is misspelt


@dataclass(frozen=True, slots=True)
class InputFile:
    """A url list that exists. `name` is its absolute path, or its URL."""

    name: str
    fs: Any
    path: str

    def open(self, random_access: bool = False) -> BinaryIO:
        """The file from its start; `seekable()` says whether the place where it lies can do more.

        Raises MissingExtra, or whatever the file system raises.
        """
        try:
            if is_local(self.fs):
                return open(self.path, "rb")
            if not self.has_ranges:
                return self._open_without_ranges()
            # Where several columns are read in turns, each would drop the others' read-ahead.
            options = {"cache_type": "none"} if random_access else {}
            return opened(self.name, lambda: self.fs.open(self.path, "rb", block_size=2**22, **options))
        except ImportError as error:
            raise plugins.missing_extra(self.name, error) from error

    @property
    def has_ranges(self) -> bool:
        """Whether any part of it can be read by itself."""
        return "http" not in self.fs.protocol or bool(self.fs.info(self.path).get("partial"))

    def ranges(self, starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """The bytes between these places. Raises whatever the file system raises."""
        found: list[bytes] = self.fs.cat_ranges([self.path] * len(starts), list(starts), list(ends), on_error="raise")
        return found

    def _open_without_ranges(self) -> BinaryIO:
        """One HTTP answer, however long its rows are in use; only a silence of the server ends it."""
        import aiohttp
        import fsspec

        patient = {"timeout": aiohttp.ClientTimeout(total=None, sock_read=60)}
        settings = {**self.fs.storage_options, "client_kwargs": {**self.fs.client_kwargs, **patient}}
        stream = fsspec.filesystem("http", **settings).open(self.path, "rb", block_size=0)
        stream.seekable = lambda: False  # fsspec says True, and fails
        return cast(BinaryIO, stream)


def stamps(files: Sequence[InputFile]) -> tuple[ListFile, ...]:
    """Size, and ETag or time of change, of each of `files`: if they are equal, the file is the same."""
    if all(is_local(file.fs) for file in files):
        return tuple(_stamp(file) for file in files)
    with ThreadPoolExecutor(min(32, len(files)), thread_name_prefix="any2ds-stamps") as pool:
        return tuple(pool.map(_stamp, files))


def _stamp(file: InputFile) -> ListFile:
    name = redacted(file.name)
    try:
        if is_local(file.fs):
            found = os.stat(file.path)
            return ListFile(name, found.st_size, str(found.st_mtime_ns))
        info = file.fs.info(file.path)
    except Exception:  # of any file system; one that cannot be asked is one that is not known
        return ListFile(name, None, None)
    size = info.get("size")
    return ListFile(name, size if isinstance(size, int) else None, version_of(info))


def input_files(url: str, stores: Stores) -> tuple[list[InputFile], bool]:
    """The files that `url`, a file, a folder or a glob, stands for, sorted; and whether it is a folder.

    Of folders and globs, files and folders whose names start with `_` or `.` are left out, unless the glob itself asks
    for them. Raises InputError if there is nothing.
    """
    try:
        fs, path = stores.open(os.path.expanduser(url))
        kind, paths = _found(fs, path) if is_local(fs) else patiently(f"looking at {url}", lambda: _found(fs, path))
    except UsageError:
        raise
    except FileNotFoundError:
        raise InputError(f"{url}: no such file or folder{similar_beside(url)}") from None
    except ImportError as error:
        raise plugins.missing_extra(url, error) from error
    except Exception as error:  # every file system has exceptions of its own
        raise InputError(f"{url}: cannot be looked at: {error_text(error)}") from error
    if not paths:
        raise InputError(f"{url}: " + ("matches no file" if kind == "glob" else "no files in this folder"))
    chain = "::" + url.split("::", 1)[1] if "::" in url else ""
    return [InputFile(_name(fs, path) + chain, fs, path) for path in sorted(paths)], kind == "directory"


def relative_place(folder_fs: Any, folder: str, fs: Any, path: str) -> str | None:
    """The path of a file or folder, seen from `folder`: "" for the folder itself, None for what lies elsewhere.

    On this machine symbolic links are followed, and the system is asked what is the same folder: it may ignore case.
    """
    if not is_local(folder_fs) or not is_local(fs):
        if is_local(folder_fs) or is_local(fs):
            return None
        root, name = _name(folder_fs, folder).rstrip("/"), _name(fs, path).rstrip("/")
        return name[len(root) + 1 :] if f"{name}/".startswith(f"{root}/") else None
    try:
        root_stat = os.stat(folder)
    except OSError:  # it is not there yet, and neither is anything in it
        return None
    beside = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for head in (beside, os.path.realpath(path)):  # the link itself, or what it leads to
        parts: list[str] = []
        while True:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(head), root_stat):
                    return "/".join(reversed(parts))
            head, part = os.path.split(head)
            if not part:
                break
            parts.append(part)
    return None


def similar_beside(path: str) -> str:
    """`: did you mean urls.txt?` for a path on this machine at which there is nothing; empty if nothing is likely."""
    wanted = path.rstrip("/")
    try:
        with os.scandir(os.path.dirname(os.path.expanduser(wanted)) or ".") as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_NAMES)]
    except OSError:
        return ""
    hint = suggestions.for_path(wanted, names)
    return f": {hint}" if hint else ""


def _found(fs: Any, path: str) -> tuple[str, list[str]]:
    """What `path` is, and the files that it stands for."""
    if not is_local(fs):
        fs.invalidate_cache()  # another run of this process may have listed it, before it changed
    kind = _kind(fs, path)
    if kind == "glob":
        found = fs.glob(path, detail=True)
        return kind, [name for name, info in found.items() if info["type"] == "file" and _is_shown(name, path)]
    if kind == "directory":
        root, names = f"{path.rstrip('/')}/", fs.find(path)
        # Datasets in it are none of the lists, also before their first shard is finished.
        datasets = tuple(n.removesuffix(layout.RUN_FILE) for n in names if n.endswith(f"/{layout.RUN_FILE}"))
        inner = tuple(folder for folder in datasets if folder != root)
        return kind, [name for name in names if _is_shown(name, root) and not name.startswith(inner)]
    return kind, [path]


def _kind(fs: Any, path: str) -> str:
    """file, directory or glob; a file with a bracket in its name is a file."""
    if path.startswith(("http://", "https://")):
        return "glob" if "*" in path else "file"
    try:
        if is_local(fs):
            return "directory" if stat.S_ISDIR(os.stat(path).st_mode) else "file"
        return str(fs.info(path)["type"])
    except FileNotFoundError:
        if any(magic in path for magic in "*?["):
            return "glob"
        raise


def _is_shown(name: str, root: str) -> bool:
    """Whether no part of `name` is hidden, beyond what `root`, a glob or a folder with its slash, spells out itself."""
    spelled = root.split("/")
    return not any(
        part[:1] in ("_", ".") and (depth >= len(spelled) or spelled[depth][:1] != part[:1])
        for depth, part in enumerate(name.split("/"))
    )


def _name(fs: Any, path: str) -> str:
    """The path, or the URL, without who is logged in."""
    if is_local(fs):
        return path
    url, host = str(fs.unstrip_protocol(path)), fs.storage_options.get("host")
    if not host or host in url:
        return url
    port = fs.storage_options.get("port")
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{host}{f':{port}' if port else ''}/{rest.lstrip('/')}"


class OutputFolder:
    """The folder of the dataset. Files appear in it complete: by a rename, or by an upload that is atomic.

    `staging_dir` is where shards are made, instead of the usual place. Without `fsync` a power failure may leave files
    that are incomplete. At least `min_free_bytes` stay free; None for what suits the disk.
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
        self.fs, path = stores.open(os.path.expanduser(url))
        self.path = path.rstrip("/") or "/"
        self.is_local = is_local(self.fs)
        self.is_private = "memory" in protocols(self.fs)  # no other process can see it
        self._staging_dir = None if staging_dir is None else Path(os.path.expanduser(staging_dir))
        self._stop = threading.Event()
        self._room: Room = RemoteSpace(url)
        if self.is_local:
            self._room = Room(Path(self.path), min_free_bytes, "go on with a copy of the folder on a bigger disk")
        self.staging_room = self._room
        if self._staging_dir is not None or not self.is_local:
            self.staging_room = Room(self.staging_root, min_free_bytes, "have shards made elsewhere (--staging_dir)")
        self._store = self._new_store(fsync)
        # Asked before anything is published or removed; raises if it may not be.
        self.guard: Callable[[], object] = lambda: None

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
    def identity(self) -> str:
        """The same for each way to write it, as far as that can be known without asking a server."""
        return os.path.realpath(self.path) if self.is_local else _name(self.fs, self.path)

    def create(self) -> None:
        """Raises OutputError unless files can be written in it and staged, and DiskFull if there is no room for any."""
        probe = f"{layout.PROBES}{uuid.uuid4().hex[:8]}"
        if self.staging_room is not self._room:
            self._try_staging()
        try:
            with self._room.watched():
                self._store.create()
                self._store.write(probe, b"any2ds")
                self._store.remove(probe)
                self._room.check()
        except DiskFull:
            raise
        except Exception as error:
            raise OutputError(f"output folder {self.url!r} cannot be written: {error_text(error)}") from error

    def _try_staging(self) -> None:
        try:
            with self.staging_room.watched(), staging(self.staging_root) as folder:
                (folder / "probe").write_bytes(b"any2ds")
                self.staging_room.check()
        except OSError as error:
            raise OutputError(f"staging folder {str(self.staging_root)!r}: {error_text(error)}") from error

    def names(self, folder: str = "") -> list[str]:
        """What lies directly in it, or in a folder of it; empty if that does not exist.

        Raises OutputError if it cannot be listed.
        """
        try:
            return self._store.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:  # every file system has exceptions of its own
            raise OutputError(f"output folder {self.url!r} cannot be listed: {error_text(error)}") from error

    def finished_shards(self) -> frozenset[int]:
        """The shards whose statistics lie in it. Raises OutputError if it cannot be listed."""
        try:
            return layout.finished_shards(self._store.each_name())
        except (FileNotFoundError, NotADirectoryError):
            return frozenset()
        except Exception as error:  # every file system has exceptions of its own
            raise OutputError(f"output folder {self.url!r} cannot be listed: {error_text(error)}") from error

    def sizes(self) -> dict[str, int]:
        """Bytes of the files that lie directly in it, by name. Raises whatever the file system raises."""
        files = (info for info in self.listed() if info["type"] == "file")
        return {str(info["name"]).rsplit("/", 1)[-1]: int(info.get("size") or 0) for info in files}

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
                found = self._store.read_many(some)
            except Exception as error:  # every file system has exceptions of its own
                raise OutputError(
                    f"{self.url}: {some[0]} or one of the next cannot be read: {error_text(error)}"
                ) from error
            yield from zip(some, found, strict=True)

    def listed(self, folder: str = "") -> Iterator[Mapping[str, Any]]:
        """What fsspec lists directly in it, or in a folder of it: name, size, type, mode. A file lists itself.

        Raises what the file system raises, on the way.
        """
        return self._store.listed(folder)

    def is_folder(self, name: str) -> bool:
        return self._store.is_folder(name)

    def members(self, folder: str) -> list[str]:
        """The paths of what lies at any depth in a folder of it, relative to that; none if it is not there."""
        try:
            return self._store.members(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def names_like(self, beginning: str) -> list[str]:
        """What lies in it, or in a folder of it, under a path that begins like this.

        Object stores need not list millions of others for it.
        """
        folder, slash, start = beginning.rpartition("/")
        with contextlib.suppress(FileNotFoundError):
            names = self._store.names(folder, start)
            return [f"{folder}{slash}{name}" for name in names if name.startswith(start)]
        return []

    def remove_many(self, names: Sequence[str]) -> None:
        """Remove files that are there."""
        for start in range(0, len(names), _AT_ONCE):
            self.guard()
            self._store.remove_many(names[start : start + _AT_ONCE])

    def remove_folder(self, name: str) -> None:
        """Remove a folder that is empty; an object store has none."""
        with contextlib.suppress(FileNotFoundError):
            self._store.remove_folder(name)

    def put(self, name: str, data: bytes, new: bool = False) -> None:
        """`write` with one attempt and no guard, for what must not come late; `new` only where nothing is there.

        It may be seen incomplete. Not for a local folder.
        """
        self.fs.pipe_file(self._full(name), data, **({"mode": "create"} if new else {}))

    def write(self, name: str, data: bytes) -> None:
        """A small file, complete or absent. Raises DiskFull, or whatever the file system raises."""
        self.guard()
        with self._room.watched():
            self._store.write(name, data)

    def exists(self, name: str) -> bool:
        """Whether there is a file, or a folder, of that name."""
        return self._store.exists(name)

    def open(self, name: str) -> BinaryIO:
        """A file of it, for random access. Raises FileNotFoundError, or whatever its file system raises."""
        if self.is_local:
            return open_regular(self._full(name))
        return opened(name, lambda: self.fs.open(self._full(name), "rb", cache_type="none"), self._stop, self.patience)

    def local_copy(self, name: str, folder: Path, is_folder: bool | None = None) -> Path:
        """A file or a folder of it on this machine: itself if it is local, else a copy in `folder`.

        A store need not be asked what it is if `is_folder` says that; a web server cannot.
        """
        return self._store.local_copy(name, folder / f"previous-{name}", is_folder)

    def create_folder(self, name: str) -> None:
        """Make a folder in it, if it is not there; an object store has none."""
        for _ in range(_TRIES):
            with contextlib.suppress(FileNotFoundError):  # another process may just be removing an empty parent
                self._store.create_folder(name)
                return

    def remove_folder_if_empty(self, name: str) -> None:
        with contextlib.suppress(Exception):  # every file system has exceptions of its own
            self._store.remove_folder(name)

    def remove(self, name: str) -> None:
        """Remove a file; that it is gone already is fine."""
        self.guard()
        with contextlib.suppress(FileNotFoundError):
            self._store.remove(name)

    def publish(self, staged: Path, name: str) -> None:
        """`publish_all` for one."""
        self.publish_all({name: staged})

    def publish_all(self, files: Mapping[str, Path]) -> None:
        """Move local files, or folders of files, to their final names, which may be in subfolders.

        What an unfinished run left under these names is replaced. Each appears complete; when this returns all are
        stored for good, so that what is published afterwards can rely on them. Raises DiskFull, or whatever the file
        system raises, after it was tried again where that may help.
        """
        self.guard()
        with self._room.watched():
            self._store.publish(files)

    def move(self, name: str, new_name: str) -> None:
        """A file or folder of it gets another name, under which it replaces what is there.

        Raises FileNotFoundError if there is nothing, or whatever the file system raises.
        """
        self.guard()
        with self._room.watched():
            self._store.move(name, new_name)

    def remove_tree(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it; that it is gone already is fine."""
        self.guard()
        with contextlib.suppress(FileNotFoundError):
            self._store.remove_tree(name)

    def give_up(self) -> None:
        """Whatever waits to be tried again fails now, in all threads: the run is broken off."""
        self._stop.set()

    def _new_store(self, fsync: bool) -> LocalStore | ObjectStore | FileServer:
        if self.is_local:
            return LocalStore(Path(self.path), self._room, fsync)
        kind: type[ObjectStore | FileServer] = FileServer
        if self.is_private:
            kind = Memory
        elif "gs" in protocols(self.fs):
            kind = GoogleStore
        elif "s3" in protocols(self.fs) and hasattr(self.fs, "call_s3") and not self.fs.version_aware:
            kind = S3Store
        elif appears_whole(self.fs) or not renames(self.fs):
            kind = ObjectStore
        store = kind(self.fs, self.path, self._stop, lambda: self.guard())
        if self.patience != PATIENT:
            store.patience = self.patience
        return store

    def _full(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    @property
    def staging_root(self) -> Path:
        """Where shards are written before they are published: on the disk of the result, if that is local."""
        if self.is_local and self._staging_dir is None:
            return Path(self.path) / layout.TEMPORARY_FOLDER
        return shared_root(self._staging_dir)
