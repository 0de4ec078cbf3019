"""The interfaces of a distributor and of the worker that it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from any2ds.core.reports import Event
from any2ds.core.rows import ShardJob

if TYPE_CHECKING:
    from any2ds.core.layout import Layout
    from any2ds.storage.folders import OutputFolder
    from any2ds.storage.lock.lock_file import LockRef


class Worker(Protocol):
    """The work that a distributor runs: a stream of jobs in, a stream of events out. It can be pickled."""

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        """Works on the jobs that it has while `next(jobs)` waits for another. One with an `attempt` may be finished
        already: by a worker that died before anybody had its report. Raises StuckFetcher when it can do
        nothing with the others, after the reports of those that are complete: the jobs are for another process."""
        ...

    def stop(self) -> None:
        """Asked from another thread, or before it has begun: begin no job more, give up silently what cannot
        be finished soon, and end when the rest is done."""
        ...

    def share(self, processes: int) -> None:
        """Asked from another thread, or before it has begun: so many processes of its machine have jobs now, and it is
        to take no more than its part of the cores. Not asked if it is the only one."""
        ...

    def among(self, machines: int) -> Worker:
        """This worker as one on so many machines, or of so many runs, that have workers at the same time."""
        ...

    @property
    def patience(self) -> float:
        """Seconds without an event after which its process is stuck, jobs or not; 0: it never is."""
        ...

    @property
    def rows_per_process(self) -> int:
        """Rows that are worth another process: with fewer, its start takes more than it gives."""
        ...

    @property
    def waiting(self) -> bool:
        """Asked from another thread: whether it is held up by a disk, which is no reason to lose patience."""
        ...

    @property
    def folder(self) -> OutputFolder:
        """Where it publishes: a place that all workers of a run see, and the run as well. Another object each time."""
        ...

    @property
    def layout(self) -> Layout:
        """The names of its files."""
        ...

    def under(self, locks: tuple[LockRef, ...]) -> Worker:
        """A worker that publishes nothing once one of `locks` is lost."""
        ...


class Distributor(Protocol):
    """Runs a worker over jobs, somewhere. Made from RunOptions.

    If it has a method `close()` that is called when the run is over, in whatever way, and its folder is free again. A
    static method `check(options)` of its class is called where it is there, before anything is made, and raises
    UsageError if it cannot do what the options ask for.
    """

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        """Every job gives one ShardReport or ShardError, in any order, with Progress in between.

        Pulls jobs as workers have room. A job whose worker died is given to another, with a higher `attempt`, as often
        as `max_shard_retry` allows; what Progress has reported of the rows of its open shards is taken back then, by a
        Progress with fewer than none. Closing the iterator stops all workers within a second. It may be called again
        when the iterator before has ended.
        """
        ...

    def stop(self, grace: float) -> None:
        """Pull and give out no more jobs, `Worker.stop` the workers, and break them off after `grace` seconds.

        Asked from a signal handler or another thread, at any time; it does not wait. The iterator soon yields a
        Progress, and ends when all workers have; jobs without a report are nobody's business then. A `map` that begins
        afterwards is empty. Asked again, the shorter time counts.
        """
        ...
