"""Runs workers in processes of this machine; each asks for a job when it has room for one."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

from any2ds.config.options import RunOptions
from any2ds.core.admission import Admission
from any2ds.core.errors import RunError, shard_count
from any2ds.core.processes.resources import cores
from any2ds.core.processes.watchdog import LOOK_SECONDS
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._child import END_TIMEOUT, GONE, Child, Inbox, end_waiting
from any2ds.distributors._contract import Worker
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

# What the threads around the main loop say to it, beside the messages of the children.
_MOST_BYTES_AHEAD = 128 << 20  # of jobs that no process has yet; one job may have more
_JOB, _NO_MORE_JOBS, _BROKEN, _STOP = "job", "no_more_jobs", "broken", "stop"


class MultiprocessingDistributor:
    stderr: int | None = None  # file descriptor that is the standard error of its processes, if not that of all

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
        team = _Team(worker, jobs, inbox, self._options, self.stderr)
        try:
            while team.unfinished:
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

    def __init__(
        self, worker: Worker, jobs: Iterator[ShardJob], inbox: Inbox, options: RunOptions, stderr: int | None
    ) -> None:
        self._worker = worker
        self._stderr = stderr
        self._processes = options.processes_count or cores()
        self._is_count_given = options.processes_count is not None  # else there are no more than the rows deserve
        self._max_retry = options.max_shard_retry
        self._inbox = inbox
        self._puller = _Puller(jobs, self._inbox, self._processes)
        self._more = True  # jobs to be pulled
        self._rows = 0  # of the jobs that were pulled
        self._ready: deque[ShardJob] = deque()
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
    def unfinished(self) -> bool:
        return bool(self._more or self._waiting or self._children)

    @property
    def _is_stopping(self) -> bool:
        return self._stop_at < math.inf

    @property
    def _waiting(self) -> int:
        return len(self._ready) + len(self._returned) + len(self._suspects)

    def step(self) -> Iterator[Event]:
        """Wait until something happens, and deal with it."""
        self._share_cores()
        try:
            message = self._inbox.get(timeout=max(0.0, min(LOOK_SECONDS, self._stop_at - time.monotonic())))
        except Empty:
            pass
        else:
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
        self._share_out()

    def _share_cores(self) -> None:
        """Those of the machine among the processes that have jobs."""
        busy = [child for child in self._children if child.jobs]
        for child in busy:
            child.share(len(busy))

    def kill_all(self) -> None:
        """End all processes, whatever they are at."""
        self._puller.stop()
        self._more = False
        children, self._children = self._children, {}
        for child in children:
            child.end()
        until = time.monotonic() + END_TIMEOUT
        for child in children:
            child.wait(until)

    def _take(self, child: Child | None, kind: str, content: Any) -> Iterator[Event]:
        if kind == _STOP:
            self._begin_to_stop(content)
            yield Progress()
        elif kind == _JOB:
            if not self._is_stopping:
                self._rows += content.count
                self._ready.append(content)
        elif kind == _NO_MORE_JOBS:
            self._more = False
        elif kind in (_BROKEN, FATAL):
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
            self._puller.stop()
            self._more = False
            for jobs in (self._ready, self._returned, self._suspects):
                jobs.clear()
            for child in self._children:
                child.stop()
                if not child.started:
                    child.end()
        self._stop_at = stop_at

    def _reassign(self, child: Child) -> Iterator[ShardError]:
        """Have the jobs of a process that died done by others."""
        reason, jobs = child.how_it_ended(), list(child.jobs.values())
        was_suspected = any(self._died[job.shard_id] for job in jobs)
        if child.was_killed:
            self._kills += 1
        elif not was_suspected:
            self._errors += 1
        if self._kills >= max(self._most_kills, 3 * self._processes) or self._errors >= _ERRORS_IN_A_ROW:
            raise RunError(f"worker processes end at once, the last one with: {reason}")
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
                line = self._returned if deaths <= _DEATHS_IN_COMPANY else self._suspects
                line.append(replace(job, attempt=job.attempt + 1))

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
                continue
            if job.shard_id in under_way:
                job = job.after_hang(under_way[job.shard_id])
            (self._suspects if self._is_suspect(job) else self._returned).append(job)
        # If no shard is to blame, the next process may end as soon; one that had nothing left to do has no successor.
        if not under_way and (child.jobs or not child.released):
            self._errors += 1
            if self._errors >= _ERRORS_IN_A_ROW:
                raise RunError(f"worker processes end at once, the last one with: {reason}")

    def _forget(self, child: Child) -> None:
        self._children.pop(child, None)
        with contextlib.suppress(ValueError):
            self._asking.remove(child)

    def _is_suspect(self, job: ShardJob) -> bool:
        return any(job.hangs) or self._died[job.shard_id] > _DEATHS_IN_COMPANY

    def _has_suspect(self, child: Child) -> bool:
        return any(self._is_suspect(job) for job in child.jobs.values())

    @property
    def _most_children(self) -> int:
        if self._is_count_given:
            return self._processes
        # By the rows that are known so far: the end of the list is not waited for.
        return min(self._processes, 1 + self._rows // self._worker.rows_per_process)

    def _is_to_make_room(self) -> bool:
        """Whether a process is to end for one that has no other jobs, because all are always busy."""
        return bool(self._suspects) and not any(c.released or self._has_suspect(c) for c in self._children)

    def _share_out(self) -> None:
        """Give jobs to those who want one, and start processes for jobs that nobody is going to want."""
        for child in list(self._asking):
            if self._suspects and not child.jobs:
                child.give(self._suspects.popleft())
            elif self._has_suspect(child):
                continue  # it is to have nothing else
            elif (self._returned or self._ready) and self._is_to_make_room():
                child.release()
            elif self._returned:
                child.give(self._returned.popleft())
            elif self._ready:
                self._puller.release(self._ready[0])
                child.give(self._ready.popleft())
            else:
                continue
            self._asking.remove(child)
        waiting = self._waiting
        starting = sum(not c.started for c in self._children)
        while starting < waiting and len(self._children) < self._most_children:
            self._children[Child(self._worker, self._inbox, self._stderr)] = None
            starting += 1
        if not (self._more or waiting):
            while self._asking:
                self._asking.popleft().release()


class _Puller:
    """Pulls jobs in a thread, because the url list may make us wait, and not further ahead than is useful."""

    def __init__(self, jobs: Iterator[ShardJob], inbox: Inbox, ahead: int) -> None:
        self._jobs, self._inbox = jobs, inbox
        self._admission = Admission(ahead, _MOST_BYTES_AHEAD)
        threading.Thread(target=self._run, name="any2ds-puller", daemon=True).start()

    def release(self, job: ShardJob) -> None:
        """A process has this job now: another one may be pulled."""
        self._admission.release(job.shard_id)

    def stop(self) -> None:
        self._admission.close()

    def _run(self) -> None:
        try:
            for job in self._jobs:
                if not self._admission.acquire(job.shard_id, len(job.rows)):
                    return
                self._inbox.put((None, _JOB, job))
        except BaseException as error:  # raised again in the thread that runs `map`
            self._inbox.put((None, _BROKEN, error))
        else:
            self._inbox.put((None, _NO_MORE_JOBS, None))


PART = MultiprocessingDistributor
