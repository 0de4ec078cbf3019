"""How many files and sockets this process may have open, and how they are shared out.

The limit (`ulimit -n`) is the process's own, so running out of it is never the fault of a host, a network or a shard.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys

_WINDOWS_FILES = 8192  # handles are not limited there; this bounds open shards
_WINDOWS_SOCKETS = 500  # select() takes 512
_FOR_THE_REST = 20  # name servers, certificates, bodies on disk, and what a shard opens while it is published
_LEAST = 4  # connections, and shards, however few files may be open
_FILES_PER_SHARD = 2  # its data and a spool of its metadata
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})
_open_before = 0  # files that were open before the work began: pipes, logs, and what a caller of `download` has


def limit() -> int:
    """Files and sockets that may be open now."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return _WINDOWS_FILES
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def prepare() -> None:
    """Before work begins: allow as many files as the system grants, and count those that are open.

    The usual soft limits, 1024 on Linux and 256 on macOS, are for another age.
    """
    global _open_before
    with contextlib.suppress(OSError):  # Windows has no such folder
        _open_before = len(os.listdir("/dev/fd"))
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, 65536, 10240):  # macOS refuses what it calls unlimited
        if resource.RLIM_INFINITY not in (soft, wanted) and soft < wanted:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return


def open_shards() -> int:
    """Shards that may be open at a time: a quarter of the files."""
    return max(_LEAST, (limit() - _open_before) // 4 // _FILES_PER_SHARD)


def connections() -> int:
    """Sockets that all transfers of this process may have at a time, with the connections that are kept idle."""
    if sys.platform == "win32":
        return _WINDOWS_SOCKETS
    return max(_LEAST, limit() - _open_before - _FOR_THE_REST - _FILES_PER_SHARD * open_shards())


def is_exhausted(error: BaseException) -> bool:
    """Whether `error` says that no more files may be open, in this process or on this machine."""
    return isinstance(error, OSError) and error.errno in _EXHAUSTED


def are_exhausted() -> bool:
    """Whether no further file can be opened now, for libraries that do not say why they failed."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return is_exhausted(error)
    return False
