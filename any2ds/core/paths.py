"""Paths on this machine as people write them."""

from __future__ import annotations

import os
from pathlib import Path

from any2ds.core.errors import UsageError


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with the home folder in place of `~`. Raises UsageError where the system knows none, as in containers
    that run under a number alone."""
    found = os.path.expanduser(path)
    if str(found).startswith("~") and (str(found) == "~" or "/" in str(found)):
        raise UsageError(f"{str(path)!r}: no home folder is known here: set HOME, or give a path without ~")
    return Path(found)
