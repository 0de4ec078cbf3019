"""Runs workers in processes of this machine; each asks for a job when it has room for one."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from any2ds.config.options import RunOptions
from any2ds.core.errors import RunError, shard_count
from any2ds.core.processes.resources import cores
from any2ds.core.processes.watchdog import LOOK_SECONDS
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._child import END_TIMEOUT, GONE, Child, Inbox, end_waiting
from any2ds.distributors._contract import Worker
from any2ds.distributors._jobs import JobQueue
from any2ds.distributors._process import CRASHED, EVENT, FATAL, STUCK, WANT_JOB

log = logging.getLogger(__name__)

# Processes that may end with no shard finished in between, before the run gives up: by an error of their own, which
# the next one is going to run into as well, or by a signal, which may have been meant for that one alone; all the more
# if shards were finished before.
_ERRORS_IN_A_ROW = 3
_KILLS_IN_A_ROW = 30
_KILLS_LATER_ON = 300
# Processes that may die with a shard among those that they have; from the next one on it is given out alone, so that
# the one to blame shows.
_DEATHS_IN_COMPANY = 1
_MOST_BYTES_AHEAD = 128 << 20  # of jobs that no process has yet
_JOBS, _STOP = (
    "jobs",
    "stop",
)  # what comes into the inbox beside the messages of children: news of the plan, or of `stop`


class MultiprocessingDistributor:
    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self.processes_count = options.processes_count or cores()
        self._stop_at = math.inf
        self._inbox: Inbox | None = None  # of the present `map`

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        inbox: Inbox = SimpleQueue()
        self._inbox = inbox
        if self._stop_at < math.inf:
            return
        queue = JobQueue(jobs, self.processes_count, _MOST_BYTES_AHEAD, lambda: inbox.put((None, _JOBS, None)))
        team = _Team(worker, queue, inbox, self._options)
        try:
            while team.is_unfinished:
                yield from team.step()
        finally:
            team.kill_all()
            end_waiting()

    def stop(self, grace: float) -> None:
        self._stop_at = min(self._stop_at, time.monotonic() + grace)
        if self._inbox is not None:
            self._inbox.put((None, _STOP, self._stop_at))


class _Team:
    """The processes of one run, and the jobs that wait for one."""

    def __init__(self, worker: Worker, queue: JobQueue, inbox: Inbox, options: RunOptions) -> None:
        self._worker, self._queue, self._inbox = worker, queue, inbox
        self._processes = options.processes_count or cores()
        self._rows_per_process = 0 if options.processes_count else worker.rows_per_process
        self._max_retry = options.max_shard_retry
        self._rows = 0  # of the jobs that processes have been given
        self._returned: deque[ShardJob] = deque()  # whose process died
        self._suspects: deque[ShardJob] = deque()  # that may be what ended it; they get a process of their own
        self._died: Counter[int] = Counter()  # processes that died over a shard
        self._children: dict[Child, None] = {}  # in the order of their starts
        self._asking: deque[Child] = deque()
        self._errors = self._kills = 0  # processes that ended so since a shard was finished
        self._most_kills = _KILLS_IN_A_ROW
        self._next_look = 0.0
        self._stop_at = math.inf

    @property
    def is_unfinished(self) -> bool:
        return bool(not self._queue.has_ended or self._returned or self._suspects or self._children)

    @property
    def _is_stopping(self) -> bool:
        return self._stop_at < math.inf

    def step(self) -> Iterator[Event]:
        """Wait until something happens, and deal with it."""
        busy = [child for child in self._children if child.jobs]
        for child in busy:
            child.share(len(busy))
        with contextlib.suppress(Empty):
            message = self._inbox.get(timeout=max(0.0, min(LOOK_SECONDS, self._stop_at - time.monotonic())))
            yield from self._take(*message)
        now = time.monotonic()
        if self._is_stopping:
            if now >= self._stop_at:
                self.kill_all()
            return
        if self._worker.patience and now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            for child in [child for child in self._children if child.is_stuck(now)]:
                what = f"had sent nothing for {child.watch.silent:.0f} s and was killed"
                yield from self._end_stuck(child, what, dict.fromkeys(child.jobs))
        self._queue.check()
        self._share_out()

    def kill_all(self) -> None:
        """End all processes, whatever they are at."""
        self._queue.stop()
        children, self._children = self._children, {}
        for child in children:
            child.end()
        until = time.monotonic() + END_TIMEOUT
        for child in children:
            child.wait(until)

    def _take(self, child: Child | None, kind: str, content: Any) -> Iterator[Event]:
        """Deal with a message."""
        if kind == _STOP:
            self._begin_to_stop(content)
            yield Progress()
        elif kind == FATAL:
            if not self._is_stopping:
                raise content
        elif child not in self._children:
            return  # it was cut off, and others have its jobs
        elif kind == WANT_JOB:
            child.has_started(self._worker.patience)
            self._asking.append(child)
        elif kind == EVENT:
            if isinstance(content, ShardReport):
                self._errors = self._kills = 0
                self._most_kills = _KILLS_LATER_ON
            child.note(content)
            yield content
        elif kind == STUCK:
            if not self._is_stopping:
                yield from self._end_stuck(child, f"was stuck with fetching ({content.reason})", content.under_way)
        elif kind == CRASHED:
            child.reason = content.strip().splitlines()[-1]
            log.info("%s crashed:\n%s", child.name, content)
        elif kind == GONE:
            self._forget(child)
            yield from child.withdrawn()
            if (child.jobs or not child.released) and not self._is_stopping:
                yield from self._reassign(child)

    def _begin_to_stop(self, stop_at: float) -> None:
        """From now on only what the processes have is finished, and nobody else gets it if they do not."""
        if not self._is_stopping:
            self._queue.stop()
            self._returned.clear()
            self._suspects.clear()
            for child in self._children:
                child.stop()
                if not child.started:
                    child.end()
        self._stop_at = stop_at

    # --- processes that end ---

    def _reassign(self, child: Child) -> Iterator[ShardError]:
        """Have the jobs of a process that died done by others."""
        reason, jobs = child.how_it_ended(), list(child.jobs.values())
        was_suspected = any(self._died[job.shard_id] for job in jobs)
        if child.was_killed:
            self._kills += 1
        elif not was_suspected:
            self._errors += 1
        self._check_endings(reason)
        if jobs:
            log.warning("%s; its %s made by others", reason, shard_count(len(jobs), "is", "are"))
        for job in jobs:
            self._died[job.shard_id] += 1
            deaths = self._died[job.shard_id]
            if job.attempt >= self._max_retry:
                often = (
                    f" (so ended {deaths} processes that made this shard)" if deaths > 1 and child.was_killed else ""
                )
                yield ShardError(job.shard_id, reason + often, attempt=job.attempt)
            else:
                self._put_back(replace(job, attempt=job.attempt + 1))

    def _end_stuck(self, child: Child, what: str, under_way: Mapping[int, Collection[int] | None]) -> Iterator[Event]:
        """End a process that is stuck, and have its shards made by others; alone those with rows that were `under_way`,
        which has their positions (None: not known) for each shard with which it is stuck. The others are given out
        again as they are."""
        reason = f"the {child.name} {what}"
        log.warning("%s%s", reason, f"; others go on with its {shard_count(len(child.jobs))}" if child.jobs else "")
        self._forget(child)
        child.end(reason)
        yield from child.withdrawn()
        for job in child.jobs.values():
            if len(job.given_up()) == job.count > 0:  # none of its rows was fetched: the shard is not what is wrong
                yield ShardError(job.shard_id, reason, attempt=max(job.attempt, self._max_retry))
            elif job.shard_id in under_way:
                self._put_back(job.after_hang(under_way[job.shard_id]))
            else:
                self._put_back(job)
        # If no shard is to blame, the next process may end as soon; one that had nothing left to do has no successor.
        if not under_way and (child.jobs or not child.released):
            self._errors += 1
            self._check_endings(reason)

    def _check_endings(self, reason: str) -> None:
        """Raises RunError if too many processes have ended since a shard was finished."""
        if self._kills >= max(self._most_kills, 3 * self._processes) or self._errors >= _ERRORS_IN_A_ROW:
            raise RunError(f"worker processes end at once, the last one with: {reason}")

    def _put_back(self, job: ShardJob) -> None:
        (self._suspects if self._is_suspect(job) else self._returned).append(job)

    def _forget(self, child: Child) -> None:
        self._children.pop(child, None)
        with contextlib.suppress(ValueError):
            self._asking.remove(child)

    def _is_suspect(self, job: ShardJob) -> bool:
        return any(job.hangs) or self._died[job.shard_id] > _DEATHS_IN_COMPANY

    def _has_suspect(self, child: Child) -> bool:
        return any(self._is_suspect(job) for job in child.jobs.values())

    # --- giving out jobs ---

    def _share_out(self) -> None:
        """Give jobs to those who want one, and start processes for jobs that nobody is going to want."""
        for child in list(self._asking):
            if self._suspects and not child.jobs:
                child.give(self._suspects.popleft())
            elif self._has_suspect(child):
                continue  # it is to have nothing else
            elif (self._returned or len(self._queue)) and self._is_to_make_room():
                child.release()
            elif self._returned:
                child.give(self._returned.popleft())
            elif jobs := self._queue.take(1):
                self._rows += jobs[0].count
                child.give(jobs[0])
            else:
                continue
            self._asking.remove(child)
        waiting = len(self._queue) + len(self._returned) + len(self._suspects)
        starting = sum(not child.started for child in self._children)
        while starting < waiting and len(self._children) < self._most_children():
            self._children[Child(self._worker, self._inbox)] = None
            starting += 1
        if self._queue.has_ended and not waiting:
            while self._asking:
                self._asking.popleft().release()

    def _most_children(self) -> int:
        """A process for each so many rows, as far as the list was read: its end is not waited for."""
        if not self._rows_per_process:
            return self._processes
        rows = self._rows + self._queue.rows
        return min(self._processes, 1 + rows // self._rows_per_process)

    def _is_to_make_room(self) -> bool:
        """Whether a process is to end for one that has no other jobs, because all are always busy."""
        return bool(self._suspects) and not any(c.released or self._has_suspect(c) for c in self._children)


PART = MultiprocessingDistributor
