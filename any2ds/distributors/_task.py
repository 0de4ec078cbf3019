"""What a cluster runs: some shard jobs, on a machine that the run has no connection to.

The worker has a process of its own, as on the machine of the run: so a shard that crashes it, or makes it hang, is
dealt with here, and the cluster sees a task fail only where it has lost a machine. Clusters run tasks again, and some
of them twice at a time; so an attempt has to hold the task's lock file, and publishes nothing once another has it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from any2ds.config.options import RunOptions
from any2ds.core.errors import ENDS_THE_RUN, LockLost, OutputError, OutputInUse, RunError
from any2ds.core.rows import ShardJob
from any2ds.core.version import __version__
from any2ds.distributors._contract import Worker
from any2ds.distributors._mailbox import Mailbox, Outbox
from any2ds.distributors.multiprocessing import MultiprocessingDistributor
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.owner import Owner
from any2ds.storage.lock.run_lock import Guard, Intervals, RunLock, held

log = logging.getLogger(__name__)

_INTERVALS = Intervals(beat=5.0, stale=30.0)
_WAIT = 5.0  # seconds between two looks whether the attempt that is at the task still is
_HEAVY = 16 << 20  # bytes of rows; schedulers are made for less, and Spark's takes no more than 128 MB
_LONGEST_LINE = 1 << 16  # bytes of a message on standard error
_CODEC = "zstd"  # takes rows to a quarter of their size, at 2 ms for 10 000 of them


class UnseenFolder(OutputError):
    """A machine of the cluster has another folder, or none, where the run has its output."""


class OtherVersion(RunError):
    """A machine of the cluster has another any2ds than the run."""


@dataclass(frozen=True, slots=True)
class Task:
    """Can be pickled, and called once or several times, anywhere."""

    number: int
    worker: Worker
    jobs: tuple[ShardJob, ...]  # with their rows compressed
    sizes: tuple[int, ...]  # bytes of the rows of each
    mailbox: Mailbox
    options: RunOptions

    @classmethod
    def of(cls, number: int, worker: Worker, jobs: Sequence[PackedJob], mailbox: Mailbox, options: RunOptions) -> Task:
        return cls(number, worker, tuple(job.job for job in jobs), tuple(job.size for job in jobs), mailbox, options)

    def __call__(self) -> None:
        """Returns when the task is over, whoever did it. Raises what only another machine, or a person, can mend."""
        output = self.worker.folder
        _check_folder(output, self.mailbox)
        while self.mailbox.is_visible(output) and not output.exists(self.mailbox.mark(self.number)):
            try:
                with held(output, self.mailbox.lock_file(self.number), "task", intervals=_INTERVALS) as lock:
                    if not output.exists(self.mailbox.mark(self.number)):  # it may have been given up meanwhile
                        self._work(output, lock)
                return
            except OutputInUse:
                time.sleep(_WAIT)
            except LockLost as error:
                log.info("task %d goes on elsewhere: %s", self.number, error)
                return

    def light(self) -> Callable[[], None]:
        """For a scheduler that carries what it is given: `StoredTasks` if its rows are heavy. Raises as `leave`."""
        if sum(len(job.rows) for job in self.jobs) < _HEAVY:
            return self
        self.leave()
        return partial(StoredTasks(self.worker, self.mailbox, self.options), self.number)

    def leave(self) -> None:
        """Its rows, in the output folder, for an `Errand`; whoever may read there must not find keys or secrets.

        Raises whatever the file system raises.
        """
        content = self.mailbox.signed((self.jobs, self.sizes))
        self.worker.folder.write(self.mailbox.task_file(self.number), content)

    def _work(self, output: OutputFolder, lock: RunLock) -> None:
        worker, attempt = self.worker.under(lock.locks), lock.locks[-1].run
        begun = f"{self.mailbox.mark(self.number)}.begun"
        is_again = output.exists(begun)
        output.write(begun, b"")
        distributor = MultiprocessingDistributor(replace(self.options, processes_count=1))
        with (
            Outbox(self.mailbox, output, self.number, attempt, distributor.stop) as outbox,
            _complaints(outbox) as distributor.stderr,
        ):
            outbox.say("began")
            events: Any = distributor.map(worker, self._unpacked(is_again))
            try:
                with closing(events):
                    for event in events:
                        outbox.say("event", event)
            except ENDS_THE_RUN as error:
                if isinstance(error, LockLost):
                    Guard(output, lock.locks, replace(_INTERVALS, trust=0.0))()  # else it is the run that was lost
                if outbox.lost is None:
                    outbox.say("fatal", error)
            except RunError as error:
                outbox.say("broken", str(error))
            outbox.say("ended")
        if outbox.lost is not None:
            raise outbox.lost
        output.write(self.mailbox.mark(self.number), b"")

    def _unpacked(self, is_again: bool) -> Iterator[ShardJob]:
        codec = pa.Codec(_CODEC)
        for job, size in zip(self.jobs, self.sizes, strict=True):
            rows = codec.decompress(job.rows, size, asbytes=True)
            # An attempt before may have finished it.
            yield replace(job, rows=rows, attempt=max(job.attempt, 1) if is_again else job.attempt)


@contextmanager
def _complaints(outbox: Outbox) -> Iterator[int]:
    """A file descriptor for standard error, of which the run shows what is written to it."""
    reading, writing = os.pipe()

    def forward() -> None:
        host = f"{Owner.here().host}: ".encode()
        with open(reading, "rb") as lines:
            while line := lines.readline(_LONGEST_LINE):
                if not outbox.complain(host + line):
                    os.write(2, line)

    thread = threading.Thread(target=forward, name="any2ds-complaints", daemon=True)
    thread.start()
    try:
        yield writing
    finally:
        os.close(writing)
        thread.join(1.0)  # a program that a step has started may have it, and live on


def perform(tasks: Iterable[Callable[[], None]]) -> None:
    """For clusters that send a function: a machine has to import nothing but this module for it."""
    for task in tasks:
        task()


def perform_pickled(version: str, path: Sequence[str], folder: str, task: bytes) -> None:
    """For clusters whose processes may have another any2ds than `version`, for which OtherVersion is raised.

    `path` and `folder` are the `sys.path` and working directory of the run: what is there as well is used.
    """
    if version != __version__:
        raise OtherVersion(f"any2ds {version} is needed, and {__version__} is installed")
    sys.path += [place for place in path if place not in sys.path and os.path.exists(place)]
    if os.path.isdir(folder):
        os.chdir(folder)
    pickle.loads(task)()


@dataclass(frozen=True, slots=True)
class StoredTasks:
    """Calls tasks that lie in the output folder; it weighs nothing, where tasks have the rows of many shards."""

    worker: Worker
    mailbox: Mailbox
    options: RunOptions

    def __call__(self, number: int) -> None:
        """As `Task`."""
        output = self.worker.folder
        _check_folder(output, self.mailbox)
        content = output.read(self.mailbox.task_file(number))
        found = None if content is None else self.mailbox.verified(content)
        if found is not None:  # else it is over, and another attempt has removed it
            jobs, sizes = found
            Task(number, self.worker, jobs, sizes, self.mailbox, self.options)()
            with contextlib.suppress(Exception):  # of any file system; it is removed with the others in the end
                output.remove_many([self.mailbox.task_file(number)])


def _check_folder(output: OutputFolder, mailbox: Mailbox) -> None:
    if not mailbox.is_visible(output):
        raise UnseenFolder(
            f"{output.url!r} is not the folder of the run, seen from here: all machines of a cluster need the same"
            " one, on a shared disk or an object store"
        )


@dataclass(frozen=True, slots=True)
class PackedJob:
    """A job whose rows are compressed, and how many bytes they were."""

    job: ShardJob
    size: int

    @classmethod
    def of(cls, job: ShardJob) -> PackedJob:
        return cls(replace(job, rows=pa.Codec(_CODEC).compress(job.rows, asbytes=True)), len(job.rows))

    def again(self) -> PackedJob:
        return replace(self, job=replace(self.job, attempt=self.job.attempt + 1))
