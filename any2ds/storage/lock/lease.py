"""A lease on a lock file: it names its holder and, while that lives, changes at intervals.

Other runs watch whether it changes; no clock of another machine is trusted. Where a store can, the file is written only
if it still is what its writer has seen: S3 by its ETag, Google by its generation. On disks and file servers, and in
other stores, the last one to write it has it.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from any2ds.core.errors import LockLost, OutputInUse, error_text
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.lock_file import Holder, LockRef, check_holder
from any2ds.storage.patience import BRIEF, persist

log = logging.getLogger(__name__)

_NO_VERSION = "1"  # which no file has
_INTERRUPTED = 2.0  # seconds that a run which is broken off waits for a request that is under way
_CLOSE = 10.0  # seconds that the last request may take when the run ends


@dataclass(frozen=True, slots=True)
class Intervals:
    """The times of a lock, all in seconds."""

    beat: float = 10.0  # between two signs of life in `.any2ds/lock`
    stale: float = 40.0  # without one: its holder is dead
    look: float = 1.0  # between two looks while waiting
    # Where a file can be written over one that its writer has not seen: until another run, which was writing at the
    # same moment, must have been overwritten or seen, and no worker trusts what it has read before.
    settle: float = 3.0
    orphans: float = 30.0  # that workers of a dead run get to end
    # Until a lock that another process has is in use. A child that was forked at the moment its parent was killed keeps
    # the lock until it first runs.
    refusal: float = 1.0
    trust: float = 2.0  # that a worker need not look whether its run still has the folder, where that is remote


class RunLock:
    """The locks that a run holds."""

    def __init__(self, locks: tuple[LockRef, ...] = ()) -> None:
        self.locks = locks  # without which nothing may be published; none where no other run could come in between
        self.lost: LockLost | None = None  # another run has taken over

    def check(self) -> None:
        """Raises LockLost if another run was found to have taken over."""
        if self.lost is not None:
            raise self.lost


class Lease:
    """A thread of its own acquires the lease, renews it and gives it back: so no signal comes between.

    `file_lock` is the identity of the file that this process has locked for it; empty if there is none.
    """

    def __init__(self, output: OutputFolder, name: str, command: str, file_lock: str, intervals: Intervals) -> None:
        self._output, self._name, self._intervals = output, name, intervals
        self._holder = Holder(uuid.uuid4().hex, command, socket.gethostname(), os.getpid(), time.time(), file_lock)
        self._ref = LockRef(name, self._holder.run)
        self.lock = RunLock((self._ref,))
        self._version: str | None = None  # of the file; None while it is unknown
        self._stopping = threading.Event()
        self._acquired: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="any2ds-lock", daemon=True)
        self._thread.start()

    def wait(self) -> RunLock:
        """Until it is acquired. Raises OutputInUse if another run has it, or is just getting it."""
        self._acquired.result()
        return self.lock

    def stop(self) -> None:
        """Give it back, unless this is a child that was forked off in between, and has none of this."""
        if os.getpid() == self._holder.pid:
            self._stopping.set()
            self._thread.join(_CLOSE if self._acquired.done() else _INTERRUPTED)

    def _run(self) -> None:
        level = logging.WARNING
        try:
            persist(f"writing {self._name}", self._acquire, self._stopping)
        except BaseException as error:
            self._acquired.set_exception(error)
            level = logging.DEBUG  # what is wrong is said already
        else:
            self._acquired.set_result(None)
            self._renew_until_stopped()
        try:
            persist(f"removing {self._name}", self._release, patience=BRIEF)
        except Exception as error:  # every file system has exceptions of its own
            log.log(level, "%s could not be removed: %s", self._name, error_text(error))

    def _acquire(self) -> None:
        output, content = self._output, self._holder.to_bytes()
        version, has_watched = "", False
        while True:
            try:
                self._version = output.replace(self._name, content, version)
                break
            except FileExistsError:
                version = output.version(self._name)  # before it is read: it can only be too old
                before = Holder.of(output, self._name)
            if before == self._holder:  # the answer to an attempt got lost
                break
            if before is not None and before.is_dead(self._holder.file_lock):
                log.info("taking over from a run that is dead: %s", before)
            elif before is not None:
                watch(output, {self._name: before}, self._intervals, self._stopping)
                has_watched = True
        output.has_conditions = output.has_conditions and self._refuses_other_version()
        if not (output.has_conditions or (output.is_local and self._holder.file_lock and not has_watched)):
            self._settle()

    def _refuses_other_version(self) -> bool:
        """Whether the store heeds conditions: some that speak S3 do not."""
        try:
            self._output.replace(self._name, replace(self._holder, beat=-1).to_bytes(), _NO_VERSION)
        except FileExistsError:
            return True
        return False

    def _settle(self) -> None:
        """Wait until another run that was writing at the same moment is seen. Raises OutputInUse if there is one."""
        output, seconds = self._output, self._intervals.settle
        log.info("%s has no conditional writes: looking out for a second run for %.0f s", output.url, seconds)
        self._stopping.wait(seconds)
        found = Holder.of(output, self._name)
        if found is None:
            raise OSError(f"{self._name} was removed by another run, which found it blank")
        if found.run != self._holder.run:
            raise in_use(output, found)

    def _renew_until_stopped(self) -> None:
        while not self._stopping.wait(self._intervals.beat):
            try:
                self._renew()
            except LockLost as error:
                self.lock.lost = error
                return
            except Exception as error:  # a network that is down for a while; nothing is published meanwhile
                log.info("%s cannot be written: %s", self._name, error_text(error))

    def _renew(self) -> None:
        """Show that the holder lives. Raises LockLost, and whatever the file system raises."""
        if self._version is None or not self._output.has_conditions:  # it may have been written over unseen
            self._version = self._output.version(self._name)
            check_holder(self._output, self._ref)
        version, self._version = self._version, None  # unknown if this attempt fails, or its answer gets lost
        self._holder = replace(self._holder, beat=self._holder.beat + 1)
        self._version = self._output.replace(self._name, self._holder.to_bytes(), version)

    def _release(self) -> None:
        """Remove the file, unless another run has it now."""
        found = Holder.of(self._output, self._name)
        if found is not None and found.run == self._holder.run:
            self._output.discard(self._name)


def watch(output: OutputFolder, files: Mapping[str, Holder], intervals: Intervals, stopping: threading.Event) -> None:
    """Wait until the holders of these lock files are known to be dead. Raises OutputInUse if one of them lives."""
    present = dict(files)
    for holder in present.values():
        text = "%s is in use by another run, which may be dead (%s): watching it for %.0f s"
        log.warning(text, output.url, holder, intervals.stale)
    looks = math.ceil(intervals.stale / intervals.look)  # counted, as this process may be suspended too
    while present and looks:
        looks -= 1
        stopping.wait(intervals.look)
        for file, before in tuple(present.items()):
            found = Holder.of(output, file)
            if found is None:
                del present[file]
            elif found != before or stopping.is_set():
                raise in_use(output, found)


def in_use(output: OutputFolder, holder: Holder | None) -> OutputInUse:
    user = f"another run ({holder})" if holder else "another run"
    way_out = "wait until it has ended, or choose another output_folder"
    return OutputInUse(f"output folder {output.url!r} is in use by {user}: {way_out}")
