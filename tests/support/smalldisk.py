"""A disk with little room, for tests: a real one wherever one can be mounted."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LARGE = "remount,size=1g"


class SmallDisk:
    """`folder` is on it. `min_free_bytes` belongs to the options of a run that is to notice that it is small."""

    folder: Path

    @property
    def min_free_bytes(self) -> int:
        return 0

    def grow(self) -> None:
        """From now on there is plenty of room."""
        raise NotImplementedError


class Mounted(SmallDisk):
    """A file system in memory, which `grow` makes larger."""

    def __init__(self, folder: Path, grow: Callable[[], None]) -> None:
        self.folder, self._grow = folder, grow

    def grow(self) -> None:
        self._grow()


class Pretended(SmallDisk):
    """Where nothing can be mounted: more of a big disk is to stay free than there is, so that a run cannot begin."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self._least = 2 * shutil.disk_usage(folder).free

    @property
    def min_free_bytes(self) -> int:
        return self._least

    def grow(self) -> None:
        self._least = 0


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[SmallDisk]:
    """A disk of `size` bytes: mounted if this process may, else pretended."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "any2ds-test", str(folder)]
    folder.mkdir()
    if _works(*mount):
        try:
            yield Mounted(folder, lambda: _run("mount", "-o", _LARGE, str(folder)))
        finally:
            _run("umount", "--lazy", str(folder))
        return
    folder.rmdir()
    yield Pretended(folder)


def _works(*command: str) -> bool:
    try:
        _run(*command)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
