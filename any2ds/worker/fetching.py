"""Drives one fetcher over the rows of all jobs: what comes back goes through the steps into the open shards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

from any2ds.core.errors import StuckFetcher
from any2ds.core.failures import Failure
from any2ds.core.processes.watchdog import LOOK_SECONDS, Watch
from any2ds.core.reports import Event
from any2ds.core.rows import Row, ShardJob
from any2ds.core.samples import Fetched
from any2ds.fetch.contract import Fetcher
from any2ds.worker.open_shards import OpenShards
from any2ds.worker.steps import Steps

log = logging.getLogger(__name__)

_ROWS_TO_FINISH = 64  # without an outcome, with which a shard may always go on when the run is stopped


class Fetching:
    """The loop of a worker. Stopped, it finishes the shards that need few rows more, and leaves the others."""

    def __init__(
        self,
        fetcher: Fetcher,
        shards: OpenShards,
        steps: Steps,
        watchdog_limit: float,
        grace: float,
        is_stopping: Callable[[], bool],
    ) -> None:
        """`watchdog_limit`: seconds without a sign of life after which the fetcher is stuck (0: never is).
        `grace`: seconds that there are after the run was stopped."""
        self._fetcher, self._shards, self._steps = fetcher, shards, steps
        self._is_stopping, self._grace = is_stopping, grace
        self._began = time.monotonic()
        self._watch = Watch(watchdog_limit, self._began)
        self._next_look = 0.0  # at the signs of life
        self._has_left_shards = False
        self._reason = "the fetcher has ended without all rows"  # why rows are missing in the end

    def events(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        """Ends when each row of `jobs` has an outcome, or soon after the run was stopped.

        Raises StuckFetcher when nothing moves any more; what the fetcher, the steps and `jobs` raise; and DiskFull.
        """
        batches: Any = self._fetcher.fetch(self._shards.rows(jobs))
        with closing(batches):
            for batch in batches:
                self._shards.robots += self._fetcher.robots_cost()
                for fetched in batch:
                    self._steps.add(fetched)
                self._steps.hand_over()
                yield from self._shards.events()
                yield from self._record_unfetched()
                if self._is_over() or self._is_stuck():
                    break
        yield from self._pass_steps()
        yield from self._record_unfetched()
        if not (self._is_stopping() or self._shards.are_finished):
            yield from self._give_up()

    def _is_over(self) -> bool:
        """Whether there is nothing to wait for. When the run is stopped, shards without prospect are left first."""
        if self._is_stopping():
            self._leave_shards()
            return not self._shards.any_open
        return self._shards.are_finished

    def _leave_shards(self) -> None:
        """Leave the shards that will not be complete in time to another run."""
        shards = self._shards
        if not self._has_left_shards:
            self._has_left_shards = True
            rows_per_second = shards.outcomes / max(0.001, time.monotonic() - self._began)
            shards.abandon_slow_shards(max_missing_rows=_ROWS_TO_FINISH + 2 * rows_per_second * self._grace)
        shards.abandon_unfetched_shards()

    def _is_stuck(self) -> bool:
        """Whether nothing has moved for too long."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + LOOK_SECONDS
        activity = self._shards.activity + self._fetcher.activity + self._steps.activity
        # While no shard is open a fetcher can only wait for the list.
        if self._watch.look(now, activity, self._shards.any_open or not self._shards.waits_for_jobs):
            self._reason = f"nothing has moved for {self._watch.silent:.0f} s"
            return True
        return False

    def _pass_steps(self) -> Iterator[Event]:
        """Wait until all that was fetched has passed the steps and is written."""
        while self._steps.pending:
            if self._is_stopping():
                self._leave_shards()
                if not self._shards.any_open:
                    return
            self._steps.wait()
            yield from self._shards.events()
        yield from self._write_all()

    def _write_all(self) -> Iterator[Event]:
        yield from self._shards.events()
        while self._shards.unwritten:
            yield from self._shards.events()

    def _give_up(self) -> Iterator[Event]:
        """Complete the shards over which fetching was stuck before, without their missing rows. Raises StuckFetcher."""
        if not self._shards.rows_were_asked_for:  # another fetcher would not either
            raise RuntimeError("the fetcher takes no rows")
        yield from self._record(self._shards.rows_missing_again(), self._reason)
        raise StuckFetcher(self._reason, self._shards.open_ids)

    def _record_unfetched(self) -> Iterator[Event]:
        while self._shards.not_to_fetch:
            rows = self._shards.not_to_fetch.popleft().missing_rows()
            yield from self._record(rows, "not tried: the processes that made its shard were stuck")

    def _record(self, rows: Sequence[Row], reason: str) -> Iterator[Event]:
        """Record rows as failed, and write their shards as far as these are complete."""
        if rows:
            log.warning("fetching was stuck: %d rows are recorded as failed (watchdog)", len(rows))
        for row in rows:
            self._steps.add(Fetched(row, Failure("fetch", "watchdog", reason), 0))
        yield from self._write_all()
