"""Drives one fetcher over the rows of all jobs: what comes back goes through the steps into the open shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

from any2ds.core.errors import StuckFetcher
from any2ds.core.processes.watchdog import LOOK_SECONDS, Watch
from any2ds.core.reports import Event
from any2ds.core.rows import ShardJob
from any2ds.fetch.contract import Fetcher
from any2ds.worker.open_shards import OpenShards
from any2ds.worker.steps import Steps


class Fetching:
    """The loop of a worker. Stopped, it finishes the shards whose rows are all under way, and leaves the others."""

    def __init__(
        self,
        fetcher: Fetcher,
        shards: OpenShards,
        steps: Steps,
        watchdog_limit: float,
        is_stopping: Callable[[], bool],
    ) -> None:
        """`watchdog_limit`: seconds without a sign of life after which the fetcher is stuck (0: never is)."""
        self._fetcher, self._shards, self._steps, self._is_stopping = fetcher, shards, steps, is_stopping
        self._watch = Watch(watchdog_limit, time.monotonic())
        self._next_look = 0.0  # at the signs of life
        self._reason = "the fetcher has ended without all rows"  # why rows are missing in the end

    def events(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        """Ends when each row of `jobs` has an outcome, or soon after the run was stopped.

        Raises StuckFetcher when nothing moves any more, or the fetcher ends too early; what the fetcher, the steps and
        `jobs` raise; and DiskFull.
        """
        batches: Any = self._fetcher.fetch(self._shards.rows(jobs))
        with closing(batches):
            for batch in batches:
                self._shards.robots += self._fetcher.robots_cost()
                for fetched in batch:
                    self._steps.add(fetched)
                self._steps.hand_over()
                yield from self._shards.events()
                if self._has_stopped() or self._is_stuck():
                    break
        yield from self._pass_steps()
        if self._is_stopping() or self._shards.are_finished:
            return
        raise StuckFetcher(self._reason, self._shards.under_way())

    def _has_stopped(self) -> bool:
        """Whether the run is stopped, and no shard is worth waiting for: those without prospect are left first."""
        if not self._is_stopping():
            return False
        self._shards.abandon_unfetched_shards()
        return not self._shards.any_open

    def _is_stuck(self) -> bool:
        """Whether nothing has moved for too long."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_SECONDS
        # While no shard is open a fetcher can only wait for the list. While rows are in the steps it may be held back;
        # steps have their own limit, and may wait twice that long for the memory of a file that exceeded it.
        can_fetch = self._shards.any_open or not self._shards.waits_for_jobs
        activity = self._shards.activity + self._fetcher.activity
        if self._watch.look(now, activity, can_fetch and not self._steps.pending):
            self._reason = f"nothing has moved for {self._watch.silent:.0f} s"
            return True
        return False

    def _pass_steps(self) -> Iterator[Event]:
        """Wait until all that was fetched has passed the steps and is written."""
        while self._steps.pending and not self._has_stopped():
            self._steps.wait()
            yield from self._shards.events()
        yield from self._shards.events()
        while self._shards.unwritten:
            yield from self._shards.events()
