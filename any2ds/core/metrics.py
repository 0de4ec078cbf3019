"""Metrics of workers, which travel to the run that adds them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Wait = Literal["rows", "hosts", "dns", "answers", "bodies", "network", "transforms", "disk", "store", "cpu"]
"""What a worker can wait for:

rows        no rows: the url list is slow to read, or at its end
hosts       rows wait for their hosts (per-host limits, delays, Retry-After, robots.txt)
dns         all connections are busy and wait for addresses
answers     all connections are busy and wait for the first byte: more would help
bodies      all connections are busy and receive: the line, or the hosts', is full
network     no host answers: the breaker has paused the run
transforms  bodies wait for the steps that decode and encode them
disk        writes to the disk
store       finished shards wait for their upload
cpu         nothing: the worker was busy
"""


@dataclass(frozen=True, slots=True)
class HostLoad:
    """A host that rows wait for."""

    name: str
    waiting: int = 0  # rows
    in_flight: int = 0
    limit: int = 0  # transfers at once
    why: str = ""  # for a person: "429, asked every 4 s", "down until 12:03:10"


@dataclass(frozen=True, slots=True)
class Backlog:
    """Rows of a fetcher that wait or are in flight."""

    hosts: tuple[HostLoad, ...] = ()  # that most rows wait for, the worst first
    remaining: float = 0.0  # seconds that the slowest row may take


@dataclass(frozen=True, slots=True)
class Traffic:
    """Metrics of a fetcher. Sums are since the last call; gauges are of now."""

    attempts: int = 0  # transfers that have ended
    latencies: Mapping[int, int] = field(default_factory=dict)  # of a Histogram: seconds of successful transfers
    waits: Mapping[Wait, float] = field(default_factory=dict)  # seconds that its thread slept
    in_flight: int = 0
    window: int = 0  # transfers that may be in flight
    adapts: bool = False  # whether it adapts the window
    queued: int = 0  # rows that wait for their hosts
    backlog: Backlog = field(default_factory=Backlog)


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """Metrics of a worker process. Sums are over `seconds`, the time since the metrics before; gauges are of now."""

    worker: str  # host name and process id
    seconds: float = 0.0  # of wall time
    cpu: float = 0.0  # seconds of processor time, its children included
    cores: float = 1.0  # that it could use if no other worker did
    attempts: int = 0  # transfers that have ended
    received: int = 0  # bytes of bodies, those of failures included
    latencies: Mapping[int, int] = field(default_factory=dict)  # of a Histogram: seconds of successful transfers
    waits: Mapping[Wait, float] = field(default_factory=dict)  # seconds; they add up to `seconds`
    in_flight: int = 0
    window: int = 0  # transfers that may be in flight
    queued: int = 0  # rows that wait for their hosts
    memory: int = 0  # bytes, its children included
    hosts: tuple[HostLoad, ...] = ()  # that most rows wait for, the worst first
    adapts: bool = False  # whether it adapts the window
    remaining: float = 0.0  # seconds that the slowest of its rows may take
    own_cpu: float = 0.0  # seconds, of `cpu`, of the thread that drives sockets and writes files
