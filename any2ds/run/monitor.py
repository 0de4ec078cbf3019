"""Adds up what workers tell while they are at it, so that everybody who watches sees the same figures."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import Histogram
from any2ds.core.metrics import HostLoad, Snapshot, Vitals
from any2ds.core.processes import memory_use
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.run.diagnosis import verdict

_RATE_WINDOW = 10.0  # seconds over which rates are taken, and what limits is judged
_PACE_WINDOW = 120.0  # the same for the time that is left, and where nothing is told before a shard is finished
_SILENT = 10.0  # seconds without a word after which a worker counts as gone
_HOSTS = 5  # named


@dataclass(frozen=True, slots=True)
class Outlook:
    """How much there is to do, as far as the list has been looked into."""

    rows: int | None = None  # of the whole list, where it is known
    planned: int = 0  # rows that have become jobs, or were passed over because their shards were finished
    share_read: float | None = None  # 0 to 1 of the list that gave them, where its rows are not known
    passed_over: int = 0  # rows, planned or not, whose shards were finished before

    @property
    def expected(self) -> float | None:
        """Rows that this run has to do: counted, or reckoned from what the list has brought so far."""
        whole: float | None = self.rows
        if whole is None and self.share_read and self.planned:
            whole = self.planned / min(1.0, self.share_read)
        return None if whole is None else max(0.0, whole - self.passed_over)

    @property
    def is_read(self) -> bool:
        """Whether all rows of the list have become jobs."""
        return self.rows is not None and self.planned >= self.rows


@dataclass(frozen=True, slots=True)
class _Figures:
    """What only grows; rates are taken from two of them."""

    at: float
    rows: int = 0
    successes: int = 0
    attempts: int = 0
    received: int = 0

    def per_second_since(self, other: _Figures) -> _Rates:
        span = max(1e-3, self.at - other.at)
        return _Rates(
            (self.rows - other.rows) / span,
            (self.successes - other.successes) / span,
            (self.attempts - other.attempts) / span,
            (self.received - other.received) / span,
        )


@dataclass(frozen=True, slots=True)
class _Rates:
    rows: float
    successes: float
    attempts: float
    received: float


class _History:
    """Figures over the last `span` seconds, no closer together than `step`, and the last ones before."""

    def __init__(self, first: _Figures, span: float, step: float) -> None:
        self._found = [first]
        self._span, self._step = span, step

    def rates(self, now: _Figures) -> _Rates:
        """Over that time, or since anything has happened."""
        found = self._found
        if not (now.rows or now.received):  # imports, and the first connections, tell nothing of how it goes
            found[:] = [now]
        while len(found) > 1 and now.at - found[1].at >= self._span:
            del found[0]
        rates = now.per_second_since(found[0])
        if now.at - found[-1].at >= self._step:
            found.append(now)
        return rates


class Monitor:
    """Takes events in one thread; `snapshot` may be asked for in another. `memory` tells that of this process."""

    def __init__(
        self,
        finished_shards: int = 0,
        outlook: Callable[[], Outlook] = Outlook,
        clock: Callable[[], float] = time.monotonic,
        memory: Callable[[], int] = lambda: memory_use.memory(children=False),
    ) -> None:
        self._clock, self._outlook, self._memory = clock, outlook, memory
        self._started = self._turned = clock()
        self._lock = threading.Lock()
        self._outcomes: Counter[str] = Counter()  # from Progress
        self._reported: Counter[str] = Counter()  # from finished shards
        self._is_live = False  # rows are told before their shard is finished
        self._bytes = self._bytes_reported = 0
        self._rows = self._successes = 0  # ever told, those of shards included that were lost and are made again
        self._received = self._attempts = self._attempts_reported = 0
        self._shards_done = self._shards_failed = 0
        self._before = finished_shards
        self._workers: dict[str, tuple[float, Vitals]] = {}
        self._recent: deque[tuple[float, Vitals]] = deque()
        self._latencies = [Histogram(), Histogram()]  # of the present spell, and of the one before
        self._history = _History(_Figures(self._started), _RATE_WINDOW, 0.25)
        self._pace = _History(_Figures(self._started), _PACE_WINDOW, 2.0)

    def take(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Progress):
                self._outcomes.update(event.outcomes)
                self._is_live = self._is_live or any(event.outcomes.values())
                self._rows += sum(max(0, count) for count in event.outcomes.values())
                self._successes += max(0, event.outcomes.get(SUCCESS, 0))
                self._bytes += event.bytes
                if event.vitals is not None:
                    self._take_vitals(event.vitals)
            elif isinstance(event, ShardReport):
                self._shards_done += 1
                self._reported.update(event.status_dict)
                self._bytes_reported += event.bytes
                self._attempts_reported += event.attempts
            elif isinstance(event, ShardError):
                self._shards_failed += not event.again

    def _take_vitals(self, vitals: Vitals) -> None:
        now = self._clock()
        self._workers[vitals.worker] = now, vitals
        self._recent.append((now, vitals))
        self._received += vitals.received
        self._attempts += vitals.attempts
        self._latencies[0].update(vitals.latencies)

    def snapshot(self) -> Snapshot:
        memory = self._memory()
        with self._lock:
            return self._snapshot(self._clock(), memory)

    def _snapshot(self, now: float, memory: int) -> Snapshot:
        self._forget(now)
        live = self._is_live
        outcomes, size = (self._outcomes, self._bytes) if live else (self._reported, self._bytes_reported)
        figures = _Figures(
            now,
            self._rows if live else outcomes.total(),
            self._successes if live else outcomes[SUCCESS],
            max(self._attempts, self._attempts_reported),
            max(self._received, size),
        )
        lately, pace = self._history.rates(figures), self._pace.rates(figures)
        rates = lately if live or self._recent else pace
        vitals = [vitals for _, vitals in self._workers.values()]
        if memory_use.name() not in self._workers:  # which has counted it
            memory += sum(each.memory for each in vitals)
        else:
            memory = sum(each.memory for each in vitals)
        latencies = self._latencies[0] + self._latencies[1]
        outlook, hosts = self._outlook(), _worst(vitals)
        # The last word of a worker may be older than the last reports of its shards.
        are_all_reported = outlook.is_read and self._reported.total() >= (outlook.expected or 0)
        share, eta = _progress(outlook.expected, max(0, outcomes.total()), pace.rows)
        return Snapshot(
            seconds=now - self._started,
            outcomes={code: count for code, count in outcomes.most_common() if count > 0},
            bytes=max(0, size),
            received=figures.received,
            attempts=figures.attempts,
            rows_per_second=rates.rows,
            successes_per_second=rates.successes,
            attempts_per_second=rates.attempts,
            bytes_per_second=rates.received,
            latency_p50=latencies.quantile(0.5),
            latency_p95=latencies.quantile(0.95),
            in_flight=sum(each.in_flight for each in vitals),
            window=sum(each.window for each in vitals),
            queued=sum(each.queued for each in vitals),
            workers=len(vitals),
            memory=memory,
            shards_open=0 if are_all_reported else sum(each.open_shards for each in vitals),
            shards_done=self._shards_done,
            shards_failed=self._shards_failed,
            shards_before=self._before,
            hosts=hosts,
            total_rows=None if outlook.rows is None else round(outlook.expected or 0),
            share=share,
            eta=eta,
            verdict=verdict([each for _, each in self._recent], hosts, outlook.is_read),
        )

    def _forget(self, now: float) -> None:
        """What is too old to tell of the present."""
        for name in [name for name, (seen, _) in self._workers.items() if now - seen > _SILENT]:
            del self._workers[name]
        while self._recent and now - self._recent[0][0] > _RATE_WINDOW:
            self._recent.popleft()
        if now - self._turned >= _RATE_WINDOW:
            is_long_ago = now - self._turned >= 2 * _RATE_WINDOW
            self._latencies = [Histogram(), Histogram() if is_long_ago else self._latencies[0]]
            self._turned = now


def _progress(expected: float | None, rows: int, pace: float) -> tuple[float | None, float | None]:
    """The share of the rows that is done, and the seconds that the rest takes at `pace` rows per second."""
    if expected is None:
        return None, None
    left = max(0.0, expected - rows)
    share = min(1.0, rows / expected) if expected else 1.0
    if not left:
        return share, 0.0
    return share, left / pace if pace > 0 else None


def _worst(workers: list[Vitals]) -> tuple[HostLoad, ...]:
    """The hosts that most rows wait for, over all workers."""
    found: dict[str, HostLoad] = {}
    for vitals in workers:
        for host in vitals.hosts:
            if (known := found.get(host.name)) is None:
                found[host.name] = host
            else:
                found[host.name] = replace(
                    known,
                    waiting=known.waiting + host.waiting,
                    in_flight=known.in_flight + host.in_flight,
                    limit=known.limit + host.limit,
                )
    return tuple(sorted(found.values(), key=lambda host: -host.waiting)[:_HOSTS])
