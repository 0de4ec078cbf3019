"""Where a story's dataset goes: a folder, a small disk, or a bucket of an S3 server that fails."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from tests.support.crash.moments import Look


class Place(Protocol):
    """Can be looked at while a run is at work in it."""

    url: str  # for --output_folder
    environment: Mapping[str, str]  # what a run needs beside its own

    def look(self) -> Look: ...

    def dataset(self) -> Path:
        """A local folder with what is there now."""
        ...

    def change(self, name: str, content: bytes | None) -> None:
        """Write a file over, or remove it."""
        ...


class Folder:
    """On a disk of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = str(path)
        self.environment: Mapping[str, str] = {}

    def look(self) -> Look:
        return Look.at(self.path)

    def dataset(self) -> Path:
        return self.path

    def change(self, name: str, content: bytes | None) -> None:
        if content is None:
            (self.path / name).unlink()
        else:
            (self.path / name).write_bytes(content)


class SmallDisk(Folder):
    """A folder on a disk of its own, in memory, which can be made larger."""

    def __init__(self, mounted: Path, size: int) -> None:
        super().__init__(mounted / "dataset")
        self._mounted = mounted
        self.size = size  # bytes

    def grow(self, by: int) -> None:
        self.size += by
        _mount("-o", f"remount,size={self.size}", str(self._mounted))


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """Needs to be allowed to mount, as root is, or whoever was started by `unshare -Urm`."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size}", "any2ds-crash-test", str(folder))
    try:
        yield SmallDisk(folder, size)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, capture_output=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def may_mount(scratch: Path) -> bool:
    """Whether `small_disk` works here."""
    if shutil.which("mount") is None:
        return False
    try:
        with small_disk(scratch / "probe", 1 << 20):
            return True
    except (subprocess.CalledProcessError, OSError):
        return False
    finally:
        with contextlib.suppress(OSError):
            (scratch / "probe").rmdir()
