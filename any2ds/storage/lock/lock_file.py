"""The lock files of an output folder (`.any2ds/lock`): their content, and how each kind of store writes them.

Where a store can, a file is written only if it still is what its writer has seen: S3 by its ETag, Google by its
generation. On disks and file servers, and in other stores, the last one to write it has it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import orjson

from any2ds.core import layout
from any2ds.core.errors import OutputError, printable
from any2ds.storage.disk.regular import refuse_link
from any2ds.storage.folders import OutputFolder
from any2ds.storage.stores import protocols

_SIZE = 1024  # bytes of the file: always as many, so that it can be written in place, even on a full disk
_TRIES = 5  # to read it, where it may be caught half written
_PAUSE = 0.05  # seconds between two of them
_NO_VERSION = "1"  # which no file has


@dataclass(frozen=True, slots=True)
class LockRef:
    """A lock that a run holds, as its workers know it."""

    file: str  # in the output folder: `.any2ds/lock`, which stands for all of it, or another
    run: str  # that the file has to name


@dataclass(frozen=True, slots=True)
class Holder:
    """The run that holds a lock file."""

    run: str  # no other has the same
    command: str  # what it does: download, retry ...
    host: str
    pid: int
    started: float  # Unix seconds, by its own clock
    file_lock: str = ""  # the file that its process has locked, on which machine; "" if there is none
    beat: int = 0  # grows while it lives

    @classmethod
    def parse(cls, content: bytes) -> Holder | None:
        """None if any2ds did not write this, or not to its end."""
        try:
            written = orjson.loads(content)["any2ds_lock"]
            return cls(**{**written, "started": float(written["started"])})
        except (ValueError, KeyError, TypeError):
            return None

    def to_bytes(self) -> bytes:
        return orjson.dumps({"any2ds_lock": asdict(self)}).ljust(_SIZE - 1) + b"\n"

    def __str__(self) -> str:
        since = ""
        with contextlib.suppress(OverflowError, ValueError, OSError):
            since = datetime.fromtimestamp(self.started).astimezone().strftime(", since %Y-%m-%d %H:%M:%S %z")
        return printable(f"{self.command}, process {self.pid} on {self.host}{since}")


class LockFile:
    """A lock file of one output folder. Its methods raise whatever the file system raises."""

    def __init__(self, output: OutputFolder, name: str) -> None:
        self._output, self.name = output, name
        self.folder = output.url
        self._path = f"{output.path.rstrip('/')}/{name}"
        kinds = frozenset() if output.is_local else protocols(output.fs)
        self._is_s3 = "s3" in kinds and hasattr(output.fs, "call_s3")
        self._is_google = "gs" in kinds and hasattr(output.fs, "call")

    def read(self) -> Holder | None:
        """Its holder; None if it is not there, or blank. Raises OutputError if it is of something else than any2ds."""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE)
            content = self._output.read(self.name) or b""
            if (holder := Holder.parse(content)) is not None or not content.strip(b"\0 \r\n"):
                return holder
        raise OutputError(f"{self.folder!r} holds a {self.name} that any2ds did not write")

    def version(self) -> str:
        """What `write` may replace, as it is now; "" if it is not there."""
        if self._output.is_local:
            return "" if self.read() is None else "any"
        self._output.fs.invalidate_cache()
        try:
            info = self._output.fs.info(self._path)
        except FileNotFoundError:
            return ""
        return str(info["ETag"] if self._is_s3 else info["generation"] if self._is_google else "any")

    def write(self, holder: Holder, version: str) -> str:
        """Write it over that version, "" where there is none, and return the new one.

        Raises FileExistsError if it has another version, where the store can tell.
        """
        try:
            return self._write(holder.to_bytes(), version)
        except Exception as error:  # every file system has exceptions of its own
            if self._output.is_local or (current := self.version()) == version:
                raise  # nothing was written
            if self.read() == holder:
                return current  # and the answer got lost
            raise FileExistsError(self.name) from error

    def is_guarded(self, holder: Holder) -> bool:
        """Whether the store surely refuses to write it over another version. Only its holder may ask."""
        if not (self._is_s3 or self._is_google):
            return False
        try:
            self._write(holder.to_bytes(), _NO_VERSION)
        except OSError as error:  # s3fs has EINVAL for it, gcsfs FileExistsError
            return isinstance(error, FileExistsError) or error.errno == errno.EINVAL
        return False

    def _write(self, content: bytes, version: str) -> str:
        fs = self._output.fs
        if self._output.is_local:
            self._write_in_place(content, version)
        elif self._is_s3:
            bucket, key, _ = fs.split_path(self._path)
            condition = {"IfMatch": version} if version else {"IfNoneMatch": "*"}
            return str(fs.call_s3("put_object", Bucket=bucket, Key=key, Body=content, **condition, **fs.req_kw)["ETag"])
        elif self._is_google:
            bucket, key, _ = fs.split_path(self._path)
            path = f"{fs._location}/upload/storage/v1/b/{quote(bucket)}/o"
            asked = {"uploadType": "media", "name": key, "ifGenerationMatch": version or "0"}
            headers = {"Content-Type": "application/octet-stream"}
            return str(fs.call("POST", path, data=content, headers=headers, json_out=True, **asked)["generation"])
        elif not version and self.version():
            raise FileExistsError(self.name)
        else:
            self._output.put(self.name, content)
        return "any"

    def _write_in_place(self, content: bytes, version: str) -> None:
        """Processes that have it open see the change."""
        path = Path(self._path)
        refuse_link(path)
        if not version and self.read() is not None:
            raise FileExistsError(self.name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666), "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())  # other machines see it then

    def clear(self) -> None:
        """It names nobody any more. The file of the folder as a whole may be locked by others, and stays on a disk."""
        if self._output.is_local and self.name == layout.LOCK_FILE:
            with contextlib.suppress(FileNotFoundError):
                os.truncate(self._path, 0)
        else:
            self.remove()

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._output.is_local:
                os.unlink(self._path)
            else:
                self._output.fs.rm_file(self._path)
