"""Folders for files that are made before they are published: each of one process, removed at the end.

`mkdtemp` makes them, so that in /tmp no other user can prepare one or write in it. Their names have the tag of a run:
who has the locks of that run removes what its killed processes have left.
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

_TRIES = 100  # at a folder whose parent others may be removing at the same time


@contextmanager
def staging(root: Path, tag: str) -> Iterator[Path]:
    """A new folder in `root`, for this process alone."""
    folder = _new_folder(root, tag)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _remove_if_empty(root)


def _new_folder(root: Path, tag: str) -> Path:
    for _ in range(_TRIES):
        # Others may just be removing what is empty, also while `mkdir` looks what it is that is there already.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            root.mkdir(parents=True, exist_ok=True)
            return Path(tempfile.mkdtemp(prefix=f"any2ds-{tag}-", dir=root))
    root.mkdir(parents=True, exist_ok=True)  # there can be none, as below /proc, an automounter's root, or a file
    raise FileNotFoundError(f"{root} is removed repeatedly")


def sweep(root: Path, tag: str) -> None:
    """Remove what the processes of a run have left, none of which lives any more."""
    with contextlib.suppress(OSError):  # not there, or just removed
        for folder in list(root.glob(f"any2ds-{tag}-*")):
            if is_private(folder):
                shutil.rmtree(folder, ignore_errors=True)
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
