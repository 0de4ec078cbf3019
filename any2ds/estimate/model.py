"""The cost of a run over the whole list on so many machines: time, traffic, memory, disk and shards.

The last row begins after the longest of five times: that of the transfers that wait for answers, of the slowest host,
of the line, and of the processor, of the thread that drives the sockets and of all. Rows that take long, because they
hang or are tried again, end some time after that. How many there are, and how long answers take, is as in the sample.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from any2ds.config.options import Config
from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import PER_DOUBLING, Histogram
from any2ds.core.processes import resources
from any2ds.estimate.facts import Sample, SampledRow, Survey
from any2ds.fetch.policy.hosts import FIRST_AT_ONCE, SILENCE, TIMEOUTS
from any2ds.fetch.policy.limiter import FIRST
from any2ds.fetch.policy.schedule import FIRST_BACKOFF, MAX_BACKOFF, late_after, spare_transfers
from any2ds.fetch.profiles import Profiles
from any2ds.worker.worker import ROWS_PER_PROCESS

Limit = Literal["hosts", "bandwidth", "cpu", "latency", "timeouts"]

NO_URLS = frozenset({"bad_row", "bad_url", "unsupported_scheme", "scheme_not_allowed"})
_NOT_ASKED = NO_URLS | {"robots", "robots_unreachable", "blocked_address"}
_QUICK = frozenset({"dns", "connect"})  # failures that keep no transfer busy for long
_SILENT = TIMEOUTS | {"host_down"}
_BUSY = frozenset({"http_429", "http_503"})
_LARGE_HOSTS = 1000  # that may take longest
_MODEL_ERROR = 0.15  # of the time: the form and measured runs agree to this (python -m benchmarks estimates)
_MOST_ERROR = 0.6  # with next to no rows in the sample; its error is that of a mean whose values differ as much as it
_REFUSED_SECONDS = 62.0  # for which a run may wait for a host that refuses everything, before it counts as down
_STRATUM = 10  # rows of one host in the sample, from which on they stand for the rows of this host
_LEAST_REFUSALS = 3  # transfers to a host that were all refused
_LIMIT_SHARE = 0.6  # of the time, from which on a bound is named as the limit
_USUAL_SECONDS = 0.2  # of an answer, where there was none
_LEAST_CPU = 2e-5  # seconds for a URL, where too few were fetched to measure it
_USUAL_MEMORY = 110e6  # bytes of a worker with nothing in flight, where it was not measured
_DRIVER_MEMORY = 100e6  # bytes of the process on each machine that plans the list, and
_SHARD_MEMORY = 1000  # more for each shard (docs/scale.md: up to 280 MB for 100,000)
_BODY_IN_FLIGHT = 2.0  # times its mean size that a transfer takes of memory
_Z = 1.959964  # of the normal distribution: 95 % lie within

Duration = tuple[float, float]
"""How many transfers, or rows, take how many seconds."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the range that it lies in with 95 % certainty."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """A run on so many machines."""

    machines: int
    processes: int  # on each
    seconds: Interval
    rows_per_second: float
    limit: Limit  # what bounds it
    in_flight: int  # transfers per process, on average
    largest_host: float  # requests per second that the largest host gets, on average
    memory_per_worker: int  # bytes
    memory: int  # bytes, of all, the processes that plan included
    machine_hours: float  # of all machines


@dataclass(frozen=True, slots=True)
class SlowestHost:
    """The host that takes longest for its rows, if nothing else takes time."""

    name: str = ""
    rows: int = 0  # URLs of the list
    seconds: float = 0.0
    crawl_delay: float = 0.0  # seconds that its robots.txt asks for


# --- pure forms ---


def wilson(share: float, count: float) -> Interval:
    """Wilson's interval for a `share` (0 to 1) seen among `count` draws: it holds for few draws, and near 0 and 1."""
    if count <= 0:
        return Interval(0.0, 0.0, 1.0)
    square = _Z * _Z / count
    middle = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def weights_of(rows: Sequence[SampledRow], hosts: Mapping[str, int], urls: int) -> list[float]:
    """How many rows each row of the sample stands for. Of a large host fewer are fetched than its part of the `urls`
    of the list: they stand for all of its rows, and those of small hosts for the rest."""
    sampled = Counter(row.host for row in rows)
    shares = {host: hosts[host] / urls for host, count in sampled.items() if count >= _STRATUM and host in hosts}
    others = len(rows) - sum(sampled[host] for host in shares)
    rest = max(0.0, 1 - sum(shares.values()))
    return [len(rows) * (shares[row.host] / sampled[row.host] if row.host in shares else rest / others) for row in rows]


def last_end(start: float, rows: Iterable[Duration]) -> float:
    """Seconds until the last of rows ends that begin evenly until `start`: of n that take so long or longer, the last
    one begins after n / (n + 1) of that time, as uniform order statistics do."""
    end, longer = start, 0.0
    for count, seconds in sorted(rows, key=lambda row: -row[1]):
        longer += count
        if longer >= 1:
            end = max(end, start * longer / (longer + 1) + seconds)
    return end


def backoffs(attempts: int) -> float:
    """Mean seconds for which a row waits between so many attempts."""
    return sum(min(MAX_BACKOFF, FIRST_BACKOFF * 2.0**number) / 2 for number in range(attempts - 1))


def warm_up(mean: float, transfers: float, ceiling: int) -> tuple[float, float, int]:
    """With thread_count=auto: seconds in which the number of transfers in flight doubles in each time of one (`mean`),
    how many transfers end meanwhile, and how many are in flight then."""
    size, seconds, ended = FIRST, 0.0, 0
    while size < ceiling and ended + size < transfers:
        size, seconds, ended = 2 * size, seconds + mean, ended + size
    return seconds, ended, min(size, ceiling)


@dataclass(frozen=True, slots=True)
class Rates:
    """Outcomes of URLs: shares of all URLs, or attempts for each."""

    answers: float = 0.0  # attempts that are answered
    silent: float = 0.0  # share without an answer, at hosts that answer others
    dead: float = 0.0  # the same, at hosts that answer none
    transient: float = 0.0  # share that failed in a way that another attempt can help
    repeated: float = 0.0  # chance that an answered attempt was followed by another one

    @classmethod
    def of(cls, rows: Sequence[SampledRow], weights: Sequence[float]) -> Rates:
        """Rates of the transfers of `rows`, each with its weight."""
        transfers = [(each, weight) for row, weight in zip(rows, weights, strict=True) for each in row.transfers]
        alive = {transfer.host for transfer, _ in transfers if transfer.code not in _SILENT | _NOT_ASKED}
        total = sum(weight for _, weight in transfers) or 1.0
        shares: defaultdict[str, float] = defaultdict(float)
        repeated = 0.0
        for transfer, weight in transfers:
            share = weight / total
            if transfer.code in _SILENT:
                shares["silent" if transfer.host in alive else "dead"] += share
            elif transfer.code not in _NOT_ASKED | _QUICK:
                shares["answers"] += transfer.attempts * share
                repeated += (transfer.attempts - 1) * share
            if transfer.is_transient and transfer.code != "dns":
                shares["transient"] += share
        return cls(**shares, repeated=repeated / max(shares["answers"], 1e-9))


class Model:
    """Predicts runs of the list that `survey` describes, of which `sample` was fetched, with the options `config`."""

    def __init__(self, config: Config, survey: Survey, sample: Sample) -> None:
        self.config, self.survey, self.sample = config, survey, sample
        self._profiles = Profiles(config.fetch)
        readable = 1 - survey.bad / survey.read if survey.read else 0.0  # share of the rows; only these are sampled
        repeated = {"none": 0.0, "shard": survey.duplicates / self.shards, "run": survey.duplicates}
        self._distinct = 1 - repeated[config.output.dedupe]  # share of the rows that are no duplicates
        self._rows = survey.rows * readable
        self.urls = survey.urls * readable * self._distinct  # that are tried
        self._weights = weights_of(sample.rows, survey.hosts, round(survey.urls * readable) or 1)
        self.rates = Rates.of(sample.rows, self._weights)
        self._answers = _values(sample.latencies) or [(1.0, _USUAL_SECONDS)]
        self.latency = _mean(self._answers)  # seconds of an answer
        cost = sample.cost
        own = max(_LEAST_CPU, cost.own_cpu) if cost else _LEAST_CPU
        # Seconds of the processor for a URL: of the thread that drives the sockets, and of all.
        self.cpu = own, max(own, cost.cpu) if cost else own

    # --- what does not depend on the machines ---

    @cached_property
    def shares(self) -> dict[str, float]:
        """Outcome -> share of the rows, the most frequent first; what steps refuse has failed."""
        weights: defaultdict[str, float] = defaultdict(float)
        for row, weight in zip(self.sample.rows, self._weights, strict=True):
            weights[row.code] += weight
        total = sum(weights.values()) or 1
        return {code: weights[code] / total for code in sorted(weights, key=lambda code: -weights[code])}

    @cached_property
    def success(self) -> Interval:
        """Share of the rows that are stored; the sample counts as many draws as weighted ones are worth (Kish)."""
        squares = sum(weight**2 for weight in self._weights)
        count = sum(self._weights) ** 2 / squares if squares else 0.0
        return wilson(self.shares.get(SUCCESS, 0.0), count)

    @property
    def is_hopeless(self) -> bool:
        """Whether no URL of the sample can be fetched at all, whatever the network does."""
        return bool(self.shares) and self.shares.keys() <= NO_URLS

    @property
    def shards(self) -> int:
        return max(1, -(-self.survey.rows // self.config.output.number_sample_per_shard))

    @property
    def stored(self) -> Interval:
        """Rows. With dedupe=run, duplicates refer to the row that is stored."""
        rows = self._rows * (self._distinct if self.config.output.dedupe == "run" else 1.0)
        return Interval(rows * self.success.value, rows * self.success.low, rows * self.success.high)

    @property
    def stored_bytes(self) -> float:
        return self.stored.value * self.sample.stored_size

    @property
    def received_bytes(self) -> float:
        return self.urls * self.sample.received

    @cached_property
    def refusing_hosts(self) -> set[str]:
        """Hosts that refuse all of several requests."""
        asked = Counter(row.host for row in self.sample.rows)
        refused = Counter(row.host for row in self.sample.rows if row.code in _BUSY)
        return {host for host, count in refused.items() if count == asked[host] >= _LEAST_REFUSALS}

    @cached_property
    def slowest(self) -> SlowestHost:
        """The host that takes longest with what `max_per_host` grants it."""
        return self.slowest_host()

    def slowest_host(self, at_once: int | None = None) -> SlowestHost:
        """The host that takes longest, with `at_once` transfers from all workers together; or, if None, with what
        `max_per_host` grants it. Its delays hold for all of them anyway."""
        delays, hosts = self.sample.robots.delays, self.survey.hosts
        slowest = SlowestHost()
        for host in {*self.survey.largest_hosts(_LARGE_HOSTS), *delays}:
            _, policy = self._profiles.host_of(f"http://{host}/")
            most, urls = min(at_once or policy.max_per_host, policy.max_per_host), hosts.get(host, 0) * self._distinct
            each = max(self._busy_seconds / most, policy.host_delay, delays.get(host, 0.0))
            growth = self.latency * math.log2(1 + urls / FIRST_AT_ONCE)  # as its allowance doubles
            if (alone := max(urls * each, growth)) > slowest.seconds:
                slowest = SlowestHost(host, hosts.get(host, 0), alone, delays.get(host, 0.0))
        return slowest

    # --- what does ---

    def processes(self, machines: int) -> int:
        """Worker processes of a machine."""
        running, rows = self.config.run, -(-self.survey.rows // machines)
        changes_files = bool(self.config.media.asked() or self.config.files.transform)
        useful = rows if changes_files else rows // ROWS_PER_PROCESS
        wanted = running.processes_count or max(1, min(resources.cores(), useful))
        return max(1, min(wanted, -(-self.shards // machines)))

    def predict(self, machines: int, bandwidth: int) -> Prediction:
        """`bandwidth` in bits per second, of each machine."""
        processes = self.processes(machines)
        workers = max(1, min(machines * processes, self.shards))  # that have something to do
        # The worker with the most shards decides, which are made by one process each.
        rows = min(self.survey.rows, -(-self.shards // workers) * self.config.output.number_sample_per_shard)
        part = rows / max(1, self.survey.rows)
        own, total = self.cpu
        crowding = max(1.0, processes / resources.share())  # processes that share a core
        bounds: dict[Limit, float] = {
            "latency": self._transfer_seconds(part),
            "hosts": self.slowest.seconds,
            "bandwidth": self.received_bytes * 8 / bandwidth / machines,
            "cpu": max(self.urls * part * own * crowding, self.urls * total / resources.share() / machines),
        }
        longest: Limit = max(bounds, key=lambda bound: bounds[bound])
        seconds = self._until_last_row(bounds[longest]) + self.sample.start_up
        error = min(_MOST_ERROR, _MODEL_ERROR + _Z / math.sqrt(1 + len(self.sample.rows)))
        busy = self.urls * part * self._busy_seconds / max(seconds, 1e-9)  # Little's law
        in_flight = max(1, round(min(busy, self.config.fetch.most_transfers)))
        memory = round(
            (self.sample.cost.memory if self.sample.cost else _USUAL_MEMORY)
            + min(self.config.fetch.max_buffered_bytes, in_flight * _BODY_IN_FLIGHT * self.sample.received)
        )
        return Prediction(
            machines=machines,
            processes=processes,
            seconds=Interval(seconds, seconds * (1 - error), seconds * (1 + error) + self._unseen_seconds),
            rows_per_second=self.survey.rows / seconds,
            limit=longest if longest != "latency" and bounds[longest] >= _LIMIT_SHARE * seconds else self._kind_of_wait,
            in_flight=in_flight,
            largest_host=sum(self.survey.largest_hosts(1).values()) * self._distinct / seconds,
            memory_per_worker=memory,
            memory=memory * workers + round(machines * (_DRIVER_MEMORY + _SHARD_MEMORY * self.shards)),
            machine_hours=machines * seconds / 3600,
        )

    @property
    def _kind_of_wait(self) -> Limit:
        """The longest wait of transfers: for answers, or for timeouts."""
        return "latency" if 2 * self.rates.answers * self.latency > self._busy_seconds else "timeouts"

    @property
    def _timeout(self) -> float:
        """Seconds until a transfer without an answer ends."""
        fetch = self.config.fetch
        return fetch.timeout or fetch.total_timeout or fetch.stall_timeout

    @property
    def _tries(self) -> int:
        """Attempts at a row without an answer."""
        return 1 + self.config.fetch.retries

    @property
    def _silent_seconds(self) -> float:
        """From the first attempt at a row without an answer to the end of the last."""
        return self._tries * self._timeout + backoffs(self._tries)

    @property
    def _unseen_seconds(self) -> float:
        """For how long a run may wait in its end for what the sample does not show."""
        if self.refusing_hosts:
            return _REFUSED_SECONDS
        return self._silent_seconds if not self.rates.silent and len(self.sample.rows) < self._rows else 0.0

    @property
    def _busy_seconds(self) -> float:
        """For which a URL keeps a transfer busy, on average."""
        silent = self._tries * self.rates.silent + self.rates.dead
        return self.rates.answers * self.latency + silent * self._timeout

    @property
    def _met_rows_of_dead_host(self) -> float:
        """Share of the rows of a host without any answer that are tried until it counts as down."""
        return min(1.0, SILENCE * max(1, len(self.survey.hosts)) / max(1, self.survey.urls))

    @cached_property
    def _transfers(self) -> list[Duration]:
        """All transfers, the answered ones first, and for how long each takes a place."""
        fetch, rates, robots = self.config.fetch, self.rates, self.sample.robots
        scale = self.urls * rates.answers / max(1, sum(count for count, _ in self._answers))
        asked = robots.files / max(1, len({row.host for row in self.sample.rows}))  # of a host: processes share answers
        late = min(self._timeout, late_after(self.latency))  # then a transfer takes a spare place, if there are any
        has_spare = spare_transfers(fetch, fetch.most_transfers) > 0
        return [
            *((count * scale, seconds) for count, seconds in self._answers),
            (min(1.0, asked) * len(self.survey.hosts), robots.seconds / max(1, robots.files)),
            (self.urls * rates.silent * self._tries, late if fetch.thread_count == "auto" else self._timeout),
            (self.urls * rates.dead * self._met_rows_of_dead_host, late if has_spare else self._timeout),
        ]

    def _transfer_seconds(self, part: float) -> float:
        """Seconds for the transfers of a worker that has this part of all, as many at a time as the options allow."""
        fetch, slots, seconds = self.config.fetch, self.config.fetch.most_transfers, 0.0
        count = part * sum(each for each, _ in self._transfers)
        work = part * sum(each * seconds for each, seconds in self._transfers)
        if count and fetch.thread_count == "auto":
            seconds, ended, slots = warm_up(work / count, count, slots)
            work *= 1 - ended / count
        return seconds + max(work / slots, self.latency if count else 0.0)

    def _repeated_rows(self) -> Iterator[Duration]:
        """Rows that are answered more than once, by the number of their attempts."""
        answered = self.urls * self.rates.answers * (1 - self.rates.repeated)
        for attempts in range(2, self._tries + 1):
            count = answered * self.rates.repeated ** (attempts - 1)
            yield count, attempts * self.latency + backoffs(attempts)

    def _until_last_row(self, seconds: float) -> float:
        """The end of the last row, where all transfers together take `seconds`."""
        transfers = self._transfers
        work = sum(count * each for count, each in transfers)
        # When the last transfer begins, those that are in flight have half of their time left, or more if times differ.
        left = sum(count * each**2 for count, each in transfers) / (2 * work) if work else 0.0
        start, urls = max(0.0, seconds - left), self.urls
        rows = [
            *transfers[: len(self._answers)],
            *self._repeated_rows(),
            (urls * self.rates.silent, self._silent_seconds),
        ]
        dead = start * self._met_rows_of_dead_host + self._timeout if urls * self.rates.dead >= 1 else 0.0
        return max(seconds, last_end(start, rows), dead)


def _values(histogram: Histogram) -> list[Duration]:
    """The middle of each bucket, and how many values it has."""
    return [(count, 2.0 ** ((bucket + 0.5) / PER_DOUBLING)) for bucket, count in histogram.counts.items()]


def _mean(values: Sequence[Duration]) -> float:
    return sum(count * value for count, value in values) / max(1, sum(count for count, _ in values))
