"""Which file system is behind a scheme: fsspec's, or ours where theirs cannot be used by threads or does not heal."""

from __future__ import annotations

import logging
from typing import Any

import fsspec

# They log failures with tracebacks; the exceptions hold the same, and failures are common on a network.
for _library in ("paramiko", "gcsfs"):
    logging.getLogger(_library).addHandler(logging.NullHandler())  # else Python prints it


def filesystem_class(scheme: str) -> Any:
    """Raises ImportError if its library is missing, ValueError for an unknown scheme."""
    return own_class(scheme) or fsspec.get_filesystem_class(scheme)


def own_class(scheme: str) -> Any:
    """Ours for this scheme, if we have one. Raises ImportError if its library is missing."""
    if scheme in ("sftp", "ssh"):
        from any2ds.storage.sftp import SftpFileSystem

        return SftpFileSystem
    return None
