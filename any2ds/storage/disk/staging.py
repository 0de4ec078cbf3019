"""Folders for files that are made before they are published, each of one process, and small files by themselves.

`mkdtemp` makes the folders, so that in /tmp no other user can prepare one or write in it. All names have the tag of a
run: who has the locks of that run removes what its killed processes have left.

Where a name can be predicted, another user may have made a folder or a link of that name before us, in order to replace
what we put into it: it is used only if it is private.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from any2ds.core.layout import STATE_FOLDER

Made = TypeVar("Made")

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_TRIES = 100  # at a folder whose parent others may be removing at the same time


@contextmanager
def staging(root: Path, tag: str) -> Iterator[Path]:
    """A new folder in `root`, for this process alone."""
    folder = _made_in(root, lambda: Path(tempfile.mkdtemp(prefix=f"any2ds-{tag}-", dir=root)))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _remove_if_empty(root)


@contextmanager
def staged_file(root: Path, tag: str, data: bytes) -> Iterator[Path]:
    """A new file in `root`, the folder of a dataset for this, which is removed unless it has got another name."""
    path = root / f"any2ds-{tag}-{secrets.token_hex(8)}"

    def write() -> None:
        with open(path, "xb") as file:  # with the rights that files get here: it is going to be published
            file.write(data)

    try:
        _made_in(root, write)
        yield path
    finally:
        path.unlink(missing_ok=True)
        _remove_if_empty(root)


def _made_in(root: Path, make: Callable[[], Made]) -> Made:
    """What `make` makes in a folder, which is there then."""
    for _ in range(_TRIES):
        # Others may just be removing what is empty, also while `mkdir` looks what it is that is there already.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            root.mkdir(parents=True, exist_ok=True)
            return make()
    root.mkdir(parents=True, exist_ok=True)  # there can be none, as below /proc, an automounter's root, or a file
    raise FileNotFoundError(f"{root} is removed repeatedly")


def sweep(root: Path, tag: str) -> None:
    """Remove what the processes of a run have left, none of which lives any more."""
    with contextlib.suppress(OSError):  # not there, or just removed
        for staged in list(root.glob(f"any2ds-{tag}-*")):
            if is_private(staged) or not staged.is_dir():
                remove(staged)
    _remove_if_empty(root)


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


def named_for_user(folder: Path, name: str) -> Path:
    """The path of a private folder of this user, `name` and the user's number, in `folder`."""
    user = os.geteuid() if sys.platform != "win32" else "all"
    return folder / f"{name}-{user}"


def is_private(folder: Path) -> bool:
    """Whether this is a folder of this user, no link to one, in which no other user may write."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    if sys.platform == "win32":  # the temporary folder there is the user's own
        return stat.S_ISDIR(found.st_mode)
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_ours and not found.st_mode & _WRITABLE_BY_OTHERS
