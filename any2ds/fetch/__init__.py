"""Fetches rows: a schedule says when, a transport moves the bytes, a feeder brings rows from wherever they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain

from any2ds.buffer import Buffer
from any2ds.config import FetchOptions
from any2ds.fetch.curl import CurlTransport
from any2ds.fetch.hosts import Manners
from any2ds.fetch.schedule import Attempt, Schedule
from any2ds.fetch.urls import normalize
from any2ds.fetch.window import Window
from any2ds.types import Failure, Fetched, Row

HEARTBEAT = 0.1  # seconds: the longest time without a yield
# Transfers begun per turn, and none while sockets wait to be read: when this process is what limits, more in flight
# would only make each wait longer, up to timeouts that no server has deserved.
_STARTS_PER_TURN = 32
_LEAST_STOCK = 256  # rows in reserve, with thread_count=auto
_ROWS_AHEAD = 100_000  # rows that may wait for busy hosts while others are looked for
_STALL = 0.25  # seconds: a longer absence of the consumer (a slow disk) is not held against the servers


class CurlFetcher:
    """The `protocols.Fetcher` for http(s) and ftp(s). The thread that iterates over `fetch` moves the bytes."""

    def __init__(self, options: FetchOptions, buffer: Buffer, most_transfers: int | None = None) -> None:
        self._options = options
        self._buffer = buffer
        self._transport = CurlTransport(options, buffer)
        self._most = min(most_transfers or options.most_transfers, options.most_transfers)
        self._window: Window | None = None  # with thread_count=auto

    def fetch(self, rows: Iterable[Row]) -> Iterator[list[Fetched]]:
        options = self._options
        manners = Manners(options.max_per_host, options.host_delay, options.max_retry_after)
        schedule = Schedule(self._most, options.timeout, options.retries, manners)
        clock = Clock()
        if options.thread_count == "auto":
            self._window = Window(self._most, clock.now())
        with Feeder(rows, schedule, self._most, self._transport.wake) as feeder:
            # `exhausted` is read first: rows that come in between are then seen by the schedule.
            while not (feeder.exhausted and schedule.idle):
                if self._window is not None:
                    self._follow(self._window, schedule, feeder)
                begun, done = self._begin(schedule, clock.now())
                if self._window is not None:
                    self._window.turn(clock.now(), schedule.in_flight, self._buffer.received)
                wait = 0.0 if done or begun == _STARTS_PER_TURN else min(HEARTBEAT, schedule.wait(clock.now()))
                done += self._move(schedule, clock, wait)
                feeder.refill()
                with clock.absence():
                    yield done
            feeder.check()

    def close(self) -> None:
        self._transport.close()

    def _follow(self, window: Window, schedule: Schedule, feeder: Feeder) -> None:
        """Let everything that depends on how many may be in flight know it."""
        schedule.slots = window.size
        if (most := max(schedule.slots, schedule.in_flight)) != self._most:
            self._most = most
            self._transport.expect(most)
            self._buffer.share_among(most)
            feeder.stock = max(_LEAST_STOCK, most)

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
                if self._window is not None:
                    attempt.trial = self._window.trial
                    attempt.trial.started += 1
                self._transport.start(attempt, url)
            elif fetched := schedule.finish(attempt, url, now):
                done.append(fetched)
        done += schedule.given_up()
        return begun, done

    def _move(self, schedule: Schedule, clock: Clock, wait: float) -> Iterator[Fetched]:
        """Move bytes for at most `wait` seconds if there are none: the rows that are done with."""
        for attempt, outcome in chain(self._transport.poll(wait), self._overdue(schedule, clock)):
            if attempt.trial is not None and self._window is not None:
                self._window.ended(attempt.trial, outcome)
            if fetched := schedule.finish(attempt, outcome, clock.now()):
                yield fetched

    def _overdue(self, schedule: Schedule, clock: Clock) -> Iterator[tuple[Attempt, Failure]]:
        for attempt in schedule.overdue(clock.now()):
            yield attempt, self._transport.cancel(attempt)


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
        self.stock = stock  # rows in reserve below which more are pulled, up to twice as many
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
        few = len(self._fresh) < self.stock and self._schedule.queued + self._schedule.deferred < _ROWS_AHEAD
        if few and not self._wanted.is_set():
            self._wanted.set()

    def check(self) -> None:
        """Raise what went wrong while pulling rows, if anything did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        fresh = self._fresh
        try:
            for row in self._rows:
                fresh.append(row)
                if len(fresh) == 1:  # the other side may be asleep for want of rows
                    self._wake()
                elif len(fresh) >= 2 * self.stock:
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
