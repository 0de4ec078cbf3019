"""The lock files of an output folder (`.any2ds/lock`): which run holds it, and that it lives."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass
from datetime import datetime

import orjson

from any2ds.core.errors import LockLost, OutputError, printable
from any2ds.storage.folders import OutputFolder

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
    host: str
    pid: int
    started: float  # Unix seconds, by its own clock
    file_lock: str = ""  # the file that its process has locked, on which machine; "" if there is none
    beat: int = 0  # grows while it lives

    @classmethod
    def of(cls, output: OutputFolder, lock_file: str) -> Holder | None:
        """The holder named in a lock file, by one attempt; None if the file is not there, or blank.

        Raises OutputError if it is of something else than any2ds, and whatever the file system raises.
        """
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE)
            content = output.look(lock_file) or b""
            if (holder := cls.parse(content)) is not None or not content.strip(b"\0 \r\n"):
                return holder
        raise OutputError(f"{output.url!r} holds a {lock_file} that any2ds did not write")

    @classmethod
    def parse(cls, content: bytes) -> Holder | None:
        """None if any2ds did not write this, or not to its end."""
        try:
            written = orjson.loads(content)["any2ds_lock"]
            return cls(**{**written, "started": float(written["started"])})
        except (ValueError, KeyError, TypeError):
            return None

    def is_dead(self, file_lock: str) -> bool:
        """Whether it surely is: this process has locked the same file, whose identity is `file_lock`."""
        return bool(file_lock) and self.file_lock == file_lock

    def to_bytes(self) -> bytes:
        return orjson.dumps({"any2ds_lock": asdict(self)}).ljust(_SIZE - 1) + b"\n"

    def __str__(self) -> str:
        since = ""
        with contextlib.suppress(OverflowError, ValueError, OSError):
            since = datetime.fromtimestamp(self.started).astimezone().strftime(", since %Y-%m-%d %H:%M:%S %z")
        return printable(f"{self.command}, process {self.pid} on {self.host}{since}")


def check_holder(output: OutputFolder, lock: LockRef) -> None:
    """Raises LockLost if the file names another run, or none."""
    holder = Holder.of(output, lock.file)
    if holder is None:
        raise LockLost(f"{output.url!r}: its {lock.file} was removed, so that others may be at work there")
    if holder.run != lock.run:
        silent = "because this one gave no sign of life for too long"
        raise LockLost(f"{output.url!r} was taken over by another run ({holder}), {silent}")
