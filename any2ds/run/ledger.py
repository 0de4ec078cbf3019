"""The ledger of a run: each job from the moment it leaves the plan until its shard is made, has failed, or is left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Protocol

from any2ds.core.errors import DamagedShard, ReadError, shard_count
from any2ds.core.reports import Event, IncompleteRun, Progress, RunReport, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.dataset.shard_list_file import ShardListFile
from any2ds.run.monitor import Outlook
from any2ds.storage.lock.lease import RunLock

log = logging.getLogger(__name__)

_MOST_KEPT = 128 << 20  # bytes of jobs that are kept in case their shards fail; the next run makes the others
_FIRST_RETRIES = 10  # failed shards that are tried again at first; the others only if one of these is made


class Plan(Protocol):
    """The work of a run."""

    finished: Collection[int]  # shards of the dataset that were finished at the start
    shards: Collection[int]  # of these, those of the rows of the plan
    skipped: int  # shards that needed no job so far

    def jobs(self) -> Iterator[ShardJob]:
        """Raises ReadError or DamagedShard, after the jobs that are not affected."""
        ...

    def outlook(self) -> Outlook:
        """How much there is to do. Called from any thread."""
        ...


class Ledger:
    """Gives out the jobs of `plan`, adds up what becomes of them, and knows which shards to make again.

    Jobs are pulled in whatever thread the distributor uses; everything else happens in the thread that runs it.
    """

    def __init__(self, plan: Plan, lock: RunLock, max_retry: int, shard_list: ShardListFile | None = None) -> None:
        """`shard_list` is told of each job before a worker gets it, and of each shard that is made."""
        self.plan = plan
        self.check_lock = lock.check  # raises LockLost once another run has taken over the folder
        self._max_retry, self._shard_list = max_retry, shard_list
        self._started = time.monotonic()
        self._total = RunReport()  # of the finished shards
        self._problem: ReadError | DamagedShard | None = None  # why the plan broke off
        self._open: set[int] = set()
        self._failed: dict[int, ShardError] = {}  # shards that are not made yet; those with `again` are tried again
        self._made = 0  # shards in this pass
        self._jobs: dict[int, ShardJob] = {}  # of shards that are open or failed, as far as they are kept
        self._kept = 0  # bytes of their rows
        self._lock = threading.Lock()  # guards the jobs

    @property
    def total(self) -> RunReport:
        """The figures so far."""
        return replace(
            self._total,
            failed_shards=tuple(replace(self._failed[shard_id], again=False) for shard_id in sorted(self._failed)),
            left_shards=len(self._open),
            seconds=time.monotonic() - self._started,
            skipped_shards=self.plan.skipped,
        )

    @property
    def open_shards(self) -> int:
        return len(self._open)

    def passes(self) -> Iterator[Iterator[ShardJob]]:
        """The jobs of the plan, up to where it breaks off; then, as long as that helps, those of failed shards."""
        yield self._planned()
        most: int | None = _FIRST_RETRIES
        while shard_ids := self._to_be_tried_again():
            self._made = 0
            yield self._again(shard_ids[:most])
            if self._made:
                most = None
            elif len(shard_ids) > _FIRST_RETRIES:
                return

    def _to_be_tried_again(self) -> list[int]:
        return sorted(shard_id for shard_id, error in self._failed.items() if error.again)

    def _planned(self) -> Iterator[ShardJob]:
        try:
            for job in self.plan.jobs():
                if self._shard_list is not None:
                    self._shard_list.begin()
                with self._lock:
                    if self._kept + len(job.rows) <= _MOST_KEPT:
                        self._kept += len(job.rows)
                        self._jobs[job.shard_id] = job
                self._open.add(job.shard_id)
                yield job
        except (ReadError, DamagedShard) as error:
            self._problem = error

    def _again(self, shard_ids: list[int]) -> Iterator[ShardJob]:
        for shard_id in shard_ids:
            job = replace(self._jobs[shard_id], attempt=self._failed.pop(shard_id).attempt + 1)
            self._jobs[shard_id] = job
            self._open.add(shard_id)
            yield job

    def record(self, event: Event) -> Event:
        """Record what became of a shard. Returns the event; the error of a shard that is made again says so."""
        if isinstance(event, Progress):
            return event
        self._open.discard(event.shard_id)
        if isinstance(event, ShardReport):
            self._forget(event.shard_id)
            self._made += 1
            self._total += event
            if self._shard_list is not None:
                self._shard_list.on_shard(event)
            return event
        log.debug("shard %d failed:\n%s", event.shard_id, event.traceback)
        job = self._jobs.get(event.shard_id)
        attempt = event.attempt if job is None else max(job.attempt, event.attempt)
        return self._fail(replace(event, attempt=attempt, again=job is not None and attempt < self._max_retry))

    def end_pass(self) -> list[ShardError]:
        """An error for each shard that is open although all workers have ended."""
        return [self._fail(ShardError(shard_id, "no worker has reported on it")) for shard_id in sorted(self._open)]

    def give_up(self) -> list[ShardError]:
        """An error for each failed shard that was to be tried again, and is not."""
        return [self._fail(replace(self._failed[each], again=False)) for each in self._to_be_tried_again()]

    def check_complete(self) -> None:
        """Raises IncompleteRun, with the figures, if a shard failed or the plan broke off."""
        problems = [str(self._problem)] if self._problem is not None else []
        if self._failed:
            first = self._failed[min(self._failed)]
            lost = f"{shard_count(len(self._failed))} could not be written"
            problems.append(f"{lost}, the first ({first.shard_id}): {first.reason}")
        if problems:
            raise IncompleteRun("; ".join(problems), self.total)

    def _fail(self, error: ShardError) -> ShardError:
        self._open.discard(error.shard_id)
        self._failed[error.shard_id] = error
        if not error.again:
            self._forget(error.shard_id)
        return error

    def _forget(self, shard_id: int) -> None:
        with self._lock:
            if (job := self._jobs.pop(shard_id, None)) is not None:
                self._kept -= len(job.rows)
