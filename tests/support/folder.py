"""What lies in the folder of a dataset, for tests."""

from __future__ import annotations

import os
from pathlib import Path

from any2ds.core.layout import STATE_FOLDER


def names_in(folder: Path) -> set[str]:
    """What lies directly in it, and in its folder for the state: `00000.tar`, `.any2ds/run`; empty if it is not there.

    The folder for the state is named only if it is empty.
    """
    path = folder / STATE_FOLDER
    found = set(os.listdir(folder)) if folder.is_dir() else set()
    state = {f"{STATE_FOLDER}/{name}" for name in os.listdir(path)} if path.is_dir() else set()
    return (found - {STATE_FOLDER} if state else found) | state


def files_in(folder: Path) -> dict[str, bytes]:
    """What is in the files that are named so."""
    return {name: (folder / name).read_bytes() for name in names_in(folder) if (folder / name).is_file()}
