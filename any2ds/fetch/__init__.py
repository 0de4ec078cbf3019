"""Fetches rows: a schedule says when, transports move the bytes, a feeder brings rows from wherever they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from any2ds.buffer import Buffer
from any2ds.config import FetchOptions
from any2ds.fetch.hosts import Manners
from any2ds.fetch.routes import Routes
from any2ds.fetch.schedule import Schedule, spare_places
from any2ds.fetch.urls import normalize
from any2ds.types import Fetched, Row

HEARTBEAT = 0.1  # seconds: the longest time without a yield
# Transfers begun per turn, and none while sockets wait to be read: when this process is what limits, more in flight
# would only make each wait longer, up to timeouts that no server has deserved.
_STARTS_PER_TURN = 32
_ROWS_AHEAD = 100_000  # rows that may wait for busy hosts while others are looked for
_STALL = 0.25  # seconds: a longer absence of the consumer (a slow disk) is not held against the servers


class UrlFetcher:
    """The `protocols.Fetcher` for whatever has a URL. The thread that iterates over `fetch` moves libcurl's bytes."""

    def __init__(self, options: FetchOptions, buffer: Buffer) -> None:
        self._options = options
        self._buffer = buffer
        self._transport = Routes(options, buffer)

    def fetch(self, rows: Iterable[Row]) -> Iterator[list[Fetched]]:
        options = self._options
        manners = Manners(options.max_per_host, options.host_delay, options.max_retry_after)
        spare = spare_places(options)
        schedule = Schedule(options.thread_count, options.timeout, options.retries, manners, spare=spare)
        clock = Clock()
        with Feeder(rows, schedule, options.thread_count, self._transport.wake) as feeder:
            # `exhausted` is read first: rows that come in between are then seen by the schedule.
            while not (feeder.exhausted and schedule.idle):
                begun, done = self._begin(schedule, clock.now())
                wait = 0.0 if done or begun == _STARTS_PER_TURN else min(HEARTBEAT, schedule.wait(clock.now()))
                done += self._move(schedule, clock, wait)
                feeder.refill()
                with clock.absence():
                    yield done
            feeder.check()

    def close(self) -> None:
        self._transport.close()

    def _begin(self, schedule: Schedule, now: float) -> tuple[int, list[Fetched]]:
        """Start what may start: how many attempts, and the rows that cannot even be tried."""
        begun, done = 0, []
        while begun < _STARTS_PER_TURN and not self._transport.backlog and not self._buffer.full:
            attempt = schedule.next(now)
            if attempt is None:
                break
            begun += 1
            url = normalize(attempt.row.url)
            if isinstance(url, str):
                self._transport.start(attempt, url)
            elif fetched := schedule.finish(attempt, url, now):
                done.append(fetched)
        done += schedule.given_up()
        return begun, done

    def _move(self, schedule: Schedule, clock: Clock, wait: float) -> Iterator[Fetched]:
        """Move bytes for at most `wait` seconds if there are none: the rows that are done with."""
        for attempt, outcome in self._transport.poll(wait):
            if fetched := schedule.finish(attempt, outcome, clock.now()):
                yield fetched
        for attempt in schedule.overdue(clock.now()):
            if fetched := schedule.finish(attempt, self._transport.cancel(attempt), clock.now()):
                yield fetched


class Clock:
    """Seconds that servers have had, which is not all of the time: while a consumer hangs on its disk nobody reads
    from the sockets, and a transfer should not fail for that."""

    def __init__(self) -> None:
        self._lost = 0.0

    def now(self) -> float:
        return time.monotonic() - self._lost

    @contextmanager
    def absence(self) -> Iterator[None]:
        """Around whatever is done instead of moving bytes."""
        left = time.monotonic()
        yield
        self._lost += max(0.0, time.monotonic() - left - _STALL)


class Feeder:
    """Pulls rows into a schedule, in a thread of its own because `next(rows)` may wait for the url list."""

    def __init__(self, rows: Iterable[Row], schedule: Schedule, stock: int, wake: Callable[[], None]) -> None:
        self._rows = rows
        self._schedule, self._fresh = schedule, schedule.fresh
        self._stock = stock  # rows in reserve below which more are pulled, up to twice as many
        self._wake = wake
        self._wanted = threading.Event()
        self._wanted.set()
        self._stopped = False
        self._error: Exception | None = None
        self.exhausted = False

    def __enter__(self) -> Feeder:
        threading.Thread(target=self._run, name="any2ds-feeder", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # Not joined: it may be waiting for rows that never come, and ends with the process then.
        self._stopped = True
        self._wanted.set()

    def refill(self) -> None:
        """To be called now and then: asks for more rows when few are left, or all there are wait for their hosts."""
        few = len(self._fresh) < self._stock and self._schedule.queued + self._schedule.deferred < _ROWS_AHEAD
        if few and not self._wanted.is_set():
            self._wanted.set()

    def check(self) -> None:
        """Raise what went wrong while pulling rows, if anything did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        fresh, most = self._fresh, 2 * self._stock
        try:
            for row in self._rows:
                fresh.append(row)
                if len(fresh) == 1:  # the other side may be asleep for want of rows
                    self._wake()
                elif len(fresh) >= most:
                    self._wanted.clear()
                    if not self._stopped:  # set before the other side sets `_wanted` for the last time
                        self._wanted.wait()
                if self._stopped:
                    return
        except Exception as error:  # handed to the thread that can deal with it
            self._error = error
        finally:
            self.exhausted = True
            self._wake()
