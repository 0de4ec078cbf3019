"""The facts before a prediction: of the list, by reading it, and of its rows, by a sample."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from any2ds.core.failures import is_transient
from any2ds.core.histogram import Histogram
from any2ds.core.reports import ProcessCost, RobotsCost


@dataclass(frozen=True, slots=True)
class Survey:
    """Facts about a url list."""

    rows: int
    is_exact: bool  # whether `rows` were counted, rather than extrapolated from bytes
    read: int  # rows that were looked at
    bad: int  # rows, of these, that could not be read
    hosts: Mapping[str, int]  # host -> URLs of the whole list, most first; the largest 200,000 at least
    distinct: int  # URLs among the rows that were read
    duplicates: float  # share of the rows whose URL stands in an earlier one
    urls_per_row: int  # the files of a row
    error: str  # why the list was not read to its end; "" if it was
    sample: pa.Table  # rows drawn at random, in the order of the list, with the columns of the dataset
    files: tuple[str, ...] = ()  # the files of the list; empty if rows come from elsewhere

    @property
    def urls(self) -> int:
        """URLs of all rows."""
        return self.rows * self.urls_per_row

    @property
    def is_part(self) -> bool:
        """Whether only a random part of a list was read that has too many rows."""
        return self.read < self.rows

    def largest_hosts(self, count: int) -> dict[str, int]:
        """Hosts with their URLs."""
        return dict(itertools.islice(self.hosts.items(), count))


@dataclass(frozen=True, slots=True)
class Transfer:
    """The outcome of one URL."""

    host: str
    code: str  # success, or a failure code
    size: int = 0  # bytes of the file, as it arrived
    attempts: int = 1

    @property
    def is_transient(self) -> bool:
        """Whether another attempt may help. Codes of other tools say nothing about it."""
        return is_transient(self.code)


@dataclass(frozen=True, slots=True)
class SampledRow:
    """The outcome of a row, by its metadata."""

    code: str  # success, failure code, dropped or filtered: what the steps have decided
    transfers: tuple[Transfer, ...]  # one for each of its URLs

    @property
    def host(self) -> str:
        return self.transfers[0].host


@dataclass(frozen=True, slots=True)
class Sample:
    """Facts about rows like those of the list, taken from a dataset."""

    folder: str
    rows: Sequence[SampledRow]
    stored_size: float  # mean bytes of the files of a stored row
    latencies: Histogram  # seconds of transfers that succeeded
    sizes: Histogram  # bytes of files, as they arrived
    received: float = 0.0  # mean bytes that arrived for a URL
    cost: ProcessCost | None = None  # of a URL, and the memory of the process; None where it was not measured
    robots: RobotsCost = field(
        default_factory=RobotsCost
    )  # what asking for robots.txt took, with the delays that hosts ask for
    left_out: tuple[str, ...] = ()  # hosts whose delay left no time for any of their rows
    start_up: float = 1.0  # seconds of a run in which no shard is open
    problem: str = ""  # why it is not complete
