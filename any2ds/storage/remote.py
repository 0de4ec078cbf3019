"""A dataset in a store, on fsspec: uploads appear under their final names when they are complete.

Object stores see to that themselves. On servers with files (smb, hdfs …) an upload can be watched growing, and stays as
it is when it breaks off: there it has a temporary name, and is renamed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote

from any2ds.config.options import StorageOptions
from any2ds.core import layout
from any2ds.storage.disk.space import RemoteSpace
from any2ds.storage.disk.staging import remove
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lists import name_of
from any2ds.storage.patience import persist
from any2ds.storage.reading import opened
from any2ds.storage.stores import Stores, appears_whole, protocols

T = TypeVar("T")

_TOGETHER = 64  # files that are uploaded, downloaded or removed at once, where the library can do that
_SMALL_FOR_GCSFS = 5 << 20  # bytes of a file that it sends with one request
_REFUSALS = {"PreconditionFailed", "ConditionalRequestConflict", "412", "409"}  # S3's codes for a condition not met


class RemoteFolder(OutputFolder):
    """In a store where an object is there when its upload is complete, and not before."""

    def __init__(self, url: str, options: StorageOptions, stores: Stores, fs: Any, path: str) -> None:
        self._root = path.rstrip("/")
        self.identity = name_of(fs, self._root or "/")
        super().__init__(url, options, stores, fs, path, RemoteSpace(url), Path(tempfile.gettempdir()))

    def _names(self, folder: str) -> Iterator[str]:
        root = self._full(folder)
        for info in self.listed(folder):
            if (path := str(info["name"]).rstrip("/")) != root:
                yield path.rpartition("/")[2]

    def listed(self, folder: str = "") -> Iterator[Mapping[str, Any]]:
        if folder and not self.exists(folder):
            return  # some would look for it among all that lies in the folder above, be that millions
        path = self._full(folder)
        yield from self._list_anew(path, lambda: list(self.fs.ls(path or "/", detail=True)))

    def _list_anew(self, path: str, attempt: Callable[[], T]) -> T:
        def fresh() -> T:
            self.fs.invalidate_cache()
            return attempt()

        return self._persist(f"listing {path}", fresh)

    def exists(self, name: str) -> bool:
        return self._info(name) is not None

    def _info(self, name: str) -> Mapping[str, Any] | None:
        return self._persist(f"looking at {name}", lambda: self._look_at(name))

    def _look_at(self, name: str) -> Mapping[str, Any] | None:
        """Unlike `exists` of fsspec it does not take a broken connection for an absent file."""
        self.fs.invalidate_cache()
        try:
            info: Mapping[str, Any] = self.fs.info(self._full(name))
        except FileNotFoundError:
            return None
        return info

    def look(self, name: str) -> bytes | None:
        # s3fs would ask for the size of the file first, to read it in parts.
        whole = {"max_concurrency": 1} if "s3" in protocols(self.fs) else {}
        try:
            return bytes(self.fs.cat_file(self._full(name), **whole))
        except FileNotFoundError:
            return None

    def open(self, name: str) -> BinaryIO:
        path = self._full(name)
        return opened(name, lambda: self.fs.open(path, "rb", cache_type="none"), self.stop, self.patience)

    def local_copy(self, name: str, folder: Path, is_folder: bool | None = None) -> Path:
        target = folder / f"previous-{name}"
        target.parent.mkdir(parents=True, exist_ok=True)  # of what lies in `.any2ds`
        if is_folder is None:
            info = self._info(name)
            is_folder = info is not None and info["type"] == "directory"
        files = {"": target}
        if is_folder:
            target.mkdir()
            # A name that begins with "?" is no file, but how a web server sorts its page.
            files = {f"/{file}": target / file for file in self._names(name) if not file.startswith("?")}

        def download(file: str) -> None:
            path = self._full(name + file)
            self._persist(f"downloading {name}{file}", lambda: self.fs.get_file(path, str(files[file])))

        self._for_each(list(files), download)
        return target

    def write(self, name: str, data: bytes) -> None:
        self._change(f"uploading {name}", lambda: self.fs.pipe_file(self._full(name), data))

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if not self.has_conditions and self.read(name) is not None:
            return False
        try:
            self._change(f"uploading {name}", lambda: self.replace(name, data, ""))
        except FileExistsError:
            return self.read(name) == data  # an attempt whose answer was lost finds its own file
        return self.has_conditions or self.read(name) == data  # without conditions the last of two has made it

    def version(self, name: str) -> str:
        return "" if self._look_at(name) is None else "any"

    def replace(self, name: str, data: bytes, version: str) -> str:
        if not version:
            if self.version(name):
                raise FileExistsError(name)
            with contextlib.suppress(NotImplementedError, ValueError):  # there may be no such mode
                self.fs.pipe_file(self._full(name), data, mode="create")  # Azure refuses what is there by now
                return "any"
        self.fs.pipe_file(self._full(name), data)
        return "any"

    def publish(self, files: Mapping[str, Path]) -> None:
        for name, staged in files.items():
            if staged.is_dir():
                before = self._files_in(name)
                stale = set(before).difference(self._put_folder(staged, name))
                self.remove_many([f"{name}/{file}" for file in stale])
            else:
                self._put(staged, name)
            remove(staged)

    def _put_folder(self, staged: Path, name: str) -> list[str]:
        """Upload a folder file by file, so that one that fails is tried again alone; the names of its files."""
        files = sorted(file.relative_to(staged).as_posix() for file in staged.rglob("*") if file.is_file())
        self._for_each(files, lambda file: self._put(staged / file, f"{name}/{file}"))
        return files

    def _files_in(self, name: str) -> list[str]:
        """The names of the files in a folder, at any depth, relative to it."""
        root = self._full(name)
        paths: list[str] = self._list_anew(root, lambda: self.fs.find(root))
        return [path[len(root) + 1 :] for path in paths if path != root]

    def _put(self, staged: Path, name: str) -> None:
        self._change(f"uploading {name}", lambda: self.fs.put_file(str(staged), self._full(name)))

    def create_folder(self, name: str) -> None:
        """There are none; and to make one at the root would make a bucket of each mistyped name."""

    def discard(self, name: str) -> None:
        self._remove(name, self.fs.rm_file)

    def remove_tree(self, name: str) -> None:
        self._change(f"removing {name}", lambda: self._remove(name, lambda path: self.fs.rm(path, recursive=True)))

    def _remove(self, name: str, how: Callable[[str], object]) -> None:
        self.fs.invalidate_cache()
        try:
            how(self._full(name))
        except Exception:  # some have errors of their own for what is absent
            if self._look_at(name) is not None:
                raise

    def remove_folder_if_empty(self, name: str) -> None:
        """There are none."""

    def _full(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _persist(self, what: str, attempt: Callable[[], T]) -> T:
        """`persist`, reconnecting before each attempt but the first."""
        attempts = count()

        def connected() -> T:
            if next(attempts):
                self._reconnect()
            return attempt()

        return persist(what, connected, self.stop, self.patience)

    def _reconnect(self) -> None:
        """Before another attempt."""

    def _for_each(self, names: Sequence[str], work: Callable[[str], T]) -> list[T]:
        """Do `work` for each name, many at once; when one fails for good, names that are not begun are left."""
        if len(names) < 2 or not getattr(self.fs, "async_impl", False):  # else a file system may not be for threads
            return [work(name) for name in names]
        pool = ThreadPoolExecutor(min(_TOGETHER, len(names)), thread_name_prefix="any2ds-store")
        try:
            return list(pool.map(work, names))
        finally:
            pool.shutdown(cancel_futures=True)


class S3Folder(RemoteFolder):
    """s3fs keeps a listing as a whole, with 0.6 KB for each object: of a million shards these are 2.5 GB."""

    has_conditions = True  # but for some stores that speak S3: the lock tries it

    def listed(self, folder: str = "") -> Iterator[Mapping[str, Any]]:
        """Page by page, of a thousand objects each; what there is of a page that fails is asked for again."""
        bucket, key, _ = self.fs.split_path(self._full(folder))
        request = {"Bucket": bucket, "Prefix": f"{key}/" if key else "", "Delimiter": "/", **self.fs.req_kw}
        is_empty = True
        while True:
            page = self._persist(
                f"listing {folder or self._root}", lambda: self.fs.call_s3("list_objects_v2", **request)
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

    def version(self, name: str) -> str:
        info = self._look_at(name)
        return "" if info is None else str(info["ETag"])

    def replace(self, name: str, data: bytes, version: str) -> str:
        bucket, key, _ = self.fs.split_path(self._full(name))
        condition = {"IfMatch": version} if version else {"IfNoneMatch": "*"}
        request = {"Bucket": bucket, "Key": key, "Body": data, **condition, **self.fs.req_kw}
        try:
            return str(self.fs.call_s3("put_object", **request)["ETag"])
        except OSError as error:
            answer = getattr(error.__cause__, "response", None) or {}
            if answer.get("Error", {}).get("Code") in _REFUSALS:
                raise FileExistsError(errno.EEXIST, "another run has written it", name) from error
            raise


class GoogleFolder(RemoteFolder):
    """gcsfs sends what is small as one part of a body whose boundary is always the same, after a line feed alone.

    Of a file that ends with a carriage return that is lost, and one with the boundary in it would end there: so what is
    small is sent as a body of its own.
    """

    has_conditions = True

    def _put(self, staged: Path, name: str) -> None:
        if staged.stat().st_size < _SMALL_FOR_GCSFS:
            self.write(name, staged.read_bytes())
        else:
            super()._put(staged, name)

    def write(self, name: str, data: bytes) -> None:
        self._change(f"uploading {name}", lambda: self._upload(name, data))

    def version(self, name: str) -> str:
        info = self._look_at(name)
        return "" if info is None else str(info["generation"])

    def replace(self, name: str, data: bytes, version: str) -> str:
        return self._upload(name, data, ifGenerationMatch=version or "0")

    def _upload(self, name: str, data: bytes, **conditions: str) -> str:
        """The generation of the new file. Raises FileExistsError if it was to be another one."""
        bucket, key, _ = self.fs.split_path(self._full(name))
        path = f"{self.fs._location}/upload/storage/v1/b/{quote(bucket)}/o"
        asked = {"uploadType": "media", "name": key, **conditions}
        headers = {"Content-Type": "application/octet-stream"}
        return str(self.fs.call("POST", path, data=data, headers=headers, json_out=True, **asked)["generation"])


class MemoryFolder(RemoteFolder):
    """A folder in the memory of this process. A file written in pieces could be seen growing, so none is."""

    is_private = True

    def _put(self, staged: Path, name: str) -> None:
        self.write(name, staged.read_bytes())


class ServerFolder(RemoteFolder):
    """On a server where files are visible as they grow: uploads go to a temporary folder in it first."""

    def create_folder(self, name: str) -> None:
        self._change(f"making {name}", lambda: self.fs.makedirs(self._full(name), exist_ok=True))

    def remove_folder_if_empty(self, name: str) -> None:
        """Tried once; some servers would remove all that is in it."""
        with contextlib.suppress(Exception):  # every file system has exceptions of its own
            self.fs.invalidate_cache()
            if not self.fs.ls(self._full(name), detail=False):
                self.fs.rmdir(self._full(name))

    def write(self, name: str, data: bytes) -> None:
        temporary = self._temporary()
        self._change(f"uploading {name}", lambda: self.fs.pipe_file(self._full(temporary), data))
        self._rename(temporary, name)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Servers know no condition: of two at once the last one has made it."""
        if self.read(name) is not None:
            return False
        self.write(name, data)
        return self.read(name) == data

    def publish(self, files: Mapping[str, Path]) -> None:
        for name, staged in files.items():
            temporary = self._temporary()
            if staged.is_dir():
                self.create_folder(temporary)
                self._put_folder(staged, temporary)
                self.remove_tree(name)  # else many servers would move it into what is there
            else:
                self._put(staged, temporary)
            self._rename(temporary, name)
            remove(staged)

    def _temporary(self) -> str:
        """An unused name; what a failed upload leaves there, the next run sweeps."""
        self.create_folder(layout.TEMPORARY_FOLDER)
        return f"{layout.TEMPORARY_FOLDER}/upload-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    def _rename(self, name: str, new_name: str) -> None:
        """Some servers replace what is there, others refuse to: so it is removed before."""
        source, target = self._full(name), self._full(new_name)

        def attempt() -> None:
            if self._look_at(new_name) is not None:
                if self._look_at(name) is None:
                    return  # an attempt before has done it, and the answer got lost
                self.fs.rm_file(target)
            self.fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self.fs.mv(source, target)

        self._change(f"renaming to {new_name}", attempt)

    def _reconnect(self) -> None:
        """A session that broke does not come back by itself."""
        self.fs = type(self.fs)(*self.fs.storage_args, **{**self.fs.storage_options, "skip_instance_cache": True})


def kind_of(fs: Any) -> type[RemoteFolder]:
    """The class for folders of a file system that is not of this machine."""
    from fsspec import AbstractFileSystem

    if "memory" in protocols(fs):
        return MemoryFolder
    if "gs" in protocols(fs):
        return GoogleFolder
    if "s3" in protocols(fs) and hasattr(fs, "call_s3") and not fs.version_aware:
        return S3Folder
    # Without a `mv` of its own a file system copies and deletes.
    return RemoteFolder if appears_whole(fs) or type(fs).mv is AbstractFileSystem.mv else ServerFolder
