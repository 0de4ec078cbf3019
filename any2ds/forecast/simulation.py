"""Workers in virtual time: the loop, schedule, window, breaker, robots and shares of the engine, on a made-up network.

What is simulated is only what lies outside: how long each host takes, the line that all transfers share, and the
processor. The clock is turned from one event to the next, so that a run of hours takes seconds.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.errors import NetworkDown
from any2ds.core.failures import SUCCESS, Failure, http_failure
from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.fetch.engines.transport import Phases
from any2ds.fetch.feeder import ROWS_AHEAD
from any2ds.fetch.loop import Clock, Loop
from any2ds.fetch.policy.hosts import TIMEOUTS, Attempt
from any2ds.fetch.policy.robots import Robots
from any2ds.fetch.policy.rules import product_of
from any2ds.fetch.policy.schedule import Schedule, host_name, limits_of
from any2ds.fetch.policy.window import Window
from any2ds.fetch.profiles import Profiles

NEVER = 1e12  # seconds
_ROBOTS = http_failure(404)
_STATUS = "http_"
_MIDDLE = 0.4, 0.8  # shares of the rows
_TICK = 1e-4  # seconds that a turn without events takes at least


@dataclass(frozen=True, slots=True)
class Answer:
    """What a host does with one request."""

    seconds: float = 0.0  # until its last byte, on a line with room; NEVER for a host that is silent
    size: int = 0  # bytes of the body
    failure: Failure | None = None


Answers = Callable[[str, Row, int], Answer]
"""For a host, a row, and how many requests the host has at this moment, this one included: what it answers."""


def failure_of(code: str, retry_after: float | None = None) -> Failure:
    """A failure with that code, as the engine makes it."""
    status = code.removeprefix(_STATUS)
    return http_failure(int(status), None, retry_after) if status.isdigit() else Failure("fetch", code)


@dataclass(frozen=True, slots=True)
class Machine:
    """The share of a machine that one worker has."""

    line: float = float("inf")  # bytes per second
    cpu: float = 0.0  # seconds of the processor for each transfer, in the thread that drives the sockets
    workers: int = 1  # among which the limits of hosts are divided, this one included


@dataclass(frozen=True, slots=True)
class Simulated:
    """What became of the rows of a worker."""

    seconds: float
    codes: Counter[str] = field(default_factory=Counter)  # outcome code -> rows
    attempts: int = 0
    received: int = 0  # bytes
    most_in_flight: int = 0
    in_flight: float = 0.0  # on average
    asked: Counter[str] = field(default_factory=Counter)  # host -> requests, those for robots.txt included
    busy: float = 0.0  # seconds of the processor
    problem: str = ""  # why it broke off
    pace: float = 0.0  # rows per second in the middle: without the start, and the last rows that all wait for


class TurnedClock(Clock):
    """Time that passes when somebody says so."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Line:
    """A line that transfers share, in virtual time: each has a point of the service that it waits for.

    Its share is random, as TCP's is; were all equal, those that begin together would end together for ever, and leave
    the line idle in between.
    """

    def __init__(self, rate: float, rng: random.Random) -> None:
        self._rate, self._rng = rate, rng
        self._service = self._at = 0.0  # bytes that a transfer has got that was there from the start; when
        self._waiting: list[tuple[float, int, Attempt]] = []
        self._order = itertools.count()

    def add(self, attempt: Attempt, size: int, now: float) -> None:
        self._advance(now)
        heapq.heappush(self._waiting, (self._service + size * self._rng.uniform(0, 2), next(self._order), attempt))

    @property
    def next_end(self) -> float:
        if not self._waiting:
            return NEVER
        return self._at + max(0.0, self._waiting[0][0] - self._service) * len(self._waiting) / self._rate

    def ended(self, now: float) -> Iterator[tuple[float, Attempt]]:
        """Those that have all their bytes, each with the moment of its last one."""
        while self._waiting and (end := self.next_end) <= now:
            self._advance(end)
            yield end, heapq.heappop(self._waiting)[2]
        self._advance(now)

    def _advance(self, now: float) -> None:
        if self._waiting and now > self._at:
            self._service += (now - self._at) * self._rate / len(self._waiting)
        self._at = max(self._at, now)


class SimulatedNetwork:
    """The `Transport` of a simulation: passes the time while somebody polls."""

    backlog = 0
    waited = 0.0

    def __init__(self, answers: Answers, machine: Machine, buffer: Buffer, rng: random.Random) -> None:
        self.clock = TurnedClock()
        self.asked: Counter[str] = Counter()
        self.busy = 0.0
        self.most = 0
        self.area = 0.0  # transfers x seconds
        self._answers, self._machine, self._buffer = answers, machine, buffer
        self._at_once: Counter[str] = Counter()  # requests of a host, by which it answers
        self._line = Line(machine.line, rng)
        self._is_bounded = machine.line < float("inf")
        self._live: dict[Attempt, tuple[float, float, Answer]] = {}  # when it began, when its host is done
        self._events: list[tuple[float, int, Attempt]] = []
        self._order = itertools.count()

    def phases(self) -> Phases:
        return Phases()

    def expect(self, transfers: int) -> None:
        pass

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass

    def start(self, attempt: Attempt, url: str) -> None:
        host, now = host_name(url), self.clock.seconds
        self.asked[host] += 1
        self._at_once[host] += 1
        answer = self._answers(host, attempt.row, self._at_once[host])
        if attempt.asks:
            answer = Answer(answer.seconds, 0, answer.failure if answer.seconds >= NEVER else _ROBOTS)
        self._live[attempt] = now, now + answer.seconds, answer
        self.most = max(self.most, len(self._live))
        # The last bytes are those that have to share the line with others.
        alone = answer.size / self._machine.line if self._is_bounded else 0.0
        heapq.heappush(self._events, (now + max(0.0, answer.seconds - alone), next(self._order), attempt))

    def poll(self, wait: float) -> list[tuple[Attempt, Payload | Failure]]:
        now = self.clock.seconds
        first = min(self._events[0][0] if self._events else NEVER, self._line.next_end)
        then = max(now, min(first, now + max(wait, _TICK)))
        self._pass(then)
        ended: list[tuple[Attempt, Payload | Failure]] = []
        while True:
            event = self._events[0][0] if self._events else NEVER
            if min(event, self._line.next_end) > then:
                break
            if event <= self._line.next_end:
                _, _, attempt = heapq.heappop(self._events)
                self._answered(attempt, event, ended)
            else:
                for end, attempt in self._line.ended(self._line.next_end):
                    self._finish(attempt, end, ended)
        if ended:
            busy = len(ended) * self._machine.cpu
            self.busy += busy
            self._pass(then + busy)
        return ended

    def _pass(self, then: float) -> None:
        self.area += len(self._live) * (then - self.clock.seconds)
        self.clock.seconds = then

    def _answered(self, attempt: Attempt, at: float, ended: list[tuple[Attempt, Payload | Failure]]) -> None:
        if (live := self._live.get(attempt)) is None:
            return
        if self._is_bounded and live[2].size:
            self._line.add(attempt, live[2].size, at)
        else:
            self._finish(attempt, at, ended)

    def _finish(self, attempt: Attempt, at: float, ended: list[tuple[Attempt, Payload | Failure]]) -> None:
        if (live := self._remove(attempt)) is None:
            return
        began, _, answer = live
        self._buffer.received += answer.size
        ended.append((attempt, answer.failure or _payload(at - began)))

    def _remove(self, attempt: Attempt) -> tuple[float, float, Answer] | None:
        live = self._live.pop(attempt, None)
        if live is not None:
            self._at_once[host_name(attempt.url or attempt.row.url)] -= 1
        return live

    def received(self, attempt: Attempt) -> int:
        live = self._live.get(attempt)
        if live is None or live[1] >= NEVER:
            return 0
        began, end, answer = live
        return int(answer.size * min(1.0, (self.clock.seconds - began) / max(1e-9, end - began)))

    def cancel(self, attempt: Attempt) -> Failure:
        received = self.received(attempt)
        live = self._remove(attempt)
        if live is not None and live[2].failure is not None and live[2].failure.code in TIMEOUTS:
            return live[2].failure
        return Failure("fetch", "timeout_total", received=received)


def _payload(seconds: float) -> Payload:
    return Payload(body=None, media_type=None, http_status=200, final_url=None, seconds=seconds)  # type: ignore[arg-type]


class SimulatedFeeder:
    """Rows that are there at once, brought as the feeder does it."""

    waits = False

    def __init__(self, rows: Iterable[Row], schedule: Schedule, stock: int) -> None:
        self._rows = iter(rows)
        self._schedule, self.stock = schedule, stock
        self.exhausted = False
        self.refill()

    def refill(self) -> None:
        schedule = self._schedule
        fresh: deque[Row] = schedule.fresh
        if self.exhausted or len(fresh) >= self.stock or schedule.queued + schedule.deferred >= ROWS_AHEAD:
            return
        wanted = 2 * self.stock - len(fresh)
        before = len(fresh)
        fresh.extend(itertools.islice(self._rows, wanted))
        self.exhausted = len(fresh) - before < wanted


class SimulatedLoop(Loop):
    """The engine's loop by a clock that the network turns."""

    _transport: SimulatedNetwork

    def new_clock(self) -> Clock:
        return self._transport.clock


@contextmanager
def _silent() -> Iterator[None]:
    """What the breaker logs is about a network that is not there."""
    logger = logging.getLogger("any2ds.fetch.policy.breaker")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def simulate(
    options: FetchOptions, rows: Iterable[Row], answers: Answers, machine: Machine, seed: int = 0
) -> Simulated:
    """Fetch `rows` in one worker with these options. Reproducible: the same `seed` gives the same run."""
    rng = random.Random(seed)
    most = options.most_transfers
    profiles, robots = Profiles(options, machine.workers), None
    if options.robots != "ignore" or profiles.differ:
        robots = Robots(product_of(options.user_agent), options.robots, profiles.robots_policy, machine.workers)
    schedule = Schedule(
        limits_of(options, most),
        profiles.default.policy,
        rng,
        robots,
        profiles.host_of if profiles.tells_hosts_apart else None,
    )
    schedule.fetchers = machine.workers
    codes: Counter[str] = Counter()
    attempts, problem = 0, ""
    ended: list[tuple[float, int]] = []  # when, and how many rows
    with _silent(), closing(Buffer(options.max_buffered_bytes, most)) as buffer:
        network = SimulatedNetwork(answers, machine, buffer, rng)
        feeder = SimulatedFeeder(rows, schedule, most)
        loop = SimulatedLoop(options, schedule, network, buffer, feeder)  # type: ignore[arg-type]
        if loop._window is not None:
            loop._window = Window(most, 0.0, rng)
            feeder.stock = 256
        try:
            for batch in loop.run():
                if batch:
                    ended.append((network.clock.seconds, len(batch)))
                for done in batch:
                    attempts += done.attempts
                    codes[done.outcome.code if isinstance(done.outcome, Failure) else SUCCESS] += 1
        except NetworkDown as error:
            problem = str(error)
        seconds = network.clock.seconds
        return Simulated(
            seconds,
            codes,
            attempts,
            buffer.received,
            network.most,
            network.area / seconds if seconds else 0.0,
            network.asked,
            network.busy,
            problem,
            _pace(ended),
        )


def _pace(ended: Sequence[tuple[float, int]]) -> float:
    total = sum(rows for _, rows in ended)
    done, first = 0, (0.0, 0)
    for at, rows in ended:
        done += rows
        if done <= _MIDDLE[0] * total:
            first = at, done
        if done >= _MIDDLE[1] * total:
            return (done - first[1]) / (at - first[0]) if at > first[0] else 0.0
    return 0.0
