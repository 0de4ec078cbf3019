"""An output folder elsewhere, on fsspec: uploads appear under their final names when they are complete.

Object stores see to that themselves. On servers with files (sftp, smb, hdfs …) an upload can be watched growing,
and stays as it is when it breaks off: there it has a temporary name, and is renamed.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from any2ds.core import layout
from any2ds.storage.disk.staging import remove
from any2ds.storage.lock.owner import Owner
from any2ds.storage.patience import PATIENT, persist

log = logging.getLogger(__name__)

T = TypeVar("T")

_SMALL_FOR_GCSFS, _GCSFS_BOUNDARY = 5 << 20, b"==0=="
_TOGETHER = 16  # files of a folder that are uploaded at once, where the library can do that


class _Remote:
    """What both kinds have in common: paths, and trying again. `stop` ends all waiting.

    Methods are those of `OutputFolder`, and raise whatever the file system raises, FileNotFoundError among it. `guard`
    is asked before each attempt to change something: a run that waits for a network that is down may lose the folder
    meanwhile, and must not write over what another run has published there.
    """

    patience = PATIENT

    def __init__(self, fs: Any, root: str, stop: threading.Event, guard: Callable[[], object]) -> None:
        self.fs = fs
        self._root = root.rstrip("/")
        self._stop = stop
        self._guard = guard

    def names(self, folder: str, beginning: str = "") -> list[str]:
        """Names that do not begin like this may be left out."""
        path = self._full(folder)
        listed = (str(info["name"]).rstrip("/") for info in self.listed(folder))
        return [name.rsplit("/", 1)[-1] for name in listed if name != path]

    def each_name(self) -> Iterator[str]:
        return (str(info["name"]).rstrip("/").rpartition("/")[2] for info in self.listed(""))

    def listed(self, folder: str) -> Iterator[Mapping[str, Any]]:
        yield from self._listing(folder, lambda path: list(self.fs.ls(path or "/", detail=True)))

    def members(self, folder: str) -> list[str]:
        root = self._full(folder)
        found = self._listing(folder, lambda path: [str(name) for name in self.fs.find(path, withdirs=True)])
        return [path[len(root) + 1 :] for path in found if path.rstrip("/") != root]

    def _listing(self, folder: str, attempt: Callable[[str], T]) -> T:
        def fresh() -> T:
            self.fs.invalidate_cache()
            return attempt(self._full(folder))

        return self._persist(f"listing {folder or self._root}", fresh, answers=(FileNotFoundError, NotADirectoryError))

    def is_folder(self, name: str) -> bool:
        info = self._info(name)
        return info is not None and info["type"] == "directory"

    def exists(self, name: str) -> bool:
        return self._info(name) is not None

    def _info(self, name: str) -> Mapping[str, Any] | None:
        return self._persist(f"looking at {name}", lambda: self._look_at(self._full(name)))

    def _look_at(self, path: str) -> Mapping[str, Any] | None:
        """Unlike `exists` of fsspec it does not take a broken connection for an absent file."""
        self.fs.invalidate_cache()
        try:
            info: Mapping[str, Any] = self.fs.info(path)
        except FileNotFoundError:
            return None
        return info

    def create_folder(self, name: str) -> None:
        self._change(f"making {name}", lambda: self.fs.makedirs(self._full(name), exist_ok=True))

    def remove_many(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self.remove(name)

    def remove_folder(self, name: str) -> None:
        """Tried once: that it is not empty looks like other trouble, and one that stays does no harm."""
        self._guard()
        self.fs.rmdir(self._full(name))

    def read(self, name: str) -> bytes | None:
        path = self._full(name)
        with contextlib.suppress(FileNotFoundError):
            return self._persist(
                f"reading {name}", lambda: bytes(self.fs.cat_file(path, **self._whole)), answers=(FileNotFoundError,)
            )
        return None

    def read_many(self, names: Sequence[str]) -> list[bytes | None]:
        if self._looks_like_glob:
            return [self.read(name) for name in names]
        paths = [self._full(name) for name in names]
        known: dict[str, bytes | None] = {}  # also from attempts that did not get them all

        def attempt() -> None:
            missing = [path for path in paths if path not in known]
            found = self.fs.cat(missing, on_error="return", recursive=False, **self._whole)
            trouble = None
            for path, content in found.items():
                if isinstance(content, FileNotFoundError):
                    known[path] = None
                elif isinstance(content, Exception):
                    trouble = content
                else:
                    known[path] = bytes(content)
            if trouble is not None:
                raise trouble

        self._persist(f"reading {names[0]} and {len(names) - 1} more", attempt)
        return [known.get(path) for path in paths]

    @cached_property
    def _whole(self) -> Mapping[str, int]:
        """How to read files as they are. s3fs would ask for their size first, to read large ones in parts at once."""
        read = getattr(self.fs, "_cat_file", None)
        return {"max_concurrency": 1} if read and "max_concurrency" in inspect.signature(read).parameters else {}

    @property
    def _looks_like_glob(self) -> bool:
        """Whether fsspec takes a path in it for a glob, where it is given several."""
        return any(char in self._root for char in "*?[")

    def local_copy(self, name: str, target: Path, is_folder: bool | None = None) -> Path:
        if self.is_folder(name) if is_folder is None else is_folder:
            target.mkdir()
            members = _Remote.names(self, name)  # also of a web server, which says that its page is a file
            members = [member for member in members if not member.startswith("?")]  # and has links to sort it
            self._at_once(lambda member: self._download(f"{name}/{member}", target / member), members)
        else:
            self._download(name, target)
        return target

    def _download(self, name: str, target: Path) -> None:
        path = self._full(name)
        self._persist(f"downloading {name}", lambda: self.fs.get_file(path, str(target)), answers=(FileNotFoundError,))

    def remove(self, name: str) -> None:
        self._remove(name, lambda path: self.fs.rm_file(path))

    def remove_tree(self, name: str) -> None:
        self._remove(name, lambda path: self.fs.rm(path, recursive=True))

    def _remove(self, name: str, how: Callable[[str], None]) -> None:
        path = self._full(name)

        def attempt() -> None:
            self.fs.invalidate_cache()
            try:
                how(path)
            except Exception as error:  # some have errors of their own for what is absent
                if self._look_at(path) is None:
                    raise FileNotFoundError(path) from error
                raise

        self._change(f"removing {name}", attempt, answers=(FileNotFoundError,))

    def _full(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _persist(self, what: str, attempt: Callable[[], T], answers: tuple[type[Exception], ...] = ()) -> T:
        """`persist`, reconnecting before each attempt but the first."""
        attempts = count()

        def connected() -> T:
            if next(attempts):
                self._reconnect()
            return attempt()

        return persist(what, connected, self._stop, self.patience, answers)

    def _change(self, what: str, attempt: Callable[[], object], answers: tuple[type[Exception], ...] = ()) -> None:
        """`_persist` for what changes something. Raises what the guard raises, which retries by itself, at once."""

        refusals: list[Exception] = []

        def guarded() -> None:
            try:
                self._guard()
            except Exception as error:
                refusals.append(error)
            else:
                attempt()

        self._persist(what, guarded, answers)
        if refusals:
            raise refusals[0]

    def _at_once(self, work: Callable[[str], None], members: list[str]) -> None:
        """Do it for all. Raises what the first one raises that fails for good; those not begun are left then."""
        threads = _TOGETHER if getattr(self.fs, "async_impl", False) else 1
        with ThreadPoolExecutor(threads, thread_name_prefix="any2ds-upload") as pool:
            futures = [pool.submit(work, member) for member in members]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _reconnect(self) -> None:
        """Before another attempt."""


class ObjectStore(_Remote):
    """Where an object is there when its upload is complete, and not before."""

    def create(self) -> None:
        """There are no folders; and to make one at the root would make a bucket of each mistyped name."""

    def create_folder(self, name: str) -> None:
        """There are none."""

    def remove_folder(self, name: str) -> None:
        """There are none."""

    def names(self, folder: str, beginning: str = "") -> list[str]:
        if not beginning:
            if folder and not self.is_folder(folder):
                return []  # s3fs would look for it among all that lies in the folder above, be that millions
            return super().names(folder)
        root = self._full(folder)
        found = self._listing(folder, lambda path: list(self.fs.find(path, prefix=beginning)))
        return [name for path in found if "/" not in (name := str(path)[len(root) + 1 :])]

    def remove_many(self, names: Sequence[str]) -> None:
        if self._looks_like_glob:
            super().remove_many(names)
        else:
            paths = [self._full(name) for name in names]
            self._change(f"removing {names[0]} and {len(names) - 1} more", lambda: self.fs.rm(paths))

    def write(self, name: str, data: bytes) -> None:
        self._change(f"uploading {name}", lambda: self.fs.pipe_file(self._full(name), data))

    def publish(self, files: Mapping[str, Path]) -> None:
        for name, staged in files.items():
            if staged.is_dir():
                self._put_folder(staged, name)
            else:
                self._put(staged, name)
            remove(staged)

    def move(self, name: str, new_name: str) -> None:
        inside = self._inside(name)
        if inside is None:
            self._copy(name, new_name)
            self.remove(name)
            return
        stale = set(self._inside(new_name) or ()) - set(inside)
        self._at_once(lambda member: self._copy(f"{name}/{member}", f"{new_name}/{member}"), inside)
        self._remove_members(new_name, stale)
        self.remove_tree(name)

    def _put_folder(self, staged: Path, name: str) -> None:
        """File by file, so that one that fails is tried again alone; what lay there before goes."""
        members = sorted(file.relative_to(staged).as_posix() for file in staged.rglob("*") if file.is_file())
        stale = set(self._inside(name) or ()) - set(members)
        self._at_once(lambda member: self._put(staged / member, f"{name}/{member}"), members)
        self._remove_members(name, stale)

    def _put(self, staged: Path, name: str) -> None:
        self._change(f"uploading {name}", lambda: self.fs.put_file(str(staged), self._full(name)))

    def _copy(self, name: str, new_name: str) -> None:
        self._change(f"copying {name}", lambda: self.fs.cp_file(self._full(name), self._full(new_name)))

    def _inside(self, name: str) -> list[str] | None:
        """The names in a folder, relative to it; None if it is a file. Raises FileNotFoundError."""
        path = self._full(name)

        def found() -> list[str] | None:
            self.fs.invalidate_cache()
            paths = [str(found) for found in self.fs.find(path)]
            if paths == [path]:
                return None
            return [found[len(path) + 1 :] for found in paths if found.startswith(f"{path}/")]

        return self._persist(f"listing {name}", found)

    def _remove_members(self, folder: str, members: Iterable[str]) -> None:
        def discard(member: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self.remove(f"{folder}/{member}")

        self._at_once(discard, list(members))


class S3Store(ObjectStore):
    """s3fs keeps a listing as a whole, with 0.6 KB for each object: of a million shards these are 2.5 GB."""

    def listed(self, folder: str) -> Iterator[Mapping[str, Any]]:
        """Page by page, of a thousand objects each; what there is of a page that fails is asked for again."""
        bucket, key, _ = self.fs.split_path(self._full(folder))
        asked = {"Bucket": bucket, "Prefix": f"{key}/" if key else "", "Delimiter": "/", **self.fs.req_kw}
        token: str | None = None
        has_any = False
        while True:
            more = {"ContinuationToken": token} if token else {}
            page = self._persist(
                f"listing {folder or self._root}",
                partial(self.fs.call_s3, "list_objects_v2", **asked, **more),
                answers=(FileNotFoundError, NotADirectoryError),
            )
            for found in page.get("CommonPrefixes", ()):
                has_any = True
                yield {"name": f"{bucket}/{found['Prefix'].rstrip('/')}", "size": 0, "type": "directory"}
            for found in page.get("Contents", ()):
                has_any = True
                yield {**found, "name": f"{bucket}/{found['Key']}", "size": found["Size"], "type": "file"}
            if not page.get("IsTruncated"):
                break
            token = page["NextContinuationToken"]
        if not has_any:  # a file, or nothing at all
            yield from super().listed(folder)


class GoogleStore(ObjectStore):
    """gcsfs sends what is small as one part of a body whose boundary is always the same, after a line feed alone.

    Of a file that ends with a carriage return that is lost, and one with the boundary in it would end there.
    """

    def _put(self, staged: Path, name: str) -> None:
        size = staged.stat().st_size
        content = staged.read_bytes() if 0 < size < _SMALL_FOR_GCSFS else b""
        if content.endswith(b"\r") or _GCSFS_BOUNDARY in content:
            path = self._full(name)  # in pieces, of which there is one
            self._change(f"uploading {name}", lambda: self.fs.pipe_file(path, content, chunksize=size))
        else:
            super()._put(staged, name)


class Memory(ObjectStore):
    """Of this process. What is written to it in pieces can be seen growing, so nothing is."""

    def _put(self, staged: Path, name: str) -> None:
        self.write(name, staged.read_bytes())


class FileServer(_Remote):
    """Where files are visible as they grow: uploads go to a temporary folder in it first."""

    def create(self) -> None:
        self._change(f"making {self._root}", lambda: self.fs.makedirs(self._root, exist_ok=True))

    def write(self, name: str, data: bytes) -> None:
        with self._temporary_folder() as folder:
            self._change(f"uploading {name}", lambda: self.fs.pipe_file(f"{folder}/file", data))
            self._rename(f"{folder}/file", name)

    def publish(self, files: Mapping[str, Path]) -> None:
        with self._temporary_folder() as folder:
            for name, staged in files.items():
                uploaded = f"{folder}/{staged.name}"
                if staged.is_dir():
                    self._put_folder(staged, uploaded)
                    with contextlib.suppress(FileNotFoundError):
                        self.remove_tree(name)  # else many servers would move it into what is there
                else:
                    self._put(staged, uploaded)
                self._rename(uploaded, name)
                remove(staged)

    def move(self, name: str, new_name: str) -> None:
        info = self._info(name)
        if info is None:
            raise FileNotFoundError(name)
        if info["type"] == "directory":
            with contextlib.suppress(FileNotFoundError):
                self.remove_tree(new_name)
        self._rename(self._full(name), new_name)

    def _put_folder(self, staged: Path, folder: str) -> None:
        self._change(f"making {folder}", lambda: self.fs.makedirs(folder, exist_ok=True))
        for file in sorted(file for file in staged.rglob("*") if file.is_file()):
            self._put(file, f"{folder}/{file.relative_to(staged).as_posix()}")

    def _put(self, staged: Path, path: str) -> None:
        self._change(f"uploading {staged.name}", lambda: self.fs.put_file(str(staged), path))

    def _rename(self, source: str, name: str) -> None:
        """Some servers replace what is there, others refuse to: there it is removed before."""
        target = self._full(name)

        def attempt() -> None:
            if name.count("/"):
                self.fs.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
            try:
                self.fs.mv(source, target)
            except Exception:
                there = self._look_at(target) is not None
                if there and self._look_at(source) is None:
                    return  # it was done, and the answer got lost
                if not there:
                    raise
                self.fs.rm_file(target)
                self.fs.mv(source, target)

        self._change(f"renaming to {name}", attempt)

    @contextmanager
    def _temporary_folder(self) -> Iterator[str]:
        """A folder for uploads, which is removed at the end."""
        folder = self._full(f"{layout.TEMPORARY_FOLDER}/{Owner.here().name}-{uuid.uuid4().hex[:8]}")
        self._change(f"making {folder}", lambda: self.fs.makedirs(folder, exist_ok=True))
        try:
            yield folder
        finally:
            with contextlib.suppress(Exception):  # of any file system; the next run sweeps it
                self.fs.rm(folder, recursive=True)

    def _reconnect(self) -> None:
        """A session that broke does not come back by itself."""
        self.fs = type(self.fs)(*self.fs.storage_args, **{**self.fs.storage_options, "skip_instance_cache": True})


def renames(fs: Any) -> bool:
    """Whether it can give a file another name; else fsspec copies and deletes."""
    from fsspec import AbstractFileSystem

    return type(fs).mv is not AbstractFileSystem.mv
