"""Adds up the events of workers into a Snapshot, so that all reporters see the same numbers."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import Histogram
from any2ds.core.metrics import HostLoad, Snapshot, WorkerMetrics
from any2ds.core.processes import resources
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.run.diagnosis import verdict

_RATE_WINDOW = 10.0  # seconds over which rates are taken, and the verdict is
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
class _Totals:
    """What only grows; or, of the difference of two, the rates per second."""

    at: float
    rows: float = 0
    successes: float = 0
    attempts: float = 0
    received: float = 0

    def rates_since(self, other: _Totals) -> _Totals:
        span = max(1e-3, self.at - other.at)
        return _Totals(
            self.at,
            (self.rows - other.rows) / span,
            (self.successes - other.successes) / span,
            (self.attempts - other.attempts) / span,
            (self.received - other.received) / span,
        )


class _History:
    """Totals over the last `span` seconds, at least `step` apart, and the last ones before."""

    def __init__(self, first: _Totals, span: float, step: float) -> None:
        self._kept = [first]
        self._span, self._step = span, step

    def rates(self, now: _Totals) -> _Totals:
        """Over that time, or since anything has happened."""
        kept = self._kept
        if not (now.rows or now.received):  # imports and first connections say nothing about the speed
            kept[:] = [now]
        while len(kept) > 1 and now.at - kept[1].at >= self._span:
            del kept[0]
        rates = now.rates_since(kept[0])
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
        self._started = self._turned = clock()
        self._lock = threading.Lock()
        self._outcomes: Counter[str] = Counter()  # from Progress
        self._reported: Counter[str] = Counter()  # from finished shards
        self._is_live = False  # whether rows are reported before their shard is finished
        self._bytes = self._bytes_reported = 0
        self._rows = self._successes = 0  # ever reported, those of shards included that were lost and are made again
        self._received = self._attempts = self._attempts_reported = 0
        self._shards_done = self._shards_failed = 0
        self._before = finished_shards
        self._workers: dict[str, tuple[float, WorkerMetrics]] = {}
        self._recent: deque[tuple[float, WorkerMetrics]] = deque()
        self._latencies = [Histogram(), Histogram()]  # of the present window, and of the one before
        self._history = _History(_Totals(self._started), _RATE_WINDOW, 0.25)
        self._pace = _History(_Totals(self._started), _PACE_WINDOW, 2.0)

    def take(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Progress):
                self._outcomes.update(event.outcomes)
                self._is_live = self._is_live or any(event.outcomes.values())
                self._rows += sum(max(0, count) for count in event.outcomes.values())
                self._successes += max(0, event.outcomes.get(SUCCESS, 0))
                self._bytes += event.bytes
                if event.metrics is not None:
                    self._take_metrics(event.metrics)
            elif isinstance(event, ShardReport):
                self._shards_done += 1
                self._reported.update(event.status_dict)
                self._bytes_reported += event.bytes
                self._attempts_reported += event.attempts
            elif isinstance(event, ShardError):
                self._shards_failed += not event.again

    def _take_metrics(self, metrics: WorkerMetrics) -> None:
        now = self._clock()
        self._workers[metrics.worker] = now, metrics
        self._recent.append((now, metrics))
        self._received += metrics.received
        self._attempts += metrics.attempts
        self._latencies[0].update(metrics.latencies)

    def snapshot(self) -> Snapshot:
        memory = self._memory()
        with self._lock:
            return self._snapshot(self._clock(), memory)

    def _snapshot(self, now: float, memory: int) -> Snapshot:
        self._forget(now)
        live = self._is_live
        outcomes, size = (self._outcomes, self._bytes) if live else (self._reported, self._bytes_reported)
        totals = _Totals(
            now,
            self._rows if live else outcomes.total(),
            self._successes if live else outcomes[SUCCESS],
            max(self._attempts, self._attempts_reported),
            max(self._received, size),
        )
        recent, pace = self._history.rates(totals), self._pace.rates(totals)
        rates = recent if live or self._recent else pace
        workers = [metrics for _, metrics in self._workers.values()]
        is_counted = resources.name() in self._workers  # a worker in this process
        memory = (0 if is_counted else memory) + sum(each.memory for each in workers)
        latencies = self._latencies[0] + self._latencies[1]
        outlook, hosts = self._outlook(), _worst_hosts(workers)
        limit = verdict([each for _, each in self._recent], hosts, outlook.is_read, outlook.can_shuffle)
        slowest = max((each.remaining for each in workers), default=0.0)
        share, eta = _progress(outlook.expected, max(0, outcomes.total()), pace.rows, slowest)
        return Snapshot(
            seconds=now - self._started,
            outcomes={code: count for code, count in outcomes.most_common() if count > 0},
            bytes=max(0, size),
            received=int(totals.received),
            attempts=int(totals.attempts),
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
            memory=memory,
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
        """Drop what is too old."""
        for name in [name for name, (seen, _) in self._workers.items() if now - seen > _SILENT]:
            del self._workers[name]
        while self._recent and now - self._recent[0][0] > _RATE_WINDOW:
            self._recent.popleft()
        if now - self._turned >= _RATE_WINDOW:
            is_long_ago = now - self._turned >= 2 * _RATE_WINDOW
            self._latencies = [Histogram(), Histogram() if is_long_ago else self._latencies[0]]
            self._turned = now


def _progress(expected: float | None, rows: int, pace: float, slowest: float) -> tuple[float | None, float | None]:
    """The share that is done, and the seconds that the rest takes at `pace` rows per second, but at least `slowest`."""
    if expected is None:
        return None, None
    left = max(0.0, expected - rows)
    share = min(1.0, rows / expected) if expected else 1.0
    if not left:
        return share, 0.0
    return share, max(left / pace, slowest) if pace > 0 else slowest or None


def _worst_hosts(workers: list[WorkerMetrics]) -> tuple[HostLoad, ...]:
    """The hosts that most rows wait for, over all workers."""
    found: dict[str, HostLoad] = {}
    for metrics in workers:
        for host in metrics.hosts:
            if (known := found.get(host.name)) is None:
                found[host.name] = host
            else:
                found[host.name] = replace(
                    known,
                    waiting=known.waiting + host.waiting,
                    in_flight=known.in_flight + host.in_flight,
                    limit=known.limit + host.limit,
                )
    return tuple(sorted(found.values(), key=lambda host: -host.waiting)[:_MOST_HOSTS])
