"""Says what limits a run, from what its workers have waited for in the last seconds. Pure.

The thread of a worker that drives sockets and writes files is what everything goes through, and its time is accounted
for without gaps (`Vitals.waits`). If it had something to do most of the time, processors are the limit: those of the
machine, if they are all at work, else its own, which is one; if it did not get that one either, other programs have it.
If it slept, what kept it from starting more is the limit; and the steps are, where they kept it, whatever the
processors do. What is said holds a measured share of the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from any2ds.core.metrics import HostLoad, Verdict, Vitals, Wait

_LEAST = 2.0  # seconds, of all workers together, that tell nothing yet
_BUSY = 0.7  # of the time with something to do, from which on nothing else can be the limit
_ALL_CORES = 0.9  # of them
_STARVED = 0.6  # of the time with something to do: with less of it on a processor, somebody else has that
_OUTAGE = 0.3  # of the time


def verdict(vitals: Sequence[Vitals], hosts: Sequence[HostLoad] = (), is_list_read: bool = False) -> Verdict | None:
    """What limits now; None if there is too little to tell.

    `vitals` are those of all workers over the last seconds, several of each; `hosts` those that most rows wait for;
    with `is_list_read` there are no more rows than those that workers have.
    """
    if sum(each.seconds for each in vitals) < _LEAST:
        return None
    now = _Picture.of(vitals, hosts, is_list_read)
    limit = now.limit()
    words = _WORDS[limit](now)
    is_place = limit == "answers" and not now.adapts
    return Verdict("nothing" if is_place else limit, words)


@dataclass(frozen=True, slots=True)
class _Picture:
    """All workers together."""

    waits: dict[Wait, float]  # shares of the time
    own: float  # share of the time in which the worker's thread was on a processor
    cores: float  # of the machine that is busiest
    at_work: float  # of these
    workers: int  # on that machine
    window: int
    in_flight: int
    received: float  # bytes per second
    adapts: bool
    hosts: Sequence[HostLoad]
    is_list_read: bool

    @classmethod
    def of(cls, vitals: Sequence[Vitals], hosts: Sequence[HostLoad], is_list_read: bool) -> _Picture:
        waits: defaultdict[Wait, float] = defaultdict(float)
        by_worker: defaultdict[str, list[Vitals]] = defaultdict(list)
        for each in vitals:
            by_worker[each.worker].append(each)
            for cause, seconds in each.waits.items():
                waits[cause] += seconds
        seconds = sum(each.seconds for each in vitals)
        at_work: defaultdict[str, float] = defaultdict(float)
        cores: defaultdict[str, float] = defaultdict(float)
        workers: defaultdict[str, int] = defaultdict(int)
        received = 0.0
        for worker, told in by_worker.items():
            machine, span = worker.rpartition(":")[0], max(1e-9, sum(each.seconds for each in told))
            at_work[machine] += sum(each.cpu for each in told) / span
            cores[machine] = max(cores[machine], told[-1].cores)
            workers[machine] += 1
            received += sum(each.received for each in told) / span
        busiest = max(at_work, key=lambda machine: at_work[machine] / max(1e-9, cores[machine]))
        return cls(
            waits={cause: waited / seconds for cause, waited in waits.items()},
            own=sum(each.own_cpu for each in vitals) / seconds,
            cores=cores[busiest],
            at_work=at_work[busiest],
            workers=workers[busiest],
            window=round(sum(_mean(told, "window") for told in by_worker.values())),
            in_flight=round(sum(_mean(told, "in_flight") for told in by_worker.values())),
            received=received,
            adapts=any(each.adapts for each in vitals),
            hosts=hosts,
            is_list_read=is_list_read,
        )

    def share(self, cause: Wait) -> float:
        return self.waits.get(cause, 0.0)

    def percent(self, cause: Wait) -> str:
        return f"{100 * self.share(cause):.0f} % of the time"

    @property
    def all_cores(self) -> bool:
        return self.at_work >= _ALL_CORES * self.cores

    def limit(self) -> Wait:
        slept: dict[Wait, float] = {cause: share for cause, share in self.waits.items() if cause != "cpu"}
        longest: Wait = max(slept, key=lambda cause: slept[cause], default="cpu")
        if self.share("network") >= _OUTAGE:
            return "network"
        if self.all_cores:
            # Threads of steps, or the one that moves bytes: where steps hold it back, or take more than it does.
            is_steps = longest == "transforms" or self.at_work - self.own * self.workers > self.own * self.workers
            return "transforms" if is_steps else "cpu"
        return "cpu" if self.share("cpu") >= max(_BUSY, slept.get(longest, 0.0)) else longest


def _mean(vitals: Sequence[Vitals], figure: Literal["window", "in_flight"]) -> float:
    seconds = sum(each.seconds for each in vitals)
    sums: float = sum(getattr(each, figure) * each.seconds for each in vitals)
    return sums / max(1e-9, seconds)


def _cpu(now: _Picture) -> str:
    used = f"{now.at_work:.1f} of {now.cores:g} cores are at work"
    if now.all_cores:
        return f"CPU: {used}; only more of them, or more machines, bring more"
    if now.own < _STARVED * now.share("cpu"):
        return (
            f"CPU: there is something to do {now.percent('cpu')}, but a process gets {100 * now.own:.0f} % of a core: "
            "other programs have the rest, or its memory is on disk"
        )
    return f"CPU: each process is busy {now.percent('cpu')}, on one core ({used}): raise --processes_count"


def _transforms(now: _Picture) -> str:
    used = f"{now.at_work:.1f} of {now.cores:g} cores are at work"
    if now.all_cores:
        return f"CPU: the steps that decode and encode take all there is ({used})"
    return (
        f"CPU (steps): files wait {now.percent('transforms')} for the steps, while {used}: raise --transform_threads, "
        "or --max_decoded_bytes if files are large, or make a step of your own faster"
    )


def _hosts(now: _Picture) -> str:
    found = f"Hosts: rows wait {now.percent('hosts')} for hosts that bear no more, or have to be asked later"
    if now.hosts:
        worst = now.hosts[0]
        found += f", most for {worst.name} ({worst.waiting} rows: {worst.why})"
    return f"{found}; a list that is shuffled (--shuffle) spreads them"


def _dns(now: _Picture) -> str:
    return (
        f"DNS: {now.percent('dns')} all {now.window} places are taken, by transfers that wait for the addresses of "
        "their hosts; --nameservers may name faster servers"
    )


def _answers(now: _Picture) -> str:
    if now.adapts:
        return (
            f"The servers: {now.percent('answers')} all {now.window} places wait for the first byte, and "
            "--thread_count=auto has found that more of them bring no more"
        )
    return (
        f"Nothing but --thread_count: {now.percent('answers')} all {now.window} places wait for the first byte of an "
        "answer; with more of them more is under way at a time"
    )


def _bodies(now: _Picture) -> str:
    rate = f"{now.received / 1e6:.1f} MB/s" if now.received >= 1e5 else f"{now.received / 1e3:.1f} KB/s"
    if now.in_flight < 0.5 * now.window:
        return (
            f"Memory: {now.percent('bodies')} no transfer can start, because {now.in_flight} that are under way fill "
            f"it, at {rate}; raise --max_buffered_bytes"
        )
    more = "" if now.adapts else "; if that is less than the line bears, raise --thread_count"
    return f"The network: {now.percent('bodies')} all {now.window} places are receiving, {rate} in all{more}"


def _network(now: _Picture) -> str:
    return f"The network: nothing has come back from any host {now.percent('network')}; the run waits for it"


def _disk(now: _Picture) -> str:
    return (
        f"The disk: {now.percent('disk')} everything waits for it to write; a faster one may be named by --staging_dir"
    )


def _store(now: _Picture) -> str:
    return (
        f"The output store: {now.percent('store')} everything waits for finished shards to be uploaded; a nearer "
        "store, or more --processes_count, which upload side by side"
    )


def _rows(now: _Picture) -> str:
    if now.is_list_read:
        return f"The end of the list: {now.percent('rows')} there is nothing to do but to wait for its last rows"
    return (
        f"The url list: {now.percent('rows')} there are no rows, because it brings them more slowly than they are done"
    )


_WORDS: dict[Wait | Literal["nothing"], Callable[[_Picture], str]] = {
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
