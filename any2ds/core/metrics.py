"""How a worker, and the run as a whole, are doing: the values that travel from workers to whoever watches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Wait = Literal["rows", "hosts", "dns", "answers", "bodies", "network", "transforms", "disk", "store", "cpu"]
"""What a worker can be held up by:

rows        no rows to be had: the url list is slow to read, or it is at its end
hosts       rows wait until their hosts may be asked again (per-host limits, delays, Retry-After, robots.txt)
dns         all places are taken, by transfers that wait for addresses
answers     all places are taken, by transfers that wait for the first byte: more places would bring more
bodies      all places are taken, by transfers whose bytes are on their way: the line, or the hosts', is full
network     nothing comes back from anybody: the breaker has paused the run
transforms  bodies wait for the steps that decode and encode them
disk        writing to the disk takes the time
store       finished shards wait to be uploaded
cpu         there was always something to do
"""


@dataclass(frozen=True, slots=True)
class HostLoad:
    """A host that rows wait for."""

    name: str
    waiting: int = 0  # rows
    in_flight: int = 0
    limit: int = 0  # transfers at once that it gets
    why: str = ""  # in words, for a person: "429, asked every 4 s", "down until 12:03:10"


@dataclass(frozen=True, slots=True)
class Traffic:
    """How a fetcher is doing. Sums are those since it was asked before; the rest is now."""

    attempts: int = 0  # transfers that have ended, however they did
    latencies: Mapping[int, int] = field(default_factory=dict)  # of a Histogram: seconds of transfers that succeeded
    waits: Mapping[Wait, float] = field(default_factory=dict)  # seconds in which its thread could only wait
    in_flight: int = 0
    window: int = 0  # transfers that may be in flight
    adapts: bool = False  # it finds that number by itself
    queued: int = 0  # rows that wait for their hosts
    hosts: tuple[HostLoad, ...] = ()  # that most rows wait for, the worst first


@dataclass(frozen=True, slots=True)
class Vitals:
    """How one worker process is doing. Sums are over `seconds`, the time since its Vitals before; the rest is now."""

    worker: str  # host name and process id
    seconds: float = 0.0  # of wall time
    cpu: float = 0.0  # seconds of the processor that it and its children used
    cores: float = 1.0  # that it could use, others of the run left aside
    attempts: int = 0  # transfers that have ended, however they did
    received: int = 0  # bytes of bodies that have arrived, those of failures included
    latencies: Mapping[int, int] = field(default_factory=dict)  # of a Histogram: seconds of transfers that succeeded
    waits: Mapping[Wait, float] = field(default_factory=dict)  # seconds; they add up to `seconds`
    in_flight: int = 0
    window: int = 0  # transfers that may be in flight
    queued: int = 0  # rows that wait for their hosts
    open_shards: int = 0
    memory: int = 0  # bytes that it has in memory, its children included
    hosts: tuple[HostLoad, ...] = ()  # that most rows wait for, the worst first
    adapts: bool = False  # it finds the size of its window by itself
    own_cpu: float = 0.0  # seconds, of `cpu`, of the one thread that drives sockets and writes files


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a run now."""

    limit: Wait | Literal["nothing"]
    words: str  # for a person, with the measured reason


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How a run is doing. Rates are over the last seconds, figures over the run so far, gauges over all workers."""

    seconds: float = 0.0  # since the start of the run
    outcomes: Mapping[str, int] = field(default_factory=dict)  # rows by outcome code, those of open shards included
    bytes: int = 0  # of the files of successes
    received: int = 0  # bytes of bodies that have arrived
    attempts: int = 0
    rows_per_second: float = 0.0
    successes_per_second: float = 0.0
    attempts_per_second: float = 0.0
    bytes_per_second: float = 0.0  # of what has arrived
    latency_p50: float | None = None  # seconds of transfers that succeeded, lately
    latency_p95: float | None = None
    in_flight: int = 0
    window: int = 0
    queued: int = 0
    workers: int = 0
    memory: int = 0  # bytes, over all workers and this process
    shards_open: int = 0
    shards_done: int = 0  # in this run
    shards_failed: int = 0
    shards_before: int = 0  # that were finished before
    total_rows: int | None = None  # that this run has to do, as far as it is known
    share: float | None = None  # 0 to 1 of the run that is done: of its rows, or of the list's bytes
    eta: float | None = None  # seconds that are left
    hosts: tuple[HostLoad, ...] = ()
    verdict: Verdict | None = None
