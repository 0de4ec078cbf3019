"""Turns of fetching: start what may start, move bytes, judge what ended. One loop for each call of `fetch`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from any2ds.config.options import FetchOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.failures import BROKEN_OFF, Failure
from any2ds.core.metrics import Traffic
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched, Payload
from any2ds.fetch.engines.transport import Phases, Transport
from any2ds.fetch.feeder import Feeder
from any2ds.fetch.policy.breaker import Breaker
from any2ds.fetch.policy.hosts import TIMEOUTS, Attempt, Host, HostPolicy
from any2ds.fetch.policy.limiter import MAX_CROWDED, Limiter
from any2ds.fetch.policy.open_files import OpenFiles
from any2ds.fetch.policy.schedule import Schedule
from any2ds.fetch.traffic import Cause, Meter
from any2ds.fetch.urls import normalize

log = logging.getLogger(__name__)

HEARTBEAT = 0.1  # seconds: the longest time without a yield
# Transfers begun per turn, and none while sockets wait to be read: when this process is what limits, more in flight
# would only make each wait longer, up to timeouts that no server has deserved.
_STARTS_PER_TURN = 32
_LEAST_STOCK = 256  # rows in reserve, with thread_count=auto
_PROBE_TIMEOUT = 10.0  # seconds, at least
# Seconds between two looks at the clock: what is longer is not held against the servers. A turn takes up to HEARTBEAT.
_LONGEST_TURN = HEARTBEAT + 0.25
_STOPPED = 2.0  # seconds without a look for which the process must have been stopped


class Loop:
    """Drives `transport` as `schedule` decides, until `feeder` has no more rows and all have their outcome."""

    def __init__(
        self, options: FetchOptions, schedule: Schedule, transport: Transport, buffer: Buffer, feeder: Feeder
    ) -> None:
        self._schedule, self._transport, self._buffer, self._feeder = schedule, transport, buffer, feeder
        self._clock = Clock()
        now = self._clock.now()
        self._breaker = Breaker(options.outage_patience, now)
        self._probes: list[Attempt] = []
        self._most = schedule.slots  # transfers that everything is prepared for
        self._limiter = Limiter(self._most, now) if options.thread_count == "auto" else None
        self._open_files = OpenFiles()
        self._slots, self._spare = schedule.slots, schedule.spare  # with enough open files
        self._meter = Meter()
        self.activity = 0  # of life: attempts begun and ended, and turns of a pause

    def run(self) -> Iterator[list[Fetched]]:
        schedule, breaker, clock, feeder = self._schedule, self._breaker, self._clock, self._feeder
        # `exhausted` is read first: rows that come in between are then seen by the schedule.
        while not (feeder.exhausted and schedule.idle and breaker.idle):
            if self._open_files.look(clock.now()):
                self._follow_open_files()
            if self._limiter is not None:
                self._follow(self._limiter)
            self.activity += schedule.shared_until > clock.now()
            begun, done = self._begin(clock.now())
            busy = bool(done or begun == _STARTS_PER_TURN)
            if (limiter := self._limiter) is not None:
                size = limiter.size
                limiter.turn(clock.now(), schedule.in_flight, self._buffer.received, schedule.spared)
                busy = busy or limiter.size > size  # more can be started at once
            # A row that is due but may not start would let it turn without end.
            is_held = breaker.holding or self._buffer.full
            wait = HEARTBEAT if is_held else schedule.wait(clock.now())
            feeder.refill()
            if busy:
                done += self._move(0.0)
            else:
                why, slept = self._why_no_more(), self._transport.waited
                done += self._move(min(HEARTBEAT, wait))
                self._meter.slept(why, self._transport.waited - slept)
            done += self._judge(clock.now())
            yield done

    def traffic(self) -> Traffic:
        schedule, meter, now = self._schedule, self._meter, self._clock.now()
        return meter.take(
            self._transport.phases() if meter.was_full else Phases(),
            in_flight=schedule.in_flight,
            window=schedule.slots,
            adapts=self._limiter is not None,
            queued=schedule.queued + schedule.deferred,
            backlog=meter.at_most_now_and_then(lambda: schedule.backlog(now)),
        )

    def _why_no_more(self) -> Cause:
        """The reason why no more transfers are started."""
        schedule, feeder = self._schedule, self._feeder
        if self._breaker.holding:
            return "network"
        if self._buffer.full:
            return "transforms" if self._buffer.paused else "bodies"
        if schedule.full:
            return "connections"
        if feeder.waits:
            return "rows"
        if schedule.queued or schedule.deferred or schedule.fresh:
            return "hosts"
        return "rows" if self._breaker.idle else "network"

    def _follow(self, limiter: Limiter) -> None:
        """Let everything that depends on how many may be in flight know it."""
        schedule = self._schedule
        schedule.slots = int(min(limiter.size, self._open_files.transfers))
        if (most := max(schedule.slots, schedule.in_flight)) != self._most:
            self._most = most
            self._transport.expect(most)
            self._buffer.share_among(most)
            self._feeder.stock = max(_LEAST_STOCK, most)

    def _follow_open_files(self) -> None:
        """Have no more transfers than sockets can be opened, whatever else would allow more."""
        schedule, possible = self._schedule, self._open_files.transfers
        schedule.spare = int(min(self._spare, possible // 2))
        schedule.slots = int(min(self._slots, possible - schedule.spare))
        self._transport.expect(max(schedule.slots + schedule.spare, schedule.in_flight))

    def _begin(self, now: float) -> tuple[int, list[Fetched]]:
        """Start what may start: how many attempts, and the rows that cannot even be tried."""
        schedule, transport, limiter = self._schedule, self._transport, self._limiter
        begun, done = 0, []
        most = _STARTS_PER_TURN
        if self._breaker.holding:
            most = self._breaker.try_one(now)
        if transport.backlog or self._buffer.full:  # neither changes by what is begun
            most = 0
        while begun < most and (attempt := schedule.next(now)) is not None:
            begun += 1
            url = attempt.url or normalize(attempt.row.url)
            if isinstance(url, str):
                if limiter is not None:
                    attempt.step = limiter.step
                    attempt.step.started += 1
                transport.start(attempt, url)
            elif fetched := schedule.finish(attempt, url, now):
                done.append(fetched)
        self.activity += begun
        done += schedule.given_up()
        return begun, done

    def _move(self, wait: float) -> list[Fetched]:
        """Move bytes for at most `wait` seconds if there are none: the rows that are done with."""
        schedule, breaker, limiter, meter = self._schedule, self._breaker, self._limiter, self._meter
        received = self._buffer.received
        ended = self._transport.poll(wait)
        now = self._clock.now()
        answered: list[Attempt] = []
        done = []
        is_short = False
        for attempt, outcome in chain(ended, self._overdue(now)):
            self.activity += 1
            if isinstance(outcome, Failure) and outcome.blame == "open_files":
                is_short = True
                self._postpone(attempt, now)
                continue
            if (
                isinstance(outcome, Failure)
                and outcome.code in BROKEN_OFF
                and attempt.started <= self._clock.stopped_at
            ):
                self._postpone(attempt, now)  # servers and libraries did not know that this process was stopped
                continue
            if isinstance(outcome, Payload) or outcome.answered:
                answered.append(attempt)
            if limiter is not None and attempt.step is not None:
                limiter.ended(attempt.step, outcome)
            if attempt.probe:
                self._probes.remove(attempt)
                continue
            meter.attempts += 1
            if isinstance(outcome, Payload):
                meter.seconds.append(outcome.seconds)
            elif breaker.doubts(attempt, outcome, now):
                schedule.suspend(attempt, now)
                continue
            elif self._is_crowd(attempt, outcome):
                schedule.suspend(attempt, now)
                schedule.excuse(attempt, now, outcome)
                continue
            if fetched := schedule.finish(attempt, outcome, now):
                done.append(fetched)
        last = next((attempt for attempt in reversed(answered) if is_web(attempt.row.url)), None)
        if last is not None or self._buffer.received > received:
            breaker.hear(now, last)
        if is_short:
            breaker.hear(now)  # who cannot ask proves no silence
            self._open_files.ran_out(now, schedule.in_flight)
            self._follow_open_files()
        elif ended:
            self._open_files.opened()
        return done

    def _postpone(self, attempt: Attempt, now: float) -> None:
        """Try again later what failed for a reason of this process, as if it had not been tried."""
        if attempt.probe:
            self._probes.remove(attempt)
            return
        if attempt.step is not None:
            attempt.step.started -= 1
        self._schedule.postpone(attempt, now)

    def _judge(self, now: float) -> Iterator[Fetched]:
        """Pause, probe or continue, as the breaker decides; yields rows whose failures are final now."""
        schedule, breaker = self._schedule, self._breaker
        more = breaker.idle or schedule.has_more or not self._feeder.exhausted
        breaker.look(now, schedule.in_flight, more)
        self.activity += breaker.paused
        for witness in breaker.probes(now):
            deadline = now + max(_PROBE_TIMEOUT, witness.patience)
            probe = Attempt(Row(-1, -1, "", witness.url), Host("", HostPolicy()), probe=True, deadline=deadline)
            self._probes.append(probe)
            self._transport.start(probe, str(normalize(witness.url)))
        for attempt, failure, is_excused in breaker.judged(now):
            if is_excused:
                schedule.excuse(attempt, now)
            elif self._is_crowd(attempt, failure):
                schedule.excuse(attempt, now, failure)
            elif fetched := schedule.finish(attempt, failure, now):
                yield fetched

    def _is_crowd(self, attempt: Attempt, failure: Failure) -> bool:
        """Whether an attempt failed because this process had too many in flight."""
        limiter, step = self._limiter, attempt.step
        if limiter is None or step is None or attempt.excuses >= MAX_CROWDED:
            return False
        if failure.code in TIMEOUTS and (attempt.excuses or not attempt.host.answers):
            return False  # a host that has not answered anybody hangs by itself, and each timeout takes long
        return limiter.excuses(step, failure)

    def _overdue(self, now: float) -> Iterator[tuple[Attempt, Failure]]:
        overdue = self._schedule.overdue(now, self._transport.received)
        for attempt in [*overdue, *(probe for probe in self._probes if probe.deadline <= now)]:
            failure = self._transport.cancel(attempt)
            yield attempt, replace(failure, code="timeout_stalled") if attempt.is_stalled else failure


def is_web(url: str | None) -> bool:
    """Whether an answer came over the network: a file of this machine proves nothing."""
    return url is not None and url.lstrip()[:4].lower() == "http"


class Clock:
    """Seconds that servers have had, which is not all of the time: while a consumer hangs on its disk, or the process
    is stopped (Ctrl-Z, a laptop asleep), nobody reads from the sockets, and a transfer should not fail for that."""

    stopped_at = -math.inf  # when the process went on last after it had been stopped

    def __init__(self) -> None:
        self._lost = 0.0
        self._looked = time.monotonic()

    def now(self) -> float:
        """To be asked several times a turn: of a longer time between two calls the rest does not count."""
        now = time.monotonic() - self._lost
        if (gap := now - self._looked - _LONGEST_TURN) > 0:
            self._lost += gap
            now -= gap
            if gap > _STOPPED:
                self.stopped_at = now
        self._looked = now
        return now
