"""The lock files of an output folder (`.any2ds/lock`): their content, and how each kind of store writes them."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from any2ds.core import layout
from any2ds.core.errors import OutputError, printable
from any2ds.storage.disk.regular import refuse_link
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.owner import Owner
from any2ds.storage.stores import is_object_store

_SIZE = 1024  # bytes of the file: always as many, so that it can be written in place, even on a full disk
_TRIES = 5  # to read it, where it may be caught half written
_PAUSE = 0.05  # seconds between two of them


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
    started: float  # Unix seconds, by its own clock
    owner: Owner
    beat: int = 0  # grows while it lives

    @classmethod
    def parse(cls, content: bytes) -> Holder | None:
        """None if any2ds did not write this, or not to its end."""
        try:
            written = orjson.loads(content)["any2ds_lock"]
            return cls(**{**written, "owner": Owner(**written["owner"]), "started": float(written["started"])})
        except (ValueError, KeyError, TypeError):
            return None

    def to_bytes(self) -> bytes:
        return orjson.dumps({"any2ds_lock": asdict(self)}).ljust(_SIZE - 1) + b"\n"

    def __str__(self) -> str:
        with contextlib.suppress(OverflowError, ValueError, OSError):
            since = datetime.fromtimestamp(self.started).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
            return printable(f"{self.command}, process {self.owner.pid} on {self.owner.host}, since {since}")
        return printable(f"{self.command}, process {self.owner.pid} on {self.owner.host}")


def is_blank(content: bytes) -> bool:
    """Whether it was created and never written, as a power failure may leave it."""
    return not content.strip(b"\0 \r\n")


class LockFile:
    """A lock file of one output folder. Its methods raise whatever the file system raises."""

    def __init__(self, output: OutputFolder, name: str = layout.LOCK_FILE) -> None:
        self._output, self.name = output, name
        self.folder = output.url
        self._path = Path(output.path) / name if output.is_local else None

    def read(self) -> bytes | None:
        """None if there is none. Raises OutputError if it is of something else than any2ds."""
        content = None
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE)
            content = self._output.read(self.name)
            if content is None or is_blank(content) or Holder.parse(content) is not None:
                return content
        raise OutputError(f"{self._output.url!r} holds a {self.name} that any2ds did not write")

    def holder(self) -> Holder | None:
        """Its holder; None if it is not there, or blank."""
        content = self.read()
        return None if content is None else Holder.parse(content)

    def create(self, content: bytes) -> bool:
        """Write it where there is none. Returns whether it is certain that no other process did so at the same moment.

        Raises FileExistsError if there is one.
        """
        if self._path is not None:
            with open(self._path, "xb") as stream:
                try:
                    _write(stream, content)
                except BaseException:  # such as a full disk; no other process has written to it
                    stream.close()
                    self._path.unlink(missing_ok=True)
                    raise
            return True
        if not is_object_store(self._output.fs):
            self._output.put(self.name, content)
            return False
        return self._create_object(content)

    def _create_object(self, content: bytes) -> bool:
        """As `create`. A store may refuse what it has taken: if its first answer was lost, it is asked again."""
        first_error: Exception | None = None
        try:
            self._pipe_new(content)
        except Exception as error:
            first_error = error
        found = self._output.read(self.name)
        if found != content:
            if found is not None:
                raise FileExistsError(self.name) from first_error
            self._output.put(self.name, content)  # perhaps it does not know how to make what is new only
            return False
        try:
            self._pipe_new(content)  # a store that takes this as well does not know what "new" means
        except Exception:
            return True
        return False

    def _pipe_new(self, content: bytes) -> None:
        self._output.put(self.name, content, new=True)

    def write(self, content: bytes) -> None:
        """Write over one that is there."""
        if self._path is not None:
            refuse_link(self._path)
            with open(self._path, "r+b") as stream:  # in place: processes that have it open see the change
                _write(stream, content)
        else:
            self._output.put(self.name, content)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._output.remove(self.name)


def _write(stream: Any, content: bytes) -> None:
    stream.write(content)
    stream.flush()
    os.fsync(stream.fileno())  # other machines see it then
