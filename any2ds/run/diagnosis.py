"""Says what limits a run, from what its workers have waited for in the last seconds. Pure.

The time of the worker thread that drives sockets and writes files is fully accounted for (`WorkerMetrics.waits`). If it
was busy most of the time, processors are the limit: those of the machine if all are busy, else its own one; or other
programs, if it did not get that either. If it slept, the limit is what kept it from starting more. Steps are the limit
where they kept it waiting, whatever the processors do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from any2ds.core.metrics import HostLoad, Wait, WorkerMetrics
from any2ds.core.text import rows, size

_LEAST = 2.0  # seconds, of all workers together; less says nothing yet
_BUSY = 0.7  # of the time, from which on nothing else can be the limit
_ALL_CORES = 0.9  # of them
_STARVED = 0.6  # of the busy time: with less of it on a processor, other programs have that
_OUTAGE = 0.3  # of the time
_LONGEST = 60  # characters of the name of a host, and of what it said

_MESSAGES = {
    "cpu": "CPU: each process is busy {time}, on one core ({busy}): raise --processes_count",
    "cpu, all cores": "CPU: {busy}; more cores, or more machines, would help",
    "cpu, of others": "CPU: a process is busy {time}, but gets {own:.0%} of a core: other programs have the rest, or"
    " its memory is swapped out",
    "transforms": "CPU (steps): files wait {time} for the steps, while {busy}: raise --transform_threads, or"
    " make a step of your own faster",
    "transforms, all cores": "CPU: the steps that decode and encode take all there is ({busy})",
    "hosts": "Hosts: rows wait {time} for hosts at their limit, or to be asked again later{worst_host}",
    "hosts, sorted": "Hosts: rows wait {time} for hosts at their limit, or to be asked again later{worst_host}; if the"
    " list is sorted by host, --shuffle spreads them",
    "dns": "DNS: {time} all {window} connections wait for addresses of hosts; --nameservers may name faster servers",
    "answers": "Only --thread_count: {time} all {window} connections wait for the first byte; raise it to have more in"
    " flight",
    "answers, adapted": "The servers: {time} all {window} connections wait for the first byte, and --thread_count=auto"
    " has found that more of them do not help",
    "bodies": "The network: {time} all {window} connections are receiving, {rate} in all; if the line has room for"
    " more, raise --thread_count",
    "bodies, adapted": "The network: {time} all {window} connections are receiving, {rate} in all",
    "bodies, few": "Memory: {time} no transfer can start, because {in_flight} in flight fill it, at {rate}; raise"
    " --max_buffered_bytes",
    "network": "The network: {time} no host answers; the run waits for it",
    "disk": "The disk: {time} everything waits for writes; --staging_dir may name a faster one",
    "store": "The output store: {time} everything waits for uploads of finished shards; use a nearer store, or raise"
    " --processes_count, which upload in parallel",
    "rows": "The url list: {time} there are no rows, because it is read more slowly than they are done",
    "rows, last": "The end of the list: {time} there is nothing to do but wait for its last rows",
}
"""What is said of a limit, and of a limit under a condition."""


def verdict(
    metrics: Sequence[WorkerMetrics],
    hosts: Sequence[HostLoad] = (),
    is_list_read: bool = False,
    can_shuffle: bool = False,
) -> tuple[str, str] | None:
    """The bottleneck and a message for a person; None if there is too little to say.

    `metrics` are those of all workers over the last seconds, several of each; `hosts` those that most rows wait for;
    with `is_list_read` the workers have all rows of the list; `can_shuffle` if they come in its order.
    """
    if sum(each.seconds for each in metrics) < _LEAST:
        return None
    load = _Load(metrics)
    limit = _limit(load)
    conditions: Mapping[Wait, Mapping[str, bool]] = {  # the first that holds counts
        "cpu": {"all cores": load.all_cores, "of others": load.own < _STARVED * load.waits.get("cpu", 0.0)},
        "transforms": {"all cores": load.all_cores},
        "hosts": {"sorted": can_shuffle and not is_list_read},  # rows of other hosts are still to come
        "answers": {"adapted": load.adapts},
        "bodies": {"few": load.in_flight < 0.5 * load.window, "adapted": load.adapts},
        "rows": {"last": is_list_read},
    }
    condition = next((f", {name}" for name, holds in conditions.get(limit, {}).items() if holds), "")
    message = _MESSAGES[f"{limit}{condition}"].format(
        time=f"{load.waits.get(limit, 0.0):.0%} of the time",
        busy=f"{load.busy:.1f} of {load.cores:g} cores are busy",
        own=load.own,
        window=round(load.window),
        in_flight=round(load.in_flight),
        rate=f"{size(load.received)}/s",
        worst_host=f", most for {_named(hosts[0])}" if hosts else "",
    )
    is_thread_count = limit == "answers" and not load.adapts
    return "nothing" if is_thread_count else limit, message


def _named(host: HostLoad) -> str:
    return f"{host.name[:_LONGEST]} ({rows(host.waiting)}: {host.why[:_LONGEST]})"


class _Load:
    """The work of all workers together."""

    def __init__(self, metrics: Sequence[WorkerMetrics]) -> None:
        seconds, workers = _span(metrics)
        waits: defaultdict[Wait, float] = defaultdict(float)
        machines: defaultdict[str, list[WorkerMetrics]] = defaultdict(list)
        for each in metrics:
            machines[each.worker.rpartition(":")[0]].append(each)
            for cause, waited in each.waits.items():
                waits[cause] += waited / (seconds * workers)
        self.waits: Mapping[Wait, float] = waits  # cause -> share of the time
        self.own = sum(each.own_cpu for each in metrics) / (seconds * workers)  # the same, of threads on a processor
        self.window = sum(each.window * each.seconds for each in metrics) / seconds
        self.in_flight = sum(each.in_flight * each.seconds for each in metrics) / seconds
        self.received = sum(each.received for each in metrics) / seconds  # bytes per second
        self.adapts = any(each.adapts for each in metrics)
        busiest = max(map(_cores, machines.values()), key=lambda used: used[0] / max(1e-9, used[1]))
        self.busy, self.cores, self.workers = busiest  # of one machine
        self.all_cores = self.busy >= _ALL_CORES * self.cores


def _span(metrics: Sequence[WorkerMetrics]) -> tuple[float, int]:
    """The seconds that the metrics are about, which pass for all workers at once, and how many workers these are."""
    workers = len({each.worker for each in metrics})
    return max(1e-9, sum(each.seconds for each in metrics) / workers), workers


def _cores(metrics: Sequence[WorkerMetrics]) -> tuple[float, float, int]:
    """The cores of a machine that are busy, all that it has, and its workers."""
    seconds, workers = _span(metrics)
    return sum(each.cpu for each in metrics) / seconds, max(each.cores for each in metrics), workers


def _limit(load: _Load) -> Wait:
    slept: dict[Wait, float] = {cause: share for cause, share in load.waits.items() if cause != "cpu"}
    longest: Wait = max(slept, key=lambda cause: slept[cause], default="cpu")
    if load.waits.get("network", 0.0) >= _OUTAGE:
        return "network"
    if load.all_cores:  # threads of steps have them, or the worker's
        workers = load.own * load.workers
        return "transforms" if longest == "transforms" or load.busy - workers > workers else "cpu"
    return "cpu" if load.waits.get("cpu", 0.0) >= max(_BUSY, slept.get(longest, 0.0)) else longest
