"""Keeps account of every job that has left the plan, until its shard is made, has failed for good, or is left over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace

from any2ds.core.reports import Event, Progress, RunReport, ShardError, ShardReport
from any2ds.core.rows import ShardJob

log = logging.getLogger(__name__)

_MOST_KEPT = 256 << 20  # bytes of jobs that are kept in case their shards fail
_TRIED_FIRST = 10  # shards that are made again before the others are, to see whether there is any use in it


class Account:
    """The figures of a run, and the shards that are to be made again.

    Jobs are pulled in whatever thread the distributor has for that; everything else happens in the one that runs it.
    """

    def __init__(self, max_retry: int) -> None:
        self._total = RunReport()  # without the shards that failed
        self._lost: list[ShardError] = []  # for good
        self._max_retry = max_retry
        self._open: dict[int, ShardJob | None] = {}  # None: not kept, for want of memory
        self._failed: dict[int, tuple[ShardJob, ShardError]] = {}  # in this pass; worth another try
        self._again: dict[int, tuple[ShardJob, ShardError]] = {}  # from passes before, and not pulled yet
        self._passes = 0  # before this one
        self._made = 0  # shards, in this pass
        self._kept = 0  # bytes
        self._lock = threading.Lock()

    @property
    def total(self) -> RunReport:
        """The figures so far."""
        return replace(self._total, failed_shards=tuple(self._lost))

    @property
    def open_shards(self) -> int:
        return len(self._open)

    def opened(self, jobs: Iterable[ShardJob]) -> Iterator[ShardJob]:
        """The same jobs, each noted down as it is pulled."""
        for job in jobs:
            with self._lock:
                is_kept = self._kept + len(job.rows) <= _MOST_KEPT
                self._kept += len(job.rows) * is_kept
                self._open[job.shard_id] = job if is_kept else None
            yield job

    def take(self, event: Event) -> Event:
        """Note what became of a shard; the error of one that is going to be tried again comes back saying so."""
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
            return self._fail(event)
        event = replace(event, attempt=attempt, again=True)
        self._failed[event.shard_id] = job, event
        return event

    def unreported(self) -> Iterator[ShardError]:
        """An error for each shard that is open though all workers have ended."""
        for shard_id in sorted(self._open):
            self._forget(self._open.pop(shard_id))
            yield self._fail(ShardError(shard_id, "no worker has reported on it"))

    def another_pass(self) -> Iterator[ShardJob] | None:
        """The jobs of the shards to be tried again; None if there are none, or the pass before has brought nothing."""
        is_useful = self._made > 0 or not self._passes or len(self._again) + len(self._failed) <= _TRIED_FIRST
        most = None if self._passes else _TRIED_FIRST
        self._passes, self._made = self._passes + 1, 0
        self._again.update(self._failed)
        self._failed.clear()
        return self._reopened(sorted(self._again)[:most]) if self._again and is_useful else None

    def _reopened(self, shard_ids: list[int]) -> Iterator[ShardJob]:
        for shard_id in shard_ids:
            with self._lock:
                job, error = self._again.pop(shard_id)
                job = replace(job, attempt=error.attempt + 1)
                self._open[shard_id] = job
            yield job

    def given_up(self) -> Iterator[ShardError]:
        """An error for each shard that was to be tried again, and is not."""
        with self._lock:
            left = {**self._again, **self._failed}
            self._again.clear()
            self._failed.clear()
        for _, (job, error) in sorted(left.items()):
            self._forget(job)
            yield self._fail(replace(error, again=False))

    def close(self) -> None:
        """The run has ended, however it did: what is open is left to another one."""
        for _ in self.given_up():
            pass
        self._total = replace(self._total, left_shards=len(self._open))

    def _forget(self, job: ShardJob | None) -> None:
        if job is not None:
            with self._lock:
                self._kept -= len(job.rows)

    def _fail(self, error: ShardError) -> ShardError:
        self._lost.append(error)
        return error
