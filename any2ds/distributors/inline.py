"""Runs the worker in this very process: for debugging, and for a store that no other process can see."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from any2ds.config.options import RunOptions
from any2ds.core.reports import Event
from any2ds.core.rows import ShardJob
from any2ds.distributors._contract import Worker


class InlineDistributor:
    def __init__(self, options: RunOptions) -> None:
        """Takes no option."""
        self._worker: Worker | None = None
        self._stop_at = math.inf

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        self._worker = worker
        if self._stop_at < math.inf:
            return
        events: Any = worker(itertools.takewhile(lambda job: self._stop_at == math.inf, jobs))
        with closing(events):
            for event in events:
                yield event
                if time.monotonic() >= self._stop_at:
                    return

    def stop(self, grace: float) -> None:
        self._stop_at = min(self._stop_at, time.monotonic() + grace)
        if self._worker is not None:
            self._worker.stop()


PART = InlineDistributor
