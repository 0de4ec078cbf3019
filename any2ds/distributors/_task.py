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
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
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
from any2ds.storage.lock.lease import Intervals, RunLock
from any2ds.storage.lock.run_lock import Guard, held
from any2ds.storage.patience import persist

log = logging.getLogger(__name__)

_INTERVALS = Intervals(beat=5.0, stale=30.0)
_WAIT = 5.0  # seconds between two looks whether the attempt that is at the task still is
_MOST_LOST = 4  # attempts at a task before each of its shards gets one; clusters may try for ever
_LONGEST_LINE = 1 << 16  # bytes of a message on standard error
_CODEC = "zstd"  # takes rows to a quarter of their size, at 2 ms for 10 000 of them


class UnseenFolder(OutputError):
    """A machine of the cluster has another folder, or none, where the run has its output."""


class OtherVersion(RunError):
    """A machine of the cluster has another any2ds than the run."""


@dataclass(frozen=True, slots=True)
class PackedJob:
    """A job whose rows are compressed, and how many bytes they were."""

    job: ShardJob
    size: int

    @classmethod
    def of(cls, job: ShardJob) -> PackedJob:
        return cls(replace(job, rows=pa.Codec(_CODEC).compress(job.rows, asbytes=True)), len(job.rows))

    def unpacked(self, attempt: int) -> ShardJob:
        """With that attempt, or its own if that is a later one."""
        rows = pa.Codec(_CODEC).decompress(self.job.rows, self.size, asbytes=True)
        return replace(self.job, rows=rows, attempt=max(self.job.attempt, attempt))

    def again(self) -> PackedJob:
        return replace(self, job=replace(self.job, attempt=self.job.attempt + 1))


@dataclass(frozen=True, slots=True)
class Task:
    """Can be pickled, and called once or several times, anywhere.

    Its jobs lie in the output folder: schedulers are made for less, and Spark's takes no more than 128 MB.
    """

    number: int
    worker: Worker
    mailbox: Mailbox
    options: RunOptions

    def leave(self, jobs: Sequence[PackedJob]) -> None:
        """What it is to do, where it finds that; whoever may read there must not find keys or secrets.

        Raises whatever the file system raises.
        """
        self.worker.folder.write(self.mailbox.task_file(self.number), self.mailbox.signed(tuple(jobs)))

    def __call__(self) -> None:
        """Returns when the task is over, whoever did it. Raises what only another machine, or a person, can mend."""
        output = self.worker.folder
        if not self.mailbox.is_visible(output):
            raise UnseenFolder(
                f"{output.url!r} is not the folder of the run, seen from here: all machines of a cluster need the same"
                " one, on a shared disk or an object store"
            )
        while self.mailbox.is_visible(output) and not output.exists(self.mailbox.mark(self.number)):
            try:
                with held(output, self.mailbox.lock_file(self.number), "task", intervals=_INTERVALS) as lock:
                    if not output.exists(self.mailbox.mark(self.number)):  # it may have been given up meanwhile
                        self._work(output, lock)
            except OutputInUse:
                time.sleep(_WAIT)
            except LockLost as error:
                log.info("task %d goes on elsewhere: %s", self.number, error)
                return

    def _work(self, output: OutputFolder, lock: RunLock) -> None:
        worker, attempt = self.worker.under(lock.locks), lock.locks[-1].run
        file = self.mailbox.task_file(self.number)
        jobs: Sequence[PackedJob] = self.mailbox.verified(output.read(file) or b"") or ()
        begun = f"{self.mailbox.mark(self.number)}.begun"
        lost = len(output.read(begun) or b"")  # attempts, which may have finished some jobs
        output.write(begun, b"." * (lost + 1))
        distributor = MultiprocessingDistributor(replace(self.options, processes_count=1))
        with (
            Outbox(self.mailbox, output, self.number, attempt, distributor.stop) as outbox,
            _forwarded_stderr(outbox) as distributor.stderr,
        ):
            if lost >= _MOST_LOST:
                jobs = ()
                outbox.send("broken", f"{lost} attempts at its task were lost, most often because memory has run out")
            events: Any = distributor.map(worker, (job.unpacked(min(lost, 1)) for job in jobs))
            try:
                with closing(events):
                    for event in events:
                        outbox.send("event", event)
            except ENDS_THE_RUN as error:
                if isinstance(error, LockLost):  # of the task, or else it is the run that was lost
                    persist("looking at the lock", Guard(output, lock.locks, replace(_INTERVALS, trust=0.0)))
                if outbox.lost is None:
                    outbox.send("fatal", error)
            except RunError as error:
                outbox.send("broken", str(error))
            outbox.send("ended")
        if outbox.lost is not None:
            raise outbox.lost
        output.write(self.mailbox.mark(self.number), b"")
        with contextlib.suppress(Exception):  # of any file system; it is removed with the others in the end
            output.remove_many([file])


@contextmanager
def _forwarded_stderr(outbox: Outbox) -> Iterator[int]:
    """A file descriptor whose lines go to the standard error of the run."""
    reading, writing = os.pipe()

    def forward() -> None:
        host = f"{socket.gethostname()}: ".encode()
        with open(reading, "rb") as lines:
            while line := lines.readline(_LONGEST_LINE):
                if not outbox.send_stderr(host + line):
                    os.write(2, line)

    thread = threading.Thread(target=forward, name="any2ds-stderr", daemon=True)
    thread.start()
    try:
        yield writing
    finally:
        os.close(writing)
        thread.join(1.0)  # a program that a step has started may have it, and live on


def perform(tasks: Iterable[Task]) -> None:
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
