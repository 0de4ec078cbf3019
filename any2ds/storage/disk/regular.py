"""Opens files of a dataset, which may be a stranger's: a pipe in the place of a file would be waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, to be read. Raises OSError, also for whatever else lies there."""
    return open(path, "rb", opener=_open)


def check_regular(path: Path) -> None:
    """Raises OSError if there is something that is neither a file nor a folder."""
    if path.exists() and not path.is_dir() and not path.is_file():
        raise _no_file(path)


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # so that a pipe is not waited for
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # Python refuses a folder itself
        os.close(descriptor)
        raise _no_file(path)
    return descriptor


def _no_file(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "is a pipe, socket or device, and no file", os.fspath(path))
