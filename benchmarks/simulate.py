"""A crawl of the web on many machines, computed: 10^6, 10^8 and 5·10^9 URLs on 1 to 64 machines.

    python benchmarks/simulate.py                        # the tables of docs/scale-simulated.md, about 5 minutes
    python benchmarks/simulate.py --rows=1e8 --machines=16 --bandwidth=1Gbit --deaths=1

How: one worker is simulated event by event, with the engine's own loop, schedule, window and breaker in virtual time
(`any2ds.forecast.simulation`), for up to 12 000 rows of its share; more go at the pace of the middle of these. All
else is added up: hosts are fluid queues, in classes of about the same rank (of one host at the top, of millions in the
tail); machines die at random times, and what their open shards had is fetched again. Politeness is no sum: all workers
of all machines are simulated together, each with its own share of the limits, before hosts that all of them ask.

The web is assumed, in `Web`: rows per host by Zipf's law, latencies, sizes, dead hosts, rows that are gone, names that
are looked up in vain, hosts that refuse many requests at once, stragglers.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from any2ds.config.options import Config
from any2ds.config.parsers import bit_rate
from any2ds.core.failures import http_failure
from any2ds.core.rows import Row
from any2ds.core.text import estimate as number
from any2ds.core.text import size
from any2ds.fetch.policy.share import Share
from any2ds.forecast.prices import Costs, Prices
from any2ds.forecast.simulation import (
    NEVER,
    Answer,
    HostLog,
    Machine,
    Simulated,
    WorkerPlan,
    failure_of,
    simulate,
    simulate_together,
)

SIMULATED = 12_000  # rows of a worker
ROWS_PER_SHARD = 10_000
_CLASSES_PER_TENFOLD = 12
_TTL = 3600.0  # seconds for which a worker keeps an address at most
_BASE_MEMORY = 110e6  # bytes of a worker with nothing in flight, measured
_PER_HOST = 600.0  # bytes for an address, and the robots.txt, that a worker replans
_MOST_HOSTS = 100_000  # that it replans
_PER_SHARD = 700.0  # bytes that the driver keeps for a shard, and
_DRIVER = 210e6  # without any, both measured (docs/scale.md)
_REPLACED = 600.0  # seconds until a machine that died is replaced
_POWER = re.compile(r"(\d(?:\.\d+)?)e([+-]\d+)")  # of ten
_POLITE = {"max_per_host": 32, "host_delay": 0.1}  # limits of two hosts, each by itself
_POLITE_ROWS = {"max_per_host": 12_000, "host_delay": 1_000}  # of all workers, for a minute or more
_LEAST_POLITE_ROWS = 4  # of each


@dataclass(frozen=True, slots=True)
class Web:
    """What is assumed of the hosts of a list."""

    rows: float
    rows_per_host: float = 60.0  # on average
    exponent: float = 0.85  # of Zipf's law
    latency: float = 0.35  # seconds, the median host; a factor of 2.2 up and down holds two thirds of them
    body: float = 80e3  # bytes on average, log-normal
    dead: float = 0.06  # of the hosts
    no_name: float = 0.05  # of the hosts: the look-up fails
    gone: float = 0.12  # of the rows: 404
    slow: float = 0.01  # of the rows: 15 s
    lost: float = 0.002  # of the requests: the name server does not answer, or the connection is reset
    refuses: float = 0.03  # of the hosts: 429 with Retry-After: 2 to more than 4 requests at once


@dataclass(frozen=True, slots=True)
class HostClass:
    """Hosts with about as many rows each."""

    first: int  # rank
    count: float
    rows: float  # of each


@dataclass(frozen=True, slots=True)
class Cluster:
    machines: int
    processes: int  # on each, at most: one for a core
    bandwidth: float  # bits per second of each
    deaths: float  # of a machine in 30 days


class Crawl:
    """`web` on `cluster`."""

    def __init__(self, web: Web, cluster: Cluster, cpu: float) -> None:
        self.web, self.cluster, self.cpu = web, cluster, cpu

    @cached_property
    def classes(self) -> Sequence[HostClass]:
        web = self.web
        hosts = max(1.0, web.rows / web.rows_per_host)
        steps = range(int(math.log10(hosts) * _CLASSES_PER_TENFOLD) + 1)
        edges = [10 ** (step / _CLASSES_PER_TENFOLD) for step in steps]
        edges = sorted({1, *map(round, edges), round(hosts) + 1})
        bounds = list(itertools.pairwise(edges))
        weights = [((a + b - 1) / 2) ** -web.exponent for a, b in bounds]
        total = math.fsum(weight * (b - a) for weight, (a, b) in zip(weights, bounds, strict=True))
        return [HostClass(a, b - a, web.rows * weight / total) for weight, (a, b) in zip(weights, bounds, strict=True)]

    @property
    def workers(self) -> int:
        """Processes that have something to do: a shard is made by one."""
        return min(self.cluster.machines * self.cluster.processes, self.shards)

    @property
    def busy_machines(self) -> int:
        return min(self.cluster.machines, self.workers)

    @cached_property
    def worker(self) -> Simulated:
        """With its share of the rows, or the first of them."""
        return self._simulated(min(SIMULATED, self._share))

    @property
    def _share(self) -> int:
        """Rows of the worker with the most: whole shards."""
        rows = self.web.rows / self.workers
        return max(1, round(min(self.web.rows, math.ceil(rows / ROWS_PER_SHARD) * ROWS_PER_SHARD)))

    @cached_property
    def seconds(self) -> float:
        """Without machines that die, and as if hosts bore everything."""
        share, worker = self._share, self.worker
        if share <= SIMULATED:
            return worker.seconds
        return worker.seconds + (share - SIMULATED) / worker.pace

    def _simulated(self, rows: int) -> Simulated:
        options = Config.from_options({"url_list": "-", "retries": 1}).fetch
        of_machine = math.ceil(self.workers / self.busy_machines)  # workers
        line = self.cluster.bandwidth / 8 / of_machine
        hosts = _Hosts(self.web, self.classes, 7)
        share = Share.of((0, self.busy_machines), (0, of_machine))
        return simulate(options, hosts.rows_of(rows), hosts.answer, Machine(line, self.cpu, share), 7)

    @property
    def dns_questions(self) -> float:
        """Two for each name that a worker meets, and again where it meets it after its address is too old."""
        workers = self.workers
        windows = max(1.0, self.seconds / _TTL)
        asked = 0.0
        for each in self.classes:
            per_window = each.rows / workers / windows
            asked += each.count * windows * -math.expm1(-per_window)
        return 2 * asked * workers

    @property
    def hosts_of_worker(self) -> float:
        return math.fsum(each.count * -math.expm1(-each.rows / self.workers) for each in self.classes)

    @property
    def memory(self) -> float:
        """Bytes of a worker."""
        remembered = min(_MOST_HOSTS, self.hosts_of_worker)
        return _BASE_MEMORY + self.worker.in_flight * self.web.body * 2 + remembered * _PER_HOST

    @property
    def stored(self) -> float:
        """Share of the rows."""
        return self.worker.codes["success"] / max(1, self.worker.codes.total())

    def costs(self, prices: Prices) -> Costs:
        stored = self.web.rows * self.stored * self.web.body
        return prices.costs(self.cluster.machines * self.seconds / 3600, stored, stored, self.shards)

    @property
    def shards(self) -> int:
        return math.ceil(self.web.rows / ROWS_PER_SHARD)

    @property
    def driver(self) -> float:
        """Bytes of the process that plans; with ranks there is one on each machine."""
        return _DRIVER + self.shards * _PER_SHARD

    def largest(self) -> tuple[float, float, float]:
        """Rows of the largest host; requests per second and at once that it sees, if nothing limits them."""
        rows = self.classes[0].rows
        rate = rows / self.seconds
        return rows, rate, rate * self.web.latency

    def host_seconds(self, at_once: int) -> float:
        """That the largest host takes, with so many requests at once from all machines together."""
        return self.classes[0].rows * self.web.latency / at_once

    def lost(self, seed: int = 0, draws: int = 200) -> tuple[float, float]:
        """Rows that are fetched again, and seconds that are added, because machines die: means of so many draws."""
        cluster, rng = self.cluster, random.Random(seed)
        machines = self.busy_machines
        rate = self.web.rows / self.seconds / machines  # rows per second of a machine
        # A worker has the shard that it fills, and before it those that wait for the last rows.
        open_rows = min(self.web.rows, self.workers * ROWS_PER_SHARD * 1.5) / machines
        lost = added = 0.0
        for _ in range(draws):
            at, rows, gone = 0.0, 0.0, 0.0
            while True:
                at += rng.expovariate(max(1e-12, cluster.deaths * machines / (30 * 86400)))
                if at > self.seconds + added / draws:
                    break
                rows += rng.uniform(0.3, 1.0) * open_rows
                gone += _REPLACED
            lost += rows
            added += (gone + rows / rate) / machines
        return lost / draws, added / draws


def polite(cluster: Cluster, web: Web, cpu: float, option: str) -> HostLog:
    """What the busier of two hosts sees of all workers, which have nothing but rows of these, with a limit.

    The last quarter of the machines begins half a minute late; the first one dies after 20 s, and another one begins
    its rows anew half a minute later.
    """
    options = Config.from_options({"url_list": "-", option: _POLITE[option], "robots": "ignore"}).fetch
    rng = random.Random(7)

    count = max(_LEAST_POLITE_ROWS, _POLITE_ROWS[option] // (cluster.machines * cluster.processes))

    def plan(machine: int, process: int, begins: float, dies: float) -> WorkerPlan:
        rows = [Row(0, n, "", f"http://h{n % 2}.example.org/{n}") for n in range(count)]
        share = Share.of((machine, cluster.machines), (process, cluster.processes))
        return WorkerPlan(rows, Machine(cpu=cpu, share=share), begins, dies)

    plans = []
    for machine, process in itertools.product(range(cluster.machines), range(cluster.processes)):
        is_late = cluster.machines > 1 and machine >= 0.75 * cluster.machines
        plans.append(plan(machine, process, 30.0 * is_late, 20.0 if machine == 0 else NEVER))
    plans += [plan(0, process, 50.0, NEVER) for process in range(cluster.processes)]
    _, hosts = simulate_together(
        options, plans, lambda host, row, at_once: Answer(web.latency * rng.lognormvariate(0.0, 0.4))
    )
    return max(hosts.values(), key=lambda log: log.requests)


class _Hosts:
    """The hosts of a simulated worker: what they are is decided by chance when they are first asked."""

    def __init__(self, web: Web, classes: Sequence[HostClass], seed: int) -> None:
        self._web, self._classes, self._rng = web, classes, random.Random(seed)
        self._kinds: dict[str, tuple[str, float]] = {}

    def rows_of(self, count: int) -> Iterator[Row]:
        rng = self._rng
        weights = [each.rows * each.count for each in self._classes]
        for position, of in enumerate(rng.choices(self._classes, weights, k=count)):
            host = of.first + rng.randrange(int(of.count))
            yield Row(0, position, "", f"http://h{host}.example.org/{position}")

    def answer(self, host: str, row: Row, at_once: int) -> Answer:
        web, rng = self._web, self._rng
        kind, latency = self._kinds.get(host) or self._kinds.setdefault(host, self._kind(host))
        if kind == "dead":
            return Answer(NEVER, 0, failure_of("timeout_total"))
        if kind == "no_name":
            return Answer(0.3, 0, failure_of("dns"))
        if kind == "refuses" and at_once > 4:
            return Answer(latency / 2, 0, http_failure(429, None, 2.0))
        seconds = latency * rng.lognormvariate(0.0, 0.4)
        if rng.random() < web.lost:
            return Answer(seconds, 0, failure_of(rng.choice(("dns", "reset"))))
        if rng.random() < web.gone:
            return Answer(seconds, 0, http_failure(404))
        if rng.random() < web.slow:
            seconds += 15.0
        return Answer(seconds, round(web.body * rng.lognormvariate(-0.5, 1.0)))

    def _kind(self, host: str) -> tuple[str, float]:
        web, rng = self._web, self._rng
        latency = web.latency * rng.lognormvariate(0.0, 0.8)
        chance = rng.random()
        if host in {f"h{rank}.example.org" for rank in range(1, 30)}:  # the large ones are there
            return "fine", web.latency
        for kind in ("dead", "no_name", "refuses"):
            if chance < getattr(web, kind):
                return kind, latency
            chance -= getattr(web, kind)
        return "fine", latency


def time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    for unit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.3g} {name}"
    return f"{seconds / 60:.3g} min"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
    return _POWER.sub(lambda power: f"{power[1]}·10^{int(power[2])}", "\n".join(lines)).replace("| 1·", "| ") + "\n"


def report(crawls: Sequence[Crawl]) -> str:
    """Markdown."""
    runs, seen, died, kept, paid = [], [], [], [], []
    prices = Prices.read(None)
    for machines in sorted({crawl.cluster.machines for crawl in crawls}):
        crawl = next(crawl for crawl in crawls if crawl.cluster.machines == machines)
        at_once, apart = (polite(crawl.cluster, crawl.web, crawl.cpu, option) for option in _POLITE)
        kept.append(
            [
                str(machines),
                str(crawl.cluster.machines * crawl.cluster.processes),
                f"{at_once.requests:,}",
                str(at_once.most_at_once),
                f"{apart.requests:,}",
                f"{apart.least_apart:.3f} s",
            ]
        )
    for crawl in crawls:
        cluster, name = crawl.cluster, f"{crawl.web.rows:.0e}"
        worker, seconds = crawl.worker, crawl.seconds
        first = [name, str(cluster.machines)]
        runs.append(
            [
                *first,
                f"{crawl.workers:,}",
                time(seconds),
                number(crawl.web.rows / seconds),
                f"{crawl.stored:.0%}",
                f"{worker.in_flight:,.0f}",
                number(crawl.dns_questions),
                size(crawl.memory),
                size(crawl.memory * crawl.workers),
                size(crawl.driver),
            ]
        )
        rows, rate, at_once = crawl.largest()
        seen.append(
            [
                *first,
                f"{rows:,.0f}",
                f"{rate:,.3g}",
                f"{at_once:,.3g}",
                f"{32 * crawl.workers:,}",
                time(max(seconds, crawl.host_seconds(32))),
                f"{32 / crawl.web.latency:,.3g}",
            ]
        )
        costs = crawl.costs(prices)
        paid.append(
            [
                *first,
                f"{cluster.machines * seconds / 3600:,.3g}",
                *(
                    f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
                    for value in (costs.compute, costs.requests, costs.run, costs.storage_month, costs.egress)
                ),
            ]
        )
        lost, added = crawl.lost()
        died.append(
            [
                *first,
                f"{cluster.deaths * crawl.busy_machines * seconds / (30 * 86400):.3g}",
                number(round(lost)),
                f"{lost / crawl.web.rows:.2g}",
                time(added),
            ]
        )
    tables = [
        (
            "Runs",
            (
                "URLs",
                "machines",
                "processes with work",
                "time",
                "rows/s",
                "stored",
                "in flight, each process",
                "DNS questions",
                "memory, each process",
                "memory in all",
                "driver",
            ),
            runs,
        ),
        (
            "What the largest host sees",
            (
                "URLs",
                "machines",
                "its rows",
                "requests/s",
                "at once",
                "the most, if each process may send 32 at once",
                "time of the run, with 32 at once from all",
                "requests/s then",
            ),
            seen,
        ),
        (
            "What a host sees that has limits",
            (
                "machines",
                "processes",
                "requests",
                f"the most at once, with `max_per_host={_POLITE['max_per_host']}`",
                "requests",
                f"the least between two starts, with `host_delay={_POLITE['host_delay']}`",
            ),
            kept,
        ),
        (
            f"Costs in {prices.currency}",
            (
                "URLs",
                "machines",
                "machine hours",
                f"machines, at {prices.machine_hour:.2f} an hour",
                "requests to a store",
                "the run",
                "storage, each month",
                "reading all once from elsewhere",
            ),
            paid,
        ),
        (
            "Machines that die",
            ("URLs", "machines", "deaths", "rows fetched again", "of all", "time added"),
            died,
        ),
    ]
    return "\n".join(f"## {title}\n\n{_table(head, rows)}" for title, head, rows in tables)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1e6,1e8,5e9", help="numbers of URLs")
    parser.add_argument("--machines", default="1,4,16,64")
    parser.add_argument("--processes", type=int, default=16, help="of a machine, one for each core")
    parser.add_argument("--bandwidth", type=bit_rate, default=10**10, help="bits per second of a machine")
    parser.add_argument("--cpu", type=float, default=3e-4, help="seconds of the processor for a row")
    parser.add_argument("--deaths", type=float, default=1.0, help="of a machine in 30 days")
    given = parser.parse_args()
    crawls = [
        Crawl(Web(float(rows)), Cluster(int(machines), given.processes, given.bandwidth, given.deaths), given.cpu)
        for rows in given.rows.split(",")
        for machines in given.machines.split(",")
    ]
    print(report(crawls))
    return 0


if __name__ == "__main__":
    sys.exit(main())
