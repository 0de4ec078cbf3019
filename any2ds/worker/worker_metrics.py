"""Measures a worker: what it has done and waited for since the last time, as `WorkerMetrics`.

All of it belongs to the worker's thread, whose time is accounted for: what its fetcher slept, by cause; what writing,
publishing and steps made it wait; the rest is `cpu`, in which there was something to do. One look at the clock before
and after each write tells which of them took long. Such a write waited for the disk as far as the thread used no
processor in that interval: what is written to the page cache takes microseconds, and a disk that cannot keep up stops
the writer for much longer than another process does that has the core.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from any2ds.core.bodies.buffer import Buffer
from any2ds.core.histogram import Histogram
from any2ds.core.metrics import Traffic, Wait, WorkerMetrics
from any2ds.core.processes import resources
from any2ds.fetch.contract import Fetcher

LONG_WRITE = 0.01  # seconds from which on it counts


class Span:
    """How long something was the case, of late. It may begin and end in another thread than that which asks."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._seconds = 0.0
        self._lock = threading.Lock()

    def begin(self) -> None:
        with self._lock:
            if self._since is None:
                self._since = time.monotonic()

    def end(self) -> None:
        with self._lock:
            self._count()
            self._since = None

    def take(self) -> float:
        """Seconds since the last call."""
        with self._lock:
            self._count()
            seconds, self._seconds = self._seconds, 0.0
            return seconds

    def _count(self) -> None:
        if self._since is not None:
            now = time.monotonic()
            self._seconds += now - self._since
            self._since = now


class MetricsCollector:
    """Of one worker. `fetcher` and `buffer` are the present ones."""

    def __init__(self, is_remote: bool = False) -> None:
        """`is_remote`: finished shards go to a store, and not to a disk."""
        self._publishing: Wait = "store" if is_remote else "disk"
        self._fetcher: Fetcher | None = None
        self._buffer: Buffer | None = None
        self._waited: defaultdict[Wait, float] = defaultdict(float)
        self._long_writes = 0.0
        self._received = 0  # of the present buffer, as reported
        self._before = Traffic()  # of a fetcher that is closed, and not reported
        self._received_before = 0
        self._at = time.monotonic()
        self._own_cpu = time.thread_time()
        self._cpu = resources.cpu()
        self.held_back = Span()  # rows are, because finished shards wait to be published
        self.crowded = Span()  # the next shard waits until another one is complete

    def follow(self, fetcher: Fetcher, buffer: Buffer) -> None:
        """From now on they are the present ones."""
        self._fetcher, self._buffer = fetcher, buffer
        self._received = buffer.received

    def detach(self) -> None:
        """The present fetcher is about to be closed, perhaps in another thread: from now on it is not asked."""
        if self._fetcher is not None and self._buffer is not None:
            self._before = _together(self._before, self._fetcher.traffic())
            self._received_before += self._buffer.received - self._received
        self._fetcher = self._buffer = None
        self._received = 0

    def wrote(self, seconds: float) -> None:
        """The thread has been writing for so long; a write of less than LONG_WRITE need not be reported."""
        if seconds > LONG_WRITE:
            self._long_writes += seconds

    def waited(self, cause: Wait, seconds: float) -> None:
        self._waited[cause] += seconds

    def waited_to_publish(self, since: float) -> None:
        self.waited(self._publishing, time.monotonic() - since)

    def take(self) -> WorkerMetrics:
        """What has happened since the last call. To be called in the thread that works."""
        traffic = _together(self._before, self._fetcher.traffic() if self._fetcher is not None else Traffic())
        now, own_cpu, cpu = time.monotonic(), time.thread_time(), resources.cpu()
        seconds, own = now - self._at, max(0.0, own_cpu - self._own_cpu)
        waits = self._without_rows(traffic)
        for cause, waited in self._waited.items():
            waits[cause] += waited
        idle = seconds - sum(waits.values()) - own
        waits["disk"] += max(0.0, min(self._long_writes, idle))
        received = self._buffer.received if self._buffer is not None else 0
        metrics = WorkerMetrics(
            worker=resources.name(),
            seconds=seconds,
            cpu=max(0.0, cpu - self._cpu),
            cores=resources.share(),
            attempts=traffic.attempts,
            received=max(0, self._received_before + received - self._received),
            latencies=traffic.latencies,
            waits=adding_up(waits, seconds),
            in_flight=traffic.in_flight,
            window=traffic.window,
            queued=traffic.queued,
            memory=resources.memory(),
            hosts=traffic.backlog.hosts,
            adapts=traffic.adapts,
            remaining=traffic.backlog.remaining,
            own_cpu=own,
        )
        self._at, self._own_cpu, self._cpu, self._received = now, own_cpu, cpu, received
        self._before, self._received_before = Traffic(), 0
        self._waited.clear()
        self._long_writes = 0.0
        return metrics

    def _without_rows(self, traffic: Traffic) -> defaultdict[Wait, float]:
        """What the fetcher slept, where a want of rows is laid to whatever keeps them away."""
        waits = defaultdict(float, traffic.waits)
        lacking = waits.pop("rows", 0.0)
        held = min(lacking, self.held_back.take())
        # The shards that are open lack rows of slow hosts, whether they are on their way or not.
        crowded = min(lacking - held, self.crowded.take())
        waits[self._publishing] += held
        waits["hosts" if traffic.queued else "answers"] += crowded
        waits["rows"] += lacking - held - crowded
        return waits


def _together(before: Traffic, now: Traffic) -> Traffic:
    """The sums of both, and the gauges of the latter."""
    if not (before.attempts or before.waits):
        return now
    latencies = Histogram(before.latencies) + Histogram(now.latencies)
    waits = {cause: before.waits.get(cause, 0.0) + now.waits.get(cause, 0.0) for cause in {**before.waits, **now.waits}}
    return replace(now, attempts=before.attempts + now.attempts, latencies=latencies.counts, waits=waits)


def adding_up(waits: Mapping[Wait, float], seconds: float) -> dict[Wait, float]:
    """`waits`, with the rest of `seconds` as `cpu`; all of them less if they are too much together."""
    positive = {cause: waited for cause, waited in waits.items() if waited > 0}
    in_all = sum(positive.values())
    if in_all > seconds:
        return {cause: waited * seconds / in_all for cause, waited in positive.items()}
    positive["cpu"] = positive.get("cpu", 0.0) + seconds - in_all
    return positive
