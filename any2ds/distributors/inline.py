"""Runs the worker in this very process: for debugging, and for a store that no other process can see."""

from __future__ import annotations

from collections.abc import Iterator

from any2ds.config import RunOptions
from any2ds.protocols import Worker
from any2ds.types import Event, ShardJob


class InlineDistributor:
    def __init__(self, options: RunOptions) -> None:
        """Takes no option."""

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        yield from worker(jobs)


PART = InlineDistributor
