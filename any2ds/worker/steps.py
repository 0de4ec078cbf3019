"""The way of a row from the fetcher to its shard: it is described, and taken through the steps of the pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from any2ds.core.bodies.buffer import Buffer
from any2ds.core.samples import Fetched
from any2ds.worker.describe import Describe

if TYPE_CHECKING:
    from any2ds.transforms.pipeline import PipelineRunner
    from any2ds.worker.open_shards import OpenShards

_GROWTH = 4  # times as many rows as are done may be under way, until the steps are supplied
_HOSTS_LIMIT = 0.5  # seconds in which rows wait for hosts and steps for rows, after which hosts are what is slow
_WAIT = 0.1  # seconds, at most, between two looks at everything else


class Steps:
    """Hands what was fetched to `shards`, at once or when the steps are through with it."""

    def __init__(
        self,
        describe: Describe,
        pipeline: PipelineRunner | None,
        shards: OpenShards,
        buffer: Buffer,
        queued: Callable[[], int] = lambda: 0,
    ) -> None:
        """`buffer` holds the files that were fetched; `queued` returns the rows that wait for their hosts."""
        self._describe, self._pipeline, self._shards, self._buffer = describe, pipeline, shards, buffer
        self._queued = queued
        self._hosts_limit_since = time.monotonic()  # rows have waited for hosts, and steps for rows
        if pipeline is not None:
            self._limit_rows(pipeline)

    @property
    def pending(self) -> int:
        """Rows on their way through the steps."""
        return self._pipeline.pending if self._pipeline else 0

    def add(self, fetched: Fetched) -> None:
        sample = self._describe(fetched)
        if self._pipeline is not None and self._pipeline.wants(sample):
            self._pipeline.submit(sample, self._buffer, self._shards.any_retried)
        else:
            self._shards.add((sample,))

    def hand_over(self, is_ending: bool = False, seconds: float = 0.0) -> None:
        """Give the shards what has passed all steps, and have the fetcher pause while too much waits for them."""
        if self._pipeline is not None:
            for samples in self._pipeline.turn(is_ending, seconds):
                self._shards.add(samples)
            self._buffer.paused = self._pipeline.holds_back
            self._limit_rows(self._pipeline)

    def _limit_rows(self, pipeline: PipelineRunner) -> None:
        """Take no more shards than keep the steps busy, while these are what rows wait for: other processes may be
        idle. Whether they are shows after some rows, so that it begins slowly.

        Where hosts are what is slow, the rows that wait for them do not count: those of other hosts keep steps busy.
        """
        now, queued = time.monotonic(), self._queued()
        if pipeline.is_supplied or not queued:
            self._hosts_limit_since = now
        if pipeline.is_supplied:
            self._shards.limit_rows(pipeline.enough, are_steps_supplied=True)
            return
        most = max(pipeline.enough, _GROWTH * self._shards.outcomes)
        if now - self._hosts_limit_since > _HOSTS_LIMIT:
            most += queued
        self._shards.limit_rows(most, are_steps_supplied=False)

    def wait(self) -> None:
        """Wait a moment for rows to pass the steps. To be called when no more are coming."""
        since, cpu = time.monotonic(), time.thread_time()
        self.hand_over(is_ending=True, seconds=_WAIT)
        busy = time.thread_time() - cpu
        self._shards.metrics.waited("transforms", time.monotonic() - since - busy)
