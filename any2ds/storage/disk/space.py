"""Room on disks: how much there is, how much is to stay free, and saying that a disk is full."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from any2ds.core.errors import DiskFull, is_full

# Enough to finish shards that are complete, and for other programs that write there, while somebody makes room.
LEAST_FREE = 256 << 20  # bytes
_LEAST_SHARE = 50  # of small disks, one part in so many


class Room:
    """The room on the disk of `folder`, which need not exist yet.

    `least` bytes of it are to stay free; with None it is what is sensible for a disk of its size. `way_out` is what
    a user can do when there is no room, beside making some.
    """

    def __init__(self, folder: Path, least: int | None, way_out: str) -> None:
        self._folder, self._least, self._way_out = folder, least, way_out

    def check(self, wanted: int = 0) -> None:
        """Raises DiskFull if, with `wanted` bytes more, less would be free than is to stay free."""
        usage = self._usage()
        if usage is None:
            return
        total, free = usage
        least = min(LEAST_FREE, total // _LEAST_SHARE) if self._least is None else self._least
        if free - wanted < least or not free:
            raise DiskFull(str(self._folder), free, least, self._way_out)

    def full(self, error: BaseException) -> DiskFull:
        """The error to raise for `error`, which means that the disk is full."""
        if isinstance(error, DiskFull):
            return error
        usage = self._usage()
        return DiskFull(str(self._folder), usage and usage[1], 0, self._way_out, not self._takes_files())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises DiskFull for whatever goes wrong because the disk is full."""
        try:
            yield
        except Exception as error:
            if not is_full(error):
                raise
            raise self.full(error) from error

    def _usage(self) -> tuple[int, int] | None:
        """Bytes of the disk, and those that are free; None if it does not know, as some network drives do not."""
        try:
            usage = shutil.disk_usage(_existing(self._folder))
        except OSError:
            return None
        return (usage.total, usage.free) if usage.total else None

    def _takes_files(self) -> bool:
        """Whether there can be more files, however small."""
        try:
            found = os.statvfs(_existing(self._folder))
        except (AttributeError, OSError):  # Windows has no such call
            return True
        return not found.f_files or found.f_favail > 0


class RemoteSpace(Room):
    """The space of a store behind a URL, which cannot be queried."""

    def __init__(self, url: str) -> None:
        super().__init__(Path(), None, "choose another output_folder")
        self._url = url

    def check(self, wanted: int = 0) -> None:
        """The store reports when there is none."""

    def full(self, error: BaseException) -> DiskFull:
        return error if isinstance(error, DiskFull) else DiskFull(self._url, None, 0, self._way_out)


def _existing(folder: Path) -> Path:
    return next((path for path in (folder, *folder.parents) if path.exists()), folder)
