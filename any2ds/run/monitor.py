"""Adds up the events of workers into the figures of `progress`, so that all reporters see the same numbers."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import NamedTuple

from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import Histogram
from any2ds.core.metrics import HostLoad, WorkerMetrics
from any2ds.core.processes import resources
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.run.diagnosis import verdict
from any2ds.run.reporters._contract import Facts
from any2ds.run.reporters._facts import counts

_RATE_WINDOW = 10.0  # seconds of rates, latencies and the verdict; a worker that is silent for as long is gone
_PACE_WINDOW = 120.0  # seconds of the pace for the time left, and of all rates while only finished shards report
_STEP = 0.25  # seconds between two totals that are kept
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


class Totals(NamedTuple):
    """Sums since the start of the run, which only grow: rows of a shard that is lost count each time they are done."""

    at: float  # seconds, of the clock
    rows: int = 0
    successes: int = 0
    attempts: int = 0
    received: int = 0  # bytes


@dataclass(slots=True)
class _Tally:
    """Rows by outcome, and what only grows."""

    outcomes: Counter[str] = field(default_factory=Counter)  # of Progress: fewer again where a shard is lost
    bytes: int = 0  # of successes
    rows: int = 0
    successes: int = 0
    attempts: int = 0
    received: int = 0

    def add(self, outcomes: Mapping[str, int], size: int, attempts: int, received: int) -> None:
        self.outcomes.update(outcomes)
        self.bytes += size
        self.rows += sum(max(0, count) for count in outcomes.values())
        self.successes += max(0, outcomes.get(SUCCESS, 0))
        self.attempts += attempts
        self.received += received


class Monitor:
    """Takes events in one thread and tells the progress in any.

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
        self._live, self._finished = _Tally(), _Tally()  # of Progress; of finished shards, where that is all there is
        self._before, self._shards_done, self._shards_failed = finished_shards, 0, 0
        self._recent: deque[tuple[float, WorkerMetrics]] = deque()  # and when they came
        self._history = deque([Totals(self._started)])  # of the last two minutes

    def take(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Progress):
                metrics = event.metrics or WorkerMetrics("")
                self._live.add(event.outcomes, event.bytes, metrics.attempts, metrics.received)
                if event.metrics is not None:
                    self._recent.append((self._clock(), metrics))
            elif isinstance(event, ShardReport):
                self._shards_done += 1
                self._finished.add(event.status_dict, event.bytes, event.attempts, event.bytes)
            elif isinstance(event, ShardError):
                self._shards_failed += not event.again

    def progress(self) -> Facts:
        """The figures of `progress` in docs/watching.md; None for what is unknown.

        Rates are over the last seconds, totals over the run so far, gauges over all workers.
        """
        memory = self._memory()
        with self._lock:
            facts = self._figures(self._clock(), memory)
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in facts.items()}

    def _figures(self, now: float, memory: int) -> Facts:
        while self._recent and now - self._recent[0][0] > _RATE_WINDOW:
            self._recent.popleft()
        recent = [metrics for _, metrics in self._recent]
        workers = {metrics.worker: metrics for metrics in recent}  # the newest of each
        tally = self._live if self._live.rows else self._finished
        received = max(self._live.received, tally.received, tally.bytes)
        attempts = max(self._live.attempts, self._finished.attempts)
        totals = Totals(now, tally.rows, tally.successes, attempts, received)
        self._remember(totals)
        pace, *_ = self._rates(totals, _PACE_WINDOW)
        rates = self._rates(totals, _RATE_WINDOW if self._live.rows or recent else _PACE_WINDOW)
        latencies = Histogram()
        for metrics in recent:
            latencies.update(metrics.latencies)
        outlook, hosts = self._outlook(), _worst_hosts(workers.values())
        slowest = max((each.remaining for each in workers.values()), default=0.0)
        share, eta = _share_and_time_left(outlook.expected, max(0, tally.outcomes.total()), pace, slowest)
        limit = None if self.is_stopping else verdict(recent, hosts, outlook.is_read, outlook.can_shuffle)
        has_worker = resources.name() in workers  # in this process, whose memory it has counted
        outcomes = {code: count for code, count in tally.outcomes.most_common() if count > 0}
        return {
            "seconds": now - self._started,
            **counts(outcomes),
            "outcomes": outcomes,
            "bytes": max(0, tally.bytes),
            "received": received,
            "attempts": attempts,
            "rows_per_second": rates[0],
            "successes_per_second": rates[1],
            "attempts_per_second": rates[2],
            "bytes_per_second": rates[3],
            "latency_p50": latencies.quantile(0.5),
            "latency_p95": latencies.quantile(0.95),
            "in_flight": sum(each.in_flight for each in workers.values()),
            "window": sum(each.window for each in workers.values()),
            "queued": sum(each.queued for each in workers.values()),
            "workers": len(workers),
            "memory": (0 if has_worker else memory) + sum(each.memory for each in workers.values()),
            "shards_open": self._open_shards(),
            "shards_done": self._shards_done,
            "shards_failed": self._shards_failed,
            "shards_before": self._before,
            "total_rows": None if outlook.rows is None else round(outlook.expected or 0),
            "share": share,
            "eta": None if self.is_stopping else eta,
            "hosts": [asdict(host) for host in hosts],
            "limit": limit and limit[0],
            "limit_words": limit and limit[1],
        }

    def _remember(self, now: Totals) -> None:
        history = self._history
        if not (now.rows or now.received):  # imports and first connections say nothing about the speed
            self._history = deque([now])
        elif now.at - history[-1].at >= _STEP:
            history.append(now)
        while len(history) > 1 and now.at - history[1].at >= _PACE_WINDOW:
            history.popleft()

    def _rates(self, now: Totals, window: float) -> tuple[float, ...]:
        """Rows, successes, attempts and bytes per second over the last `window` seconds, or since anything happened."""
        before = max((each for each in self._history if now.at - each.at >= window), default=self._history[0])
        seconds = max(1e-3, now.at - before.at)
        return tuple((new - old) / seconds for new, old in zip(now[1:], before[1:], strict=True))


def _share_and_time_left(
    expected: float | None, rows: int, pace: float, slowest: float
) -> tuple[float | None, float | None]:
    """The share that is done, and the seconds that the rest takes at `pace` rows per second, but at least `slowest`."""
    if expected is None:
        return None, None
    left = max(0.0, expected - rows)
    if not left:
        return 1.0, 0.0
    return rows / expected, max(left / pace, slowest) if pace > 0 else slowest or None


def _worst_hosts(workers: Iterable[WorkerMetrics]) -> list[HostLoad]:
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
    return sorted(total.values(), key=lambda host: -host.waiting)[:_MOST_HOSTS]
