"""Locks of the operating system on files: the kernel frees them when their process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
import uuid
import weakref
from functools import cache
from pathlib import Path

if sys.platform != "win32":
    import fcntl

_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, getattr(errno, "ENOTSUP", errno.EOPNOTSUPP), errno.EINVAL}
_PAUSE = 0.02  # seconds between two tries
_FLAGS = os.O_RDWR | os.O_CREAT | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW"))


class NoLocks(Exception):
    """The file system has no locks, as some network file systems."""


class FileLock:
    """A file that this process has locked, alone or `shared` with others. Children do not inherit the lock."""

    def __init__(self, path: Path, fd: int, shared: bool) -> None:
        self.path, self._fd, self._shared = path, fd, shared
        _held.add(self)

    @classmethod
    def acquire(cls, path: Path, shared: bool = False, wait: float = 0.0) -> FileLock | None:
        """Lock the file, which is made if it is not there; None if that cannot be had within `wait` seconds.

        Raises NoLocks where there are none, FileNotFoundError if its folder is not there, and other OSErrors if the
        file cannot be opened.
        """
        if sys.platform == "win32":
            raise NoLocks("Windows: a lock there also keeps others from reading and removing the file")
        until = time.monotonic() + wait
        while True:
            fd = os.open(path, _FLAGS, 0o666)
            try:
                is_locked = _lock(fd, shared)
                if not _is_at(fd, path):  # its holder has removed it since: the lock is on a file that is gone
                    continue
                if is_locked:
                    lock, fd = cls(path, fd, shared), -1
                    return lock
            except NoLocks:
                if os.fstat(fd).st_size == 0:
                    path.unlink(missing_ok=True)
                raise
            finally:
                if fd >= 0:
                    os.close(fd)
            if time.monotonic() >= until:
                return None
            time.sleep(_PAUSE)

    @property
    def identity(self) -> str:
        """The file and its kernel: no other file that is open anywhere has the same."""
        stat = os.fstat(self._fd)
        return f"{kernel()}:{stat.st_dev}:{stat.st_ino}"

    def release(self, remove: bool = True) -> None:
        """Unlock the file, and `remove` it unless it is shared with others."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError, NoLocks):
            # While it is locked alone, so that no other process's file is removed.
            if remove and (not self._shared or _lock(self._fd, shared=False)) and _is_at(self._fd, self.path):
                self.path.unlink()
        self._forget()

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1


@cache
def kernel() -> str:
    """This boot of this machine, containers included: under one kernel all processes see the same locks."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{uuid.getnode():012x}"


def _is_at(fd: int, path: Path) -> bool:
    """Whether the open file is still the one that is called `path`."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _lock(fd: int, shared: bool) -> bool:
    # Not lockf: those locks are lost as soon as anything in the process closes the same file.
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise NoLocks(str(error)) from error
        raise
    return True


def process_ids(path: Path) -> list[int]:
    """Processes of this machine that have the file open, as far as the system says."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.path.samefile(link, path):
                found.add(int(link.parts[2]))
    return sorted(found)


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock._forget()  # closing the copy leaves the parent's lock as it is; keeping it would outlive the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
