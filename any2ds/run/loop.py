"""Runs the jobs of a ledger through a distributor, and reports what happens."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from any2ds.core.processes.signals import stoppable
from any2ds.core.reports import Event, Progress, RunReport
from any2ds.distributors._contract import Distributor, Worker
from any2ds.run.ledger import Ledger
from any2ds.run.monitor import Monitor
from any2ds.run.reporting import Reporters


def run(worker: Worker, distributor: Distributor, reporter: Reporters, ledger: Ledger, grace: float) -> RunReport:
    """Make all shards, those that fail a second time at the end, and return the figures.

    Raises IncompleteRun, with the figures, if a shard is missing all the same or the plan broke off, LockLost if
    another run takes over, and what `stoppable` raises if the run was stopped; it then has `grace` seconds.
    """
    finished = len(ledger.plan.shards)
    monitor = Monitor(finished, ledger.plan.outlook, lambda: ledger.open_shards)

    def happened(event: Event) -> None:
        monitor.take(event)
        if not isinstance(event, Progress):
            reporter.on_shard(event)

    with stoppable(distributor.stop, grace) as stop:

        def look_for_stop() -> None:  # not in the signal handler, which may do very little
            if stop.asked is not None and not monitor.is_stopping:
                monitor.is_stopping = True
                reporter.on_stopping(ledger.open_shards, stop.grace)

        try:
            reporter.on_start(finished)
            with reporter.watching(monitor.progress):
                for jobs in ledger.passes():
                    events: Any = distributor.map(worker, jobs)
                    with closing(events):
                        for event in events:
                            ledger.check_lock()
                            look_for_stop()
                            happened(ledger.record(event))
                    ledger.check_lock()
                    if stop.asked is not None:
                        break
                    for error in ledger.end_pass():
                        happened(error)
                for error in ledger.give_up():
                    happened(error)
        finally:
            look_for_stop()
            reporter.on_finish(ledger.total)
        stop.check()
    ledger.check_complete()
    return ledger.total
