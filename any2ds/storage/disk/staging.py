"""Temporary files and folders, each made for one process, which holds a lock on it while it lives.

The kernel frees the lock when the process ends, however it ends: what has a free lock is garbage. Names have a tag of
the machine, as a network disk may not show the locks of another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeVar

from any2ds.core.layout import STATE_FOLDER
from any2ds.storage.lock.file_lock import FileLock, kernel

Made = TypeVar("Made")

_IN_USE = ".in-use"  # in each of the folders, locked
_TRIES = 100  # at a folder whose parent others may be removing at the same time
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def staging(root: Path) -> AbstractContextManager[Path]:
    """A new folder in `root`, for this process alone."""
    return _held(root, _locked_folder)


def temporary_file(root: Path) -> AbstractContextManager[Path]:
    """A path in `root` to write to, for this process alone; removed at the end unless the file was moved away."""
    return _held(root, _locked_file)


@contextmanager
def _held(root: Path, make: Callable[[Path], tuple[Path, FileLock]]) -> Iterator[Path]:
    path, lock = made_in(root, lambda: make(root))
    try:
        yield path
    finally:
        remove(path)
        lock.release(remove=False)
        remove_unused(root)


def _locked_folder(root: Path) -> tuple[Path, FileLock]:
    folder = Path(tempfile.mkdtemp(prefix=_prefix(), dir=root))
    return folder, _locked(folder / _IN_USE)


def _locked_file(root: Path) -> tuple[Path, FileLock]:
    path = root / f"{_prefix()}{secrets.token_hex(8)}"
    return path, _locked(path)


def _locked(path: Path) -> FileLock:
    """Raises FileNotFoundError if another process took the file for garbage before it was locked."""
    lock = FileLock.acquire(path)
    if lock is None:
        raise FileNotFoundError(path)
    return lock


def made_in(root: Path, make: Callable[[], Made]) -> Made:
    """The result of `make`, which is called again where its folder has to be made first."""
    for _ in range(_TRIES):
        # Others may just be removing what is empty, also while `mkdir` looks what it is that is there already.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            root.mkdir(parents=True, exist_ok=True)
            return make()
    root.mkdir(parents=True, exist_ok=True)  # there can be none, as below /proc, an automounter's root, or a file
    raise FileNotFoundError(f"{root} is removed repeatedly")


def remove_unused(root: Path) -> None:
    """Remove the folder for temporary files in a dataset if it is empty, and the one for its state."""
    with contextlib.suppress(OSError):
        if root.parent.name == STATE_FOLDER:
            root.rmdir()
            root.parent.rmdir()


def sweep(root: Path) -> None:
    """Remove the files and folders of dead processes of this machine and user."""
    for path in root.glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):  # just removed, or another user's
            if path.is_dir() and not is_private(path):
                continue
            lock = FileLock.acquire(path / _IN_USE if path.is_dir() else path)
            if lock is not None:
                if lock.identity:
                    remove(path)
                lock.release()
    remove_unused(root)


def _prefix() -> str:
    return f"any2ds-{hashlib.sha256(kernel().encode()).hexdigest()[:8]}-"


def remove(staged: Path) -> None:
    """Remove a staged file or folder, if it is there."""
    if staged.is_dir():
        shutil.rmtree(staged, ignore_errors=True)
    else:
        staged.unlink(missing_ok=True)


def named_for_user(folder: Path, name: str) -> Path:
    """The path of a private folder of this user, `name` and the user's number, in `folder`."""
    user = os.geteuid() if sys.platform != "win32" else "all"
    return folder / f"{name}-{user}"


def is_private(folder: Path) -> bool:
    """Whether this is a folder of this user, no link to one, in which no other user may write.

    Where a name can be predicted, another user may have made a folder or a link of that name before us, in order to
    replace what we put into it.
    """
    try:
        found = folder.lstat()
    except OSError:
        return False
    if sys.platform == "win32":  # the temporary folder there is the user's own
        return stat.S_ISDIR(found.st_mode)
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and not found.st_mode & _WRITABLE_BY_OTHERS
