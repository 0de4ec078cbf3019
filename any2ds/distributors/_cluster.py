"""Runs a worker on a cluster: missing shards go to its scheduler as tasks, and the dataset's folder is the channel.

    jobs ─▶ sub-jobs ─▶ tasks ─▶ on any machine: a local run over the jobs of a task ─▶ <shard>_stats.json
               ▲                                      │ <task>.progress, every few seconds
               └──── shards that are missing ◀── the driver looks

`_stats.json` alone says that a shard is made; `_task.py` has the other files. A cluster is asked for two things: to
call the tasks, and to end them. Tasks of a sub-job are a batch, a job of the cluster: some fail all of it for one task.
Where a task ends without its shards, each of them is a task of its own then, in a batch of its own, so a shard that
takes its machine down is the only one that is lost with it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import ClassVar

from any2ds.config.options import RunOptions
from any2ds.core import layout
from any2ds.core.errors import LockLost, OutputError, RunError, error_text, shard_count
from any2ds.core.processes.watchdog import Watch
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.core.stats import as_written
from any2ds.distributors._contract import Worker
from any2ds.distributors._jobs import Assignment, JobQueue
from any2ds.distributors._task import Task, TaskProgress

log = logging.getLogger(__name__)

_MOST_BYTES = 256 << 20  # of the rows of a sub-job; one that is given out, and one that waits, are here at a time
_WRITTEN_AT_ONCE = 8  # tasks
_NEAR, _FAR = 0.3, 2.0  # seconds between two looks at tasks, and two reports of a task, on disks and in stores
_LISTENS = 0.2  # seconds between two looks whether to go on waiting for the list
_NOTHING_BEGINS = 60.0  # seconds after which a log says that the cluster gives us no room
_SILENCE = 120.0  # seconds without a report after which the machine of a task is gone
_PART_OF_GRACE = 0.7  # of the time that a run has to stop
_END_TIMEOUT = 15.0  # seconds that a cluster may take to end its tasks
_UNREACHED = 60.0  # seconds for which the folder may be out of reach before the run ends
_MOST_FAILURES = 30  # batches with tasks that end without their shards, with none made in between: the run ends
_ANSWERS_WITHIN = 10.0  # seconds that what listens for a cluster has to take a connection
_RETURNED_PER_SLOT = 2  # batches of one task at a time: each has a thread here, and is a job of the cluster


class ClusterDistributor(ABC):
    """The `Distributor` of a cluster. A subclass says what the cluster has, and how it calls and ends tasks."""

    thread_class: ClassVar[type[threading.Thread]] = threading.Thread  # in which `run` is called

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.task_limit: float = options.processes_count or math.inf  # inf: tasks beyond `slots` wait in the cluster
        self.stop_asked = threading.Event()
        self.stop_at = math.inf  # by `time.monotonic()`: when whatever is not finished is broken off

    # --- what an engine implements ---

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Around one `map`. Raises UsageError if the cluster cannot be had."""
        yield

    @property
    @abstractmethod
    def slots(self) -> int:
        """Tasks that run at a time; it may change."""

    @property
    @abstractmethod
    def machines(self) -> int:
        """Machines that it has, or may get; limits of hosts are divided among them."""

    @abstractmethod
    def run(self, tasks: Sequence[Task]) -> None:
        """Have the tasks called, on whatever machines, and return when all of them have ended.

        Called in a thread of its own, several times at a time. Raises RunError, or whatever the cluster raises, if that
        ended early; a cluster that calls a task again, or twice at a time, does no harm.
        """

    @abstractmethod
    def cancel(self) -> None:
        """Have all tasks ended, without waiting: each `run` returns, or raises, soon."""

    # --- what it is for `run` ---

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        queue = JobQueue(jobs, self.options.subjob_size, _MOST_BYTES)
        try:
            while not queue.wait(_LISTENS) and not self.is_stopping():
                pass
            if queue.has_ended or self.is_stopping():
                return
            with self.connected():
                driver = _Driver(worker, queue, self)
                try:
                    while driver.is_unfinished:
                        yield from driver.step()
                        self.stop_asked.wait(driver.pause)
                        self.stop_asked.clear()
                finally:
                    driver.close()
        finally:
            queue.stop()

    def stop(self, grace: float) -> None:
        self.stop_at = min(self.stop_at, time.monotonic() + grace)
        self.stop_asked.set()

    def is_stopping(self) -> bool:
        return self.stop_at < math.inf


class _Batch:
    """Tasks that the cluster was given together, and the thread that waits for them."""

    def __init__(self, engine: ClusterDistributor, tasks: Sequence[Task]) -> None:
        self.numbers = [task.number for task in tasks]
        self.is_single = len(tasks) == 1
        self.error = ""  # why it ended early
        self.has_failed = False  # a task of it has ended without its shards
        self._engine, self._tasks = engine, tasks
        self._thread = engine.thread_class(target=self._run, name="any2ds-cluster", daemon=True)
        self._thread.start()

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._engine.run(self._tasks)
        except BaseException as error:  # of whatever cluster it is
            self.error = error_text(error)


class _RunningTask(Assignment):
    """A task that the cluster has, as far as the driver knows, and its shards without a report."""

    def __init__(self, task: Task, jobs: Iterable[ShardJob], batch: _Batch) -> None:
        super().__init__(replace(job, rows=b"") for job in jobs)
        self.task, self.batch = task, batch
        self.progress = TaskProgress()  # as it was last read
        self.watch = Watch(_SILENCE, time.monotonic())


class _Driver:
    """Gives the jobs of one `map` to a cluster, and watches what becomes of them."""

    def __init__(self, worker: Worker, queue: JobQueue, engine: ClusterDistributor) -> None:
        self._queue, self._engine = queue, engine
        self._output, self._layout = worker.folder, worker.layout
        self._interval = _NEAR if self._output.is_local else _FAR
        self._folder = f"{layout.WORK_FOLDER}/{uuid.uuid4().hex}"
        self._template = Task(worker.among(engine.machines), engine.options, self._folder, self._interval)
        self._numbers = count()
        self._waiting: deque[Sequence[ShardJob]] = deque()  # the jobs of each task that has no room yet
        self._returned: deque[Sequence[ShardJob]] = deque()  # shards of tasks that ended without them, one by one
        self._tasks: dict[int, _RunningTask] = {}
        self._batches: list[_Batch] = []
        self._failures = 0  # batches with tasks that ended without their shards, since one was made
        self._has_begun = False  # a task, ever
        self._warn_at = time.monotonic() + _NOTHING_BEGINS
        self._read_at = time.monotonic()  # when the folder could be read last
        self._is_stopping = False
        self._grace: float | None = None  # seconds for the tasks to stop, which they have not been told yet

    @property
    def is_unfinished(self) -> bool:
        return bool(self._tasks or self._waiting or self._returned or not self._queue.has_ended)

    @property
    def pause(self) -> float:
        """Seconds until the next step."""
        left = self._engine.stop_at - time.monotonic()
        return max(0.0, min(self._interval, left)) if self.is_unfinished else 0.0

    def step(self) -> Iterator[Event]:
        if self._engine.is_stopping():
            yield from self._stop()
            return
        self._submit()
        yield from self._look_at_tasks()
        if not self._has_begun and time.monotonic() >= self._warn_at:
            self._warn_at = math.inf
            log.warning("the cluster has begun no task yet: it may be busy, or have no machine as asked")

    def _stop(self) -> Iterator[Event]:
        """Let only those shards come to their end that are begun, and end all tasks when the time is over."""
        left = self._engine.stop_at - time.monotonic()
        if not self._is_stopping:
            self._is_stopping = True
            self._queue.stop()
            self._output.stop.set()  # each request is tried once: a store that gives no answer must not take the grace
            self._waiting.clear()
            self._returned.clear()
            self._grace = _PART_OF_GRACE * max(0.0, left)  # tasks have less time than the run, which is to see them end
            yield Progress()
        with self._reaching_folder():
            yield from self._look_at_tasks()
        self._order_stop()
        if left <= 0 or not any(task.progress.attempt for task in self._tasks.values()):
            self._abort()

    def close(self) -> None:
        self._output.stop.set()
        if self._tasks:
            self._abort()
        until = time.monotonic() + _END_TIMEOUT
        while not all(batch.has_ended for batch in self._batches) and time.monotonic() < until:
            time.sleep(0.02)
        if not all(batch.has_ended for batch in self._batches):
            self._engine.cancel()
            log.warning("the cluster has not ended its tasks within %.0f s: cancel them there", _END_TIMEOUT)
        with self._reaching_folder():  # the next run removes what is left
            self._output.remove_tree(self._folder)
            self._output.remove_folder_if_empty(layout.WORK_FOLDER)

    def _abort(self) -> None:
        """End all tasks, also where the cluster cannot do that."""
        self._tasks.clear()
        self._engine.cancel()  # first: the store may give no answer
        self._grace = 0.0
        self._order_stop()

    def _order_stop(self) -> None:
        """Have the tasks stop; where the folder is out of reach, with the next step."""
        if self._grace is not None:
            with self._reaching_folder():
                self._output.write(f"{self._folder}/stop", str(self._grace).encode())
                self._grace = None

    @contextmanager
    def _reaching_folder(self) -> Iterator[None]:
        """Around what may fail when the run ends: requests are tried once then, and whoever goes on with the dataset
        finds the shards that are made."""
        try:
            yield
        except Exception as error:  # every file system has exceptions of its own
            log.info("the tasks of the cluster cannot be reached: %s", error_text(error))

    # --- submitting tasks ---

    def _submit(self) -> None:
        """Have as many tasks as there are slots: a sub-job is cut into so many when a slot is free."""
        slots = self._engine.slots
        singles = sum(batch.is_single for batch in self._batches)
        for task in self._written(self._returned, _RETURNED_PER_SLOT * slots - singles):
            self._begin_batch([task])
        is_free = not (self._waiting or self._returned) and len(self._tasks) < slots
        if is_free and (queued := self._queue.take(self._engine.options.subjob_size)):
            parts = min(slots, len(queued))
            self._waiting.extend(queued[n::parts] for n in range(parts))
        if tasks := self._written(self._waiting, math.inf):
            self._begin_batch(tasks)

    def _written(self, waiting: deque[Sequence[ShardJob]], most: float) -> list[tuple[Task, Sequence[ShardJob]]]:
        """The first tasks of those that wait, as many as there is room for, with the files of their jobs written."""
        room = int(min(len(waiting), most, self._engine.task_limit - len(self._tasks)))
        if room <= 0:
            return []
        of_tasks = [waiting.popleft() for _ in range(room)]
        try:
            with ThreadPoolExecutor(min(_WRITTEN_AT_ONCE, room), thread_name_prefix="any2ds-tasks") as pool:
                tasks = list(pool.map(self._template.with_jobs, of_tasks, self._numbers))
        except Exception as error:  # every file system has exceptions of its own
            raise OutputError(f"{self._output.url!r}: cannot write tasks: {error_text(error)}") from error
        return list(zip(tasks, of_tasks, strict=True))

    def _begin_batch(self, tasks: Sequence[tuple[Task, Sequence[ShardJob]]]) -> None:
        batch = _Batch(self._engine, [task for task, _ in tasks])
        self._batches.append(batch)
        self._tasks.update((task.number, _RunningTask(task, jobs, batch)) for task, jobs in tasks)

    # --- looking what became of them ---

    def _look_at_tasks(self) -> Iterator[Event]:
        ended = [batch for batch in self._batches if batch.has_ended]  # before the look: it sees their last reports
        files = {running.task.file("progress"): running for running in self._tasks.values()}
        try:
            contents = list(self._output.read_many(list(files)))
            self._read_at = time.monotonic()
        except OutputError as error:  # for a moment shared disks answer so for a file that is just replaced
            if time.monotonic() - self._read_at > _UNREACHED:
                raise
            log.info("the tasks of the cluster cannot be reached: %s", error_text(error))
            return
        for name, content in contents:
            if (progress := TaskProgress.parse(content)) is not None:
                yield from self._look(files[name], progress)
        for batch in ended:
            self._batches.remove(batch)
            if batch.error and not (self._has_begun or self._is_stopping):
                raise RunError(f"the cluster failed the job: {batch.error}")
            message = batch.error or "the cluster has ended its task without a message"
            # Tasks that end together were lost with one of them, and which one that is only shows alone.
            for running in [self._tasks[number] for number in batch.numbers if number in self._tasks]:
                yield from self._end_task(running, message, is_to_blame=batch.is_single)

    def _look(self, running: _RunningTask, progress: TaskProgress) -> Iterator[Event]:
        self._has_begun = True
        before, running.progress = running.progress, progress
        if running.watch.look(time.monotonic(), (progress.attempt, progress.writes)):
            message = f"a task was silent for {running.watch.silent:.0f} s: its machine is gone"
            yield from self._end_task(running, message)
        if progress == before:
            return
        if before.attempt and progress.attempt > before.attempt:
            log.warning("task %d is restarted: the machine that had it was lost", running.task.number)
        news = progress.since(before)
        running.record(news)
        if news.outcomes or news.metrics is not None:
            yield news
        yield from self._reports(running, running.jobs.keys() & set(progress.made))
        for shard_id, (reason, attempt) in progress.errors.items():
            if shard_id in running.jobs:
                running.record(error := ShardError(shard_id, reason, attempt=attempt))
                yield error
        if progress.ends_run and not self._is_stopping:
            raise (LockLost if progress.ends_run == LockLost.__name__ else RunError)(progress.problem)
        if progress.has_ended:
            yield from self._end_task(running, progress.problem or "its task has ended without it")

    def _reports(self, running: _RunningTask, shard_ids: Iterable[int]) -> Iterator[ShardReport]:
        """Reports of the shards that are published, by their statistics."""
        names = {self._layout.stats_name(shard_id): shard_id for shard_id in sorted(shard_ids)}
        for name, content in self._output.read_many(list(names)):
            with contextlib.suppress(KeyError, TypeError, ValueError):
                report = ShardReport.from_json(as_written(content))
                if (report.shard_id, report.count) == (names[name], running.jobs[names[name]].count):
                    running.record(report)
                    self._failures = 0
                    yield report

    def _end_task(self, running: _RunningTask, message: str, is_to_blame: bool = True) -> Iterator[Event]:
        """Have what a task was to do, and has not done, done by others; as another try of its shards if one of them
        may be to blame."""
        task = running.task
        if self._tasks.pop(task.number, None) is None:
            return
        jobs = {job.shard_id: job for job in (running.jobs and task.jobs(self._output)) or ()}
        # Without its jobs no attempt begins any more, and without the lock the one that may be at it publishes nothing.
        self._output.remove_many([task.file("jobs"), *([task.file("lock")] if running.jobs else [])])
        yield from self._reports(running, running.jobs)
        yield from running.withdraw()
        if not running.jobs or self._is_stopping:
            return
        if not running.batch.has_failed:
            running.batch.has_failed = True
            self._failures += 1
        if self._failures >= max(_MOST_FAILURES, 3 * self._engine.slots):
            raise RunError(f"tasks end without their shards on the cluster, the last one with: {message}")
        log.warning("%s: %s submitted again", message, shard_count(len(running.jobs)))
        for shard_id, job in running.jobs.items():
            if shard_id not in jobs or (is_to_blame and job.attempt >= self._engine.options.max_shard_retry):
                yield ShardError(shard_id, message, attempt=job.attempt)
            else:
                self._returned.append([replace(jobs[shard_id], attempt=job.attempt + (1 if is_to_blame else 0))])


def unreachable(host: str, port: int) -> str:
    """Why nobody takes a connection there, or "": clusters themselves take minutes to find out."""
    try:
        socket.create_connection((host, port), _ANSWERS_WITHIN).close()
    except (OSError, ValueError, OverflowError) as error:
        return error_text(error)
    return ""
