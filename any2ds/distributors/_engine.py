"""Runs a worker on a cluster: sub-jobs go to its scheduler as tasks, and their messages come as files in the folder.

A task that is lost for good gives its shards back, and each of them is a task of its own then: so a shard that takes
its machine down is the only one that is lost with it.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count
from queue import Empty, Full, Queue
from typing import Protocol

from any2ds.config.options import RunOptions
from any2ds.core.errors import OutputError, RunError, error_text, shard_count
from any2ds.core.processes import child_process
from any2ds.core.processes.watchdog import Watch
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._contract import Worker
from any2ds.distributors._mailbox import Delivery, Inbox, Mailbox
from any2ds.distributors._reported import ReportedProgress
from any2ds.distributors._task import PackedJob, Task
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)

_MOST_BYTES = 64 << 20  # of a sub-job; some are here at a time
# Batches that failed with no shard finished in between, before the run gives up: of shards that have not been tried,
# and of one that was lost in company, which may be what is wrong.
_ERRORS_IN_A_ROW = 3
_ERRORS_ALONE = 30
_AT_ONCE = 8  # tasks that are written at once
_NEAR, _FAR = 0.3, 2.0  # seconds between two deliveries of a task, on disks and on stores
_LOOKS_PER_TASK = 0.01  # seconds more for each slot: a thousand of them must not be too much for a store
_LISTENS = 0.2  # seconds between two looks whether to go on waiting
_NOTHING_BEGINS = 60.0  # seconds after which a log says that the cluster gives us no room
_PART_OF_GRACE = 0.7  # of the time that a run has to stop
_UNREACHED = 60.0  # seconds for which the folder may be out of reach before the run ends


class Batch(Protocol):
    """Tasks that a cluster has been given together."""

    def has_ended(self) -> bool:
        """Whether none of its tasks runs, or is going to, any more."""
        ...

    def error(self) -> str:
        """Why it ended early; empty if all of its tasks have come to their end."""
        ...

    def cancel(self) -> None:
        """Have its tasks ended, without waiting."""
        ...


class ThreadBatch(ABC):
    """A batch that a thread of its own begins and waits for."""

    def __init__(self, name: str, thread: Callable[..., threading.Thread] = threading.Thread) -> None:
        """To be called last: the thread begins."""
        self._message = ""
        self._thread = thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def error(self) -> str:
        return self._message

    @abstractmethod
    def cancel(self) -> None: ...

    @abstractmethod
    def _run(self) -> None:
        """Returns when it has ended; sets `_message` to the reason if that was early."""


class Engine(Protocol):
    """A cluster that is there to be used."""

    @property
    def slots(self) -> int:
        """Tasks that run at a time; it may change."""
        ...

    @property
    def machines(self) -> int:
        """Machines that it has, or may get; limits of hosts are divided among them."""
        ...

    most: float  # tasks to be given at a time, where those beyond `slots` would not wait; else inf

    # Seconds without a sign of life after which the machine of a task is gone; 0 where the cluster notices by itself.
    patience: float

    end_timeout: float  # seconds that it may take to end what is cancelled

    def begin(self, tasks: Sequence[Task]) -> Batch:
        """Have `tasks` called, on whatever machines, without waiting."""
        ...


class EngineDistributor(ABC):
    """Subclasses connect to the cluster."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._stop_at = math.inf
        self._news = threading.Event()  # somebody wants to stop

    @abstractmethod
    def engine(self) -> AbstractContextManager[Engine]:
        """The cluster for one `map`. Raises UsageError if it cannot be had."""

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        if self._is_stopping():
            return
        with _SubJobs(jobs, self._options.subjob_size) as sub_jobs:
            if sub_jobs.is_empty(self._is_stopping):
                return
            with self.engine() as engine:
                driver = _Driver(worker, sub_jobs, engine, self._options)
                try:
                    while driver.unfinished:
                        if self._is_stopping():
                            yield from driver.stop(self._stop_at)
                        yield from driver.step()
                        self._news.wait(driver.pause)
                        self._news.clear()
                finally:
                    driver.close()

    def stop(self, grace: float) -> None:
        self._stop_at = min(self._stop_at, time.monotonic() + grace)
        self._news.set()

    def _is_stopping(self) -> bool:
        return self._stop_at < math.inf


class _RunningTask:
    """A task that the cluster has, as far as it is known here."""

    def __init__(self, jobs: Sequence[PackedJob], patience: float) -> None:
        self.jobs = {packed.job.shard_id: packed for packed in jobs}  # that it has not reported on
        self.deliveries = 0
        self.watch = Watch(patience, time.monotonic())
        self.attempt = ""  # the last one that sent a message
        self.previous: set[str] = set()
        self.reported = ReportedProgress()
        self.message = ""  # why its worker cannot go on


@dataclass
class _RunningBatch:
    """A batch as it was given to the cluster."""

    batch: Batch
    tasks: Mapping[int, _RunningTask]
    watch: Watch  # for tasks that nobody begins, or an end that does not come, when all that was begun is over
    has_lost_tasks: bool = False  # a task was lost whose machine the cluster knows nothing of

    @property
    def deliveries(self) -> int:
        return sum(task.deliveries for task in self.tasks.values())


class _Driver:
    """The sub-jobs of one `map`."""

    def __init__(self, worker: Worker, sub_jobs: _SubJobs, engine: Engine, options: RunOptions) -> None:
        self._worker = worker.among(engine.machines)
        self._sub_jobs, self._engine, self._options = sub_jobs, engine, options
        self._output: OutputFolder = worker.folder
        interval = (_NEAR if self._output.is_local else _FAR) + _LOOKS_PER_TASK * engine.slots
        self._mailbox = Mailbox(uuid.uuid4().hex, os.urandom(32), interval)
        self._mailbox.open(self._output)
        self._inbox = Inbox(self._mailbox, self._output)
        self._numbers = count()
        self._tasks: dict[int, _RunningTask] = {}  # those that are not over
        self._grace: float | None = None  # seconds that open shards may take, once it is to stop
        self._has_ordered = False  # the tasks can know that they are to stop
        self._batches: list[_RunningBatch] = []
        self._cancelled: list[Batch] = []  # and may still be ending
        self._shares: deque[Sequence[PackedJob]] = deque()  # of a sub-job, each for a task that has no room yet
        self._returned: deque[PackedJob] = deque()  # whose task was lost
        self._errors = self._alone = 0  # batches that failed since a shard was finished
        self._broken = 0  # workers that could not go on since then
        self._has_begun = False  # a task, ever
        self._warn_at = time.monotonic() + _NOTHING_BEGINS  # if none has by then
        self._stop_at = math.inf
        self._seen = time.monotonic()  # when the folder could be looked at
        self._is_seen = True  # and whether it could last

    @property
    def unfinished(self) -> bool:
        return bool(self._batches or self._shares or self._returned or not self._sub_jobs.ended)

    @property
    def pause(self) -> float:
        """Seconds until the next step."""
        return max(0.0, min(self._mailbox.interval, self._stop_at - time.monotonic())) if self.unfinished else 0.0

    def step(self) -> Iterator[Event]:
        self._begin()
        ended = [given for given in self._batches if given.batch.has_ended()]
        for delivery in self._deliveries():  # after that: the last messages of tasks are among them
            yield from self._take(delivery)
        for given in ended if self._is_seen else ():  # else its last messages are still to come
            self._batches.remove(given)
            yield from self._end_batch(given)
        yield from self._give_up_silent()
        self._order()
        if not self._has_begun and time.monotonic() >= self._warn_at:
            self._warn_at = math.inf
            log.warning("the cluster has begun no task yet: it may be busy, or have no machine as asked")
        if self._stop_at < math.inf and (time.monotonic() >= self._stop_at or not any(self._at_work())):
            self._cancel(tuple(self._batches))

    def stop(self, stop_at: float) -> Iterator[Event]:
        """From now on only what is begun comes to its end."""
        if self._stop_at == math.inf:
            self._sub_jobs.stop()
            self._shares.clear()
            self._returned.clear()
            # Tasks have less time than the run, which is to see them end: it stops waiting for them then.
            self._grace = _PART_OF_GRACE * max(0.0, stop_at - time.monotonic())
            self._order()
            yield Progress()
        self._stop_at = stop_at

    def _order(self) -> None:
        """Have the tasks know that they are to stop; where the folder is out of reach, with the next step."""
        if self._grace is None or self._has_ordered:
            return
        try:
            self._mailbox.order_stop(self._output, self._grace)
            self._has_ordered = True
        except Exception as error:  # every file system has exceptions of its own
            log.info("the tasks of the cluster cannot be reached: %s", error_text(error))

    def close(self) -> None:
        self._sub_jobs.stop()
        self._cancel(tuple(self._batches))
        self._await_cancelled()
        with contextlib.suppress(Exception):  # of any file system; the next run removes what is left
            self._mailbox.close(self._output)

    def _cancel(self, batches: Sequence[_RunningBatch]) -> None:
        """They count no more, although they may still be ending."""
        for given in batches:
            self._batches.remove(given)
            given.batch.cancel()
            self._cancelled.append(given.batch)

    def _await_cancelled(self) -> None:
        until = time.monotonic() + self._engine.end_timeout
        while any(not batch.has_ended() for batch in self._cancelled):
            if time.monotonic() > until:
                log.warning(
                    "the cluster has not ended its tasks within %.0f s: cancel them there", self._engine.end_timeout
                )
                return
            time.sleep(0.02)

    def _at_work(self) -> Iterator[_RunningTask]:
        return (task for task in self._tasks.values() if task.attempt)

    # --- submitting tasks ---

    def _begin(self) -> None:
        """Have as many tasks as there are slots, and shards that were lost in company one by one."""
        if self._stop_at < math.inf:
            return
        while self._returned and len(self._tasks) < self._engine.slots:
            self._give([[self._returned.popleft()]])
        if not self._shares and len(self._tasks) < self._engine.slots and (jobs := self._sub_jobs.next()):
            tasks = min(self._engine.slots, len(jobs))
            self._shares.extend(jobs[n::tasks] for n in range(tasks))
        room = min(len(self._shares), self._engine.most - len(self._tasks))
        if room > 0:
            self._give([self._shares.popleft() for _ in range(int(room))])

    def _give(self, shares: Sequence[Sequence[PackedJob]]) -> None:
        patience = self._engine.patience
        running = {next(self._numbers): _RunningTask(jobs, patience) for jobs in shares}
        self._tasks.update(running)
        tasks = [Task(number, self._worker, self._mailbox, self._options) for number in running]
        try:
            with ThreadPoolExecutor(min(_AT_ONCE, len(tasks)), thread_name_prefix="any2ds-tasks") as pool:
                list(pool.map(Task.leave, tasks, shares))
        except OutputError:
            raise
        except Exception as error:  # every file system has exceptions of its own
            raise OutputError(f"{self._output.url!r}: cannot write tasks: {error_text(error)}") from error
        self._batches.append(_RunningBatch(self._engine.begin(tasks), running, Watch(patience, time.monotonic())))

    # --- receiving messages ---

    def _deliveries(self) -> Iterator[Delivery]:
        try:
            self._is_seen = False
            yield from self._inbox.deliveries()
            self._seen = time.monotonic()
            self._is_seen = True
        except Exception as error:  # every file system has exceptions of its own
            if time.monotonic() - self._seen > _UNREACHED:
                raise
            log.info("the tasks of the cluster cannot be reached: %s", error_text(error))

    def _take(self, delivery: Delivery) -> Iterator[Event]:
        self._has_begun = True
        task = self._tasks.get(delivery.task)
        if task is None or delivery.attempt in task.previous:
            return
        task.deliveries += 1
        if task.attempt != delivery.attempt:
            yield from task.reported.withdrawn()
            if task.attempt:
                log.warning("task %d is restarted: the machine that had it was lost", delivery.task)
            task.previous.add(task.attempt)
            task.attempt, task.message = delivery.attempt, ""
        for kind, content in delivery.messages:
            self._has_begun = True
            if kind == "event":
                yield from self._take_event(task, content)
            elif kind == "stderr":
                child_process.write_stderr(content)
            elif kind == "fatal" and self._stop_at == math.inf:
                raise content
            elif kind == "broken":
                task.message = content
                self._broken += 1
                if self._broken >= max(_ERRORS_ALONE, 3 * self._engine.slots) and self._stop_at == math.inf:
                    raise RunError(f"workers end at once on the cluster, the last one with: {content}")
            elif kind == "ended":
                yield from self._end_task(delivery.task, task.message or "its task has ended without it")

    def _take_event(self, task: _RunningTask, event: Event) -> Iterator[Event]:
        if not isinstance(event, Progress):
            if event.shard_id not in task.jobs:  # an attempt before has reported on it
                return
            del task.jobs[event.shard_id]
            if isinstance(event, ShardReport):
                self._errors = self._alone = self._broken = 0
        task.reported.note(event)
        yield event

    def _end_task(self, number: int, message: str, is_tried: bool = True) -> Iterator[Event]:
        """A task runs no more; what it was to do and has not done is given to others."""
        task = self._tasks.pop(number)
        yield from task.reported.withdrawn()
        if not task.jobs or self._stop_at < math.inf:
            return
        log.warning("%s: %s submitted again", message, shard_count(len(task.jobs), "is", "are"))
        for packed in task.jobs.values():
            if not is_tried:
                self._returned.append(packed)
            elif packed.job.attempt >= self._options.max_shard_retry:
                yield ShardError(packed.job.shard_id, message, attempt=packed.job.attempt)
            else:
                self._returned.append(packed.again())

    def _end_batch(self, given: _RunningBatch) -> Iterator[Event]:
        message = given.batch.error()
        if message and self._stop_at == math.inf:
            if all(self._was_lost(number) for number in given.tasks):
                self._alone += 1
            else:
                self._errors += 1
            if not self._has_begun or self._errors >= _ERRORS_IN_A_ROW or self._alone >= _ERRORS_ALONE:
                raise RunError(f"the cluster failed the job: {message}")
        message = message or "the cluster has ended its task without a message"
        for number in [number for number in given.tasks if number in self._tasks]:
            yield from self._end_task(number, message)

    def _give_up_silent(self) -> Iterator[Event]:
        """Give up what is silent, where the cluster would wait for it for ever."""
        if not (self._engine.patience and self._is_seen):
            return
        now = time.monotonic()
        for given in tuple(self._batches):
            for number, task in given.tasks.items():
                if number not in self._tasks or not task.watch.look(now, task.deliveries, bool(task.attempt)):
                    continue
                given.has_lost_tasks = True
                yield from self._give_up(
                    number, f"a task was silent for {task.watch.silent:.0f} s: its machine is gone"
                )
            if any(number in self._tasks and task.attempt for number, task in given.tasks.items()):
                given.watch.look(now, given.deliveries, expected=False)
                continue
            if given.watch.look(now, given.deliveries, expected=given.deliveries > 0) or given.has_lost_tasks:
                self._cancel([given])
                message = f"nobody has begun a task for {given.watch.silent:.0f} s: its machine is gone"
                if given.has_lost_tasks:
                    message = "a task that was not begun was ended with those of a machine that is gone"
                for number in [number for number in given.tasks if number in self._tasks]:
                    yield from self._give_up(number, message, is_tried=not given.has_lost_tasks)

    def _give_up(self, number: int, message: str, is_tried: bool = True) -> Iterator[Event]:
        """Its shards are for others; whoever may still be at it is kept from publishing first."""
        self._mailbox.give_up(self._output, number)
        yield from self._end_task(number, message, is_tried)

    def _was_lost(self, number: int) -> bool:
        """Whether it is a task of shards that were lost before; so is one that is over."""
        task = self._tasks.get(number)
        return task is None or any(packed.job.attempt for packed in task.jobs.values())


class _SubJobs:
    """Gathers jobs in a thread, because the url list may make us wait, no further ahead than is useful."""

    def __init__(self, jobs: Iterator[ShardJob], size: int) -> None:
        self._jobs, self._size = jobs, size
        self._queue: Queue[list[PackedJob] | BaseException | None] = Queue(1)
        self._first: list[PackedJob] | BaseException | None = None
        self._stopped = threading.Event()
        self.ended = False  # there are no more
        self._thread = threading.Thread(target=self._run, name="any2ds-sub-jobs", daemon=True)

    def __enter__(self) -> _SubJobs:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def is_empty(self, is_stopping: Callable[[], bool]) -> bool:
        """Waits for the first; True as well if the run is to stop before it has come."""
        while not is_stopping():
            with contextlib.suppress(Empty):
                self._first = self._queue.get(timeout=_LISTENS)
                return self._first is None
        return True

    def next(self) -> list[PackedJob]:
        """The next sub-job; none if there is none yet. Raises what the plan raises, after the jobs before it."""
        found, self._first = self._first, None
        if found is None and not self.ended:
            try:
                found = self._queue.get_nowait()
            except Empty:
                return []
            self.ended = found is None
        if isinstance(found, BaseException):
            raise found
        return found or []

    def stop(self) -> None:
        self._stopped.set()
        self.ended = True

    def _run(self) -> None:
        gathered: list[PackedJob] = []
        size = 0
        end: BaseException | None = None
        try:
            for job in self._jobs:
                packed = PackedJob.of(job)
                gathered.append(packed)
                size += len(packed.job.rows)
                if len(gathered) >= self._size or size >= _MOST_BYTES:
                    if not self._put(gathered):
                        return
                    gathered, size = [], 0
        except BaseException as error:  # raised again in the thread that runs `map`
            end = error
        if not gathered or self._put(gathered):
            self._put(end)

    def _put(self, item: list[PackedJob] | BaseException | None) -> bool:
        while not self._stopped.is_set():
            with contextlib.suppress(Full):
                self._queue.put(item, timeout=_LISTENS)
                return True
        return False
