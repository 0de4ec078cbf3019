"""Where shards are written before they are published: a folder of each process alone, removed at the end.

In each folder lies a file that its process has locked for as long as it lives: so what killed processes of this machine
have left is known. `mkdtemp` makes the folders, so that in /tmp no other user can prepare one or write in it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from any2ds.core.layout import STATE_FOLDER
from any2ds.storage.disk.private import is_private
from any2ds.storage.lock.file_lock import FileLock, NoLocks, kernel

_LOCK = ".lock"
_PREFIX = f"any2ds-{kernel()[:8]}-"  # locks of other machines may not be seen here
_TRIES = 100  # at a folder whose parent others may be removing at the same time


@contextmanager
def staging(root: Path) -> Iterator[Path]:
    """A new folder in `root`, for this process alone."""
    folder, lock = _new_folder(root)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            lock.release(remove=False)
        _remove_if_empty(root)


def _new_folder(root: Path) -> tuple[Path, FileLock | None]:
    for last in reversed(range(_TRIES)):
        try:
            root.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
            if (lock := FileLock.acquire(folder / _LOCK)) is not None:
                return folder, lock
        except NoLocks:
            return folder, None
        # Others may just be removing what is empty, also while `mkdir` looks what it is that is there already.
        except (FileNotFoundError, FileExistsError):
            if last == 0:  # there can be no such folder, as below /proc, an automounter's root, or a file
                raise
    raise FileNotFoundError(f"{root} is removed repeatedly")


def sweep(root: Path) -> None:
    """Remove what processes of this machine that are gone have left."""
    for folder in _folders(root):
        with _free(folder) as is_free:
            if is_free:
                shutil.rmtree(folder, ignore_errors=True)
    _remove_if_empty(root)


def staged(root: Path) -> tuple[list[str], list[str]]:
    """The staging folders that lie there, by name: those of processes that are gone, and the others."""
    gone: list[str] = []
    others: list[str] = []
    for folder in _folders(root):
        with _free(folder) as is_free:
            (gone if is_free else others).append(folder.name)
    return gone, others


def _folders(root: Path) -> list[Path]:
    with contextlib.suppress(OSError):  # not there, or just removed
        return [folder for folder in sorted(root.glob("any2ds-*-*")) if is_private(folder)]
    return []


@contextmanager
def _free(folder: Path) -> Iterator[bool]:
    """Whether the process that a staging folder is for has ended; its lock is held meanwhile."""
    lock = None
    if folder.name.startswith(_PREFIX):
        with contextlib.suppress(OSError, NoLocks):
            lock = FileLock.acquire(folder / _LOCK)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release(remove=False)


def remove(staged: Path) -> None:
    """Remove a staged file or folder, if it is there."""
    if staged.is_dir():
        shutil.rmtree(staged, ignore_errors=True)
    else:
        staged.unlink(missing_ok=True)


def _remove_if_empty(root: Path) -> None:
    """The folder for staging in a dataset, and the one for its state, which may be none of any2ds."""
    with contextlib.suppress(OSError):
        if root.parent.name == STATE_FOLDER:
            root.rmdir()
            root.parent.rmdir()
