"""Adds up the events of workers into a Snapshot, so that all reporters see the same numbers."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import Histogram
from any2ds.core.metrics import HostLoad, Snapshot, WorkerMetrics
from any2ds.core.processes import resources
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.run.diagnosis import verdict

_RATE_WINDOW = 10.0  # seconds over which rates, latencies and the verdict are taken
_PACE_WINDOW = 120.0  # the same for the time left, and for all rates while only finished shards report
_SILENT = 10.0  # seconds without an event after which a worker counts as gone
_MOST_HOSTS = 5  # named


@dataclass(frozen=True, slots=True)
class Outlook:
    """How much there is to do, as far as the list has been read."""

    rows: int | None = None  # of the whole list, if known
    planned: int = 0  # rows that have become jobs, or were skipped because their shards were finished
    share_read: float | None = None  # 0 to 1 of the list that `planned` came from, if its rows are unknown
    passed_over: int = 0  # rows, planned or not, whose shards were finished before
    can_shuffle: bool = False  # the rows are in the order of the list, and another run could have them in another

    @property
    def expected(self) -> float | None:
        """Rows that this run has to do: counted, or estimated from the part that was read."""
        rows: float | None = self.rows
        if rows is None and self.share_read and self.planned:
            rows = self.planned / min(1.0, self.share_read)
        return None if rows is None else max(0.0, rows - self.passed_over)

    @property
    def is_read(self) -> bool:
        """Whether all rows of the list have become jobs."""
        return self.rows is not None and self.planned >= self.rows


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since the start of the run, which only grow: rows of a shard that is lost count each time they are done."""

    at: float  # seconds, of the clock
    rows: int = 0
    successes: int = 0
    attempts: int = 0
    received: int = 0  # bytes


@dataclass(frozen=True, slots=True)
class Rates:
    """What has been added to the Totals, per second."""

    rows: float
    successes: float
    attempts: float
    received: float

    @classmethod
    def between(cls, before: Totals, now: Totals) -> Rates:
        seconds = max(1e-3, now.at - before.at)
        names = ("rows", "successes", "attempts", "received")
        return cls(*((getattr(now, name) - getattr(before, name)) / seconds for name in names))


class _History:
    """Totals of the last `span` seconds, at least `step` seconds apart."""

    def __init__(self, first: Totals, span: float, step: float) -> None:
        self._kept = [first]
        self._span, self._step = span, step

    def rates(self, now: Totals) -> Rates:
        """Over the last `span` seconds, or since anything has happened."""
        kept = self._kept
        if not (now.rows or now.received):  # imports and first connections say nothing about the speed
            kept[:] = [now]
        while len(kept) > 1 and now.at - kept[1].at >= self._span:
            del kept[0]
        rates = Rates.between(kept[0], now)
        if now.at - kept[-1].at >= self._step:
            kept.append(now)
        return rates


class Monitor:
    """Takes events in one thread and snapshots in any.

    `open_shards` returns how many shards workers have been given, and not reported; `memory` that of this process.
    """

    def __init__(
        self,
        finished_shards: int = 0,
        outlook: Callable[[], Outlook] = Outlook,
        open_shards: Callable[[], int] = lambda: 0,
        clock: Callable[[], float] = time.monotonic,
        memory: Callable[[], int] = lambda: resources.memory(children=False),
    ) -> None:
        self._clock, self._outlook, self._open_shards, self._memory = clock, outlook, open_shards, memory
        self.is_stopping = False  # set once the run was asked to stop; the time left is unknown from then on
        self._lock = threading.Lock()
        self._started = clock()
        self._totals = Totals(self._started)
        self._live: Counter[str] = Counter()  # outcome -> rows, of Progress; fewer again where a shard is lost
        self._live_bytes = 0
        self._finished: Counter[str] = Counter()  # outcome -> rows, of finished shards
        self._finished_bytes = self._finished_attempts = 0
        self._before, self._shards_done, self._shards_failed = finished_shards, 0, 0
        self._workers: dict[str, tuple[float, WorkerMetrics]] = {}
        self._recent: deque[tuple[float, WorkerMetrics]] = deque()
        self._history = _History(self._totals, _RATE_WINDOW, 0.25)
        self._pace = _History(self._totals, _PACE_WINDOW, 2.0)

    def take(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Progress):
                self._add_progress(event)
            elif isinstance(event, ShardReport):
                self._shards_done += 1
                self._finished.update(event.status_dict)
                self._finished_bytes += event.bytes
                self._finished_attempts += event.attempts
            elif isinstance(event, ShardError):
                self._shards_failed += not event.again

    def _add_progress(self, event: Progress) -> None:
        totals, metrics = self._totals, event.metrics
        self._live.update(event.outcomes)
        self._live_bytes += event.bytes
        self._totals = replace(
            totals,
            rows=totals.rows + sum(max(0, count) for count in event.outcomes.values()),
            successes=totals.successes + max(0, event.outcomes.get(SUCCESS, 0)),
            attempts=totals.attempts + (metrics.attempts if metrics else 0),
            received=totals.received + (metrics.received if metrics else 0),
        )
        if metrics is not None:
            now = self._clock()
            self._workers[metrics.worker] = now, metrics
            self._recent.append((now, metrics))

    def snapshot(self) -> Snapshot:
        memory = self._memory()
        with self._lock:
            return self._snapshot(self._clock(), memory)

    def _snapshot(self, now: float, memory: int) -> Snapshot:
        self._forget(now)
        is_live = self._totals.rows > 0  # else rows are reported with their finished shards
        outcomes, size = (self._live, self._live_bytes) if is_live else (self._finished, self._finished_bytes)
        totals = Totals(
            now,
            self._totals.rows if is_live else outcomes.total(),
            self._totals.successes if is_live else outcomes[SUCCESS],
            max(self._totals.attempts, self._finished_attempts),
            max(self._totals.received, size),
        )
        rates, pace = self._history.rates(totals), self._pace.rates(totals)
        rates = rates if is_live or self._recent else pace
        workers, recent = [each for _, each in self._workers.values()], [each for _, each in self._recent]
        is_counted = resources.name() in self._workers  # a worker in this process
        outlook, hosts = self._outlook(), _worst_hosts(workers)
        limit = verdict(recent, hosts, outlook.is_read, outlook.can_shuffle)
        slowest = max((each.remaining for each in workers), default=0.0)
        share, eta = _progress(outlook.expected, max(0, outcomes.total()), pace.rows, slowest)
        latencies = Histogram()
        for each in recent:
            latencies.update(each.latencies)
        return Snapshot(
            seconds=now - self._started,
            outcomes={code: count for code, count in outcomes.most_common() if count > 0},
            bytes=max(0, size),
            received=totals.received,
            attempts=totals.attempts,
            rows_per_second=rates.rows,
            successes_per_second=rates.successes,
            attempts_per_second=rates.attempts,
            bytes_per_second=rates.received,
            latency_p50=latencies.quantile(0.5),
            latency_p95=latencies.quantile(0.95),
            in_flight=sum(each.in_flight for each in workers),
            window=sum(each.window for each in workers),
            queued=sum(each.queued for each in workers),
            workers=len(workers),
            memory=(0 if is_counted else memory) + sum(each.memory for each in workers),
            shards_open=self._open_shards(),
            shards_done=self._shards_done,
            shards_failed=self._shards_failed,
            shards_before=self._before,
            hosts=hosts,
            total_rows=None if outlook.rows is None else round(outlook.expected or 0),
            share=share,
            eta=None if self.is_stopping else eta,
            verdict=None if self.is_stopping else limit,
        )

    def _forget(self, now: float) -> None:
        """Drop workers that are silent, and metrics that are not recent any more."""
        for name in [name for name, (seen, _) in self._workers.items() if now - seen > _SILENT]:
            del self._workers[name]
        while self._recent and now - self._recent[0][0] > _RATE_WINDOW:
            self._recent.popleft()


def _progress(expected: float | None, rows: int, pace: float, slowest: float) -> tuple[float | None, float | None]:
    """The share that is done, and the seconds that the rest takes at `pace` rows per second, but at least `slowest`."""
    if expected is None:
        return None, None
    left = max(0.0, expected - rows)
    share = min(1.0, rows / expected) if expected else 1.0
    if not left:
        return share, 0.0
    return share, max(left / pace, slowest) if pace > 0 else slowest or None


def _worst_hosts(workers: Iterable[WorkerMetrics]) -> tuple[HostLoad, ...]:
    """The hosts that most rows wait for, over all workers."""
    total: dict[str, HostLoad] = {}
    for host in (host for metrics in workers for host in metrics.hosts):
        known = total.get(host.name, HostLoad(host.name, why=host.why))
        total[host.name] = replace(
            known,
            waiting=known.waiting + host.waiting,
            in_flight=known.in_flight + host.in_flight,
            limit=known.limit + host.limit,
        )
    return tuple(sorted(total.values(), key=lambda host: -host.waiting)[:_MOST_HOSTS])
