"""What a run over the whole list would take on so many machines: time, traffic, memory, disk, shards and costs.

The time is that of a worker with its share of the rows, simulated (`simulation.py`) with hosts that behave as in the
sample. A worker with more rows than are simulated one by one goes on at the pace of the middle of these.
Times that no simulation of one worker sees bound it from below: cores, lines, and hosts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from any2ds.config.options import Config
from any2ds.core.failures import SUCCESS
from any2ds.core.processes import resources
from any2ds.fetch.feeder import ROWS_AHEAD
from any2ds.fetch.policy.hosts import FIRST_AT_ONCE, LEAST_FIRST, UNLIMITED
from any2ds.fetch.policy.rules import address_of
from any2ds.fetch.profiles import Profiles
from any2ds.forecast.behaviour import NO_URLS, Behaviour, mean_seconds
from any2ds.forecast.prices import Costs, Prices
from any2ds.forecast.simulation import Machine, Simulated, simulate
from any2ds.forecast.survey import FETCHED
from any2ds.forecast.transfers import Interval, Sample, effective_count, mean, shares, wilson

if TYPE_CHECKING:
    from any2ds.forecast.survey import Survey

Limit = Literal["hosts", "bandwidth", "cpu", "latency", "timeouts"]

SIMULATED = 20_000  # rows of a worker that are simulated one by one
_MODEL_ERROR = 0.1  # of the time: the model and measured runs agree to this (python -m benchmarks estimates)
_DRAWS = 3  # simulations with other random numbers, and
_FAR_APART, _MOST_DRAWS = 2.0, 9  # where their times differ by this factor, so many
_ALIKE = int(FIRST_AT_ONCE / LEAST_FIRST)  # workers, from which on each begins with as few transfers to a host
_FEW_HOSTS = 10  # of a list, whose order hardly matters
_IN_BLOCKS = 0.3  # times the hosts of a shard of a shuffled list: with fewer, the rows of a host come together
_LEAST_CPU = 2e-5  # seconds for a row, where too few were fetched to measure it
_USUAL_MEMORY = 110e6  # bytes of a worker with nothing in flight, where it was not measured
_DRIVER_MEMORY = 100e6  # bytes of the process on each machine that plans the list, and
_SHARD_MEMORY = 1000  # more for each shard (docs/scale.md: up to 280 MB for 100,000)
_START_UP = 1.0  # seconds, where none was measured
_ROWS_PER_PROCESS = 1000  # see worker.py
_DNS_QUESTIONS = 2  # for the IPv4 and IPv6 addresses of a name
_BODY_IN_FLIGHT = 2.0  # times its mean size that a transfer takes of memory


@dataclass(frozen=True, slots=True)
class Prediction:
    """A run on so many machines."""

    machines: int
    processes: int  # on each
    seconds: Interval
    seconds_if_shuffled: float  # less than `seconds` where the rows of each host come together in the list
    rows_per_second: float
    limit: Limit  # what bounds it
    bounds: Mapping[str, float]  # seconds that hosts, bandwidth and cpu alone would take
    in_flight: int  # transfers per process, on average
    most_in_flight: int
    largest_host: float  # requests per second that the largest host gets, on average
    dns_questions: int
    memory_per_worker: int  # bytes
    memory: int  # bytes, of all, the processes that plan included
    disk_per_worker: int  # bytes of shards that are being made
    costs: Costs

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": self.seconds.to_json(), "costs": dict(self.costs.to_json())}


@dataclass(frozen=True, slots=True)
class SlowestHost:
    """The one that takes longest for its rows, if nothing else takes time."""

    name: str = ""
    rows: int = 0  # URLs of the list
    seconds: float = 0.0
    at_once: int | None = None  # transfers; None: any number
    crawl_delay: float = 0.0  # seconds that its robots.txt asks for


class Model:
    """Predicts runs of the list that `survey` describes, of which `sample` was fetched, with the options `config`."""

    def __init__(self, config: Config, survey: Survey, sample: Sample) -> None:
        self.config, self.survey, self.sample = config, survey, sample
        self._simulated: dict[tuple[int, Machine, int], Simulated] = {}  # by rows, machine and seed

    # --- what does not depend on the machines ---

    @cached_property
    def shares(self) -> dict[str, float]:
        """Code -> share of the rows that are fetched."""
        return shares(self.sample.transfers)

    @cached_property
    def success(self) -> Interval:
        """Share of the rows."""
        found, width = self.shares.get(SUCCESS, 0.0), self.survey.urls_per_row
        if width > 1 and self.sample.report.count:  # which files a row needs, the run has decided
            found = self.sample.report.successes / self.sample.report.count
        return wilson(found, effective_count(self.sample.transfers) / width)

    @property
    def fetched(self) -> int:
        """URLs for which there is a transfer: not what is none, nor duplicates as far as `dedupe` goes."""
        survey = self.survey
        urls = sum(rows for scheme, rows in survey.schemes.items() if scheme in FETCHED)
        return round(survey.urls * self._distinct * urls / (survey.read * survey.urls_per_row)) if survey.read else 0

    @property
    def _fetched_share(self) -> float:
        """Of the URLs."""
        return self.fetched / self.survey.urls if self.survey.urls else 0.0

    @property
    def is_hopeless(self) -> bool:
        """Whether no URL of the sample can be fetched at all, whatever the network does."""
        return bool(self.shares) and self.shares.keys() <= NO_URLS

    @property
    def shards(self) -> int:
        return -(-self.survey.rows // self.config.output.number_sample_per_shard)

    @property
    def stored(self) -> Interval:
        """Rows."""
        rows, found = self.survey.rows * self._good, self.success
        return Interval(rows * found.value, rows * found.low, rows * found.high)

    @property
    def _good(self) -> float:
        """Share of the rows that can be read. Only these are in the sample, where those without a URL have failed."""
        return 1 - self.survey.bad / self.survey.read if self.survey.read else 0.0

    @property
    def _distinct(self) -> float:
        """Share of the rows without duplicates, as far as `dedupe` goes."""
        survey = self.survey
        same = {"none": 0.0, "shard": survey.duplicates_in_shards, "run": survey.duplicates}
        return 1 - same[self.config.output.dedupe]

    @property
    def stored_bytes(self) -> float:
        return self.stored.value * self.sample.stored_size

    @property
    def received_bytes(self) -> float:
        return self.survey.urls * self._distinct * self._good * self.sample.received

    @property
    def cpu(self) -> tuple[float, float]:
        """Seconds of the processor for a row: of the thread that drives the sockets, and of all."""
        cost = self.sample.cost
        if not cost.rows:
            return _LEAST_CPU, _LEAST_CPU
        own = max(_LEAST_CPU, cost.own_cpu / cost.rows)
        return own, max(own, cost.cpu / cost.rows)

    # --- what does ---

    def processes(self, machines: int) -> int:
        """Worker processes of a machine."""
        running, survey = self.config.run, self.survey
        cores = resources.cores()
        changes = bool(self.config.media.asked() or self.config.files.transform)
        useful = -(-survey.rows // machines) // (1 if changes else _ROWS_PER_PROCESS)
        wanted = running.processes_count or max(1, min(cores, useful))
        return max(1, min(wanted, -(-self.shards // machines)))

    def rows_of_worker(self, machines: int) -> int:
        """URLs of the worker with the most: whole shards go to one."""
        workers = machines * self.processes(machines)
        rows = -(-self.shards // workers) * self.config.output.number_sample_per_shard
        share = self.fetched / self.survey.rows if self.survey.rows else 0.0
        return max(1, round(min(rows, self.survey.rows) * share)) if self.fetched else 0

    def predict(self, machines: int, bandwidth: int, prices: Prices) -> Prediction:
        """`bandwidth` in bits per second, of each machine."""
        processes = self.processes(machines)
        rows = self.rows_of_worker(machines)
        own, all = self.cpu
        crowding = max(1.0, processes / resources.share())  # processes that share a core
        workers = max(1, min(machines * processes, self.shards))  # that have something to do
        machine = Machine(bandwidth / 8 / processes, own * crowding, self._fetchers(workers))
        runs = [self._worker(rows, machine, draw) for draw in range(_DRAWS)] if rows else [Simulated(0.0)]
        times = sorted(run.seconds for run in runs)
        if times[-1] > _FAR_APART * times[0]:
            runs += [self._worker(rows, machine, draw) for draw in range(_DRAWS, _MOST_DRAWS)]
            times = sorted(run.seconds for run in runs)
        few = len(times) // 5  # with nine draws the range is that of all but the fastest and the slowest
        alone = self.slowest_host().seconds
        bounds = {
            "hosts": max(alone, self._of_blocks(workers)),
            "bandwidth": self.received_bytes * 8 / bandwidth / machines,
            "cpu": max(rows * own * crowding, self.fetched * all / resources.share() / machines),
        }
        start_up = self.sample.start_up or _START_UP
        least = max(bounds.values())
        middle = times[len(times) // 2]
        value = max(middle, least) + start_up
        sampling = self._sampling_error(is_bytes=bounds["bandwidth"] == least)
        seconds = Interval(
            value,
            (max(times[few], least) + start_up) * (1 - _MODEL_ERROR - sampling),
            (max(times[-1 - few], least) + start_up) * (1 + _MODEL_ERROR + sampling),
        )
        in_flight = max(1, round(sum(run.in_flight for run in runs) / len(runs)))
        memory = round(
            (self.sample.cost.memory or _USUAL_MEMORY)
            + min(self.config.fetch.max_buffered_bytes, in_flight * _BODY_IN_FLIGHT * self.sample.received)
        )
        return Prediction(
            machines=machines,
            processes=processes,
            seconds=seconds,
            seconds_if_shuffled=max(middle, least if least > bounds["hosts"] else alone) + start_up,
            rows_per_second=self.survey.rows / value if value else 0.0,
            limit=self._limit(bounds, value, runs[0]),
            bounds=bounds,
            in_flight=in_flight,
            most_in_flight=max(run.most_in_flight for run in runs),
            largest_host=sum(self.survey.hosts.top(1).values()) * self._fetched_share / value if value else 0.0,
            dns_questions=round(workers * self._names_of(rows) * _DNS_QUESTIONS),
            memory_per_worker=memory,
            memory=memory * workers + round(machines * (_DRIVER_MEMORY + _SHARD_MEMORY * self.shards)),
            disk_per_worker=round(2 * self.stored_bytes / max(1, self.shards)),
            costs=self.costs(machines * value / 3600, prices),
        )

    @cached_property
    def hosts_per_shard_if_shuffled(self) -> float:
        survey, shard = self.survey, self.config.output.number_sample_per_shard
        hosts, part = survey.hosts, min(1.0, shard / max(1, survey.rows))
        expected = sum(1 - (1 - part) ** count for count in hosts.others.values()) / hosts.part
        return expected + sum(1 - (1 - part) ** count for count in hosts.largest.values())

    @property
    def is_in_blocks(self) -> bool:
        """Whether the rows of a host come together, as in a list that is sorted, so that a shard has few hosts."""
        survey = self.survey
        if survey.is_part or self.config.input.shuffle is not None or survey.hosts.count < _FEW_HOSTS:
            return False
        return 0 < survey.hosts.per_shard < _IN_BLOCKS * self.hosts_per_shard_if_shuffled

    def _of_blocks(self, workers: int) -> float:
        """Seconds that hosts take of which the rows come together: only those are asked whose rows a worker has read.
        Of these, the first have few rows left, and the last all."""
        fetch, hosts = self.config.fetch, self.survey.hosts
        if not self.is_in_blocks:
            return 0.0
        most = fetch.max_per_host
        good = mean([each for each in self.sample.transfers if each.code == SUCCESS], "seconds")
        each = max(good / most if most < UNLIMITED else 0.0, fetch.host_delay)
        shard = self.config.output.number_sample_per_shard
        block = min(shard / max(1e-9, hosts.per_shard - 1), self.survey.rows / hosts.count)
        at_once = max(1.0, min(hosts.count, 2 * ROWS_AHEAD * workers / block))
        return self.fetched * each / at_once

    def costs(self, hours: float, prices: Prices) -> Costs:
        """`hours` of all machines together."""
        return prices.costs(hours, self.received_bytes, self.stored_bytes, self.shards)

    def slowest_host(self, at_once: int | None = None) -> SlowestHost:
        """The host that takes longest, with `at_once` transfers from all workers together; or, if None, with what
        `max_per_host` grants it. Its delays hold for all of them anyway."""
        seconds, hosts = mean_seconds(self.sample.transfers), self.survey.hosts
        usual = mean([each for each in self.sample.transfers if each.code == SUCCESS], "seconds")
        share = self._fetched_share
        delays = self.sample.delays
        found = SlowestHost()
        for host, urls in {
            **{host: hosts.others.get(host, 0) for host in delays},
            **hosts.top(len(hosts.largest)),
        }.items():
            _, policy = self._profiles.host_of(f"http://{host}/")
            most = min(at_once or policy.max_per_host, policy.max_per_host)
            each = max(seconds.get(host, usual) / most, policy.host_delay, delays.get(host, 0.0))
            if (alone := urls * share * each) > found.seconds:
                found = SlowestHost(host, urls, alone, most if most < UNLIMITED else None, delays.get(host, 0.0))
        return found

    @cached_property
    def _profiles(self) -> Profiles:
        return Profiles(self.config.fetch)

    def _worker(self, rows: int, machine: Machine, seed: int) -> Simulated:
        options = self.config.fetch
        count = min(rows, SIMULATED)
        found = self._simulated.get((count, machine, seed))
        if found is None:
            behaviour = Behaviour(self.survey.hosts, self.sample.transfers, options, seed)
            found = simulate(options, behaviour.rows(count), behaviour.answer, machine, seed)
            self._simulated[count, machine, seed] = found
        more = (rows - count) / found.pace if found.pace else 0.0
        return replace(found, seconds=found.seconds + more)

    def _fetchers(self, workers: int) -> int:
        """Workers that divide what a host allows, or what it gets at first."""
        fetch = self.config.fetch
        is_limited = bool(fetch.hosts) or fetch.host_delay > 0 or fetch.max_per_host < UNLIMITED
        return workers if is_limited else min(workers, _ALIKE)

    def _names_of(self, rows: int) -> float:
        """Hosts with a name that a worker with so many rows meets."""
        hosts, total = self.survey.hosts, max(1, self.survey.urls)
        part = min(1.0, rows / total)

        def met(count: float) -> float:
            return 1.0 - (1.0 - part) ** count if part < 1 else 1.0

        def asked(found: Mapping[str, int]) -> float:
            return sum(met(count) for host, count in found.items() if not _is_address(host))

        return asked(hosts.others) / hosts.part + asked(hosts.largest)

    def _sampling_error(self, is_bytes: bool) -> float:
        """Of the time, relative: the mean seconds of a transfer are those of a sample; where the line is the limit, so
        are its mean bytes."""
        good = [each for each in self.sample.transfers if each.code == SUCCESS]
        if len(good) < 2:
            return 0.5
        error = _error_of_mean([each.seconds for each in good])
        return min(0.5, max(error, _error_of_mean([float(each.size) for each in good])) if is_bytes else error)

    def _limit(self, bounds: Mapping[str, float], seconds: float, run: Simulated) -> Limit:
        name = max(bounds, key=lambda bound: bounds[bound])
        if bounds[name] >= 0.6 * seconds:
            return name  # type: ignore[return-value]
        timeout = self.config.fetch.timeout or 10.0
        silent = sum(share for code, share in self.shares.items() if code.startswith("timeout") or code == "host_down")
        return "timeouts" if silent * timeout > mean(self.sample.transfers, "seconds") else "latency"


def _error_of_mean(values: Sequence[float]) -> float:
    """Relative, with 95 % certainty."""
    middle = sum(values) / len(values)
    deviation = math.sqrt(sum((each - middle) ** 2 for each in values) / (len(values) - 1))
    return 1.96 * deviation / math.sqrt(len(values)) / max(1e-9, middle)


def _is_address(host: str) -> bool:
    """Whether no name server is asked for it; `host` may have a port."""
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return not name or address_of(name) is not None
