"""Measures a worker: what it has done and waited for since the last time, as `WorkerMetrics`.

All of it belongs to the worker's thread, whose time is accounted for: what its fetcher slept, by cause; what writing,
publishing and steps made it wait; the rest is `cpu`, in which there was something to do. One look at the clock before
and after each write tells which of them took long. Such a write waited for the disk as far as the thread used no
processor in that interval: what is written to the page cache takes microseconds, and a disk that cannot keep up stops
the writer for much longer than another process does that has the core.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping

from any2ds.core.bodies.buffer import Buffer
from any2ds.core.metrics import Traffic, Wait, WorkerMetrics
from any2ds.core.processes import resources
from any2ds.core.reports import ProcessCost
from any2ds.fetch.contract import Fetcher

LONG_WRITE = 0.01  # seconds from which on it counts


class MetricsCollector:
    """Measures one worker, with its fetcher and the buffer for what that receives."""

    def __init__(self, fetcher: Fetcher, buffer: Buffer, is_remote: bool) -> None:
        """`is_remote`: finished shards go to a store, and not to a disk."""
        self._fetcher, self._buffer = fetcher, buffer
        self._publishing: Wait = "store" if is_remote else "disk"
        self._waited: defaultdict[Wait, float] = defaultdict(float)
        self._long_writes = 0.0
        self._received = 0  # bytes that were reported
        self._at = time.monotonic()
        self._own_cpu = time.thread_time()
        self._cpu = resources.cpu()
        self._at_last_shard = ProcessCost(self._cpu, self._own_cpu)
        self.is_held_back = False  # rows wait until finished shards are published
        self.is_supplied = False  # the next shard waits until steps have less to do
        self.is_crowded = False  # the next shard waits until rows that are under way have their outcome

    def wrote(self, seconds: float) -> None:
        """The thread has been writing for so long; a write of less than LONG_WRITE need not be reported."""
        self._long_writes += seconds

    def waited(self, cause: Wait, seconds: float) -> None:
        self._waited[cause] += seconds

    def waited_to_publish(self, since: float) -> None:
        self.waited(self._publishing, time.monotonic() - since)

    def cost_of_shard(self) -> ProcessCost:
        """Resources that the process took since the last call, in the thread that works."""
        before = self._at_last_shard
        now = self._at_last_shard = ProcessCost(
            resources.cpu(), time.thread_time(), resources.memory(), self._buffer.received
        )
        return ProcessCost(
            max(0.0, now.cpu - before.cpu), now.own_cpu - before.own_cpu, now.memory, now.received - before.received
        )

    def drain(self) -> WorkerMetrics:
        """Measurements since the last call. To be called in the thread that works."""
        traffic = self._fetcher.traffic()
        now, own_cpu, cpu = time.monotonic(), time.thread_time(), resources.cpu()
        seconds, own = now - self._at, max(0.0, own_cpu - self._own_cpu)
        waits = self._waits(traffic)
        for cause, waited in self._waited.items():
            waits[cause] += waited
        idle = seconds - sum(waits.values()) - own
        waits["disk"] += max(0.0, min(self._long_writes, idle))
        received = self._buffer.received
        metrics = WorkerMetrics(
            worker=resources.name(),
            seconds=seconds,
            cpu=max(0.0, cpu - self._cpu),
            cores=resources.share(),
            attempts=traffic.attempts,
            received=received - self._received,
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
        self._waited.clear()
        self._long_writes = 0.0
        return metrics

    def _waits(self, traffic: Traffic) -> defaultdict[Wait, float]:
        """Seconds that the fetcher slept, by cause; a want of rows is laid to what keeps them away now."""
        waits = defaultdict(float, traffic.waits)
        lacking = waits.pop("rows", 0.0)
        if self.is_held_back:
            waits[self._publishing] += lacking
        elif self.is_supplied:
            waits["transforms"] += lacking
        elif self.is_crowded:  # by shards that lack rows of slow hosts, whether these are on their way or not
            waits["hosts" if traffic.queued else "answers"] += lacking
        else:
            waits["rows"] += lacking
        return waits


def adding_up(waits: Mapping[Wait, float], seconds: float) -> dict[Wait, float]:
    """`waits`, with the rest of `seconds` as `cpu`; all of them less if they are too much together."""
    positive = {cause: waited for cause, waited in waits.items() if waited > 0}
    in_all = sum(positive.values())
    if in_all > seconds:
        return {cause: waited * seconds / in_all for cause, waited in positive.items()}
    positive["cpu"] = positive.get("cpu", 0.0) + seconds - in_all
    return positive
