"""A fetcher that records its transfers, and what the worker around it takes, for an estimate."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from any2ds.config.options import FetchOptions, StorageOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import SUCCESS, Failure
from any2ds.core.metrics import Traffic
from any2ds.core.processes import resources
from any2ds.core.reports import RobotsCost
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched
from any2ds.fetch.fetcher import UrlFetcher
from any2ds.fetch.profiles import Profiles
from any2ds.forecast.transfers import Cost, Transfer
from any2ds.storage.stores import Stores

_BUSY_TURN = 16  # rows of one turn, at least, in a process that is busy
_LEFT_OUT = "not fetched: the sample ends before the delay is over that the robots.txt of the host asks for"
_LEAST_PART = 0.25  # of what a row takes on average: the part of it that surely depends on the rows


@dataclass(frozen=True, slots=True)
class Recorder:
    """Makes fetchers that write to files in `folder`, which is local; it is sent to workers."""

    folder: str
    storage: StorageOptions
    seconds: float  # after which rows are left out that wait for nothing but the delay of a robots.txt

    def __call__(self, fetch: FetchOptions, buffer: Buffer) -> RecordingFetcher:
        path = Path(self.folder) / f"{os.getpid()}-{time.monotonic_ns()}.jsonl"
        inner = UrlFetcher(fetch, buffer, Stores(self.storage.storage_options))
        return RecordingFetcher(inner, fetch, buffer, path, self.seconds)

    def lines(self) -> list[dict[str, Any]]:
        """What they have written: transfers, the cost of the worker, and how many rows of which hosts were left out,
        with the delays of these."""
        files = sorted(Path(self.folder).glob("*.jsonl"))
        return [orjson.loads(line) for file in files for line in file.read_bytes().splitlines()]


class Turns:
    """The processor time of turns, from which follows what rows take in a run that asks as fast as it can.

    A sample is slow: each of its turns has few rows, or none. The part of a turn's time that does not depend on its
    rows (a regression tells) is that of few turns then.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._turns = self._squares = 0
        self._seconds = self._products = 0.0

    def add(self, rows: int, seconds: float, is_idle: bool) -> None:
        """A turn that brought so many rows; in an idle one not even bytes came."""
        if is_idle:
            return
        self.rows += rows
        self._turns += 1
        self._squares += rows * rows
        self._seconds += seconds
        self._products += rows * seconds

    @property
    def busy(self) -> float:
        """Seconds for all rows, if there were `_BUSY_TURN` of them in each turn."""
        if not self.rows:
            return 0.0
        turns, rows = self._turns, self.rows
        spread = turns * self._squares - rows * rows
        usual = self._seconds / rows
        each = (turns * self._products - rows * self._seconds) / spread if spread > 0 else usual
        each = min(usual, max(_LEAST_PART * usual, each))
        turn = max(0.0, self._seconds - each * rows) / turns
        return min(self._seconds, rows * each + turn * rows / _BUSY_TURN)


class RecordingFetcher:
    """Passes everything on to `inner`. The worker's thread iterates over `fetch`, so what it does between two batches
    is measured with it."""

    def __init__(
        self, inner: UrlFetcher, options: FetchOptions, buffer: Buffer, path: Path, seconds: float = math.inf
    ) -> None:
        self._inner, self._buffer, self._path, self._seconds = inner, buffer, path, seconds
        self._profiles = Profiles(options)
        self._left: dict[tuple[int, int, str], Row] = {}  # rows that are being fetched, or wait for their hosts
        self._has_all = False  # there are no others

    def fetch(self, rows: Iterable[Row]) -> Iterator[Sequence[Fetched]]:
        inner: Any = self._inner.fetch(self._noted(rows))
        wall, thread, cpu, received = time.monotonic(), time.thread_time(), resources.cpu(), self._buffer.received
        turns = Turns()
        with self._path.open("wb") as file, closing(inner):
            began, seen = time.thread_time(), received
            try:
                for batch in inner:
                    yield batch
                    file.writelines(orjson.dumps(asdict(self._recorded(each))) + b"\n" for each in batch)
                    now, is_idle = time.thread_time(), not batch and self._buffer.received == seen
                    turns.add(len(batch), now - began, is_idle)
                    began, seen = now, self._buffer.received
                    if time.monotonic() - wall > self._seconds and self._only_delays_are_left():
                        break
            finally:
                others = resources.cpu() - cpu - (time.thread_time() - thread)  # of the process
                cost = Cost(
                    turns.rows,
                    time.monotonic() - wall,
                    turns.busy,
                    turns.busy + max(0.0, others),
                    resources.memory(),
                    self._buffer.received - received,
                )
                file.write(orjson.dumps({"worker": asdict(cost)}) + b"\n")
            rows_left = [*self._left.values()]
            left_out = Counter(self._profiles.host_of(row.url)[0] for row in rows_left)
            delays = {self._profiles.host_of(row.url)[0]: self._inner.crawl_delay(row.url) for row in rows_left}
            file.write(orjson.dumps({"left_out": left_out, "delays": delays}) + b"\n")
        if rows_left:
            yield [Fetched(row, Failure("fetch", "timeout_total", _LEFT_OUT), 0) for row in rows_left]

    def _noted(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:  # in the feeder's thread
            self._left[_place(row)] = row
            yield row
        self._has_all = True

    def _only_delays_are_left(self) -> bool:
        """Whether all rows that are left are of hosts whose robots.txt asks for more seconds than the sample does."""
        return self._has_all and all(
            self._inner.crawl_delay(row.url) > self._profiles.host_of(row.url)[1].host_delay
            for row in self._left.values()
        )

    def _recorded(self, fetched: Fetched) -> Transfer:
        self._left.pop(_place(fetched.row), None)
        host, _ = self._profiles.host_of(fetched.row.url)
        delay = self._inner.crawl_delay(fetched.row.url)
        if isinstance(fetched.outcome, Failure):
            return Transfer(host, fetched.outcome.code, attempts=fetched.attempts, delay=delay)
        size = fetched.outcome.body.size
        return Transfer(host, SUCCESS, fetched.outcome.seconds, size, fetched.attempts, delay=delay)

    @property
    def activity(self) -> int:
        return self._inner.activity

    def traffic(self) -> Traffic:
        return self._inner.traffic()

    def robots_cost(self) -> RobotsCost:
        return self._inner.robots_cost()

    def close(self) -> None:
        self._inner.close()


def _place(row: Row) -> tuple[int, int, str]:
    return row.shard_id, row.position, row.member
