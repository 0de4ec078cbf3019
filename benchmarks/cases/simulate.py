"""A crawl of the web on many machines, computed: 10^6, 10^8 and 5·10^9 URLs on 1 to 64 machines.

One worker is simulated event by event, with the engine's own loop, schedule, window and breaker in virtual time
(`any2ds.forecast.simulation`), for up to 12,000 rows of its share; more go at the pace of the middle of these. All else
is added up: hosts are fluid queues, in classes of about the same rank (one host at the top, millions in the tail). The
web is assumed: rows per host by Zipf's law, latencies, sizes, dead hosts, rows that are gone, hosts that
refuse many requests at once, stragglers.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from any2ds.config.options import Config
from any2ds.core.failures import http_failure
from any2ds.core.rows import Row
from any2ds.forecast.simulation import NEVER, Answer, Machine, failure_of, simulate
from benchmarks.case import Bench, Side

# The machines: 16 processes each.
PROCESSES = 16
LINE = 1e10 / 8  # bytes per second of each
CPU = 3e-4  # seconds of the processor for a row
# The web.
ROWS_PER_HOST = 60.0  # on average
EXPONENT = 0.85  # of Zipf's law
LATENCY = 0.35  # seconds, the median host; a factor of 2.2 up and down holds two thirds of them
BODY = 80e3  # bytes on average, log-normal
KINDS = {"dead": 0.06, "no_name": 0.05, "refuses": 0.03}  # of the hosts; the last answer 429 to more than 4 at once
GONE, SLOW, LOST = 0.12, 0.01, 0.002  # of the rows: 404, 15 s more; of the requests: no DNS answer, or a reset
# The run.
SIMULATED = 12_000  # rows of a worker
ROWS_PER_SHARD = 10_000
ADDRESS_KEPT = 3600.0  # seconds for which a worker keeps an address at most
WORKER, PER_HOST, HOSTS_KEPT = 110e6, 600.0, 100_000  # bytes with nothing in flight, of each host, and hosts; measured
DRIVER, PER_SHARD = 210e6, 700.0  # bytes, measured (docs/scale.md)


@dataclass(frozen=True, slots=True)
class HostClass:
    """Hosts with about as many rows each."""

    first: int  # rank
    count: float
    rows: float  # of each


def host_classes(rows: float) -> list[HostClass]:
    hosts = max(1.0, rows / ROWS_PER_HOST)
    edges = sorted(
        {1, round(hosts) + 1, *(round(10 ** (step / 12)) for step in range(int(math.log10(hosts) * 12) + 1))}
    )
    bounds = list(itertools.pairwise(edges))
    weights = [((a + b - 1) / 2) ** -EXPONENT for a, b in bounds]
    total = math.fsum(weight * (b - a) for weight, (a, b) in zip(weights, bounds, strict=True))
    return [HostClass(a, b - a, rows * weight / total) for weight, (a, b) in zip(weights, bounds, strict=True)]


class Hosts:
    """The hosts of a simulated worker: what they are is decided by chance when they are first asked."""

    def __init__(self, classes: Sequence[HostClass]) -> None:
        self._classes, self._rng = classes, random.Random(7)
        self._kinds: dict[str, tuple[str, float]] = {}

    def rows_of(self, count: int) -> Iterator[Row]:
        weights = [each.rows * each.count for each in self._classes]
        for position, of in enumerate(self._rng.choices(self._classes, weights, k=count)):
            host = of.first + self._rng.randrange(int(of.count))
            yield Row(0, position, "", f"http://h{host}.example.org/{position}")

    def answer(self, host: str, row: Row, at_once: int) -> Answer:
        rng = self._rng
        kind, latency = self._kinds.get(host) or self._kinds.setdefault(host, self._kind(host))
        if kind == "dead":
            return Answer(NEVER, 0, failure_of("timeout_total"))
        if kind == "no_name":
            return Answer(0.3, 0, failure_of("dns"))
        if kind == "refuses" and at_once > 4:
            return Answer(latency / 2, 0, http_failure(429, None, 2.0))
        seconds = latency * rng.lognormvariate(0.0, 0.4)
        if rng.random() < LOST:
            return Answer(seconds, 0, failure_of(rng.choice(("dns", "reset"))))
        if rng.random() < GONE:
            return Answer(seconds, 0, http_failure(404))
        seconds += 15.0 * (rng.random() < SLOW)
        return Answer(seconds, round(BODY * rng.lognormvariate(-0.5, 1.0)))

    def _kind(self, host: str) -> tuple[str, float]:
        latency, chance = LATENCY * self._rng.lognormvariate(0.0, 0.8), self._rng.random()
        if int(host.split(".")[0][1:]) < 30:  # the large ones are there
            return "fine", LATENCY
        for kind, share in KINDS.items():
            if chance < share:
                return kind, latency
            chance -= share
        return "fine", latency


def crawl(rows: float, machines: int) -> dict[str, float]:
    """What the table shows. Hosts bear everything, and no machine dies."""
    classes, shards = host_classes(rows), math.ceil(rows / ROWS_PER_SHARD)
    workers = min(machines * PROCESSES, shards)  # a shard is made by one process
    share = max(1, round(min(rows, math.ceil(rows / workers / ROWS_PER_SHARD) * ROWS_PER_SHARD)))
    busy = min(machines, workers)
    of_machine = math.ceil(workers / busy)
    machine = Machine(LINE / of_machine, CPU, workers)
    options, hosts = Config.from_options({"url_list": "-", "retries": 1}).fetch, Hosts(classes)
    worker = simulate(options, hosts.rows_of(min(SIMULATED, share)), hosts.answer, machine, 7)
    seconds = worker.seconds + max(0, share - SIMULATED) / worker.pace
    # Two questions for each name that a worker meets, and again where its address is too old.
    windows = max(1.0, seconds / ADDRESS_KEPT)
    asked = sum(each.count * windows * -math.expm1(-each.rows / workers / windows) for each in classes)
    met = sum(each.count * -math.expm1(-each.rows / workers) for each in classes)
    memory = WORKER + worker.in_flight * BODY * 2 + min(HOSTS_KEPT, met) * PER_HOST
    return {
        "workers": workers,
        "seconds": seconds,
        "rows_a_second": rows / seconds,
        "stored": worker.codes["success"] / max(1, worker.codes.total()),
        "in_flight": worker.in_flight,
        "questions": 2 * asked * workers,
        "worker_memory": memory,
        "all_memory": memory * workers,
        "driver": DRIVER + shards * PER_SHARD,
        "largest": classes[0].rows,
        "largest_rate": classes[0].rows / seconds,
        "with_32": max(seconds, classes[0].rows * LATENCY / 32),
    }


def crawls(bench: Bench) -> list[Side]:
    return [
        bench.call(f"{rows} URLs, {machines} machines", crawl, rows=float(rows), machines=int(machines))
        for rows in bench["rows"].split(",")
        for machines in bench["machines"].split(",")
    ]
