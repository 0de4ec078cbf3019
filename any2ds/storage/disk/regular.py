"""Opens files of a dataset, which may be a stranger's: a pipe in the place of a file would be waited for."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from any2ds.core.errors import OutputError


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, to be read. Raises OSError, also for whatever else lies there."""
    return open(path, "rb", opener=_open)


def check_regular(path: Path) -> None:
    """Raises OSError if there is something that is neither a file nor a folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not _is_file_or_folder(path.stat().st_mode):
            raise _no_file(path)


def refuse_link(path: Path) -> None:
    """Raises OutputError if a folder or file that is about to be written to is a link.

    A dataset may be somebody else's, whose links lead to files that are none of it.
    """
    if path.is_symlink():
        raise OutputError(
            f"{str(path)!r} is a link, and nothing is written or removed through a link in a dataset: put the"
            " folder or file itself there, or remove the link"
        )


def _open(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # so that a pipe is not waited for
    if not _is_file_or_folder(os.fstat(descriptor).st_mode):  # Python refuses a folder itself
        os.close(descriptor)
        raise _no_file(path)
    return descriptor


def _is_file_or_folder(mode: int) -> bool:
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _no_file(path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EINVAL, "is a pipe, socket or device, and no file", os.fspath(path))
