"""What is known of single transfers: their host, outcome, duration and size; and what follows from many of them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from any2ds.core.failures import SUCCESS, failure_code
from any2ds.core.histogram import Distribution
from any2ds.core.reports import RunReport

_Z = 1.959964  # of the normal distribution: 95 % lie within


@dataclass(frozen=True, slots=True)
class Transfer:
    """A row that was fetched."""

    host: str
    code: str  # success, or a failure code
    seconds: float = 0.0  # of a transfer that succeeded
    size: int = 0  # bytes of the file, as it arrived
    attempts: int = 1
    weight: float = 1.0  # rows of the sample that it stands for: of large hosts not all are fetched
    delay: float = 0.0  # seconds between two starts that the robots.txt of its host asks for

    @property
    def is_transient(self) -> bool:
        return self.code != SUCCESS and failure_code(self.code).transient


@dataclass(frozen=True, slots=True)
class Cost:
    """What a worker took for its rows, measured from its first row to its last."""

    rows: int = 0
    seconds: float = 0.0  # of wall time
    own_cpu: float = 0.0  # seconds of the thread that drives sockets and writes files
    cpu: float = 0.0  # seconds of the process, the former included
    memory: int = 0  # bytes at the end
    received: int = 0  # bytes of bodies

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.rows + other.rows,
            self.seconds + other.seconds,
            self.own_cpu + other.own_cpu,
            self.cpu + other.cpu,
            max(self.memory, other.memory),
            self.received + other.received,
        )


@dataclass(frozen=True, slots=True)
class Sample:
    """What was fetched."""

    folder: str  # the dataset
    transfers: Sequence[Transfer]
    cost: Cost
    report: RunReport  # of the run, or the sum of what the dataset says
    start_up: float = 0.0  # seconds of a run in which no shard is open
    is_fetched: bool = True  # for this estimate; its hosts were asked slowly
    problem: str = ""  # why it is not complete
    left_out: Mapping[str, float] = field(default_factory=dict)  # host -> the delay because of which rows were left out

    @property
    def delays(self) -> dict[str, float]:
        """Host -> seconds between two starts that its robots.txt asks for; also hosts of which no row was fetched."""
        return {**self.left_out, **{each.host: each.delay for each in self.transfers if each.delay}}

    @property
    def hosts_not_fetched(self) -> list[str]:
        """Hosts whose delay left no time for any of their rows."""
        return sorted(self.left_out.keys() - {each.host for each in self.transfers})

    @property
    def stored_size(self) -> float:
        """Mean bytes of a stored row: of its file, changed by steps or not."""
        return self.report.bytes / self.report.successes if self.report.successes else 0.0

    @property
    def received(self) -> float:
        """Mean bytes that arrive for a row."""
        rows = sum(each.weight for each in self.transfers)
        measured = self.cost.received / self.cost.rows if self.cost.rows else 0.0
        return max(measured, sum(each.weight * each.size for each in self.transfers) / rows if rows else 0.0)


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with the range that it lies in with 95 % certainty."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def wilson(share: float, count: float) -> Interval:
    """Wilson's interval for a `share` (0 to 1) seen among `count` draws: it holds for few draws, and near 0 and 1."""
    if count <= 0:
        return Interval(0.0, 0.0, 1.0)
    square = _Z * _Z / count
    middle = (share + square / 2) / (1 + square)
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def effective_count(transfers: Sequence[Transfer]) -> float:
    """The draws that weighted ones are worth (Kish)."""
    square = sum(each.weight**2 for each in transfers)
    return sum(each.weight for each in transfers) ** 2 / square if square else 0.0


def shares(transfers: Iterable[Transfer]) -> dict[str, float]:
    """Code -> share of the rows, the most frequent first."""
    found: Counter[str] = Counter()
    for each in transfers:
        found[each.code] += each.weight  # type: ignore[assignment]
    total = sum(found.values()) or 1
    return {code: weight / total for code, weight in found.most_common()}


def mean(transfers: Iterable[Transfer], value: str) -> float:
    """The weighted mean of a field; 0 without transfers."""
    total = weight = 0.0
    for each in transfers:
        total += each.weight * getattr(each, value)
        weight += each.weight
    return total / weight if weight else 0.0


def by_host(transfers: Iterable[Transfer]) -> dict[str, list[Transfer]]:
    found: defaultdict[str, list[Transfer]] = defaultdict(list)
    for each in transfers:
        found[each.host].append(each)
    return dict(found)


def distribution(values: Sequence[float]) -> Distribution:
    """Without ranges."""
    if not values:
        return Distribution()
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Distribution(len(ordered), sum(ordered), ordered[0], at(0.25), at(0.5), at(0.75), ordered[-1])


def quantile(values: Sequence[float], share: float) -> float:
    """0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def parse(lines: Iterable[Mapping[str, Any]]) -> tuple[list[Transfer], Cost, dict[str, float]]:
    """What a recorder wrote: lines of transfers, of the cost of workers, and of the delays for which rows of hosts were
    left out; those of the list are not needed. Raises KeyError, TypeError or ValueError for anything else."""
    transfers, cost, left_out = [], Cost(), {}
    for line in lines:
        if "worker" in line:
            cost += Cost(**line["worker"])
        elif "delays" in line:
            left_out.update(line["delays"])
        elif "files" not in line:
            transfers.append(Transfer(**line))
    return transfers, cost, left_out


def transfers_needed(rate: float, seconds: float) -> int:
    """In flight for `rate` transfers per second of so many seconds each (Little's law)."""
    return max(1, math.ceil(rate * seconds))
