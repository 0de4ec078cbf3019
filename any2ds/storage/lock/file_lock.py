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


class FileLock:
    """A file that this process has locked, alone or shared with others. Children do not inherit the lock.

    Where there are no locks the `identity` is empty, and nobody is kept out: on some network disks, and on Windows,
    where a lock also keeps others from reading and removing the file.
    """

    def __init__(self, path: Path, fd: int = -1) -> None:
        self.path, self._fd = path, fd
        _held.add(self)

    @classmethod
    def acquire(cls, path: Path, shared: bool = False, wait: float = 0.0) -> FileLock | None:
        """Lock the file, which is made if it is not there; None if that cannot be had within `wait` seconds.

        Raises FileNotFoundError if its folder is not there, and other OSErrors if the file cannot be opened.
        """
        if sys.platform == "win32":
            return cls(path)
        until = time.monotonic() + wait
        while True:
            lock = cls(path, os.open(path, _FLAGS, 0o666))
            try:
                is_locked = _lock(lock._fd, shared)
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    lock.release()
                    return lock
                lock._forget()
                raise
            if is_locked and lock._is_at_path():  # else its holder has removed it since: this file is gone
                return lock
            lock._forget()
            if not is_locked and time.monotonic() >= until:
                return None
            time.sleep(_PAUSE)

    @property
    def identity(self) -> str:
        """The file and its kernel: no other file that is open anywhere has the same. Empty without a lock."""
        if self._fd < 0:
            return ""
        found = os.fstat(self._fd)
        return f"{kernel()}:{found.st_dev}:{found.st_ino}"

    def release(self, remove: bool = True) -> None:
        """Unlock the file, and remove it if it is empty and nobody else has it locked.

        On a disk that several machines share each may see its own locks alone: there a file that others share is kept
        without `remove`.
        """
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            if remove and not os.fstat(self._fd).st_size and self._is_alone() and self._is_at_path():
                self.path.unlink()
        self._forget()

    def _is_alone(self) -> bool:
        with contextlib.suppress(OSError):  # there are no locks
            return _lock(self._fd, shared=False)
        return True

    def _is_at_path(self) -> bool:
        """Whether the open file is still the one that has this path."""
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self.path, follow_symlinks=False))
        except FileNotFoundError:
            return False

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


def _lock(fd: int, shared: bool) -> bool:
    # Not lockf: those locks are lost as soon as anything in the process closes the same file.
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
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
