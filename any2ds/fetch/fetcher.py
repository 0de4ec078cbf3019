"""Fetches rows: a schedule says when, transports move the bytes, a feeder brings rows from wherever they come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.metrics import Traffic
from any2ds.core.reports import RobotsCost
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched
from any2ds.fetch.feeder import Feeder
from any2ds.fetch.host_slots import HOST_SLOTS
from any2ds.fetch.loop import Loop
from any2ds.fetch.policy.robots import Robots
from any2ds.fetch.policy.rules import product_of
from any2ds.fetch.policy.schedule import Schedule, limits_of
from any2ds.fetch.profiles import Profiles
from any2ds.fetch.robots_files import RobotsFiles
from any2ds.fetch.routes import Routes
from any2ds.fetch.urls import normalize
from any2ds.storage.stores import Stores


class UrlFetcher:
    """The `Fetcher` for whatever has a URL. The thread that iterates over `fetch` moves libcurl's bytes."""

    def __init__(self, options: FetchOptions, buffer: Buffer, stores: Stores | None = None, machines: int = 1) -> None:
        """`machines` fetch at the same time, and each has a part of what hosts allow."""
        self._options = options
        self._buffer = buffer
        self._profiles = Profiles(options, machines)
        self._robots: Robots | None = None
        if options.robots != "ignore" or self._profiles.differ:
            self._robots = Robots(
                product_of(options.user_agent),
                options.robots,
                self._profiles.robots_policy,
                machines,
                RobotsFiles(),
            )
        self._transport = Routes(self._profiles, options, buffer, self._robots, stores)
        self._schedule: Schedule | None = None  # of the last `fetch`, as the next
        self._loop: Loop | None = None
        self._machines = machines
        self._fetchers = machines

    def fetch(self, rows: Iterable[Row]) -> Iterator[list[Fetched]]:
        options, profiles = self._options, self._profiles
        most = min(options.most_transfers, self._buffer.transfers)
        schedule = self._schedule = Schedule(
            limits_of(options, most),
            profiles.default.policy,
            robots=self._robots,
            host_of=profiles.host_of if profiles.tells_hosts_apart else None,
            slots_of_hosts=HOST_SLOTS,
        )
        schedule.fetchers = self._fetchers
        if profiles.tells_hosts_apart:  # by limits, to which a request is bound before it is sent
            self._transport.load_web_engine()
        self._buffer.share_among(most + schedule.spare)
        with Feeder(rows, schedule, most, self._transport.wake) as feeder:
            self._loop = Loop(options, schedule, self._transport, self._buffer, feeder)
            yield from self._loop.run()
            feeder.check()

    def share(self, processes: int) -> None:
        self._fetchers = processes * self._machines
        if self._schedule is not None:
            self._schedule.fetchers = self._fetchers

    @property
    def activity(self) -> int:
        return self._loop.activity if self._loop else 0

    @property
    def queued(self) -> int:
        return self._schedule.queued + self._schedule.deferred if self._schedule else 0

    def traffic(self) -> Traffic:
        return self._loop.traffic() if self._loop else Traffic()

    def crawl_delay(self, url: str | None) -> float:
        """Seconds between two requests that the robots.txt of its host asks for, as far as that is known."""
        if self._robots is None or not isinstance(normal := normalize(url), str):
            return 0.0
        return self._robots.delay_of(normal)

    def robots_cost(self) -> RobotsCost:
        return self._robots.take_cost() if self._robots else RobotsCost()

    def close(self) -> None:
        self._transport.close()
        if self._schedule is not None:
            self._schedule.close()
