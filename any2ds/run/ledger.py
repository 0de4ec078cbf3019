"""The ledger of a run: each job from the moment it leaves the plan until its shard is made, has failed, or is left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from any2ds.core.errors import DamagedShard, ReadError, shard_count
from any2ds.core.reports import Event, IncompleteRun, Progress, RunReport, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.run.monitor import Outlook
from any2ds.storage.lock.lease import RunLock

log = logging.getLogger(__name__)

_MOST_KEPT = 128 << 20  # bytes of jobs that are kept in case their shards fail; the next run makes the others
_FIRST_RETRIES = 10  # failed shards in the first retry pass; the others are retried only if one of these succeeds


class Plan(Protocol):
    """What a run has to do."""

    @property
    def shards(self) -> Collection[int]:
        """The shards that were finished at the start."""
        ...

    @property
    def skipped(self) -> int:
        """How many shards needed no job so far."""
        ...

    def jobs(self) -> Iterator[ShardJob]:
        """Raises ReadError or DamagedShard, after the jobs that are not affected."""
        ...

    def outlook(self) -> Outlook:
        """How much there is to do. Called from any thread."""
        ...


@dataclass(frozen=True, slots=True)
class _Failed:
    """A job whose shard failed and is to be retried."""

    job: ShardJob
    error: ShardError


class Ledger:
    """Gives out the jobs of `plan`, adds up what becomes of them, and knows which shards to make again.

    Jobs are pulled in whatever thread the distributor uses; everything else happens in the thread that runs it.
    """

    def __init__(
        self,
        plan: Plan,
        lock: RunLock,
        max_retry: int,
        before_job: Callable[[ShardJob], None] | None = None,
    ) -> None:
        """`before_job` is called with each job of the plan before a worker gets it."""
        self.plan = plan
        self._run_lock, self._max_retry, self._before_job = lock, max_retry, before_job
        self._started = time.monotonic()
        self._total = RunReport()  # of the finished shards
        self._lost: list[ShardError] = []  # shards that are not tried again
        self._problem: ReadError | DamagedShard | None = None  # why the plan broke off
        self._open: dict[int, ShardJob | None] = {}  # None: not kept, to save memory
        self._failed: dict[int, _Failed] = {}  # in this pass, to be retried
        self._retries: dict[int, _Failed] = {}  # from earlier passes, and not pulled yet
        self._passes = 0  # before this one
        self._made = 0  # shards in this pass
        self._kept = 0  # bytes of the rows of open and of failed jobs
        self._lock = threading.Lock()  # guards the jobs

    @property
    def total(self) -> RunReport:
        """The figures so far."""
        return replace(
            self._total,
            failed_shards=tuple(self._lost),
            seconds=time.monotonic() - self._started,
            skipped_shards=self.plan.skipped,
        )

    @property
    def open_shards(self) -> int:
        return len(self._open)

    def jobs(self) -> Iterator[ShardJob]:
        """The jobs of the plan; if it breaks off, those before that."""
        try:
            for job in self.plan.jobs():
                if self._before_job is not None:
                    self._before_job(job)
                with self._lock:
                    is_kept = self._kept + len(job.rows) <= _MOST_KEPT
                    self._kept += len(job.rows) if is_kept else 0
                    self._open[job.shard_id] = job if is_kept else None
                yield job
        except (ReadError, DamagedShard) as error:
            self._problem = error

    def check_lock(self) -> None:
        """Raises LockLost once another run has taken over the folder."""
        self._run_lock.check()

    def record(self, event: Event) -> Event:
        """Record what became of a shard. Returns the event; the error of a shard that is retried says so."""
        if isinstance(event, Progress):
            return event
        job = self._open.pop(event.shard_id, None)
        if isinstance(event, ShardReport):
            self._forget(job)
            self._made += 1
            self._total += event
            return event
        log.debug("shard %d failed:\n%s", event.shard_id, event.traceback)
        attempt = max(job.attempt, event.attempt) if job else event.attempt
        if job is None or attempt >= self._max_retry:
            self._forget(job)
            return self._lose(event)
        event = replace(event, attempt=attempt, again=True)
        self._failed[event.shard_id] = _Failed(job, event)
        return event

    def unreported(self) -> Iterator[ShardError]:
        """An error for each shard that is open although all workers have ended."""
        for shard_id in sorted(self._open):
            self._forget(self._open.pop(shard_id))
            yield self._lose(ShardError(shard_id, "no worker has reported on it"))

    def retry_pass(self) -> Iterator[ShardJob] | None:
        """The jobs of failed shards to retry; None if there are none, or the last pass has made no shard."""
        is_useful = self._made > 0 or not self._passes or len(self._retries) + len(self._failed) <= _FIRST_RETRIES
        most = None if self._passes else _FIRST_RETRIES
        self._passes, self._made = self._passes + 1, 0
        self._retries.update(self._failed)
        self._failed.clear()
        return self._retried(sorted(self._retries)[:most]) if self._retries and is_useful else None

    def _retried(self, shard_ids: list[int]) -> Iterator[ShardJob]:
        for shard_id in shard_ids:
            with self._lock:
                failed = self._retries[shard_id]
                job = replace(failed.job, attempt=failed.error.attempt + 1)
                del self._retries[shard_id]
                self._open[shard_id] = job
            yield job

    def given_up(self) -> Iterator[ShardError]:
        """An error for each shard that was to be retried, and is not."""
        with self._lock:
            left = {**self._retries, **self._failed}
            self._retries.clear()
            self._failed.clear()
        for _, failed in sorted(left.items()):
            yield self._lose(replace(failed.error, again=False))

    def close(self) -> None:
        """The run has ended: open shards are left to another one."""
        for _ in self.given_up():
            pass
        self._total = replace(self._total, left_shards=len(self._open))

    def check_complete(self) -> None:
        """Raises IncompleteRun, with the figures, if a shard failed or the plan broke off."""
        problems = [str(self._problem)] if self._problem is not None else []
        if self._lost:
            first = self._lost[0]
            lost = f"{shard_count(len(self._lost))} could not be written"
            problems.append(f"{lost}, the first ({first.shard_id}): {first.reason}")
        if problems:
            raise IncompleteRun("; ".join(problems), self.total)

    def _forget(self, job: ShardJob | None) -> None:
        if job is not None:
            with self._lock:
                self._kept -= len(job.rows)

    def _lose(self, error: ShardError) -> ShardError:
        self._lost.append(error)
        return error
