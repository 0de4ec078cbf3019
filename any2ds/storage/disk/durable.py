"""Makes sure that a disk has what it was given, so that it is there after a power failure too."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

_TOGETHER = 8  # files flushed at once: file systems then write their journal once for several

# Some file systems (FUSE, network drives) cannot flush, or not folders; then there is nothing that could be done.
_CANNOT = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF}
_CANNOT_FOLDER = _CANNOT | {errno.EACCES, errno.EPERM, errno.EISDIR}


def flush(path: Path) -> None:
    """A file, or a folder with all that is in it, goes to the disk. Raises OSError if the disk does not take it."""
    if not path.is_dir():
        _flush(path, _CANNOT)
        return
    folders, files = [str(path)], list[str]()
    for folder in folders:  # which grow
        with os.scandir(folder) as entries:
            for entry in entries:
                (folders if entry.is_dir(follow_symlinks=False) else files).append(entry.path)

    def flush_share(number: int) -> None:
        for file in files[number::_TOGETHER]:
            _flush(file, _CANNOT)

    # A share of them for each thread: to hand over each file alone took most of the time.
    with ThreadPoolExecutor(_TOGETHER, thread_name_prefix="any2ds-flush") as pool:
        for _ in pool.map(flush_share, range(min(_TOGETHER, len(files)))):
            pass
    for folder in reversed(folders):
        flush_folder(folder)


def flush_folder(folder: Path | str) -> None:
    """The names in it, as they are now; that of the folder itself is another folder's matter."""
    if sys.platform != "win32":  # which cannot, and whose file systems write names by themselves
        _flush(folder, _CANNOT_FOLDER)


def make_folders(folder: Path) -> list[Path]:
    """Make it, with those above it as far as they are missing. The folders that have got a new name in them."""
    missing = list(takewhile(lambda path: not path.is_dir(), (folder, *folder.parents)))
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
    return [path.parent for path in missing]


def _flush(path: Path | str, cannot: set[int]) -> None:
    try:
        # Windows flushes only what is open for writing.
        descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
        try:
            _flush_descriptor(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in cannot:
            raise


def _flush_descriptor(descriptor: int) -> None:
    """On macOS `fsync` hands the data to the drive, which may keep them in its memory: F_FULLFSYNC does not."""
    if sys.platform == "darwin":
        import fcntl

        with contextlib.suppress(OSError):  # network drives do not know it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)
