"""Says what limits a run, from what its workers have waited for in the last seconds. Pure.

The time of the worker thread that drives sockets and writes files is fully accounted for (`WorkerMetrics.waits`). If it
was busy most of the time, processors are the limit: those of the machine if all are busy, else its own one; or other
programs, if it did not get that either. If it slept, the limit is what kept it from starting more. Steps are the limit
where they kept it waiting, whatever the processors do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from any2ds.core.metrics import HostLoad, Verdict, Wait, WorkerMetrics
from any2ds.core.text import rows, size

_LEAST = 2.0  # seconds, of all workers together; less says nothing yet
_BUSY = 0.7  # of the time, from which on nothing else can be the limit
_ALL_CORES = 0.9  # of them
_STARVED = 0.6  # of the busy time: with less of it on a processor, other programs have that
_OUTAGE = 0.3  # of the time


def verdict(
    metrics: Sequence[WorkerMetrics],
    hosts: Sequence[HostLoad] = (),
    is_list_read: bool = False,
    can_shuffle: bool = False,
) -> Verdict | None:
    """What limits now; None if there is too little to say.

    `metrics` are those of all workers over the last seconds, several of each; `hosts` those that most rows wait for;
    with `is_list_read` the workers have all rows of the list; `can_shuffle` if they come in its order.
    """
    if sum(each.seconds for each in metrics) < _LEAST:
        return None
    now = _Total.of(metrics, hosts, is_list_read, can_shuffle)
    limit = now.limit()
    is_thread_count = limit == "answers" and not now.adapts
    return Verdict("nothing" if is_thread_count else limit, _TEXTS[limit](now))


@dataclass(frozen=True, slots=True)
class _Total:
    """All workers together."""

    waits: dict[Wait, float]  # shares of the time
    own: float  # share of the time that the worker's thread was on a processor
    cores: float  # of the busiest machine
    busy: float  # of these
    workers: int  # on that machine
    window: int
    in_flight: int
    received: float  # bytes per second
    adapts: bool
    hosts: Sequence[HostLoad]
    is_list_read: bool
    can_shuffle: bool

    @classmethod
    def of(
        cls, metrics: Sequence[WorkerMetrics], hosts: Sequence[HostLoad], is_list_read: bool, can_shuffle: bool
    ) -> _Total:
        waits: defaultdict[Wait, float] = defaultdict(float)
        by_worker: defaultdict[str, list[WorkerMetrics]] = defaultdict(list)
        for each in metrics:
            by_worker[each.worker].append(each)
            for cause, waited in each.waits.items():
                waits[cause] += waited
        seconds = sum(each.seconds for each in metrics)
        busy: defaultdict[str, float] = defaultdict(float)
        cores: defaultdict[str, float] = defaultdict(float)
        workers: defaultdict[str, int] = defaultdict(int)
        received = 0.0
        for worker, found in by_worker.items():
            machine, span = worker.rpartition(":")[0], max(1e-9, sum(each.seconds for each in found))
            busy[machine] += sum(each.cpu for each in found) / span
            cores[machine] = max(cores[machine], found[-1].cores)
            workers[machine] += 1
            received += sum(each.received for each in found) / span
        busiest = max(busy, key=lambda machine: busy[machine] / max(1e-9, cores[machine]))
        return cls(
            waits={cause: waited / seconds for cause, waited in waits.items()},
            own=sum(each.own_cpu for each in metrics) / seconds,
            cores=cores[busiest],
            busy=busy[busiest],
            workers=workers[busiest],
            window=round(sum(_mean(found, "window") for found in by_worker.values())),
            in_flight=round(sum(_mean(found, "in_flight") for found in by_worker.values())),
            received=received,
            adapts=any(each.adapts for each in metrics),
            hosts=hosts,
            is_list_read=is_list_read,
            can_shuffle=can_shuffle,
        )

    def share(self, cause: Wait) -> float:
        return self.waits.get(cause, 0.0)

    def time(self, cause: Wait) -> str:
        return f"{self.share(cause):.0%} of the time"

    @property
    def all_cores(self) -> bool:
        return self.busy >= _ALL_CORES * self.cores

    @property
    def busy_cores(self) -> str:
        return f"{self.busy:.1f} of {self.cores:g} cores are busy"

    def limit(self) -> Wait:
        slept: dict[Wait, float] = {cause: share for cause, share in self.waits.items() if cause != "cpu"}
        longest: Wait = max(slept, key=lambda cause: slept[cause], default="cpu")
        if self.share("network") >= _OUTAGE:
            return "network"
        if self.all_cores:  # threads of steps have them, or the worker's
            workers = self.own * self.workers
            return "transforms" if longest == "transforms" or self.busy - workers > workers else "cpu"
        return "cpu" if self.share("cpu") >= max(_BUSY, slept.get(longest, 0.0)) else longest


def _mean(metrics: Sequence[WorkerMetrics], name: Literal["window", "in_flight"]) -> float:
    seconds = sum(each.seconds for each in metrics)
    sums: float = sum(getattr(each, name) * each.seconds for each in metrics)
    return sums / max(1e-9, seconds)


def _cpu(now: _Total) -> str:
    if now.all_cores:
        return f"CPU: {now.busy_cores}; more cores, or more machines, would help"
    if now.own < _STARVED * now.share("cpu"):
        return (
            f"CPU: a process is busy {now.time('cpu')}, but gets {now.own:.0%} of a core: other programs have the "
            "rest, or its memory is swapped out"
        )
    return f"CPU: each process is busy {now.time('cpu')}, on one core ({now.busy_cores}): raise --processes_count"


def _transforms(now: _Total) -> str:
    if now.all_cores:
        return f"CPU: the steps that decode and encode take all there is ({now.busy_cores})"
    return (
        f"CPU (steps): files wait {now.time('transforms')} for the steps, while {now.busy_cores}: raise "
        "--transform_threads, or --max_decoded_bytes if files are large, or make a step of your own faster"
    )


def _hosts(now: _Total) -> str:
    text = f"Hosts: rows wait {now.time('hosts')} for hosts at their limit, or to be asked again later"
    if now.hosts:
        worst = now.hosts[0]
        text += f", most for {worst.name} ({rows(worst.waiting)}: {worst.why})"
    if now.can_shuffle and not now.is_list_read:  # rows of other hosts are still to come
        text += "; if the list is sorted by host, --shuffle spreads them"
    return text


def _dns(now: _Total) -> str:
    return (
        f"DNS: {now.time('dns')} all {now.window} connections wait for addresses of hosts; --nameservers may name "
        "faster servers"
    )


def _answers(now: _Total) -> str:
    waiting = f"{now.time('answers')} all {now.window} connections wait for the first byte"
    if now.adapts:
        return f"The servers: {waiting}, and --thread_count=auto has found that more of them do not help"
    return f"Only --thread_count: {waiting}; raise it to have more in flight"


def _bodies(now: _Total) -> str:
    rate = f"{size(now.received)}/s"
    if now.in_flight < 0.5 * now.window:
        return (
            f"Memory: {now.time('bodies')} no transfer can start, because {now.in_flight} in flight fill it, at "
            f"{rate}; raise --max_buffered_bytes"
        )
    advice = "" if now.adapts else "; if the line has room for more, raise --thread_count"
    return f"The network: {now.time('bodies')} all {now.window} connections are receiving, {rate} in all{advice}"


def _network(now: _Total) -> str:
    return f"The network: {now.time('network')} no host answers; the run waits for it"


def _disk(now: _Total) -> str:
    return f"The disk: {now.time('disk')} everything waits for writes; --staging_dir may name a faster one"


def _store(now: _Total) -> str:
    return (
        f"The output store: {now.time('store')} everything waits for uploads of finished shards; use a nearer store, "
        "or raise --processes_count, which upload in parallel"
    )


def _rows(now: _Total) -> str:
    if now.is_list_read:
        return f"The end of the list: {now.time('rows')} there is nothing to do but wait for its last rows"
    return f"The url list: {now.time('rows')} there are no rows, because it is read more slowly than they are done"


_TEXTS: dict[Wait, Callable[[_Total], str]] = {
    "rows": _rows,
    "hosts": _hosts,
    "dns": _dns,
    "answers": _answers,
    "bodies": _bodies,
    "network": _network,
    "transforms": _transforms,
    "disk": _disk,
    "store": _store,
    "cpu": _cpu,
}
