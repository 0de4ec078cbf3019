"""Every path that any2ds opens goes through here, on fsspec: url lists in, shards and run files out."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import fsspec
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from any2ds import layout, registry
from any2ds.errors import InputError, OutputError, UsageError, words_of


def open_filesystem(url: str) -> tuple[Any, str]:
    """The file system of `url` and the path in it. Raises MissingExtra, or InputError for an unknown protocol."""
    try:
        fs, path = url_to_fs(url)
    except ImportError as error:
        raise registry.missing_extra(url, error) from error
    except ValueError as error:
        raise InputError(f"{url}: {error}") from error
    return fs, path


_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "oci", "r2"}  # they have no folders


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def is_local(fs: Any) -> bool:
    return isinstance(fs, LocalFileSystem)


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
                return cast(BinaryIO, self.fs.open(self.path, "rb"))
            if "http" in self.fs.protocol and not self.fs.info(self.path).get("partial"):
                return self._open_without_ranges()
            # Where several columns are read in turns, each would drop the others' read-ahead.
            options = {"cache_type": "none"} if random_access else {}
            return cast(BinaryIO, self.fs.open(self.path, "rb", block_size=2**22, **options))
        except ImportError as error:
            raise registry.missing_extra(self.name, error) from error

    def _open_without_ranges(self) -> BinaryIO:
        """One HTTP answer, however long its rows are in use; only a silence of the server ends it."""
        import aiohttp

        patient = {"timeout": aiohttp.ClientTimeout(total=None, sock_read=60)}
        stream = fsspec.filesystem("http", client_kwargs=patient).open(self.path, "rb", block_size=0)
        stream.seekable = lambda: False  # fsspec says True, and fails
        return cast(BinaryIO, stream)


def input_files(url: str) -> tuple[list[InputFile], bool]:
    """The files that `url`, a file, a folder or a glob, stands for, sorted; and whether it is a folder.

    Of folders and globs, files and folders whose names start with `_` or `.` are left out, unless the glob itself asks
    for them. Raises InputError if there is nothing.
    """
    try:
        fs, path = open_filesystem(os.path.expanduser(url))
        kind = _kind(fs, path)
        if kind == "glob":
            found = fs.glob(path, detail=True)
            paths = [name for name, info in found.items() if info["type"] == "file" and _is_shown(name, path)]
        elif kind == "directory":
            paths = [name for name in fs.find(path) if _is_shown(name, f"{path.rstrip('/')}/")]
        else:
            paths = [path]
    except UsageError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{url}: no such file or folder") from error
    except ImportError as error:
        raise registry.missing_extra(url, error) from error
    except Exception as error:  # every file system has exceptions of its own
        raise InputError(f"{url}: cannot be looked at: {words_of(error)}") from error
    if not paths:
        raise InputError(f"{url}: " + ("matches no file" if kind == "glob" else "no files in this folder"))
    chain = "::" + url.split("::", 1)[1] if "::" in url else ""
    return [InputFile(_name(fs, path) + chain, fs, path) for path in sorted(paths)], kind == "directory"


def _kind(fs: Any, path: str) -> str:
    """file, directory or glob; a file with a bracket in its name is a file."""
    if path.startswith(("http://", "https://")):
        return "glob" if "*" in path else "file"
    try:
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
    return path if is_local(fs) else str(fs.unstrip_protocol(path))


class OutputFolder:
    """The folder of the dataset. Files appear in it whole: by rename where it is local, else by a complete upload."""

    def __init__(self, url: str) -> None:
        """Raises OutputError, InputError or MissingExtra if there can be no such folder."""
        try:
            url.encode("utf-8")
        except UnicodeEncodeError as error:
            raise OutputError(f"output folder {url!r} is not text in the encoding of this system: {error}") from error
        self.url = url
        self.fs, path = open_filesystem(os.path.expanduser(url))
        self.path = path.rstrip("/") or "/"
        self.is_local = is_local(self.fs)
        self.is_private = "memory" in _protocols(self.fs)  # no other process can see it

    def create(self) -> None:
        """Raises OutputError unless files can be written in it."""
        probe = f"_probe_{uuid.uuid4().hex[:8]}"
        try:
            if not _OBJECT_STORES & set(_protocols(self.fs)):  # there it would make the bucket of a mistyped name
                self.fs.makedirs(self.path, exist_ok=True)
            self.write(probe, b"any2ds")
            self.fs.rm_file(self._full(probe))
        except Exception as error:
            raise OutputError(f"output folder {self.url!r} cannot be written: {words_of(error)}") from error

    def names(self) -> list[str]:
        """What lies directly in it; empty if it does not exist. Raises OutputError if it cannot be listed."""
        self.fs.invalidate_cache()
        try:
            found = self.fs.ls(self.path, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:  # every file system has exceptions of its own
            raise OutputError(f"output folder {self.url!r} cannot be listed: {words_of(error)}") from error
        return [str(name).rstrip("/").rsplit("/", 1)[-1] for name in found]

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None if it is not there."""
        try:
            return bytes(self.fs.cat_file(self._full(name)))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """A small file, whole or not at all."""
        if self.is_local:
            with staging(self) as folder:
                staged = folder / name
                staged.write_bytes(data)
                self.publish(staged, name)
        else:
            self.fs.pipe_file(self._full(name), data)

    def remove(self, name: str) -> None:
        """Remove a file that is there."""
        self.fs.rm_file(self._full(name))

    def publish(self, staged: Path, name: str) -> None:
        """Move a local file or folder to its final name; what an unfinished run left under that name is replaced."""
        target = self._full(name)
        if self.is_local:
            if staged.is_dir() and os.path.isdir(target):
                shutil.rmtree(target)
            os.replace(staged, target)
        elif staged.is_dir():
            if self.fs.isdir(target):
                self.fs.rm(target, recursive=True)
            files = sorted(staged.iterdir())
            self.fs.put([str(file) for file in files], [f"{target}/{file.name}" for file in files])
            shutil.rmtree(staged)
        else:
            self.fs.put_file(str(staged), target)
            staged.unlink()

    def _full(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    @property
    def staging_root(self) -> Path:
        """Where shards are written before they are published: on the disk of the result, if that is local."""
        if self.is_local:
            return Path(self.path) / layout.TEMPORARY_FOLDER
        user = os.getuid() if hasattr(os, "getuid") else "all"
        return Path(tempfile.gettempdir()) / f"any2ds-staging-{user}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that a staging folder belongs to."""

    host: str
    pid: int

    @classmethod
    def here(cls) -> Owner:
        return cls(re.sub(r"[^A-Za-z0-9.]", "_", socket.gethostname()), os.getpid())

    @classmethod
    def parse(cls, folder_name: str) -> Owner | None:
        match = re.fullmatch(r"([A-Za-z0-9._]+)-(\d+)-[0-9a-f]{8}", folder_name)
        return cls(match[1], int(match[2])) if match else None

    @property
    def name(self) -> str:
        return f"{self.host}-{self.pid}"

    def is_gone(self) -> bool:
        """Whether it surely is no more; False for other machines, and where the system cannot be asked (Windows)."""
        if self.host != Owner.here().host or sys.platform == "win32":
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


@contextmanager
def staging(output: OutputFolder) -> Iterator[Path]:
    """A folder of this process alone for shards being written, removed at the end."""
    root = output.staging_root
    owner = Owner.here()
    folder = root / f"{owner.name}-{uuid.uuid4().hex[:8]}"
    while not folder.is_dir():
        with contextlib.suppress(FileNotFoundError):  # another process may just be removing the empty root
            root.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _remove_if_empty(root)


def sweep(output: OutputFolder) -> None:
    """Remove what processes of this machine left in staging that are no more, and nothing else."""
    root = output.staging_root
    with contextlib.suppress(OSError):  # not there, or another run is sweeping too
        for folder in list(root.iterdir()):
            owner = Owner.parse(folder.name)
            if owner is not None and owner.is_gone():
                shutil.rmtree(folder, ignore_errors=True)
        _remove_if_empty(root)


def remove(staged: Path) -> None:
    """Remove a staged file or folder, if it is there."""
    if staged.is_dir():
        shutil.rmtree(staged, ignore_errors=True)
    else:
        staged.unlink(missing_ok=True)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
