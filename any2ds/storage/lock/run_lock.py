"""One run at a time in an output folder: refuses a second one, takes over from a dead one, and stops one that lost it.

On one machine the kernel says who is there. A run holds a lock of the system on `.any2ds/lock`, and each of its worker
processes shares one on `.any2ds/workers`: a new run acquires the first, then waits for the second, which is waiting for
workers that outlive a killed run. For datasets in stores these two files lie in a folder of this machine.

For other machines `.any2ds/lock` is a lease (lease.py). Workers look at it before they publish something.

Runs that share the shards have a lock file each. A run acquires its own, then looks at the files of its rivals: of two
that begin at the same moment one sees the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path

from any2ds.core import layout
from any2ds.core.errors import LockLost, OutputError, OutputInUse, UsageError, error_text
from any2ds.storage.disk.regular import refuse_link
from any2ds.storage.disk.staging import is_private, named_for_user, sweep
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.file_lock import FileLock, process_ids
from any2ds.storage.lock.lease import Intervals, Lease, RunLock, in_use, watch
from any2ds.storage.lock.lock_file import Holder, LockRef, check_holder
from any2ds.storage.patience import persist

log = logging.getLogger(__name__)

DEFAULT_INTERVALS = Intervals()
_TELL = 2.0  # seconds of waiting that are not logged
_TRIES = 100  # to lock a file in a folder that other runs remove because it is empty


class Guard:
    """Asked by a worker before it publishes: raises LockLost if its run does not have one of `locks` any more."""

    def __init__(
        self, output: OutputFolder, locks: Iterable[LockRef], intervals: Intervals = DEFAULT_INTERVALS
    ) -> None:
        self._output, self._locks = output, tuple(locks)
        self._trust = 0.0 if output.is_local else intervals.trust
        self._looked = -math.inf, -math.inf

    def __call__(self) -> None:
        # By both clocks: one stands still while the machine is suspended, the other can be set.
        now = time.monotonic(), time.time()
        if all(0 <= at - before < self._trust for at, before in zip(now, self._looked, strict=True)):
            return
        for lock in self._locks:
            check_holder(self._output, lock)
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
    with held(output, name, command, intervals) as lock:
        with _cannot_be_written(output):
            names = output.state_files()
            others = set(filter(layout.is_lock, names)) - {name}
            rivals = {file for file in others if file == layout.LOCK_FILE or is_rival(file)}
            persist("looking for other runs", lambda: _bury(output, rivals, intervals))
            for file in (name, *rivals):
                _wait_for_workers(output, file, intervals)
            _sweep(output)
            if name == layout.LOCK_FILE:
                for folder in {layout.TEMPORARY_FOLDER, layout.WORK_FOLDER}.intersection(names):
                    output.remove_tree(folder)
        try:
            yield lock
        finally:
            _sweep(output)  # after workers of this run that were killed
            with contextlib.suppress(OSError):  # and the file that workers of this run have locked, which they leave
                if (workers := _acquire(output, layout.workers_of(name))) is not None:
                    workers.release()


@contextmanager
def held(output: OutputFolder, name: str, command: str, intervals: Intervals = DEFAULT_INTERVALS) -> Iterator[RunLock]:
    """Hold the lock file `name`; whatever `output` publishes is guarded by it.

    Its folder is made, and removed again if nothing came to lie in it. Raises OutputInUse if another run holds it and
    lives, and OutputError if it cannot be written.
    """
    with ExitStack() as stack:
        with _cannot_be_written(output):
            stack.callback(_remove_empty, _missing_folders(output))
            file_lock = _lock_of_run(output, name, intervals)
            stack.callback(file_lock.release)
            lease = Lease(output, name, command, file_lock.identity, intervals)
            stack.callback(lease.stop)
            lock = lease.wait()
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
    lock_file = locks[0].file
    if output.is_local and Holder.of(output, lock_file) is None:  # nothing is made in another folder of that name
        raise LockLost(
            f"{socket.gethostname()} does not see the {lock_file} of the run in {output.url!r}. On a cluster each"
            " machine has to see the same output folder, by the same name: use a shared folder, or an object store. If"
            " this machine does see it, the file was removed, so that others may be at work there"
        )
    output.guard = Guard(output, locks)
    file_lock = _acquire(output, layout.workers_of(lock_file), shared=True, wait=DEFAULT_INTERVALS.refusal)
    if file_lock is None:
        raise LockLost(f"{output.url!r} was just taken over by another run")
    try:
        # A new run sees that we are at work, or we see the new run.
        persist(f"looking at {lock_file}", output.guard)
        yield
    finally:
        file_lock.release(remove=not output.is_local)


def _bury(output: OutputFolder, lock_files: Collection[str], intervals: Intervals) -> None:
    """Remove the lock files of dead runs. Raises OutputInUse if one of these runs lives."""
    doubtful: dict[str, Holder] = {}
    with ExitStack() as stack:
        for name in lock_files:
            file_lock = _lock_of_run(output, name, intervals, shared=True)
            stack.callback(file_lock.release)
            holder = Holder.of(output, name)
            if holder is not None and not holder.is_dead(file_lock.identity):
                doubtful[name] = holder
        watch(output, doubtful, intervals, threading.Event())
        for name in lock_files:
            output.discard(name)


def _wait_for_workers(output: OutputFolder, lock_file: str, intervals: Intervals) -> None:
    """Until the workers of a dead run on this machine have ended, too: what they publish would be in the way.

    Raises OutputInUse if they do not.
    """
    name = layout.workers_of(lock_file)
    file_lock = _acquire(output, name, wait=min(_TELL, intervals.orphans))
    if file_lock is None:
        who = f"process {', '.join(map(str, process_ids(_kernel_lock_path(output, name) or Path())))}"
        log.warning("waiting for processes of a dead run to end: %s", who)
        file_lock = _acquire(output, name, wait=intervals.orphans - _TELL)
    if file_lock is None:
        raise OutputInUse(
            f"output folder {output.url!r}: the run that was at work in it is dead, but not all of its processes"
            f" are: end {who}, then run the same command again"
        )
    file_lock.release()


def _sweep(output: OutputFolder) -> None:
    """Remove what dead processes of this machine have staged."""
    roots = {output.staging_root, Path(tempfile.gettempdir())}  # the report of any dataset has its copies in the second
    if output.is_local:
        roots.add(Path(output.path, layout.TEMPORARY_FOLDER))
    for root in roots:
        sweep(root)


def _lock_of_run(output: OutputFolder, name: str, intervals: Intervals, shared: bool = False) -> FileLock:
    """The lock of the system for a lock file. Raises OutputInUse if another process of this machine has it."""
    file_lock = _acquire(output, name, shared, intervals.refusal)
    if file_lock is None:
        raise in_use(output, Holder.of(output, name))
    return file_lock


def _acquire(output: OutputFolder, name: str, shared: bool = False, wait: float = 0.0) -> FileLock | None:
    """`FileLock.acquire` for the file that stands for `name` on this machine."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError, FileExistsError):  # the folder was empty: another run removed it
            path = _kernel_lock_path(output, name)
            return FileLock(Path()) if path is None else FileLock.acquire(path, shared, wait)
    try:
        output.create_folder(layout.STATE_FOLDER)
    except FileExistsError as error:
        text = f"{error.filename or output.path} is a file, or a link that leads nowhere, and no folder"
        raise NotADirectoryError(text) from error
    raise FileNotFoundError(f"{output.path} is removed repeatedly")


def _kernel_lock_path(output: OutputFolder, name: str) -> Path | None:
    """The path of that file; None if there can be none. The folder of `name` is there."""
    output.create_folder(name.rpartition("/")[0])
    if output.is_local:
        path = Path(output.path, name)
        refuse_link(path)
        return path
    # This lock holds for this machine and user only, but it answers at once. A folder that is not ours alone has none:
    # another run would not see a fresh one.
    folder = _folder_of_locks()
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not is_private(folder):
        return None
    return folder / hashlib.sha256(f"{output.identity} {name}".encode()).hexdigest()[:32]


def _missing_folders(output: OutputFolder) -> list[Path]:
    """The folders that are to be made for the lock, the innermost first."""
    if not output.is_local:
        return [_folder_of_locks()]
    path = Path(output.path)
    return [path / layout.STATE_FOLDER, *takewhile(lambda folder: not folder.exists(), (path, *path.parents))]


def _remove_empty(folders: Iterable[Path]) -> None:
    for folder in folders:
        if folder != _folder_of_locks() or is_private(folder):
            with contextlib.suppress(OSError):  # something lies in it
                folder.rmdir()


def _folder_of_locks() -> Path:
    return named_for_user(Path(tempfile.gettempdir()), "any2ds-locks")


@contextmanager
def _cannot_be_written(output: OutputFolder) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # every file system has exceptions of its own
        raise OutputError(f"output folder {output.url!r} cannot be written: {error_text(error)}") from error
