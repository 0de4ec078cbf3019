"""One run at a time in an output folder: refuses a second one, takes over from a dead one, and stops one that lost it.

Two locks keep other runs out. A lock of the operating system (`file_lock.py`) is certain and immediate on one machine,
its containers included. `.any2ds/lock` in the folder itself is for other machines, and for stores and file systems
without locks: its holder rewrites it every few seconds, and another run watches whether it does. No clock of another
machine is trusted.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from any2ds.core import layout
from any2ds.core.errors import LockLost, OutputError, OutputInUse, UsageError, error_text
from any2ds.storage.disk.private import is_private, named_for_user
from any2ds.storage.disk.regular import refuse_link
from any2ds.storage.disk.staging import fingerprint, is_staging_name, sweep
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.file_lock import FileLock, NoLocks
from any2ds.storage.lock.lock_file import Holder, LockFile, LockRef
from any2ds.storage.lock.owner import Owner
from any2ds.storage.patience import Patience, persist
from any2ds.storage.stores import is_object_store

log = logging.getLogger(__name__)

_WAY_OUT = "wait until it has ended, or choose another output_folder"
_TELL = 2.0  # seconds of waiting that are not logged
_TRIES = 100  # to lock a file in a folder that others remove, or whose holder is dead
_FORK_PAUSE = 0.05  # seconds between two of the latter
_CLOSE_TIMEOUT = 10.0  # seconds that the last sign of life may take when the run ends
_READS = Patience(4, 0.5, 2.0)  # of the lock before something is published, where the store does not answer
BRIEF = ("join", "finish")  # what members do under `.any2ds/lock`, while others of them wait
JOINING = "joining as "  # with which the command of a member begins that is none yet, and has no workers


@dataclass(frozen=True, slots=True)
class Intervals:
    """The times of a lock, all in seconds."""

    beat: float = 10.0  # between two signs of life in `.any2ds/lock`
    stale: float = 40.0  # without one: its holder is dead
    look: float = 1.0  # between two looks while waiting
    # Until another one, who was writing at the same moment, must have been overwritten or seen, and until no worker
    # of a run that was taken over trusts what it has read.
    settle: float = 3.0
    orphans: float = 30.0  # that processes of a dead run get to end
    trust: float = 2.0  # that a worker need not look whether its run still has the folder, where that is remote


DEFAULT_INTERVALS = Intervals()


class RunLock:
    """The locks that a run holds."""

    def __init__(self, locks: tuple[LockRef, ...] = ()) -> None:
        self.locks = locks  # without which nothing may be published; none where no other run could come in between
        self.lost: LockLost | None = None  # another run has taken over
        self.set_command: Callable[[str], None] = lambda command: (
            None
        )  # writes what it does from now on, for others to read

    def check(self) -> None:
        """Raises LockLost if another run was found to have taken over."""
        if self.lost is not None:
            raise self.lost


class _HeartbeatThread:
    """The thread that shows other runs that this one lives, and notices if the lock was lost."""

    def __init__(self, file: LockFile, holder: Holder, lock: RunLock, intervals: Intervals) -> None:
        self._file, self._holder, self._lock, self._intervals = file, holder, lock, intervals
        self._stop, self._writing = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, name="any2ds-lock", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Remove the lock file, unless another run has taken it over."""
        if os.getpid() != self._holder.owner.pid:
            return  # a child that was forked off in between, and has none of this
        self._stop.set()
        self._thread.join(_CLOSE_TIMEOUT)  # whatever it still wrote would come after the removal
        try:
            _check_holder(self._file, self._file.holder(), self._holder.run)
            self._file.remove()
        except LockLost as error:
            self._lock.lost = error
        except Exception as error:  # every file system has exceptions of its own
            log.warning("%s could not be removed: %s", self._file.name, error_text(error))

    def set_command(self, command: str) -> None:
        """Write at once what the run does now. Raises LockLost, and whatever the file system raises."""
        self._beat(command)

    def _run(self) -> None:
        warned = False
        while not self._stop.wait(self._intervals.beat):
            try:
                self._beat()
                warned = False
            except LockLost as error:
                if not self._stop.is_set():  # else it was removed by ourselves
                    self._lock.lost = error
                return
            except Exception as error:  # a network that is down for a while; nothing is published meanwhile
                if not warned:
                    log.warning("%s cannot be written: %s", self._file.name, error_text(error))
                warned = True

    def _beat(self, command: str | None = None) -> None:
        with self._writing:
            while True:
                looked = time.monotonic()
                _check_holder(self._file, self._file.holder(), self._holder.run)
                if time.monotonic() - looked < self._intervals.settle / 2:  # else too much may have happened since
                    break
            holder = self._holder
            self._holder = replace(holder, beat=holder.beat + 1, command=command or holder.command)
            self._file.write(self._holder.to_bytes())


class Guard:
    """Asked by a worker before it publishes: raises LockLost if its run does not have one of `locks` any more."""

    def __init__(
        self, output: OutputFolder, locks: Iterable[LockRef], intervals: Intervals = DEFAULT_INTERVALS
    ) -> None:
        self._files = [(LockFile(output, hold.file), hold.run) for hold in locks]
        self._trust = 0.0 if output.is_local else intervals.trust
        self._looked = -math.inf, -math.inf

    def __call__(self) -> None:
        # By both clocks: one stands still while the machine is suspended, the other can be set.
        now = time.monotonic(), time.time()
        if all(0 <= at - before < self._trust for at, before in zip(now, self._looked, strict=True)):
            return
        is_first = self._looked[0] == -math.inf
        for file, run in self._files:
            holder = persist(f"reading {file.name}", file.holder, threading.Event(), _READS, (UsageError,))
            if holder is None and is_first and file.name == layout.LOCK_FILE:
                raise _not_seen(file)
            _check_holder(file, holder, run)
        self._looked = now


@contextmanager
def locked(output: OutputFolder, command: str, intervals: Intervals = DEFAULT_INTERVALS) -> Iterator[RunLock]:
    """Lock `output` and remove what dead runs have left in it; whatever it publishes is guarded.

    The folder is made, and removed again if nothing came to lie in it. Raises OutputInUse if another run is at work in
    it, and OutputError if it cannot be written.
    """
    if output.is_private:
        yield RunLock()
        return
    with held(output, layout.LOCK_FILE, command, intervals=intervals) as lock:
        keep_out_members(output, intervals)
        with no_orphans(output, intervals):
            with _cannot_be_written(output):
                _remove_leftovers(output)
            yield lock
            if output.is_local:  # what processes that were killed have announced
                shutil.rmtree(Path(output.path) / layout.OVERTIME_FOLDER, ignore_errors=True)
                output.remove_folder_if_empty(layout.WORK_FOLDER)


@contextmanager
def held(
    output: OutputFolder,
    name: str,
    command: str,
    under: tuple[LockRef, ...] = (),
    intervals: Intervals = DEFAULT_INTERVALS,
) -> Iterator[RunLock]:
    """Hold the lock file `name`; whatever `output` publishes is guarded by it and `under`.

    Its folder is made, and removed again if nothing came to lie in it. Raises OutputInUse if another holds it and
    lives, and OutputError if it cannot be written.
    """
    holder = Holder(uuid.uuid4().hex, command, time.time(), Owner.here())
    lock = RunLock((*under, LockRef(name, holder.run)))
    file = LockFile(output, name)
    with ExitStack() as stack:
        with _cannot_be_written(output):
            kernel = _lock_of_kernel(file, output, holder, stack)
            claim = _LockAcquisition(file, output, holder, intervals, kernel is not None)
            if kernel is not None:
                # Removed under the eyes of a run elsewhere it would no longer keep out others of its machine.
                stack.callback(lambda: kernel.release(remove=not (claim.is_of_another or lock.lost)))
            stack.push(claim.undo)  # what a signal may leave until the heart does
            for last in reversed(range(_TRIES)):
                try:
                    claim.make()
                    break
                except FileNotFoundError:  # another run, which was refused, has removed the empty folder
                    if not last:
                        raise
                    stack.callback(_remove_if_empty, output, _make(output))
        heart = _HeartbeatThread(file, holder, lock, intervals)
        stack.callback(heart.stop)
        claim.is_handed_on = True
        lock.set_command = heart.set_command
        stack.callback(setattr, output, "guard", output.guard)
        output.guard = Guard(output, lock.locks, intervals)
        yield lock


@contextmanager
def no_orphans(output: OutputFolder, intervals: Intervals, member: str | None = None) -> Iterator[None]:
    """What dead runs, or those of one member, have in staging is gone before, and what this one leaves is after."""
    wait_for_orphans(output, intervals, lambda tenant: member in (None, tenant))
    try:
        yield
    finally:
        _sweep(output, lambda tenant: member in (None, tenant))


def keep_out_members(
    output: OutputFolder, intervals: Intervals, is_meant: Callable[[str], bool] = lambda member: True
) -> None:
    """Remove the lock files of members that are dead. Raises OutputInUse if one of those that are meant is at work.

    The caller holds `.any2ds/lock`: members join under it, and those that have not joined do not count.
    """
    doubtful = {}
    for file in _lock_files(output, is_meant):
        content = file.read()
        holder = Holder.parse(content or b"")
        if content is None or (is_alive := _lives(output, file, holder)) is False:
            _bury(output, file, content)
        elif _has_joined(holder):
            if is_alive:
                raise _in_use(output, holder)
            doubtful[file] = content
    if doubtful:
        log.warning(
            "%s is in use by %d others, which may be dead: watching them for %.0f s",
            output.url,
            len(doubtful),
            intervals.stale,
        )
    _watch(output, doubtful, intervals.stale, intervals.look, _has_joined)
    for file, content in doubtful.items():
        _bury(output, file, content)


def bury_members(output: OutputFolder) -> None:
    """Remove what members have left that are known to be dead, without waiting for others: lock files, and probes.

    The caller holds `.any2ds/lock`, under which folders are probed.
    """
    for file in _lock_files(output):
        content = file.read()
        if content is None or _lives(output, file, Holder.parse(content)) is False:
            _bury(output, file, content)
    _remove_probes(output)


def _lock_files(output: OutputFolder, is_meant: Callable[[str], bool] = lambda member: True) -> list[LockFile]:
    """Those of members; some may not be there, where the lock of the system alone was left."""
    members = {layout.member_of(name) for name in output.names_like(layout.MEMBER_LOCKS)} - {""}
    return [LockFile(output, layout.member_lock(member)) for member in sorted(members) if is_meant(member)]


def _has_joined(holder: Holder | None) -> bool:
    return holder is not None and not holder.command.startswith(JOINING)


def _bury(output: OutputFolder, file: LockFile, content: bytes | None) -> None:
    """Remove the lock file of a dead member, unless one of its name has come meanwhile."""
    with ExitStack() as stack:
        if output.is_local:
            with contextlib.suppress(OSError, NoLocks):
                lock = FileLock.take(Path(output.path) / layout.kernel_lock(file.name), create=content is not None)
                if lock is None:
                    return
                stack.callback(lock.release)
        if content is not None and file.read() == content:
            file.remove()


def _lives(output: OutputFolder, file: LockFile, holder: Holder | None) -> bool | None:
    """Whether the holder of a lock file lives; None if this process cannot know."""
    if output.is_local:
        path = Path(output.path) / layout.kernel_lock(file.name)
        with contextlib.suppress(OSError, NoLocks):
            lock, _ = _take_from_dead(path, create=False)
            if lock is None:
                return True
            lock.release(remove=False)
            if holder is not None and holder.owner.shares_kernel():
                return False
    state = holder.owner.state() if holder is not None else "unknown"
    return {"alive": True, "gone": False}.get(state)


class _LockAcquisition:
    """Takes a lock file, from a dead holder if need be."""

    def __init__(
        self, file: LockFile, output: OutputFolder, holder: Holder, intervals: Intervals, has_kernel_lock: bool
    ) -> None:
        self._file, self._output, self._holder, self._intervals = file, output, holder, intervals
        self._has_kernel_lock = has_kernel_lock
        self.is_of_another = False  # the folder, for all that is known
        self.is_handed_on = False  # the lock file, to whoever removes it in the end

    def undo(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Remove the lock file if it was written, after an exception that came before it was handed on.

        A request to a store that a signal interrupted may write it only now.
        """
        if self.is_handed_on:
            return
        is_waited_for = not self._output.is_local and kind is not None and not issubclass(kind, Exception)
        for _ in range(1 + (math.ceil(self._intervals.settle / self._intervals.look) if is_waited_for else 0)):
            with contextlib.suppress(Exception):
                found = self._file.holder()
                if found is not None:
                    if found.run == self._holder.run:
                        self._file.remove()
                    return
            if is_waited_for:
                time.sleep(self._intervals.look)

    def make(self) -> None:
        """Raises OutputInUse if another run has it, or is just getting it."""
        content = self._holder.to_bytes()
        while True:
            before = self._file.read()
            is_sure = False
            if before is None:
                try:
                    is_sure = self._file.create(content)
                except FileExistsError:
                    continue
            else:
                is_sure = self._look_at(before)
                if self._file.read() != before:
                    continue
                self._file.write(content)
            if not is_sure:
                time.sleep(self._intervals.settle)
            found = self._file.holder()
            if found is not None and found.run != self._holder.run:
                self.is_of_another = True
                raise _in_use(self._output, found)
            if found is not None:
                return

    def _look_at(self, before: bytes) -> bool:
        """Make sure that the writer of this is dead. Returns whether no other process can take over at this moment."""
        holder = Holder.parse(before)
        if holder is None:
            self._watch(before, None, self._intervals.look)  # it is being written, or was not written to its end
            return False
        here = Owner.here()
        if self._output.is_local and self._has_kernel_lock and holder.owner.shares_kernel():
            if holder.owner == here or holder.owner.state() != "alive":
                log.info("taking over from a run that is dead: %s", holder)
                return True
        elif holder.owner.state() == "gone":
            log.info("taking over from a run that is dead: %s", holder)
            return False
        self._watch(before, holder, self._intervals.stale)
        return False

    def _watch(self, before: bytes, holder: Holder | None, seconds: float) -> None:
        if holder is not None:
            log.log(
                logging.DEBUG if holder.command in BRIEF else logging.WARNING,
                "%s is in use by another run, which may be dead (%s): watching it for %.0f s",
                self._output.url,
                holder,
                seconds,
            )
        self.is_of_another = True
        _watch(self._output, {self._file: before}, seconds, self._intervals.look)
        self.is_of_another = False


def _watch(
    output: OutputFolder,
    files: Mapping[LockFile, bytes],
    seconds: float,
    look: float,
    counts: Callable[[Holder | None], bool] = lambda holder: True,
) -> None:
    """Raises OutputInUse if one of these lock files, with its content, is rewritten by a run that `counts`."""
    present = dict(files)
    for _ in range(math.ceil(seconds / look) if files else 0):  # looks, not a clock: we may be suspended too
        time.sleep(look)
        for file, before in tuple(present.items()):
            content = file.read()
            if content is None:
                del present[file]
            elif content != before and counts(holder := Holder.parse(content) or Holder.parse(before)):
                raise _in_use(output, holder)
        if not present:
            return


def _check_holder(file: LockFile, holder: Holder | None, run: str) -> None:
    if holder is None:
        raise LockLost(f"{file.folder!r}: its {file.name} was removed, so that others may be at work there")
    if holder.run != run:
        silent = "because this one gave no sign of life for too long"
        raise LockLost(f"{file.folder!r} was taken over by another run ({holder}), {silent}")


def _not_seen(file: LockFile) -> LockLost:
    """Of a process that has never seen it."""
    return LockLost(
        f"{socket.gethostname()} does not see the {file.name} of the run in {file.folder!r}. On a cluster each "
        "machine has to see the same output folder, by the same name: use a shared folder, or an object store. If this "
        "machine does see it, the file was removed, so that others may be at work there"
    )


def _in_use(output: OutputFolder, holder: Holder | None) -> OutputInUse:
    user = f"another run ({holder})" if holder else "another run"
    error = OutputInUse(f"output folder {output.url!r} is in use by {user}: {_WAY_OUT}")
    error.command = holder.command if holder else ""
    return error


@contextmanager
def _cannot_be_written(output: OutputFolder) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # every file system has exceptions of its own
        raise OutputError(f"output folder {output.url!r} cannot be written: {error_text(error)}") from error


def _lock_of_kernel(file: LockFile, output: OutputFolder, holder: Holder, stack: ExitStack) -> FileLock | None:
    """The lock that every process under this kernel respects, in a folder that is there from then on.

    None where there is no such lock. Raises OutputInUse if another has it.
    """
    if not output.is_local:
        stack.callback(_remove_if_empty, output, _make(output))
        which = output.identity if file.name == layout.LOCK_FILE else f"{output.identity} {file.name}"
        # Of this machine and user only, but it answers at once. A folder that is not ours alone holds no such lock:
        # a fresh one would not be seen by the other run.
        folder = named_for_user(Path(tempfile.gettempdir()), "any2ds-locks")
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            if is_private(folder):
                stack.callback(_remove_empty_folder, folder)
                return _take(folder / fingerprint(which), output, holder)
        return None
    path = Path(output.path) / layout.kernel_lock(file.name)
    for _ in range(_TRIES):
        made = _make(output)
        try:
            lock = _take(path, output, holder)
        except FileNotFoundError:  # another run, which was refused, has removed the empty folder
            continue
        except BaseException:
            _remove_if_empty(output, made)
            raise
        stack.callback(_remove_if_empty, output, made)
        return lock
    raise FileNotFoundError(f"{output.path} is removed repeatedly")


def _take(path: Path, output: OutputFolder, holder: Holder) -> FileLock | None:
    try:
        lock, other = _take_from_dead(path, holder.to_bytes())
    except NoLocks:
        path.unlink(missing_ok=True)
        return None
    if lock is None:
        raise _in_use(output, other)
    return lock


def _take_from_dead(path: Path, content: bytes = b"", create: bool = True) -> tuple[FileLock | None, Holder | None]:
    """`FileLock.take`; if it is locked, also the holder that the file names.

    A child that was forked at the moment its parent was killed keeps the lock until it first runs: a lock of a dead
    holder is waited for.
    """
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_FORK_PAUSE)
        lock, holder = FileLock.take(path, content, create), None
        if lock is not None:
            break
        with contextlib.suppress(OSError):  # removed in this moment
            holder = Holder.parse(path.read_bytes())
        if holder is None or holder.owner.state() != "gone":
            break
    return lock, holder


def _sweep(output: OutputFolder, is_meant: Callable[[str], bool], fence: bool = False) -> list[Owner]:
    """`staging.sweep` for every folder in which files for this output may wait, of the members that are meant."""
    roots = {output.staging_root: output.identity}  # others may have theirs there as well
    if output.is_local:
        roots[Path(output.path) / layout.TEMPORARY_FOLDER] = ""
    return [owner for root, only in roots.items() for owner in sweep(root, only, is_meant, fence)]


def wait_for_orphans(output: OutputFolder, intervals: Intervals, is_meant: Callable[[str], bool]) -> None:
    """Until the processes of dead runs on this machine have ended, too: what they publish would be in the way.

    `is_meant` is asked for the member that a process works for, "" if it is none. Raises OutputInUse if they do not.
    """
    began, has_logged = time.monotonic(), False
    while alive := _sweep(output, is_meant, fence=True):
        who = ", ".join(sorted(f"{owner.pid} on {owner.host}" for owner in alive))
        waited = time.monotonic() - began
        if waited >= intervals.orphans:
            raise OutputInUse(
                f"output folder {output.url!r}: the run that was at work in it is dead, but not all of its processes "
                f"are: end process {who}, then run the same command again"
            )
        if waited >= _TELL and not has_logged:
            log.warning("waiting for processes of a dead run to end: process %s", who)
            has_logged = True
        time.sleep(min(0.05, intervals.look))


def _remove_probes(output: OutputFolder) -> None:
    with contextlib.suppress(NotImplementedError):  # not all can look for a beginning, and it is not worth a run
        for name in output.names_like(layout.PROBES):
            if layout.is_probe(name) and output.read(name) == b"any2ds":
                output.remove(name)


def _remove_leftovers(output: OutputFolder) -> None:
    """What dead runs have left in the folder itself, and nothing that only looks like it."""
    _remove_probes(output)
    if output.names(layout.WORK_FOLDER):
        output.remove_tree(layout.WORK_FOLDER)
    if output.is_local or is_object_store(output.fs):
        return  # a local folder was swept already; an object store has no temporary names
    names = output.names(layout.TEMPORARY_FOLDER)
    ours = [name for name in names if is_staging_name(name)]
    for name in ours:
        output.remove_tree(f"{layout.TEMPORARY_FOLDER}/{name}")
    if names and len(ours) == len(names):
        output.remove_folder_if_empty(layout.TEMPORARY_FOLDER)


def _remove_empty_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another run has its lock there
        folder.rmdir()


def _make(output: OutputFolder) -> list[str]:
    """The folder for the state is there; what is to be removed in the end if it is empty, the innermost first."""
    if is_object_store(output.fs):  # there it would make the bucket of a mistyped name
        return []
    state = f"{output.path.rstrip('/')}/{layout.STATE_FOLDER}"
    if output.is_local:
        refuse_link(Path(state))
        above = (Path(output.path), *Path(output.path).parents)
        missing = [str(path) for path in above if not os.path.exists(path)]
        try:
            os.makedirs(state, exist_ok=True)
        except OSError:  # such as a path that is too long: some folders of it may have been made
            _remove_if_empty(output, [path for path in missing if os.path.exists(path)])
            raise
    else:
        missing = _missing(output.fs, output.path)
        output.fs.makedirs(state, exist_ok=True)
    # On a server with files an upload leaves the folder that it had its temporary name in.
    return [f"{output.path.rstrip('/')}/{layout.TEMPORARY_FOLDER}", state, *missing]


def _missing(fs: Any, path: str) -> list[str]:
    """The folders of `path` that do not exist, the innermost first."""
    missing: list[str] = []
    while path.strip("/") and not fs.exists(path):
        missing.append(path)
        parent = fs._parent(path)
        if parent == path:
            break
        path = parent
    return missing


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
