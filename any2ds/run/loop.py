"""Runs the jobs of a plan through a distributor, adds up what happened, and tells the reporters."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Protocol

from any2ds.config.options import RunOptions
from any2ds.core.errors import DamagedShard, ReadError, shard_count
from any2ds.core.processes.signals import Stop, stoppable
from any2ds.core.reports import Event, IncompleteRun, Progress, RunReport, ShardError
from any2ds.core.rows import ShardJob
from any2ds.distributors._contract import Distributor, Worker
from any2ds.run.account import Account
from any2ds.run.monitor import Monitor, Outlook
from any2ds.run.reporters._contract import Reporter
from any2ds.run.reporting import Reporters

log = logging.getLogger(__name__)


class PassedOver(Protocol):
    """The shards that need not be made."""

    @property
    def shards(self) -> Collection[int]:
        """Those that were finished at the start."""
        ...

    @property
    def skipped(self) -> int:
        """How many the jobs so far have left out."""
        ...


def run(
    worker: Worker,
    jobs: Iterable[ShardJob],
    distributor: Distributor,
    reporters: Sequence[Reporter],
    finished: PassedOver,
    options: RunOptions | None = None,
    outlook: Callable[[], Outlook] = Outlook,
    more: Callable[[Sequence[ShardError]], Iterator[ShardJob] | None] | None = None,
) -> RunReport:
    """The figures of the whole; `finished` knows the shards that the plan passes over, `outlook` how much there is.

    Shards that failed as a whole are tried again at the end. Then `more`, which is told of those that have failed for
    good, is asked for further jobs, until there are none. Raises IncompleteRun, with the figures, if a shard is missing
    all the same or the list broke off, and what `stopping` says if the run was stopped.
    """
    options = options or RunOptions()
    tell = Reporters(reporters)
    monitor = Monitor(len(finished.shards), outlook)
    account = Account(options.max_shard_retry)
    broken: list[ReadError | DamagedShard] = []
    started = time.monotonic()

    def total() -> RunReport:
        return replace(account.total, seconds=time.monotonic() - started, skipped_shards=finished.skipped)

    def happened(event: Event) -> None:
        monitor.take(event)
        if not isinstance(event, Progress):
            tell.on_shard(event)

    with stoppable(distributor.stop, options.grace) as stop:
        try:
            tell.on_start(len(finished.shards))
            with tell.watching(monitor):
                todo: Iterator[ShardJob] | None = account.opened(_readable(jobs, broken))
                while todo is not None:
                    for event in _pass(distributor, worker, todo, stop, account, tell):
                        happened(account.take(event))
                    if stop.asked is not None:
                        break
                    for error in account.unreported():
                        happened(error)
                    todo = account.another_pass()
                    if todo is None:
                        for error in account.given_up():
                            happened(error)
                        others = None if broken or more is None else more(account.total.failed_shards)
                        todo = None if others is None else account.opened(_readable(others, broken))
                for error in account.given_up():
                    happened(error)
        finally:
            account.close()
            tell.on_finish(total(), was_stopped=stop.asked is not None)
        stop.check()
    report = total()
    problems = [str(error) for error in broken]
    if report.failed_shards:
        first = report.failed_shards[0]
        lost = f"{shard_count(len(report.failed_shards))} could not be written"
        problems.append(f"{lost}, the first ({first.shard_id}): {first.reason}")
    if problems:
        raise IncompleteRun("; ".join(problems), report)
    return report


def _pass(
    distributor: Distributor,
    worker: Worker,
    jobs: Iterator[ShardJob],
    stop: Stop,
    account: Account,
    tell: Reporters,
) -> Iterator[Event]:
    """What happens to `jobs`. Here it is told that the run is being stopped: a signal's handler may do very little."""
    was_asked = False
    events: Any = distributor.map(worker, jobs)
    with closing(events):
        for event in events:
            if stop.asked is not None and not was_asked:
                was_asked = True
                tell.on_stopping(account.open_shards, stop.grace)
            yield event


def _readable(jobs: Iterable[ShardJob], broken: list[ReadError | DamagedShard]) -> Iterator[ShardJob]:
    """The jobs up to where the list, or the metadata of a dataset, break off: they are done before it is told."""
    try:
        yield from jobs
    except (ReadError, DamagedShard) as error:
        broken.append(error)
