"""The interface of a fetcher: rows in, outcomes out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from any2ds.core.metrics import Traffic
from any2ds.core.reports import RobotsCost
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched


class Fetcher(Protocol):
    """Fetches rows. One lives as long as its process, across shards; where it is stuck, the process ends with it.

    If it has a method `share(processes)`, that is called from other threads, at first before it fetches, with how many
    processes of this machine fetch at the same time. If it has a property `queued`, that is how many rows wait for
    their hosts: beyond these it is given some that may go to others.
    """

    def robots_cost(self) -> RobotsCost:
        """The cost of robots.txt since the last call: `RobotsCost()` for a fetcher that does not ask for it."""
        ...

    def traffic(self) -> Traffic:
        """How it goes, for people who watch; asked about twice a second, in the thread that iterates over `fetch`.

        `waits` are seconds in which that thread slept, by what kept it from starting more; none are also fine.
        """
        ...

    @property
    def activity(self) -> int:
        """Grows with every sign of life that is neither an outcome nor a byte of a body: an attempt begins or ends.

        Who pauses on purpose, with rows to fetch, lets it grow in the meantime: the watchdog ends a process in
        which nothing moves for `fetch.limits.watchdog_limit` seconds.
        """
        ...

    def fetch(self, rows: Iterable[Row]) -> Iterator[Sequence[Fetched]]:
        """Pulls `rows` as it has room and yields outcomes in the order in which they complete.

        Yields at least every 0.1 seconds, an empty batch if nothing is new, so that the caller can look after its
        other work. Every row comes back exactly once; nothing that concerns one row raises. `next(rows)` may wait;
        it runs in a thread of its own. What it raises is raised here, when the rows before it are done.
        """
        ...

    def close(self) -> None:
        """Abort what is in flight and free everything, at once."""
        ...
