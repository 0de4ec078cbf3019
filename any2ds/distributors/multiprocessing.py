"""Runs workers in processes of this machine; each asks for a job when it has room for one."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from any2ds.config.options import RunOptions
from any2ds.core.errors import RunError, StuckFetcher, shard_count
from any2ds.core.processes.resources import cores
from any2ds.core.processes.watchdog import LOOK_SECONDS
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._child import END_TIMEOUT, GONE, Child, Inbox, end_waiting
from any2ds.distributors._contract import Worker
from any2ds.distributors._jobs import JobQueue
from any2ds.distributors._process import ENDS, EVENT, STOP, WANT_JOB

log = logging.getLogger(__name__)

# Processes that may end with no shard finished in between, before the run gives up: by an error of their own, which
# the next one is going to run into as well, or by a signal, which may have been meant for that one alone; all the more
# if shards were finished before.
_ERRORS_IN_A_ROW = 3
_KILLS_IN_A_ROW, _KILLS_LATER_ON = 30, 300
_MOST_BYTES_AHEAD = 128 << 20  # of jobs that no process has yet


class MultiprocessingDistributor:
    def __init__(self, options: RunOptions) -> None:
        self.options = options
        self.processes_count = options.processes_count or cores()
        self.stop_at = math.inf
        self._inbox: Inbox = SimpleQueue()

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        inbox = self._inbox = SimpleQueue()
        if self.stop_at < math.inf:
            return
        queue = JobQueue(jobs, self.processes_count, _MOST_BYTES_AHEAD, lambda: inbox.put(None))
        team = _Team(worker, queue, inbox, self)
        try:
            while team.is_unfinished:
                yield from team.step()
        finally:
            team.kill_all()
            end_waiting()

    def stop(self, grace: float) -> None:
        self.stop_at = min(self.stop_at, time.monotonic() + grace)
        self._inbox.put(None)


class _Team:
    """The processes of one run, and the jobs that wait for one."""

    def __init__(self, worker: Worker, queue: JobQueue, inbox: Inbox, distributor: MultiprocessingDistributor) -> None:
        self._worker, self._queue, self._inbox, self._distributor = worker, queue, inbox, distributor
        self._rows_per_process = 0 if distributor.options.processes_count else worker.rows_per_process
        self._max_retry = distributor.options.max_shard_retry
        self._rows = 0  # of the jobs that processes have been given
        self._returned: deque[ShardJob] = deque()  # jobs whose process has ended
        self._suspects: deque[ShardJob] = deque()  # those that are made alone, so that the one to blame shows
        self._children: dict[Child, None] = {}  # in the order of their starts
        self._asking: deque[Child] = deque()
        self._errors = self._kills = 0  # processes that ended so since a shard was finished
        self._most_kills = max(_KILLS_IN_A_ROW, 3 * distributor.processes_count)
        self._is_stopping = False

    @property
    def is_unfinished(self) -> bool:
        return bool(not self._queue.has_ended or self._returned or self._suspects or self._children)

    def step(self) -> Iterator[Event]:
        """Wait until something happens, and deal with it."""
        busy = [child for child in self._children if child.jobs]
        for child in busy:
            child.share(len(busy))
        stop_at = self._distributor.stop_at
        with contextlib.suppress(Empty):
            message = self._inbox.get(timeout=max(0.0, min(LOOK_SECONDS, stop_at - time.monotonic())))
            if message is not None:
                yield from self._receive(*message)
        now, stop_at = time.monotonic(), self._distributor.stop_at
        if stop_at < math.inf:
            yield from self._stop()
            if now >= stop_at:
                self.kill_all()
            return
        for child in [child for child in self._children if self._worker.patience and child.is_stuck(now)]:
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

    def _receive(self, child: Child, kind: str, content: Any) -> Iterator[Event]:
        """Deal with a message of a process."""
        if child not in self._children:
            return  # it was cut off, and others have its jobs
        if kind == WANT_JOB:
            child.has_started(self._worker.patience)
            self._asking.append(child)
        elif kind == EVENT:
            if isinstance(content, ShardReport):
                self._errors = self._kills = 0
                self._most_kills = max(_KILLS_LATER_ON, self._most_kills)
            child.record(content)
            yield content
        elif kind == ENDS and isinstance(content, str):
            child.reason = content.strip().splitlines()[-1]
            log.info("%s crashed:\n%s", child.name, content)
        elif kind == ENDS and not self._is_stopping:
            if not isinstance(content, StuckFetcher):
                raise content
            yield from self._end_stuck(child, f"was stuck with fetching ({content.reason})", content.under_way)
        elif kind == GONE:
            self._forget(child)
            yield from child.withdraw()
            if (child.jobs or not child.released) and not self._is_stopping:
                yield from self._reassign(child)

    def _stop(self) -> Iterator[Progress]:
        """From now on only what the processes have is finished, and nobody else gets it if they do not."""
        if not self._is_stopping:
            self._is_stopping = True
            self._queue.stop()
            self._returned.clear()
            self._suspects.clear()
            for child in self._children:
                child.release(STOP)
                if not child.started:
                    child.end()
            yield Progress()

    # --- processes that end ---

    def _reassign(self, child: Child) -> Iterator[ShardError]:
        """Have the jobs of a process that died done by others."""
        reason, jobs = child.how_it_ended(), list(child.jobs.values())
        if child.was_killed:
            self._kills += 1
        elif not any(job.attempt for job in jobs):  # else its shard may be to blame
            self._errors += 1
        self._check_endings(reason)
        if jobs:
            log.warning("%s; its %s made by others", reason, shard_count(len(jobs), "is", "are"))
        for job in jobs:
            if job.attempt < self._max_retry:
                again = replace(job, attempt=job.attempt + 1)
                # Most had no part in the first death, and go on side by side; the last attempt is each one's own.
                is_suspect = job.attempt > 0 or again.attempt == self._max_retry
                (self._suspects if is_suspect else self._returned).append(again)
            else:
                deaths = job.attempt + 1
                often = (
                    f" (so ended {deaths} processes that made this shard)" if child.was_killed and deaths > 1 else ""
                )
                yield ShardError(job.shard_id, reason + often, attempt=job.attempt)

    def _end_stuck(self, child: Child, what: str, under_way: Mapping[int, Collection[int] | None]) -> Iterator[Event]:
        """End a process that is stuck, and have its shards made by others. `under_way` has the positions of the rows
        that were under way (None: not known), for each shard with which it is stuck; the others were not tried."""
        reason = f"the {child.name} {what}"
        log.warning("%s%s", reason, f"; others go on with its {shard_count(len(child.jobs))}" if child.jobs else "")
        self._forget(child)
        child.end(reason)
        yield from child.withdraw()
        for job in child.jobs.values():
            if len(job.given_up()) == job.count > 0:  # none of its rows was fetched: the shard is not what is wrong
                yield ShardError(job.shard_id, reason, attempt=max(job.attempt, self._max_retry))
            elif job.shard_id in under_way:
                self._suspects.append(job.after_hang(under_way[job.shard_id]))
            else:
                self._returned.append(job)
        # If no shard is to blame, the next process may end as soon; one that had nothing left to do has no successor.
        if not under_way and (child.jobs or not child.released):
            self._errors += 1
            self._check_endings(reason)

    def _check_endings(self, reason: str) -> None:
        """Raises RunError if too many processes have ended since a shard was finished."""
        if self._kills >= self._most_kills or self._errors >= _ERRORS_IN_A_ROW:
            raise RunError(f"worker processes end at once, the last one with: {reason}")

    def _forget(self, child: Child) -> None:
        self._children.pop(child, None)
        with contextlib.suppress(ValueError):
            self._asking.remove(child)

    # --- giving out jobs ---

    def _share_out(self) -> None:
        """Give jobs to those who want one, and start processes for jobs that nobody is going to want."""
        to_empty = len(self._suspects)  # processes that get nothing until they have nothing, and then a suspect
        for child in list(self._asking):
            if child.jobs and child.is_alone:
                continue
            if self._suspects and not child.jobs:
                child.give(self._suspects.popleft(), alone=True)
            elif to_empty > 0:
                to_empty -= 1
                continue
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
        most = self._distributor.processes_count
        if not self._rows_per_process:
            return most
        return min(most, 1 + (self._rows + self._queue.rows) // self._rows_per_process)


PART = MultiprocessingDistributor
