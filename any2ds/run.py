"""Runs the jobs of a plan through a distributor, adds up what happened, and tells the reporters."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from any2ds.errors import IncompleteRun, ReadError
from any2ds.protocols import Distributor, Reporter, Worker
from any2ds.resume import Finished
from any2ds.types import Event, RunReport, ShardError, ShardJob, ShardReport

log = logging.getLogger(__name__)


def run(
    worker: Worker,
    jobs: Iterable[ShardJob],
    distributor: Distributor,
    reporters: Sequence[Reporter],
    finished: Finished,
) -> RunReport:
    """The figures of the whole; `finished` are the shards that the plan passes over.

    Raises IncompleteRun, with the figures, if a shard is missing or the list broke off.
    """
    tell = _Reporters(reporters)
    total = RunReport()
    broken: list[ReadError] = []
    open_shards: set[int] = set()
    started = time.monotonic()
    tell.on_start(len(finished.shards))
    try:
        events: Any = distributor.map(worker, _noted(jobs, open_shards, broken))
        with closing(events):
            for event in events:
                if isinstance(event, (ShardReport, ShardError)):
                    open_shards.discard(event.shard_id)
                total = replace(_add(total, event), seconds=time.monotonic() - started)
                tell.on_event(event, total)
        for shard_id in sorted(open_shards):
            total = _add(total, ShardError(shard_id, "no worker has reported on it"))
    finally:
        total = replace(total, seconds=time.monotonic() - started, skipped_shards=finished.skipped)
        tell.on_finish(total)
    problems = [str(error) for error in broken]
    if total.failed_shards:
        first = total.failed_shards[0]
        lost = f"{len(total.failed_shards)} shards could not be written"
        problems.append(f"{lost}, the first ({first.shard_id}): {first.reason}")
    if problems:
        raise IncompleteRun("; ".join(problems), total)
    return total


def _noted(jobs: Iterable[ShardJob], open_shards: set[int], broken: list[ReadError]) -> Iterator[ShardJob]:
    """The jobs up to where the list breaks off: they are done before anybody complains."""
    try:
        for job in jobs:
            open_shards.add(job.shard_id)
            yield job
    except ReadError as error:
        broken.append(error)


def _add(total: RunReport, event: Event) -> RunReport:
    if isinstance(event, ShardReport):
        return total + event
    if isinstance(event, ShardError):
        log.debug("shard %d failed:\n%s", event.shard_id, event.traceback)
        return replace(total, failed_shards=(*total.failed_shards, event))
    return total


class _Reporters:
    """All reporters as one; one that raises is left out from then on."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = list(reporters)

    def on_start(self, finished_shards: int) -> None:
        self._each("on_start", finished_shards)

    def on_event(self, event: Event, total: RunReport) -> None:
        self._each("on_event", event, total)

    def on_finish(self, total: RunReport) -> None:
        self._each("on_finish", total)

    def _each(self, method: str, *arguments: Any) -> None:
        for reporter in list(self._reporters):
            try:
                getattr(reporter, method)(*arguments)
            except Exception:
                self._reporters.remove(reporter)
                log.warning("%s failed and is switched off", type(reporter).__name__, exc_info=True)
