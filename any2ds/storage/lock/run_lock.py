"""One run at a time in an output folder: refuses a second one, takes over from a dead one, and stops one that lost it.

On one machine the kernel says who is there. A run holds a lock of the system on `.any2ds/lock`, and each of its worker
processes shares one on `.any2ds/workers`: a new run acquires the first, then waits for the second, which is waiting for
workers that outlive a killed run. What lies in the folder for temporary files is garbage then. For datasets in stores
these two files lie in a folder of this machine.

For other machines `.any2ds/lock` names the run, and a thread writes it anew every few seconds. Another run watches
whether it changes; no clock of another machine is trusted. Workers look there before they publish something.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from any2ds.core import layout
from any2ds.core.errors import LockLost, OutputError, OutputInUse, UsageError, error_text
from any2ds.storage.disk.private import is_private, named_for_user
from any2ds.storage.disk.regular import refuse_link
from any2ds.storage.disk.staging import sweep
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.file_lock import FileLock, NoLocks, process_ids
from any2ds.storage.lock.lock_file import Holder, LockFile, LockRef
from any2ds.storage.patience import BRIEF, persist
from any2ds.storage.stores import is_object_store

log = logging.getLogger(__name__)

_WAY_OUT = "wait until it has ended, or choose another output_folder"
_TELL = 2.0  # seconds of waiting that are not logged
_TRIES = 100  # to lock a file in a folder that other runs remove because it is empty


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
    close: float = 10.0  # that the last request may take when the run ends


DEFAULT_INTERVALS = Intervals()


class RunLock:
    """The locks that a run holds."""

    def __init__(self, locks: tuple[LockRef, ...] = ()) -> None:
        self.locks = locks  # without which nothing may be published; none where no other run could come in between
        self.lost: LockLost | None = None  # another run has taken over

    def check(self) -> None:
        """Raises LockLost if another run was found to have taken over."""
        if self.lost is not None:
            raise self.lost


class Guard:
    """Asked by a worker before it publishes: raises LockLost if its run does not have one of `locks` any more."""

    def __init__(
        self, output: OutputFolder, locks: Iterable[LockRef], intervals: Intervals = DEFAULT_INTERVALS
    ) -> None:
        self._files = [(LockFile(output, lock.file), lock.run) for lock in locks]
        self._trust = 0.0 if output.is_local else intervals.trust
        self._looked = -math.inf, -math.inf

    def __call__(self) -> None:
        # By both clocks: one stands still while the machine is suspended, the other can be set.
        now = time.monotonic(), time.time()
        if all(0 <= at - before < self._trust for at, before in zip(now, self._looked, strict=True)):
            return
        for file, run in self._files:
            holder = file.read()
            if holder is None and self._looked[0] == -math.inf and file.name == layout.LOCK_FILE:
                raise LockLost(
                    f"{socket.gethostname()} does not see the {file.name} of the run in {file.folder!r}. On a cluster"
                    " each machine has to see the same output folder, by the same name: use a shared folder, or an"
                    " object store. If this machine does see it, the file was removed, so that others may be at work"
                    " there"
                )
            _check_holder(file, holder, run)
        self._looked = now


@contextmanager
def locked(
    output: OutputFolder,
    command: str,
    name: str = layout.LOCK_FILE,
    is_rival: Callable[[str], bool] = lambda name: True,
    intervals: Intervals = DEFAULT_INTERVALS,
) -> Iterator[RunLock]:
    """Lock `output` and remove what dead runs have left in it; whatever it publishes is guarded.

    Several runs may work side by side, each with a lock of its own `name`, of which `is_rival` says for each whether
    it keeps this one out. The folder is made, and removed again if nothing came to lie in it. Raises OutputInUse if
    another run is at work in it, and OutputError if it cannot be written.
    """
    if output.is_private:
        yield RunLock()
        return
    is_alone = name == layout.LOCK_FILE
    with ExitStack() as stack:
        if not is_alone:  # keep out runs that want the folder for themselves
            with _cannot_be_written(output):
                stack.enter_context(_state_folder(output))
                stack.callback(_remove_small_files, output)
                if (shared := _file_lock(output, layout.LOCK_FILE, intervals, shared=True)) is not None:
                    stack.callback(shared.release)
        lock = stack.enter_context(held(output, name, command, intervals=intervals))
        with _cannot_be_written(output):
            names = _state_files(output)
            others = {file for file in names if file == layout.LOCK_FILE or layout.member_of(file)} - {name}
            rivals = {file for file in others if file == layout.LOCK_FILE or is_rival(file)}
            refuse(output, rivals, intervals)
            for file in {name, *rivals}:
                _wait_for_workers(output, file, intervals)
            _remove_leftovers(output, names, is_alone)
        try:
            yield lock
        finally:
            _remove_own(output, name)


@contextmanager
def held(
    output: OutputFolder,
    name: str,
    command: str,
    intervals: Intervals = DEFAULT_INTERVALS,
) -> Iterator[RunLock]:
    """Hold the lock file `name`; whatever `output` publishes is guarded by it.

    Its folder is made, and removed again if nothing came to lie in it. Raises OutputInUse if another run holds it and
    lives, and OutputError if it cannot be written.
    """
    with ExitStack() as stack:
        with _cannot_be_written(output):
            stack.enter_context(_state_folder(output))
            file_lock = _file_lock(output, name, intervals)
            lease = _Lease(LockFile(output, name), output, command, file_lock, intervals)
            if file_lock is not None:
                stack.callback(_remove_folder_of_locks, file_lock)
                # Removed under the eyes of a run elsewhere it would no longer keep out others of its machine.
                stack.callback(lambda: file_lock.release(remove=lease.is_over or not output.is_local))
            lock = RunLock((LockRef(name, lease.holder.run),))
            keeper = _LeaseThread(lease, lock)
            stack.callback(keeper.stop)
            keeper.acquired.result()
        stack.callback(setattr, output, "guard", output.guard)
        output.guard = Guard(output, lock.locks, intervals)
        yield lock


@contextmanager
def working(output: OutputFolder, locks: tuple[LockRef, ...]) -> Iterator[None]:
    """Be a worker process of the run that holds `locks`, of which the first is that of the folder.

    What it publishes is guarded, and the next run in the folder waits until it has ended. Raises LockLost if another
    run has the folder already.
    """
    if not locks:
        yield
        return
    output.guard = Guard(output, locks)
    if output.is_local:  # on another machine it may be a folder of that name: nothing is made there
        output.guard()
    with ExitStack() as stack:
        with contextlib.suppress(NoLocks):
            file_lock = _acquire(output, layout.workers_of(locks[0].file), True, DEFAULT_INTERVALS.refusal)
            if file_lock is None:
                raise LockLost(f"{output.url!r} was just taken over by another run")
            # On a shared disk the locks of other machines may not be seen here.
            stack.callback(lambda: file_lock.release(remove=not output.is_local))
        output.guard()  # again: a new run sees that we are at work, or we see the new run
        yield


class _Lease:
    """A lock file that names its holder and, while that lives, changes at intervals."""

    def __init__(
        self, file: LockFile, output: OutputFolder, command: str, file_lock: FileLock | None, intervals: Intervals
    ) -> None:
        identity = file_lock.identity if file_lock is not None else ""
        self.file, self.intervals = file, intervals
        self.holder = Holder(uuid.uuid4().hex, command, socket.gethostname(), os.getpid(), time.time(), identity)
        self.stopping = threading.Event()
        self.is_over = False  # and the file may go
        self._output, self._file_lock = output, file_lock
        self._version = ""  # of the file, where it has versions
        self._is_guarded = False  # the file, from being written over unseen
        self._renewing = threading.Lock()

    def acquire(self) -> None:
        """Raises OutputInUse if another run has it, or is just getting it."""
        before: Holder | None = None
        was_watched = False
        while True:
            try:
                self._version = self.file.write(self.holder, self._version)
                break
            except FileExistsError:
                self._version = self.file.version()  # before it is read: it can only be too old
                before = self.file.read()
            if before is not None and not self._was_here(before):
                _say_watching(self.file, before, self.intervals)
                _watch({self.file: before}, self.intervals, self.stopping)
                was_watched = True
            elif before is not None:
                log.info("taking over from a run that is dead: %s", before)
        self._is_guarded = self.file.is_guarded(replace(self.holder, beat=-1))
        self._output.heeds_conditions |= self._is_guarded
        if not (self._is_guarded or (self._output.is_local and self._file_lock is not None and not was_watched)):
            wait = self.intervals.settle
            log.info("%s has no conditional writes: looking out for a second run for %.0f s", self.file.folder, wait)
            self.stopping.wait(wait)
            found = self.file.read()
            if found is None:  # removed by another run, which found it blank
                raise OSError(f"{self.file.name} was removed")
            if found.run != self.holder.run:
                raise _in_use(self.file.folder, found)

    def _was_here(self, before: Holder) -> bool:
        """Whether the process that wrote the file is surely dead: the lock that it had on this machine is ours."""
        return self._file_lock is not None and before.file_lock == self._file_lock.identity

    def renew(self) -> None:
        """Show that the holder lives. Raises LockLost, and whatever the file system raises."""
        with self._renewing:
            if not self._is_guarded:
                _check_holder(self.file, self.file.read(), self.holder.run)
            self.holder = replace(self.holder, beat=self.holder.beat + 1)
            try:
                self._version = self.file.write(self.holder, self._version)
            except FileExistsError:
                _check_holder(self.file, self.file.read(), self.holder.run)
                self._version = self.file.version()

    def release(self) -> None:
        """Remove the file, unless another run has taken it over."""
        found = self.file.read()
        self.is_over = found is None or found.run == self.holder.run
        if found is not None and self.is_over and not (self._output.is_local and self._file_lock is not None):
            self.file.remove()


class _LeaseThread:
    """The thread that acquires a lease, renews it and gives it back: so no signal comes between."""

    def __init__(self, lease: _Lease, lock: RunLock) -> None:
        self._lease, self._lock = lease, lock
        self._pid = os.getpid()
        self.acquired: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="any2ds-lock", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if os.getpid() == self._pid:  # else a child that was forked off in between, and has none of this
            self._lease.stopping.set()
            self._thread.join(self._lease.intervals.close if self.acquired.done() else _TELL)

    def _run(self) -> None:
        lease, level = self._lease, logging.WARNING
        try:
            persist(f"writing {lease.file.name}", lease.acquire, lease.stopping, answers=(UsageError,))
        except BaseException as error:
            self.acquired.set_exception(error)
            level = logging.DEBUG  # what is wrong is said already
        else:
            self.acquired.set_result(None)
            self._renew()
        try:
            persist(f"removing {lease.file.name}", lease.release, threading.Event(), BRIEF)
        except Exception as error:  # every file system has exceptions of its own
            log.log(level, "%s could not be removed: %s", lease.file.name, error_text(error))

    def _renew(self) -> None:
        has_warned = False
        while not self._lease.stopping.wait(self._lease.intervals.beat):
            try:
                self._lease.renew()
                has_warned = False
            except LockLost as error:
                self._lock.lost = error
                return
            except Exception as error:  # a network that is down for a while; nothing is published meanwhile
                if not has_warned:
                    log.warning("%s cannot be written: %s", self._lease.file.name, error_text(error))
                has_warned = True


def _watch(files: dict[LockFile, Holder], intervals: Intervals, stopping: threading.Event) -> None:
    """Wait until the holders of these files are known to be dead. Raises OutputInUse if one of them lives."""
    present = dict(files)
    # Looks are counted, as this process may be suspended too.
    for _ in range(math.ceil(intervals.stale / intervals.look) if files else 0):
        stopping.wait(intervals.look)
        for file, before in tuple(present.items()):
            found = file.read()
            if found is None:
                del present[file]
            elif found != before or stopping.is_set():
                raise _in_use(file.folder, found)
        if not present:
            return


def refuse(output: OutputFolder, lock_files: Collection[str], intervals: Intervals) -> None:
    """Raises OutputInUse if one of these locks is held; what dead runs have left of them is removed."""
    doubtful: dict[LockFile, Holder] = {}
    files = [LockFile(output, name) for name in lock_files]
    with ExitStack() as stack:
        for file in files:
            file_lock = _file_lock(output, file.name, intervals, shared=True)
            if file_lock is not None:
                stack.callback(file_lock.release)
            holder = file.read()
            if holder is not None and (file_lock is None or holder.file_lock != file_lock.identity):
                _say_watching(file, holder, intervals)
                doubtful[file] = holder
        _watch(doubtful, intervals, threading.Event())
        for file in files:
            file.clear()


def _wait_for_workers(output: OutputFolder, lock_file: str, intervals: Intervals) -> None:
    """Until the workers of a dead run on this machine have ended, too: what they publish would be in the way.

    Raises OutputInUse if they do not.
    """
    name = layout.workers_of(lock_file)
    with contextlib.suppress(NoLocks):
        file_lock = _acquire(output, name, wait=min(_TELL, intervals.orphans))
        if file_lock is None:
            path = _path_of_file_lock(output, name)
            who = f"process {', '.join(map(str, process_ids(path)))}"
            log.warning("waiting for processes of a dead run to end: %s", who)
            file_lock = _acquire(output, name, wait=intervals.orphans - _TELL)
        if file_lock is None:
            raise OutputInUse(
                f"output folder {output.url!r}: the run that was at work in it is dead, but not all of its processes"
                f" are: end {who}, then run the same command again"
            )
        file_lock.release()


def _state_files(output: OutputFolder) -> set[str]:
    """The paths of what lies in `.any2ds/`."""
    with contextlib.suppress(FileNotFoundError):
        names = (str(info["name"]).rstrip("/").replace("\\", "/") for info in output.listed(layout.STATE_FOLDER))
        return {f"{layout.STATE_FOLDER}/{name.rpartition('/')[2]}" for name in names}
    return set()


def _remove_leftovers(output: OutputFolder, names: Collection[str], is_alone: bool) -> None:
    """Remove what dead runs have left in the folder, and on this machine."""
    sweep(output.staging_root)
    if not is_alone:  # other runs have something of their own there
        return
    for folder in (layout.TEMPORARY_FOLDER, layout.WORK_FOLDER):
        if folder in names:
            output.remove_tree(folder)
    for name in names:
        if layout.is_probe(name):
            output.remove(name)


def _remove_own(output: OutputFolder, lock_file: str) -> None:
    """Remove what workers of this run have left that were killed."""
    is_alone = output.is_local and lock_file == layout.LOCK_FILE
    with contextlib.suppress(OSError, NoLocks):
        sweep(output.staging_root)
        if (file_lock := _acquire(output, layout.workers_of(lock_file))) is not None:
            if is_alone:  # small files that were about to be renamed
                shutil.rmtree(Path(output.path) / layout.TEMPORARY_FOLDER, ignore_errors=True)
            file_lock.release()


def _remove_small_files(output: OutputFolder) -> None:
    """Remove the small files that killed runs were about to rename, if no other run is at work in the folder."""
    with contextlib.suppress(OSError, NoLocks):
        if not output.is_local or any(map(layout.member_of, _state_files(output))):
            return
        if (file_lock := _acquire(output, layout.LOCK_FILE)) is not None:
            shutil.rmtree(Path(output.path) / layout.TEMPORARY_FOLDER, ignore_errors=True)
            file_lock.release()


def _file_lock(output: OutputFolder, name: str, intervals: Intervals, shared: bool = False) -> FileLock | None:
    """The lock of the system for a lock file; None where there is no such lock. Raises OutputInUse."""
    try:
        file_lock = _acquire(output, name, shared, intervals.refusal)
    except NoLocks:
        return None
    if file_lock is None:
        raise _in_use(output.url, _holder(output, name))
    return file_lock


def _holder(output: OutputFolder, name: str) -> Holder | None:
    """The run that has this lock, or one of several runs that share it."""
    files = (name, *(file for file in sorted(_state_files(output)) if layout.member_of(file)))
    return next((holder for file in files if (holder := LockFile(output, file).read()) is not None), None)


def _acquire(output: OutputFolder, name: str, shared: bool = False, wait: float = 0.0) -> FileLock | None:
    """`FileLock.acquire` for the file that stands for `name` on this machine. Raises NoLocks where there is none."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError):  # another run has removed the folder, which was empty
            return FileLock.acquire(_path_of_file_lock(output, name), shared, wait)
    raise FileNotFoundError(f"{output.path} is removed repeatedly")


def _path_of_file_lock(output: OutputFolder, name: str) -> Path:
    """The path of that file, whose folder is there. Raises NoLocks if there can be none."""
    if output.is_local:
        path = Path(output.path) / name
        refuse_link(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
    # This lock holds for this machine and user only, but it answers at once. A folder that is not ours alone has none:
    # another run would not see a fresh one.
    folder = named_for_user(Path(tempfile.gettempdir()), "any2ds-locks")
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        if is_private(folder):
            return folder / hashlib.sha256(f"{output.identity} {name}".encode()).hexdigest()[:32]
    raise NoLocks(str(folder))


def _remove_folder_of_locks(file_lock: FileLock) -> None:
    """The one in the system's folder for temporary files, unless another lock is in it."""
    with contextlib.suppress(OSError):
        if file_lock.path.parent.name != layout.STATE_FOLDER:
            file_lock.path.parent.rmdir()


@contextmanager
def _state_folder(output: OutputFolder) -> Iterator[None]:
    """The folder for the state is there; what was made of its path is removed at the end if it is empty."""
    if is_object_store(output.fs):  # there it would make the bucket of a mistyped name
        yield
        return
    exists = os.path.exists if output.is_local else output.fs.exists
    state = f"{output.path.rstrip('/')}/{layout.STATE_FOLDER}"
    made, folder = [f"{output.path.rstrip('/')}/{layout.TEMPORARY_FOLDER}", state], output.path
    while folder.strip("/") and not exists(folder) and os.path.dirname(folder) != folder:
        made.append(folder)
        folder = os.path.dirname(folder)
    try:
        if output.is_local:
            refuse_link(Path(state))
            os.makedirs(state, exist_ok=True)
        else:
            output.fs.makedirs(state, exist_ok=True)
        yield
    finally:
        _remove_if_empty(output, made)


def _remove_if_empty(output: OutputFolder, folders: list[str]) -> None:
    for folder in folders:
        try:
            if output.is_local:
                os.rmdir(folder)
            elif output.fs.ls(folder, detail=False):
                return
            else:
                output.fs.rmdir(folder)
        except FileNotFoundError:
            continue
        except Exception:  # something lies in it
            return


def _check_holder(file: LockFile, holder: Holder | None, run: str) -> None:
    if holder is None:
        raise LockLost(f"{file.folder!r}: its {file.name} was removed, so that others may be at work there")
    if holder.run != run:
        silent = "because this one gave no sign of life for too long"
        raise LockLost(f"{file.folder!r} was taken over by another run ({holder}), {silent}")


def _say_watching(file: LockFile, holder: Holder, intervals: Intervals) -> None:
    log.warning(
        "%s is in use by another run, which may be dead (%s): watching it for %.0f s",
        file.folder,
        holder,
        intervals.stale,
    )


def _in_use(folder: str, holder: Holder | None) -> OutputInUse:
    user = f"another run ({holder})" if holder else "another run"
    return OutputInUse(f"output folder {folder!r} is in use by {user}: {_WAY_OUT}")


@contextmanager
def _cannot_be_written(output: OutputFolder) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # every file system has exceptions of its own
        raise OutputError(f"output folder {output.url!r} cannot be written: {error_text(error)}") from error
