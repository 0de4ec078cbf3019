"""Tells whether it was this user who made a dataset with code of their own: else a retry does not run that unasked.

A run file travels with its dataset, and names the code of its steps: whoever gives a dataset away may have written
that. So the run file is signed with a key in the user's own folder, for the place where the dataset was made.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

_KEY_BYTES = 32


def signature(place: str, steps: Sequence[str]) -> str:
    """That this user made a dataset at `place`, the identity of its folder, with `steps`; "" without steps or a key."""
    if not steps:
        return ""
    key = _read_key() or _new_key()
    return _signed(key, place, steps) if key is not None else ""


def is_own(given: str, place: str, steps: Sequence[str]) -> bool:
    """Whether `given` is the signature of this user."""
    key = _read_key()
    return key is not None and hmac.compare_digest(
        _signed(key, place, steps).encode(), given.encode("utf-8", "replace")
    )


def _signed(key: bytes, place: str, steps: Sequence[str]) -> str:
    return hmac.new(key, "\0".join([place, *steps]).encode(), hashlib.sha256).hexdigest()


def _key_file() -> Path:
    """Raises RuntimeError for a user without a home."""
    home = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CONFIG_HOME")
    return Path(home or "~/.config").expanduser() / "any2ds" / "key"


def _read_key() -> bytes | None:
    try:
        key = _key_file().read_bytes()
    except (OSError, RuntimeError):
        return None
    return key if len(key) == _KEY_BYTES else None


def _new_key() -> bytes | None:
    """The key, made now; None where it cannot be kept: then a retry has to name the steps."""
    try:
        path = _key_file()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            try:
                os.link(temporary, path)  # complete, and in the place of no other one
            except OSError:  # there is one; or a damaged one, or a file system without links
                if _read_key() is None:
                    temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, RuntimeError):
        pass
    return _read_key()  # that of another process, if it was earlier
