"""What a run over the whole list would take on so many machines: time, traffic, memory, disk, shards and costs.

The time is the largest of five bounds: transfers that wait for answers, the slowest host, the line, and the processor,
of the thread that drives the sockets and of all; plus the time of a start. How many transfers fail, and how long
answers take, is as in the sample.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from any2ds.config.options import Config
from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import PER_DOUBLING, Histogram
from any2ds.core.processes import resources
from any2ds.estimate.facts import Sample, SampledRow, Survey, Transfer
from any2ds.estimate.prices import Prices
from any2ds.fetch.policy.hosts import FIRST_AT_ONCE, SILENCE, TIMEOUTS
from any2ds.fetch.policy.limiter import FIRST, step_seconds
from any2ds.fetch.policy.schedule import late_after, spare_transfers
from any2ds.fetch.profiles import Profiles
from any2ds.worker.worker import ROWS_PER_PROCESS

Limit = Literal["hosts", "bandwidth", "cpu", "latency", "timeouts"]

NO_URLS = frozenset({"bad_row", "bad_url", "unsupported_scheme", "scheme_not_allowed"})
_NOT_ASKED = NO_URLS | {"robots", "robots_unreachable", "blocked_address"}
_QUICK = frozenset({"dns", "connect"})  # failures that keep no transfer busy for long
_SILENT = TIMEOUTS | {"host_down"}
_LARGE_HOSTS = 1000  # that may take longest
_BUSY = frozenset({"http_429", "http_503"})
_MODEL_ERROR = 0.15  # of the time: the form and measured runs agree to this (python -m benchmarks estimates)
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
"""How many transfers take how many seconds."""


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
    costs: Mapping[str, float]  # see `Prices.costs`


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


def tail(durations: Sequence[Duration], slots: int) -> float:
    """Seconds from when the last transfer begins until all have ended, less what the others need in that time: while
    `slots` of them go on, how long each has left is distributed as in a renewal process."""
    total = sum(count for count, _ in durations)
    work = sum(count * seconds for count, seconds in durations)
    if not work:
        return 0.0
    mean_left = sum(count * seconds**2 for count, seconds in durations) / (2 * work)
    longest_left, before = 0.0, 0.0
    for end in sorted({seconds for _, seconds in durations}):
        middle = (before + end) / 2
        share = sum(count * max(0.0, seconds - middle) for count, seconds in durations) / work
        longest_left += (end - before) * (1 - (1 - share) ** min(slots, total))
        before = end
    return max(0.0, longest_left - mean_left)


def warm_up(mean: float, transfers: float, ceiling: int) -> tuple[float, float, int]:
    """With thread_count=auto: seconds in which the number of transfers in flight doubles, how many transfers end
    meanwhile, and how many are in flight then; `mean` are the seconds of one."""
    size, seconds, ended = FIRST, 0.0, 0.0
    while size < ceiling:
        step = sum(step_seconds(mean, size, is_starting=True))
        if ended + size / mean * step >= transfers:
            break
        ended += size / mean * step
        seconds, size = seconds + step, 2 * size
    return seconds, ended, min(size, ceiling)


@dataclass(frozen=True, slots=True)
class Rates:
    """What becomes of a URL, on average."""

    answers: float = 0.0  # those of attempts that failed included
    silent: float = 0.0  # share of the URLs without an answer, at hosts that answer others
    dead: float = 0.0  # the same, at hosts that answer none
    transient: float = 0.0  # share of the URLs that failed in a way that another attempt can help

    @classmethod
    def of(cls, transfers: Sequence[tuple[Transfer, float]]) -> Rates:
        """Rates of transfers, each with its weight."""
        alive = {transfer.host for transfer, _ in transfers if transfer.code not in _SILENT | _NOT_ASKED}
        total = sum(weight for _, weight in transfers) or 1.0
        found: defaultdict[str, float] = defaultdict(float)
        for transfer, weight in transfers:
            if transfer.code in _SILENT:
                found["silent" if transfer.host in alive else "dead"] += weight / total
            elif transfer.code not in _NOT_ASKED | _QUICK:
                found["answers"] += transfer.attempts * weight / total
            if transfer.is_transient and transfer.code != "dns":
                found["transient"] += weight / total
        return cls(**found)


class Model:
    """Predicts runs of the list that `survey` describes, of which `sample` was fetched, with the options `config`."""

    def __init__(self, config: Config, survey: Survey, sample: Sample) -> None:
        self.config, self.survey, self.sample = config, survey, sample
        self._profiles = Profiles(config.fetch)
        good_urls = round(survey.urls * self._readable) or 1
        self._weights = weights_of(sample.rows, survey.hosts, good_urls)
        weighted = zip(sample.rows, self._weights, strict=True)
        self.rates = Rates.of([(transfer, weight) for row, weight in weighted for transfer in row.transfers])

    # --- what does not depend on the machines ---

    @cached_property
    def shares(self) -> dict[str, float]:
        """Outcome -> share of the rows, the most frequent first; what steps refuse has failed."""
        weights: Counter[str] = Counter()
        for row, weight in zip(self.sample.rows, self._weights, strict=True):
            weights[row.code] += weight  # type: ignore[assignment]
        total = sum(weights.values()) or 1
        return {code: weight / total for code, weight in weights.most_common()}

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
    def _readable(self) -> float:
        """Share of the rows that can be read; only these are in the sample."""
        return 1 - self.survey.bad / self.survey.read if self.survey.read else 0.0

    @property
    def _distinct(self) -> float:
        """Share of the rows without duplicates, as far as `dedupe` goes."""
        survey = self.survey
        repeated = {"none": 0.0, "shard": survey.duplicates / self.shards, "run": survey.duplicates}
        return 1 - repeated[self.config.output.dedupe]

    @property
    def urls(self) -> float:
        """URLs that are tried: rows that can be read, without duplicates, times their files."""
        return self.survey.urls * self._readable * self._distinct

    @property
    def stored(self) -> Interval:
        """Rows. With dedupe=run, duplicates refer to the row that is stored."""
        rows, share = self.survey.rows * self._readable, self.success
        if self.config.output.dedupe == "run":
            rows *= self._distinct
        return Interval(rows * share.value, rows * share.low, rows * share.high)

    @property
    def stored_bytes(self) -> float:
        return self.stored.value * self.sample.stored_size

    @property
    def received_bytes(self) -> float:
        return self.urls * self.sample.received

    @property
    def cpu(self) -> tuple[float, float]:
        """Seconds of the processor for a URL: of the thread that drives the sockets, and of all."""
        cost = self.sample.cost
        own = max(_LEAST_CPU, cost.own_cpu) if cost else _LEAST_CPU
        return own, max(own, cost.cpu) if cost else own

    @cached_property
    def latency(self) -> float:
        """Mean seconds of an answer."""
        return _mean(self._answers)

    @cached_property
    def _answers(self) -> list[Duration]:
        return _values(self.sample.latencies) or [(1, _USUAL_SECONDS)]

    @cached_property
    def refusing_hosts(self) -> set[str]:
        """Hosts that refuse all of several requests."""
        refused, asked = Counter[str](), Counter(row.host for row in self.sample.rows)
        refused.update(row.host for row in self.sample.rows if row.code in _BUSY)
        return {host for host, count in refused.items() if count == asked[host] >= _LEAST_REFUSALS}

    def costs(self, hours: float, prices: Prices) -> Mapping[str, float]:
        """`hours` of all machines together."""
        return prices.costs(hours, self.received_bytes, self.stored_bytes, self.shards)

    @cached_property
    def slowest(self) -> SlowestHost:
        """The host that takes longest with what `max_per_host` grants it."""
        return self.slowest_host()

    def slowest_host(self, at_once: int | None = None) -> SlowestHost:
        """The host that takes longest, with `at_once` transfers from all workers together; or, if None, with what
        `max_per_host` grants it. Its delays hold for all of them anyway."""
        delays, hosts = self.sample.robots.delays, self.survey.hosts
        seconds = self._busy_seconds
        slowest = SlowestHost()
        for host, rows in {
            **self.survey.largest_hosts(_LARGE_HOSTS),
            **{host: hosts.get(host, 0) for host in delays},
        }.items():
            _, policy = self._profiles.host_of(f"http://{host}/")
            most = min(at_once or policy.max_per_host, policy.max_per_host)
            urls = rows * self._distinct
            each = max(seconds / most, policy.host_delay, delays.get(host, 0.0))
            growth = self.latency * math.log2(1 + urls / FIRST_AT_ONCE)  # as its allowance doubles
            if (alone := max(urls * each, growth)) > slowest.seconds:
                slowest = SlowestHost(host, rows, alone, delays.get(host, 0.0))
        return slowest

    # --- what does ---

    def processes(self, machines: int) -> int:
        """Worker processes of a machine."""
        running, rows = self.config.run, -(-self.survey.rows // machines)
        changes_files = bool(self.config.media.asked() or self.config.files.transform)
        useful = rows if changes_files else rows // ROWS_PER_PROCESS
        wanted = running.processes_count or max(1, min(resources.cores(), useful))
        return max(1, min(wanted, -(-self.shards // machines)))

    def predict(self, machines: int, bandwidth: int, prices: Prices) -> Prediction:
        """`bandwidth` in bits per second, of each machine."""
        processes = self.processes(machines)
        workers = max(1, min(machines * processes, self.shards))  # that have something to do
        # The worker with the most shards decides, which are made by one process each.
        rows = min(self.survey.rows, -(-self.shards // workers) * self.config.output.number_sample_per_shard)
        part = rows / max(1, self.survey.rows)
        own, total = self.cpu
        crowding = max(1.0, processes / resources.share())  # processes that share a core
        bounds = {
            "transfers": self._waiting(part),
            "hosts": self.slowest.seconds,
            "bandwidth": self.received_bytes * 8 / bandwidth / machines,
            "cpu": max(self.urls * part * own * crowding, self.urls * total / resources.share() / machines),
        }
        seconds = self._until_last_timeout(max(bounds.values()), part) + self.sample.start_up
        refusals = _REFUSED_SECONDS if self.refusing_hosts else 0.0
        error = _MODEL_ERROR + self._sampling_error(is_bytes=bounds["bandwidth"] == max(bounds.values()))
        needed = self.urls * part * self._busy_seconds / max(seconds, 1e-9)  # Little's law
        in_flight = max(1, round(min(needed, self.config.fetch.most_transfers)))
        memory = round(
            (self.sample.cost.memory if self.sample.cost else _USUAL_MEMORY)
            + min(self.config.fetch.max_buffered_bytes, in_flight * _BODY_IN_FLIGHT * self.sample.received)
        )
        return Prediction(
            machines=machines,
            processes=processes,
            seconds=Interval(seconds, seconds * (1 - min(0.9, error)), seconds * (1 + error) + refusals),
            rows_per_second=self.survey.rows / seconds,
            limit=self._limit(bounds, seconds),
            in_flight=in_flight,
            largest_host=sum(self.survey.largest_hosts(1).values()) * self._distinct / seconds,
            memory_per_worker=memory,
            memory=memory * workers + round(machines * (_DRIVER_MEMORY + _SHARD_MEMORY * self.shards)),
            costs=self.costs(machines * seconds / 3600, prices),
        )

    @property
    def _timeout(self) -> float:
        """Seconds until a transfer without an answer ends."""
        fetch = self.config.fetch
        return fetch.timeout or fetch.total_timeout or fetch.stall_timeout

    @property
    def _busy_seconds(self) -> float:
        """For which a URL keeps a transfer busy, on average."""
        return self.rates.answers * self.latency + (self.rates.silent + self.rates.dead) * self._timeout

    @property
    def _rows_of_host(self) -> float:
        """Mean URLs of a host."""
        return self.survey.urls / max(1, len(self.survey.hosts))

    def _waiting(self, part: float) -> float:
        """Seconds that the transfers of one worker take, of which so many are in flight as the options allow."""
        fetch, urls = self.config.fetch, self.urls * part
        alive, dead = self.rates.silent * urls, self.rates.dead * urls
        dead *= min(1.0, SILENCE / self._rows_of_host)  # the others of a host that is down are not tried
        answers, robots_files = urls * self.rates.answers, self._robots_files(part)
        has_spare = spare_transfers(fetch, fetch.most_transfers) > 0
        silence = min(self._timeout, late_after(self.latency)) if has_spare else self._timeout
        scale = answers / max(1, sum(count for count, _ in self._answers))
        durations = [
            *((count * scale, seconds) for count, seconds in self._answers),
            (robots_files, self.sample.robots.seconds / max(1, self.sample.robots.files)),
            (alive, silence),
        ]
        work = sum(count * seconds for count, seconds in durations) + dead * silence
        transfers, slots, seconds = answers + robots_files + alive + dead, fetch.most_transfers, 0.0
        if not transfers:
            return 0.0
        if fetch.thread_count == "auto":
            seconds, ended, slots = warm_up(work / transfers, transfers, slots)
            work *= 1 - ended / transfers
        return seconds + max(work / slots, self.latency) + tail(durations, slots)

    def _robots_files(self, part: float) -> float:
        """Requests for robots.txt by a worker with that part of the rows."""
        sampled = {row.host for row in self.sample.rows}
        if not (sampled and self.sample.robots.files):
            return 0.0
        met = sum(1 - (1 - min(1.0, part)) ** urls for urls in self.survey.hosts.values())
        return met * min(1.0, self.sample.robots.files / len(sampled))

    def _until_last_timeout(self, seconds: float, part: float) -> float:
        """`seconds`, or longer if the last silent transfers begin late: each takes the whole time until it is ended."""
        alive, dead = self.rates.silent * self.urls * part, self.rates.dead * self.urls * part
        if alive >= 1:
            return max(seconds, seconds * alive / (alive + 1) + self._timeout)
        if dead >= 1:  # its first rows tell that a host is down
            return max(seconds, seconds * min(1.0, SILENCE / self._rows_of_host) + self._timeout)
        return seconds

    def _sampling_error(self, is_bytes: bool) -> float:
        """Relative error of the time, as the mean seconds of a transfer come from a sample, and so do its mean bytes
        where the line is the limit."""
        sizes = _values(self.sample.sizes)
        if len(self.sample.sizes) < 2:
            return 0.5
        return min(0.5, max(_error_of_mean(self._answers), _error_of_mean(sizes) if is_bytes else 0.0))

    def _limit(self, bounds: Mapping[str, float], seconds: float) -> Limit:
        name = max(bounds, key=lambda bound: bounds[bound])
        if name != "transfers" and bounds[name] >= _LIMIT_SHARE * seconds:
            return name  # type: ignore[return-value]
        return "latency" if 2 * self.rates.answers * self.latency > self._busy_seconds else "timeouts"


def _values(histogram: Histogram) -> list[Duration]:
    """The middle of each bucket, and how many values it has."""
    return [(count, 2.0 ** ((bucket + 0.5) / PER_DOUBLING)) for bucket, count in histogram.counts.items()]


def _mean(values: Sequence[Duration]) -> float:
    return sum(count * value for count, value in values) / max(1, sum(count for count, _ in values))


def _error_of_mean(values: Sequence[Duration]) -> float:
    """Relative, with 95 % certainty."""
    count, mean = sum(count for count, _ in values), _mean(values)
    variance = sum(each * (value - mean) ** 2 for each, value in values) / max(1, count - 1)
    return _Z * math.sqrt(variance / max(1, count)) / max(1e-9, mean)
