"""Folders of this user in a folder that other users may write to, such as /tmp.

Their names can be predicted, so another user may have taken one before us, as a folder or as a link, in order to
replace what we put into it. Such a folder is never used.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


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
