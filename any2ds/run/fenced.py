"""A distributor that stops as soon as the run has lost its lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from any2ds.core.reports import Event
from any2ds.core.rows import ShardJob
from any2ds.distributors._contract import Distributor, Worker
from any2ds.storage.lock.run_lock import RunLock


class FencedDistributor:
    """Maps as `distributor` does, and raises LockLost once `lock` is lost."""

    def __init__(self, distributor: Distributor, lock: RunLock) -> None:
        self._distributor, self._lock = distributor, lock

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        events: Any = self._distributor.map(worker, jobs)
        with closing(events):
            for event in events:
                self._lock.check()
                yield event
        self._lock.check()

    def stop(self, grace: float) -> None:
        self._distributor.stop(grace)
