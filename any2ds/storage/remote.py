"""A dataset in a store, on fsspec: uploads appear under their final names when they are complete.

Object stores see to that themselves. On servers with files (smb, hdfs …) an upload can be watched growing, and stays as
it is when it breaks off: there it has a temporary name, and is renamed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from any2ds.core import layout
from any2ds.storage.disk.staging import remove
from any2ds.storage.patience import PATIENT, Patience, persist
from any2ds.storage.stores import appears_whole, protocols

T = TypeVar("T")

_SMALL_FOR_GCSFS, _GCSFS_BOUNDARY = 5 << 20, b"==0=="
_TOGETHER = 16  # files of a folder that are uploaded at once, where the library can do that


class ObjectStore:
    """Where an object is there when its upload is complete, and not before.

    Methods are those of `OutputFolder`, and raise whatever the file system raises, FileNotFoundError among it. `guard`
    is asked before each attempt to change something: a run that waits for a network that is down may lose the folder
    meanwhile, and must not write over what another run has published there. `stop` ends all waiting.
    """

    def __init__(
        self, fs: Any, root: str, stop: threading.Event, guard: Callable[[], object], patience: Patience = PATIENT
    ) -> None:
        self.fs, self.patience = fs, patience
        self._root, self._stop, self._guard = root.rstrip("/"), stop, guard

    def create(self) -> None:
        """There are no folders; and to make one at the root would make a bucket of each mistyped name."""

    def create_folder(self, name: str) -> None:
        """There are none."""

    def remove_folder(self, name: str) -> None:
        """There are none."""

    def names(self, folder: str) -> Iterator[str]:
        if folder and self._info(folder) is None:
            return  # some would look for it among all that lies in the folder above, be that millions
        root = self._full(folder)
        for info in self.listed(folder):
            path = str(info["name"]).rstrip("/")
            if path != root:
                yield path.rpartition("/")[2]

    def listed(self, folder: str) -> Iterator[Mapping[str, Any]]:
        yield from self._listing(folder, lambda path: list(self.fs.ls(path or "/", detail=True)))

    def members(self, folder: str) -> list[str]:
        root = self._full(folder)
        paths = self._listing(folder, lambda path: [str(name) for name in self.fs.find(path, withdirs=True)])
        return [path[len(root) + 1 :] for path in paths if path.rstrip("/") != root]

    def _listing(self, folder: str, attempt: Callable[[str], T]) -> T:
        def fresh() -> T:
            self.fs.invalidate_cache()
            return attempt(self._full(folder))

        return self._persist(f"listing {folder or self._root}", fresh, answers=(FileNotFoundError, NotADirectoryError))

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

    def read(self, name: str) -> bytes | None:
        return self.read_many([name])[0]

    def read_many(self, names: Sequence[str]) -> list[bytes | None]:
        """One by one where fsspec takes a path in it for a glob, if it is given several."""
        if len(names) > 1 and any(char in self._root for char in "*?["):
            return [self.read(name) for name in names]
        paths = [self._full(name) for name in names]
        contents: dict[str, bytes | None] = {}  # also from attempts that did not get them all

        def attempt() -> None:
            trouble = None
            for path, content in self._cat([path for path in paths if path not in contents]).items():
                if isinstance(content, FileNotFoundError):
                    contents[path] = None
                elif isinstance(content, Exception):
                    trouble = content
                else:
                    contents[path] = bytes(content)
            if trouble is not None:
                raise trouble

        self._persist(f"reading {names[0]}" + (f" and {len(names) - 1} more" if names[1:] else ""), attempt)
        return [contents.get(path) for path in paths]

    def _cat(self, paths: Sequence[str]) -> Mapping[str, Any]:
        """The content of each, or the exception. s3fs would ask for their size first, to read large ones in parts."""
        whole = {"max_concurrency": 1} if "s3" in protocols(self.fs) else {}
        if len(paths) > 1:
            found: Mapping[str, Any] = self.fs.cat(paths, on_error="return", recursive=False, **whole)
            return found
        try:
            return {path: self.fs.cat_file(path, **whole) for path in paths}
        except Exception as error:  # every file system has exceptions of its own
            return dict.fromkeys(paths, error)

    def local_copy(self, name: str, target: Path, is_folder: bool | None = None) -> Path:
        if is_folder is None:
            info = self._info(name)
            is_folder = info is not None and info["type"] == "directory"
        if not is_folder:
            self._download(name, target)
            return target
        target.mkdir()
        paths = [str(info["name"]).rstrip("/") for info in self.listed(name)]
        members = [path.rpartition("/")[2] for path in paths if path != self._full(name)]
        members = [member for member in members if not member.startswith("?")]  # by which a web server sorts its page
        self._at_once(lambda member: self._download(f"{name}/{member}", target / member), members)
        return target

    def _download(self, name: str, target: Path) -> None:
        path = self._full(name)
        self._persist(f"downloading {name}", lambda: self.fs.get_file(path, str(target)), answers=(FileNotFoundError,))

    def write(self, name: str, data: bytes) -> None:
        self._change(f"uploading {name}", lambda: self.fs.pipe_file(self._full(name), data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        path = self._full(name)
        try:
            self._change(
                f"uploading {name}", lambda: self.fs.pipe_file(path, data, mode="create"), answers=(FileExistsError,)
            )
            return True
        except FileExistsError:
            pass
        except (OSError, NotImplementedError, ValueError):  # perhaps a store that refuses the condition
            if self.read(name) is None:
                self.write(name, data)
        return self.read(name) == data  # an attempt whose answer was lost finds its own file

    def publish(self, files: Mapping[str, Path]) -> None:
        for name, staged in files.items():
            if staged.is_dir():
                self._put_folder(staged, name)
            else:
                self._put(staged, name)
            remove(staged)

    def _put(self, staged: Path, name: str) -> None:
        self._change(f"uploading {name}", lambda: self.fs.put_file(str(staged), self._full(name)))

    def _put_folder(self, staged: Path, name: str) -> None:
        """File by file, so that one that fails is tried again alone; what lay there before goes."""
        members = sorted(file.relative_to(staged).as_posix() for file in staged.rglob("*") if file.is_file())
        stale = set(self._inside(name)) - set(members)
        self._at_once(lambda member: self._put(staged / member, f"{name}/{member}"), members)
        self.remove_many([f"{name}/{member}" for member in stale])

    def _inside(self, name: str) -> list[str]:
        """The names of the files in a folder, relative to it."""
        path = self._full(name)
        paths = self._listing(name, lambda path: [str(found) for found in self.fs.find(path)])
        return [found[len(path) + 1 :] for found in paths if found != path]

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

    def remove_many(self, names: Sequence[str]) -> None:
        def discard(name: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self.remove(name)

        self._at_once(discard, names)

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

    def _at_once(self, work: Callable[[str], None], names: Sequence[str]) -> None:
        """Do it for all. Raises what the first one raises that fails for good; those not begun are left then."""
        threads = _TOGETHER if getattr(self.fs, "async_impl", False) else 1
        with ThreadPoolExecutor(threads, thread_name_prefix="any2ds-upload") as pool:
            futures = [pool.submit(work, name) for name in names]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _reconnect(self) -> None:
        """Before another attempt."""


class S3Store(ObjectStore):
    """s3fs keeps a listing as a whole, with 0.6 KB for each object: of a million shards these are 2.5 GB."""

    def names(self, folder: str) -> Iterator[str]:
        """With one request, whether the folder is there or not."""
        root = self._full(folder)
        for info in self.listed(folder):
            if name := str(info["name"])[len(root) + 1 :]:
                yield name

    def listed(self, folder: str) -> Iterator[Mapping[str, Any]]:
        """Page by page, of a thousand objects each; what there is of a page that fails is asked for again."""
        bucket, key, _ = self.fs.split_path(self._full(folder))
        request = {"Bucket": bucket, "Prefix": f"{key}/" if key else "", "Delimiter": "/", **self.fs.req_kw}
        is_empty = True
        while True:
            page = self._persist(
                f"listing {folder or self._root}",
                partial(self.fs.call_s3, "list_objects_v2", **request),
                answers=(FileNotFoundError, NotADirectoryError),
            )
            for found in page.get("CommonPrefixes", ()):
                is_empty = False
                yield {"name": f"{bucket}/{found['Prefix'].rstrip('/')}", "size": 0, "type": "directory"}
            for found in page.get("Contents", ()):
                is_empty = False
                yield {**found, "name": f"{bucket}/{found['Key']}", "size": found["Size"], "type": "file"}
            if not page.get("IsTruncated"):
                break
            request["ContinuationToken"] = page["NextContinuationToken"]
        if is_empty and not folder:  # a file, or nothing at all
            yield from super().listed(folder)

    def remove_many(self, names: Sequence[str]) -> None:
        """A thousand with one request; paths with these characters are globs to fsspec."""
        if not names or any(char in self._root for char in "*?["):
            super().remove_many(names)
            return
        paths = [self._full(name) for name in names]
        self._change(f"removing {names[0]} and {len(names) - 1} more", lambda: self.fs.rm(paths))


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


class FileServer(ObjectStore):
    """Where files are visible as they grow: uploads go to a temporary folder in it first."""

    def create(self) -> None:
        self._change(f"making {self._root}", lambda: self.fs.makedirs(self._root, exist_ok=True))

    def create_folder(self, name: str) -> None:
        self._change(f"making {name}", lambda: self.fs.makedirs(self._full(name), exist_ok=True))

    def remove_folder(self, name: str) -> None:
        """Tried once: that it is not empty looks like other trouble, and one that stays does no harm."""
        self._guard()
        self.fs.rmdir(self._full(name))

    def write(self, name: str, data: bytes) -> None:
        temporary = self._temporary()
        self._change(f"uploading {name}", lambda: self.fs.pipe_file(self._full(temporary), data))
        self._rename(temporary, name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Servers know no condition: of two at once the last one has made it."""
        self.write(name, data)
        return self.read(name) == data

    def publish(self, files: Mapping[str, Path]) -> None:
        for name, staged in files.items():
            temporary = self._temporary()
            if staged.is_dir():
                self.create_folder(temporary)
                self._put_folder(staged, temporary)
            else:
                self._put(staged, temporary)
            self._move(temporary, name)
            remove(staged)

    def _temporary(self) -> str:
        """An unused name; what a failed upload leaves there, the next run sweeps."""
        self.create_folder(layout.TEMPORARY_FOLDER)
        return f"{layout.TEMPORARY_FOLDER}/upload-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    def _move(self, name: str, new_name: str) -> None:
        info = self._info(name)
        if info is None:
            raise FileNotFoundError(name)
        if info["type"] == "directory":
            with contextlib.suppress(FileNotFoundError):
                self.remove_tree(new_name)  # else many servers would move it into what is there
        self._rename(name, new_name)

    def _rename(self, name: str, new_name: str) -> None:
        """Some servers replace what is there, others refuse to: there it is removed before."""
        source, target = self._full(name), self._full(new_name)

        def attempt() -> None:
            if new_name.count("/"):
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

        self._change(f"renaming to {new_name}", attempt)

    def _reconnect(self) -> None:
        """A session that broke does not come back by itself."""
        self.fs = type(self.fs)(*self.fs.storage_args, **{**self.fs.storage_options, "skip_instance_cache": True})


def store_for(
    fs: Any, root: str, stop: threading.Event, guard: Callable[[], object], patience: Patience
) -> ObjectStore:
    """The store that files lie in at `root` of a file system that is not of this machine."""
    from fsspec import AbstractFileSystem

    kind: type[ObjectStore] = FileServer
    if "memory" in protocols(fs):
        kind = Memory
    elif "gs" in protocols(fs):
        kind = GoogleStore
    elif "s3" in protocols(fs) and hasattr(fs, "call_s3") and not fs.version_aware:
        kind = S3Store
    elif appears_whole(fs) or type(fs).mv is AbstractFileSystem.mv:  # which copies and deletes
        kind = ObjectStore
    return kind(fs, root, stop, guard, patience)
