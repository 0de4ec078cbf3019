"""A task of a cluster: some shard jobs, made by a local run on whatever machine the cluster has for it.

Its files lie in the folder of the run, `.any2ds/work/<run>/`:

    <task>.jobs      what it is to do; the driver removes it when the task is over, or has been given up
    <task>.lock      held by the attempt at it that publishes: clusters run tasks again, and some twice at a time
    <task>.progress  what that attempt has done so far, overwritten at intervals
    stop             written by the driver: the seconds that open shards may take

The worker has a process of its own, so a shard that crashes it is dealt with here, and the cluster sees a task fail
only where it has lost a machine.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from any2ds.config.options import RunOptions
from any2ds.core.errors import ENDS_THE_RUN, LockLost, OutputError, OutputInUse, RunError, error_text
from any2ds.core.metrics import HostLoad, WorkerMetrics
from any2ds.core.reports import Event, Progress, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.core.version import __version__
from any2ds.distributors._contract import Worker
from any2ds.distributors.multiprocessing import MultiprocessingDistributor
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.lease import Intervals, RunLock
from any2ds.storage.lock.lock_file import check_holder
from any2ds.storage.lock.run_lock import held

log = logging.getLogger(__name__)

_INTERVALS = Intervals(beat=5.0, stale=30.0)
_WAIT = 5.0  # seconds between two looks whether the attempt that is at the task still is
_MOST_ATTEMPTS = 4  # of a task, before each of its shards gets a task: some clusters try for ever


class UnseenFolder(OutputError):
    """A machine of the cluster has another folder, or none, where the run has its output."""


class OtherVersion(RunError):
    """A machine of the cluster has another any2ds than the run."""


@dataclass(slots=True)
class TaskProgress:
    """The progress of an attempt at a task. Sums are since it began."""

    attempt: int = 0  # from 1
    writes: int = 0  # of this file: it changes as long as the attempt lives
    outcomes: Counter[str] = field(default_factory=Counter)  # code -> rows
    size: int = 0  # bytes of successes
    attempts: int = 0  # transfers
    received: int = 0  # bytes
    metrics: WorkerMetrics | None = None  # the newest
    made: list[int] = field(default_factory=list)  # shards, whose statistics are published
    errors: dict[int, tuple[str, int]] = field(default_factory=dict)  # shard -> why it failed, and at which try
    problem: str = ""  # why the attempt could do nothing more
    ends_run: str = ""  # the kind of error, where that is not the matter of one machine
    has_ended: bool = False

    @classmethod
    def parse(cls, content: bytes | None) -> TaskProgress | None:
        """None where there is none: it was not begun, or somebody else has written the file."""
        try:
            values = orjson.loads(content or b"")
            if (metrics := values["metrics"]) is not None:
                metrics["hosts"] = tuple(HostLoad(**host) for host in metrics["hosts"])
                metrics["latencies"] = {int(bucket): count for bucket, count in metrics["latencies"].items()}
                values["metrics"] = WorkerMetrics(**metrics)
            values["errors"] = {int(shard_id): tuple(error) for shard_id, error in values["errors"].items()}
            return cls(**values)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None

    def to_bytes(self) -> bytes:
        return orjson.dumps(self, option=orjson.OPT_NON_STR_KEYS)

    def add(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.outcomes.update(event.outcomes)
            self.size += event.bytes
            if event.metrics is not None:
                self.metrics = event.metrics
                self.attempts += event.metrics.attempts
                self.received += event.metrics.received
        elif isinstance(event, ShardReport):
            self.made.append(event.shard_id)
        else:
            self.errors[event.shard_id] = event.reason, event.attempt

    def since(self, before: TaskProgress) -> Progress:
        """The progress since `before`; negative where the attempt before had done more."""
        shown = before if before.attempt == self.attempt else TaskProgress()  # of this attempt
        change = Counter(self.outcomes)
        change.subtract(before.outcomes)
        metrics = self.metrics and replace(
            self.metrics,
            attempts=max(0, self.attempts - shown.attempts),
            received=max(0, self.received - shown.received),
        )
        return Progress({code: rows for code, rows in change.items() if rows}, self.size - before.size, metrics)


@dataclass(frozen=True, slots=True)
class Task:
    """Can be pickled, and called once or several times, on any machine."""

    worker: Worker
    options: RunOptions
    folder: str  # of the run
    interval: float  # seconds between two reports
    number: int = 0
    digest: str = ""  # of the file with its jobs: others may write in the folder, too

    def file(self, kind: str) -> str:
        return f"{self.folder}/{self.number:06d}.{kind}"

    def with_jobs(self, jobs: Sequence[ShardJob], number: int) -> Task:
        """Write the file with the jobs of a task, and return the task. Raises whatever the file system raises.

        Schedulers are made for less than rows: Spark's takes 128 MB, and Beam's services 10 MB for all tasks.
        """
        content = pickle.dumps(jobs, pickle.HIGHEST_PROTOCOL)
        task = replace(self, number=number, digest=hashlib.sha256(content).hexdigest())
        self.worker.folder.write(task.file("jobs"), content)
        return task

    def jobs(self, output: OutputFolder) -> Sequence[ShardJob] | None:
        """None if the task is over, or has been given up."""
        content = output.read(self.file("jobs"))
        if content is None or hashlib.sha256(content).hexdigest() != self.digest:
            return None
        jobs: Sequence[ShardJob] = pickle.loads(content)
        return jobs

    def progress(self, output: OutputFolder) -> TaskProgress:
        """The progress of the last attempt at it."""
        return TaskProgress.parse(output.read(self.file("progress"))) or TaskProgress()

    def __call__(self) -> None:
        """Make the shards, or wait for another attempt that does. Raises what only another machine, or a person, can
        mend."""
        output = self.worker.folder
        if not output.names(self.folder):
            raise UnseenFolder(
                f"{output.url!r} is not the folder of the run, seen from here: all machines of a cluster need the same"
                " one, on a shared disk or an object store"
            )
        while not self.progress(output).has_ended and self.jobs(output) is not None:
            try:
                with held(output, self.file("lock"), "task", intervals=_INTERVALS) as lock:
                    self._work(output, lock)
            except OutputInUse:
                time.sleep(_WAIT)
            except LockLost as error:
                log.info("task %d goes on elsewhere: %s", self.number, error)
                return

    def _work(self, output: OutputFolder, lock: RunLock) -> None:
        """Raises LockLost if the task has been given up, or another attempt has it."""
        jobs, before = self.jobs(output), self.progress(output)
        if jobs is None or before.has_ended:  # meanwhile
            return
        progress = TaskProgress(before.attempt + 1)
        distributor = MultiprocessingDistributor(replace(self.options, processes_count=1))
        if before.attempt >= _MOST_ATTEMPTS:
            jobs = ()
            progress.problem = f"{before.attempt} attempts at its task were lost, most often because memory has run out"
        elif before.attempt:  # which may have published some
            jobs = [replace(job, attempt=max(1, job.attempt)) for job in jobs]
        with self._reporting(output, progress, distributor.stop):
            events: Any = distributor.map(self.worker.under(lock.locks), iter(jobs))
            try:
                with closing(events):
                    for event in events:
                        progress.add(event)
            except RunError as error:
                if isinstance(error, LockLost):  # of the task, or else it is the run that was lost
                    check_holder(output, lock.locks[-1])
                progress.problem = str(error)
                progress.ends_run = type(error).__name__ if isinstance(error, ENDS_THE_RUN) else ""
        progress.has_ended = True
        self._report(output, progress)

    def _report(self, output: OutputFolder, progress: TaskProgress) -> None:
        progress.writes += 1
        output.write(self.file("progress"), progress.to_bytes())

    @contextmanager
    def _reporting(self, output: OutputFolder, progress: TaskProgress, stop: Callable[[float], None]) -> Iterator[None]:
        """Meanwhile the driver gets progress, and `stop` is called with the seconds that it gives to open shards."""
        has_ended = threading.Event()

        def report() -> None:
            while True:
                try:
                    self._report(output, progress)
                    if (grace := output.read(f"{self.folder}/stop")) is not None:
                        stop(float(grace))
                except LockLost:
                    return stop(0.0)
                except Exception as error:  # every file system has exceptions of its own; the next report has it all
                    log.info("the run cannot be reached: %s", error_text(error))
                if has_ended.wait(self.interval):
                    return None

        thread = threading.Thread(target=report, name="any2ds-report", daemon=True)
        thread.start()
        try:
            yield
        finally:
            has_ended.set()
            thread.join()


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
