"""Locks of the operating system on files: the kernel frees them when their process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import weakref
from pathlib import Path

_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, getattr(errno, "ENOTSUP", errno.EOPNOTSUPP), errno.EINVAL}
_FAR = 1 << 30  # the byte that Windows locks: locked bytes cannot be read, and the content should be


class NoLocks(Exception):
    """The file system has no locks, as some network file systems."""


class FileLock:
    """A locked file of this process; its content is for processes that find it locked. Not inherited by children."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd
        _held.add(self)

    @classmethod
    def take(cls, path: Path, content: bytes = b"", create: bool = True) -> FileLock | None:
        """Lock the file and write `content`, if any, into it; None if another has it locked, be it in this process.

        Raises NoLocks where there are none, FileNotFoundError if it is not there (without `create`) or its folder is
        not, and OSError if it cannot be opened.
        """
        flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        while True:
            fd = os.open(path, flags | (os.O_CREAT if create else 0), 0o666)
            try:
                locked = _lock(fd)
                if not _is_at(fd, path):  # its holder has removed it since: the lock is on a file that is gone
                    continue
                if not locked:
                    return None
                if content:
                    with contextlib.suppress(OSError):  # the content is not essential, and the disk may be full
                        os.ftruncate(fd, 0)
                        os.write(fd, content)
                lock, fd = cls(path, fd), -1
                return lock
            finally:
                if fd >= 0:
                    os.close(fd)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self, remove: bool = True) -> None:
        """Unlock it, and `remove` the file as well."""
        if self._fd < 0:
            return
        if sys.platform != "win32" and remove:  # while it is locked, so that no other process's file is removed
            with contextlib.suppress(OSError):
                if _is_at(self._fd, self.path):
                    self.path.unlink()
        self._forget()
        if sys.platform == "win32" and remove:
            with contextlib.suppress(OSError):  # another has it open already, and removes it in the end
                self.path.unlink()

    def _forget(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._fd)
        self._fd = -1


def _is_at(fd: int, path: Path) -> bool:
    """Whether the open file is still the one that is called `path`."""
    if sys.platform == "win32":
        return True  # what is open cannot be removed there
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int) -> bool:
        os.lseek(fd, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK, errno.EAGAIN):
                return False
            raise
        finally:
            os.lseek(fd, 0, os.SEEK_SET)
        return True

else:
    import fcntl

    def _lock(fd: int) -> bool:
        # Not lockf: those locks are lost as soon as anything in the process closes the same file.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                raise NoLocks(str(error)) from error
            raise
        return True


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock._forget()  # closing the copy leaves the parent's lock as it is; keeping it would outlive the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
