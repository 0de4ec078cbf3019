"""Keeps `max_per_host` and delays for all processes of this user on this machine together: the kernel counts.

A transfer to a host is a byte of a file, which its process locks for as long as the transfer lasts. So a process that
alone has rows of a host gets all of its slots, and the slots of a process that ends, however it ends, are free at once.
The files have no content but for hosts that want time between two requests: when the next one may start.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import sys
import tempfile
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from any2ds.core.errors import error_text
from any2ds.core.processes import open_files
from any2ds.storage.disk.staging import is_private, named_for_user

log = logging.getLogger(__name__)

MOST_SLOTS = 1 << 10  # of a host; a limit from here on holds for each process by itself
POLL = 0.03  # seconds between two tries at a slot while other processes have all of them
# A process uses a slot again and again for so many seconds, and then leaves it alone for long enough that another one
# looks at it: 1 % of the time of a host of which no other process has rows.
_TENURE, _REST = 5.0, 2 * POLL
_BYTES_PER_HOST = 1 << 16  # slots, then this one
_CLOCK = _BYTES_PER_HOST - 1
_REMEMBERED = 4096  # slots of which it is known since when they are used
_STARTS = 1 << 12  # places in a file for the next start at a host, which hosts may have to share
_NEXT_START = struct.Struct("<Qd")  # hash of the host's name, time.monotonic()
_BEHIND_STARTS = _STARTS * _NEXT_START.size  # where locks begin: on Windows nobody else can read a locked byte
_FILES = 64  # the kernel looks through all locks of a file: 1.8 ms with 20,000 of them
_OF_ALL_FILES = 8  # one in so many of the files that may be open is for slots; beyond that, unused ones are closed
_TOUCH = 3600.0  # seconds between two touches of a file: what nobody touches for days is removed from /tmp
_REOPEN = 60.0  # seconds until a file that could not be opened is tried again
_NO_SLOT = -1
_FLAGS = os.O_RDWR | os.O_CREAT | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY"))


def _offset(slot: int) -> int:
    """The byte of its file that stands for a slot."""
    host, number = divmod(slot, _BYTES_PER_HOST)
    return _BEHIND_STARTS + host // _FILES * _BYTES_PER_HOST + number


if sys.platform == "win32":
    import msvcrt

    _HOSTS = _FILES << 14  # the locks of C's library there end at 2 GiB; hosts that share a number share their slots

    def _lock(fd: int, slot: int) -> bool:
        """Whether the slot is locked for this process now."""
        os.lseek(fd, _offset(slot), os.SEEK_SET)
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EDEADLK, errno.EAGAIN):
                return False
            raise
        return True

    def _unlock(fd: int, slot: int) -> None:
        os.lseek(fd, _offset(slot), os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

    def _read(fd: int, size: int, offset: int) -> bytes:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)

    def _write(fd: int, content: bytes, offset: int) -> None:
        os.lseek(fd, offset, os.SEEK_SET)
        os.write(fd, content)

else:
    import fcntl

    _HOSTS = 1 << 32

    def _lock(fd: int, slot: int) -> bool:
        """Whether the slot is locked for this process now."""
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _offset(slot))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        return True

    def _unlock(fd: int, slot: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, _offset(slot))

    _read, _write = os.pread, os.pwrite


@dataclass(slots=True)
class _File:
    descriptor: int | None  # None: it could not be opened
    look_at: float  # time.monotonic() from which it is to be touched, or opened after all


class HostSlots:
    """Locks of the files of one folder, by default that of this user among the temporary ones. There has to be one
    object for a folder in a process: POSIX gives locks to processes, not to those who asked, and takes all of them back
    when anybody closes the file. May be used by several threads."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._files: dict[int, _File] = {}  # by their numbers, as far as they are needed
        self._is_warned = False
        self._forget()

    def _forget(self) -> None:
        """Hold nothing: a forked process inherits no locks of the kernel, and its guard is locked."""
        self._guard = threading.Lock()
        self._held: set[int] = set()
        self._used_since: dict[int, float] = {}  # slot -> since when it is used with no rest in between
        self._resting: dict[int, float] = {}  # slot -> until when it is left to others

    def _pause(self) -> None:
        self._guard.acquire()

    def _resume(self) -> None:
        self._guard.release()

    def acquire(self, host: str, limit: int, delay: float) -> tuple[int | None, float]:
        """A slot for a transfer to `host`, which allows `limit` at a time and wants `delay` seconds between two starts;
        or None, and the seconds until it is worth another try. Never waits."""
        with self._guard:
            number = zlib.crc32(host.encode("utf-8", "replace"))
            first = number % _HOSTS * _BYTES_PER_HOST
            file = self._opened(number % _FILES)
            if file is None:
                return _NO_SLOT, 0.0
            try:
                if delay:
                    return self._acquire_in_time(file, number, first, limit, delay)
                return self._acquire_slot(file, first, limit)
            except OSError as error:
                self._warn(error)
                return _NO_SLOT, 0.0

    def release(self, slot: int) -> None:
        """The transfer has ended."""
        with self._guard:
            if slot not in self._held:  # none was needed, or this is a forked process
                return
            file = self._files[slot // _BYTES_PER_HOST % _FILES].descriptor
            assert file is not None
            try:
                self._release_slot(file, slot)
            except OSError as error:
                self._warn(error)

    def _acquire_in_time(
        self, file: int, number: int, first: int, limit: int, delay: float
    ) -> tuple[int | None, float]:
        """A slot of a host that wants time between two starts, if that has passed."""
        if not self._acquire_byte(file, first + _CLOCK):  # another process is just looking
            return None, POLL
        try:
            place = number // _FILES % _STARTS * _NEXT_START.size
            wait = self._seconds_left(file, place, number, delay)
            if wait > 0:
                return None, wait
            slot, wait = self._acquire_slot(file, first, limit)
            if slot is not None:
                try:
                    _write(file, _NEXT_START.pack(number, time.monotonic() + delay), place)
                except OSError:  # a full disk
                    if slot in self._held:
                        self._release_byte(file, slot)
                    raise
            return slot, wait
        finally:
            try:
                self._release_byte(file, first + _CLOCK)
            except OSError as error:  # the caller is to have the slot all the same
                self._warn(error)

    def _release_slot(self, file: int, slot: int) -> None:
        self._release_byte(file, slot)
        now = time.monotonic()
        if now - self._used_since.get(slot, now) > _TENURE:
            del self._used_since[slot]
            if len(self._resting) >= _REMEMBERED:
                self._resting.clear()
            self._resting[slot] = now + _REST

    def _acquire_slot(self, file: int, first: int, limit: int) -> tuple[int | None, float]:
        if limit >= MOST_SLOTS:
            return _NO_SLOT, 0.0
        slot = self._lowest_free_slot(file, first, limit)
        return slot, POLL if slot is None else 0.0

    def _lowest_free_slot(self, file: int, first: int, limit: int) -> int | None:
        now = time.monotonic()
        for slot in range(first, first + limit):
            if slot in self._held or self._resting.get(slot, 0.0) > now:
                continue
            if self._acquire_byte(file, slot):
                self._resting.pop(slot, None)
                if len(self._used_since) >= _REMEMBERED:
                    self._used_since.clear()
                self._used_since.setdefault(slot, now)
                return slot
            self._used_since.pop(slot, None)
        return None

    def _seconds_left(self, file: int, place: int, number: int, delay: float) -> float:
        """Until the next start. What another host has written there, or another boot of the machine, says nothing."""
        content = _read(file, _NEXT_START.size, place)
        if len(content) < _NEXT_START.size:
            return 0.0
        written_by, next_start = _NEXT_START.unpack(content)
        return min(delay, next_start - time.monotonic()) if written_by == number else 0.0

    def _acquire_byte(self, file: int, byte: int) -> bool:
        if byte in self._held or not _lock(file, byte):
            return False
        self._held.add(byte)
        return True

    def _release_byte(self, file: int, byte: int) -> None:
        self._held.discard(byte)
        _unlock(file, byte)

    def _opened(self, number: int) -> int | None:
        """The descriptor of a file, or None where there can be no locks."""
        now = time.monotonic()
        file = self._files.get(number)
        if file is None or (file.descriptor is None and file.look_at <= now):
            if len(self._files) >= open_files.limit() // _OF_ALL_FILES:
                self._close_unused()
            file = self._files[number] = _File(self._open(number), now)
            file.look_at += _REOPEN if file.descriptor is None else 0.0
        if file.descriptor is not None and file.look_at <= now:
            file.look_at = now + _TOUCH
            if os.utime in os.supports_fd:
                with suppress(OSError):
                    os.utime(file.descriptor)
        return file.descriptor

    def _close_unused(self) -> bool:
        """Close the files in which this process has locked nothing; whether there were any."""
        in_use = {byte // _BYTES_PER_HOST % _FILES for byte in self._held}
        unused = [self._files.pop(number).descriptor for number in self._files.keys() - in_use]
        for descriptor in unused:
            if descriptor is not None:
                os.close(descriptor)
        return any(descriptor is not None for descriptor in unused)

    def _open(self, number: int) -> int | None:
        try:
            if self._folder is None:
                self._folder = named_for_user(Path(tempfile.gettempdir()), "any2ds-hosts")
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if not is_private(self._folder):
                raise PermissionError(f"{self._folder} belongs to somebody else")
            file = os.open(self._folder / f"slots-{number:02}", _FLAGS, 0o600)
            try:
                if _lock(file, _CLOCK):
                    _unlock(file, _CLOCK)
            except OSError:
                os.close(file)
                raise
            return file
        except OSError as error:
            if open_files.is_exhausted(error) and self._close_unused():
                return self._open(number)
            self._warn(error)
            return None

    def _warn(self, error: OSError) -> None:
        """Say once that this process counts alone, at least for now."""
        if not self._is_warned:
            self._is_warned = True
            log.warning(
                "limits of hosts hold for each process by itself, since nothing can be locked in %s (%s)",
                self._folder or "a temporary folder",
                error_text(error),
            )


HOST_SLOTS = HostSlots()
"""The slots of this process."""

if hasattr(os, "register_at_fork"):
    # No fork in the middle of an acquire: the temporary folder is looked up under a lock of `tempfile`.
    os.register_at_fork(before=HOST_SLOTS._pause, after_in_parent=HOST_SLOTS._resume, after_in_child=HOST_SLOTS._forget)
