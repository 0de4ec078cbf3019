"""The limits of one host: transfers at once and the time between their starts, adapted to its answers.

How much it gets is up to its `Allowance`. A host that only ever lets us wait counts as down for a minute, so that
thousands of its rows cost no more time than a few; so does one that goes on to refuse everything.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from any2ds.core.failures import Failure
from any2ds.core.metrics import HostLoad
from any2ds.core.rows import Row
from any2ds.core.samples import Payload
from any2ds.fetch.policy.allowance import Allowance

if TYPE_CHECKING:
    from any2ds.fetch.policy.limiter import Step

UNLIMITED = 1_000_000  # transfers at once to a host; from here on nobody counts
FIRST_AT_ONCE = 16.0  # transfers at once to a host that nothing is known of, of all fetchers together
LEAST_FIRST = 2.0  # of each of many fetchers
BUSY = frozenset({"http_429", "http_503"})
TIMEOUTS = frozenset({"timeout_total", "timeout_stalled", "timeout_connect"})
_TROUBLE = BUSY | TIMEOUTS
SILENCE = 4  # timeouts without any answer after which a host counts as down
_SIGN_OF_LIFE = 1 << 16  # bytes: a transfer that brought so many was slow, and no silence
# Rounds of nothing but 429 and 503 that make it count as down: each after the wait that it asked for, or after pauses
# of ours, which take 62 s together: limits by the minute are usual.
_REFUSALS, _REFUSALS_UNASKED = 5, 10
_PAUSES = 5  # after which files that were refused while others were answered are refused for their own sake; 6 s
_AT_THE_SAME_TIME = 0.5  # seconds
_RETESTED = 3  # files in a row that were refused once and then answered
_DOWN = 60.0  # seconds until a host that is down is asked again
_FEW_TIMEOUTS = 3  # up to here they prove nothing
_MEMORY = 10.0  # seconds after which counts of answers and timeouts are halved


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """The limits of a host whatever it answers; the first two hold for all fetchers of this machine together."""

    max_per_host: int = UNLIMITED  # transfers at once
    host_delay: float = 0.0  # seconds between two starts
    max_retry_after: float = 120.0  # seconds; a host is left alone for no longer, and rows for which it asks more fail


class Slots(Protocol):
    """The keeper of the limits of hosts for several processes together (`fetch.host_slots`)."""

    def acquire(self, host: str, limit: int, delay: float) -> tuple[int | None, float]:
        """A slot, or None and the seconds until another try."""
        ...

    def release(self, slot: int) -> None: ...


class Host:
    """The state of one host. Times are those of the schedule's clock."""

    def __init__(self, name: str, policy: HostPolicy, first_at_once: float = FIRST_AT_ONCE) -> None:
        self.name = name
        self.queue: deque[Attempt] = deque()  # rows that wait for this host
        self.deferred = 0  # attempts that wait for their time, or for a judgement
        self.in_flight = 0
        self.not_before = 0.0  # when the next transfer may start
        self.in_turn = False  # the schedule has it in line
        self.down_until = 0.0  # until then it is not asked at all
        self.gated = False  # its rows are subject to robots.txt
        self.down_as: Failure | None = None  # the refusal for which it is not; None where it was silent
        self.silent = True  # it has not answered lately, or not after the last timeout
        self._retested = 0  # rows that it has answered, of those that it had refused when it refused everything
        self._answered_from = -math.inf  # when the last transfer was started that it has answered
        self._is_out = False  # it has refused a row that was first tried later, and answered none since
        self._silence = 0  # timeouts since its last answer
        self.woken_at = -1.0  # the pause after which the schedule looks at it again
        self.shared_until = 0.0  # until then other processes have its slots
        self.policy = policy
        self.is_limited = policy.max_per_host < UNLIMITED  # of all processes of this machine together
        self.min_interval = policy.host_delay  # seconds between two starts, of whichever process
        self._started = -math.inf  # when a transfer did last
        self.allowance = Allowance(first_at_once, float(policy.max_per_host))
        self._answers = self._timeouts = 0  # lately
        self._counted_from = 0.0

    @property
    def limit(self) -> int:
        """Transfers at once that it gets at present."""
        return max(1, int(self.allowance.size))

    @property
    def delay(self) -> float:
        """Seconds between two starts at present."""
        return max(self.min_interval, self.allowance.delay)

    @property
    def answers(self) -> bool:
        """Whether it has answered lately."""
        return self._answers > 0

    @property
    def has_slot(self) -> bool:
        return self.in_flight < self.allowance.size

    def line_up(self, attempt: Attempt) -> None:
        """Let a row, or a robots.txt, wait for its turn: behind the others, or in front of them.

        A server that makes each file when it is asked for may answer 503 in the meantime. So while everything is
        refused, a row that was is the next to be tried, and that does not count. Once some are answered in a row, all
        that were refused come first, and what is refused for the first time says nothing of the host.
        """
        others_are_first = bool(self.queue) and self.queue[0].was_refused
        is_tried = attempt.was_refused and 0 < self.allowance.fruitless < _PAUSES and not others_are_first
        if is_tried and not attempt.deferrals:  # which do not count anyway
            attempt.number = max(1, attempt.number - 1)
        if attempt.asks or is_tried or (attempt.was_refused and self._retested >= _RETESTED):
            self.queue.appendleft(attempt)
        else:
            self.queue.append(attempt)

    def may_start(self, now: float) -> bool:
        """Whether a transfer may start, as far as this process is concerned."""
        return self.in_flight < self.allowance.size and self.not_before <= now

    def wait_for_others(self, until: float) -> None:
        """Nothing starts before, because of what other processes do."""
        self.not_before = self.shared_until = until

    def raise_delay(self, seconds: float) -> None:
        """Start transfers at least so many seconds apart, because its robots.txt asks for it; also after that file."""
        if seconds > self.min_interval:
            self.min_interval = seconds
            self.not_before = max(self.not_before, self._started + seconds)

    def start(self, now: float) -> None:
        self.in_flight += 1
        self._started = max(self.not_before, now)
        if self.min_interval or self.allowance.size < 1:
            self.not_before = self._started + self.delay

    def learn(self, outcome: Payload | Failure, now: float, started: float, failed_from: float = math.inf) -> None:
        """Take into account how a transfer ended that was started at this time, and whose row failed first in one that
        was started at `failed_from`."""
        if (passed := now - self._counted_from) > _MEMORY:
            halvings = min(60, int(passed / _MEMORY))
            self._answers >>= halvings
            self._timeouts >>= halvings
            self._counted_from = now
        code = "" if isinstance(outcome, Payload) else outcome.code
        if isinstance(outcome, Payload) or code not in _TROUBLE:
            self._silence = 0
            self._answers += 1
            self.silent = False
            self._is_out = False
            is_retest = failed_from < started and (self._retested > 0 or self.allowance.fruitless > 0)
            self._retested = self._retested + 1 if is_retest else 0
            self._answered_from = max(self._answered_from, started)
            self.allowance.answered(now, started)
        elif code in TIMEOUTS:
            self._learn_timeout(outcome, now, started)
        else:
            self._learn_refusal(outcome, now, started, failed_from)

    def _learn_refusal(self, refusal: Failure, now: float, started: float, failed_from: float) -> None:
        allowance, asked = self.allowance, refusal.retry_after
        self._silence = 0
        if failed_from < started:
            self._retested = 0
        self.silent = not self._answers
        self._is_out = self._is_out or min(started, failed_from) > self._answered_from + _AT_THE_SAME_TIME
        is_bad_file = allowance.fruitless >= _PAUSES and not self._is_out
        if (is_bad_file or self._retested >= _RETESTED) and refusal.code == "http_503" and not asked:
            allowance.size = max(1.0, allowance.size)
            return  # it says nothing of the host
        pause = allowance.refused(now, started, refusal.code == "http_429", self.in_flight)
        if asked and (refusal.code == "http_429" or pause is not None):
            pause = asked  # one 503 among many answers asks for this file alone
        if pause:
            self.not_before = max(self.not_before, now + min(pause, self.policy.max_retry_after))
        if allowance.fruitless >= (_REFUSALS if asked else _REFUSALS_UNASKED):
            self.down_until, self.down_as = now + _DOWN, refusal

    def _learn_timeout(self, timeout: Failure, now: float, started: float) -> None:
        self._timeouts += 1
        self._silence = self._silence + 1 if timeout.received < _SIGN_OF_LIFE else 0
        if self._silence and not self._answers:
            self.allowance.limit_to(max(1.0, float(SILENCE - self._silence)))
            if self._silence >= SILENCE:
                self.down_until, self.down_as = now + _DOWN, None
        if self._timeouts > max(_FEW_TIMEOUTS, self._answers):
            self.allowance.timed_out(now, started, self.in_flight)
        self.silent = not self._answers or self._silence > 0

    @property
    def waiting(self) -> int:
        """Rows that wait for it, those included that are to be tried again later."""
        return len(self.queue) + self.deferred

    def load(self, now: float) -> HostLoad:
        return HostLoad(self.name, self.waiting, self.in_flight, self.limit, self._why(now))

    def seconds_left(self, now: float) -> float:
        """How long the rows that wait for it take at the present pace."""
        each = max(self.delay, self.allowance.latency / self.limit)
        return max(0.0, self.not_before - now) + self.waiting * each

    def _why(self, now: float) -> str:
        """Why rows wait for it, as text for users."""
        if self.down_until > now:
            return f"does not answer: it is asked again in {self.down_until - now:.0f} s"
        delay = self.delay
        if self.not_before > now and self.shared_until == self.not_before:
            return "other processes of this machine have all that --max_per_host or --host_delay allows"
        if self.not_before > now + max(1.0, delay):
            return f"asks us to come back in {self.not_before - now:.0f} s"
        if delay > self.min_interval:
            return f"refuses more: asked every {delay:.2g} s"
        if delay:
            return f"asked every {delay:.2g} s, as it or --host_delay wants it"
        if not self.queue:
            return "its rows are tried again later"
        if self.in_flight >= self.policy.max_per_host:
            return f"{self.policy.max_per_host} at once, by --max_per_host"
        return f"at most {self.limit} at once, by how well it answers"

    @property
    def proven(self) -> bool:
        """Whether it bears a good deal more than one that nothing is known of gets."""
        return self.allowance.size >= 2 * FIRST_AT_ONCE

    def forgettable(self, now: float) -> bool:
        """Whether nothing about it is worth keeping."""
        return not self.allowance.is_reduced and not self.busy and max(self.not_before, self.down_until) <= now

    @property
    def busy(self) -> bool:
        return bool(self.in_flight or self.queue or self.in_turn or self.deferred)


@dataclass(slots=True, eq=False)
class Attempt:
    """One try at one row, or at a robots.txt."""

    row: Row
    host: Host
    number: int = 1  # of attempts, this one included
    sent: int = 0  # how often it was started, whatever for
    deferrals: int = 0  # how often the host asked for it to come later
    excuses: int = 0  # how often it failed for reasons of ours
    was_refused: bool = False  # the last time that it was tried
    failed_from: float = math.inf  # when the first attempt was started, if it failed
    probe: bool = False  # only to see whether anything comes back; its row is none of the list
    started: float = 0.0  # by the schedule's clock, like the times below
    deadline: float = 0.0  # when its time may be up, unless bytes have come
    heard: float = 0.0  # when it was last seen to have more bytes
    received: int = 0  # bytes at that time
    paced: float = 0.0  # when it was last fast enough
    paced_size: int = 0  # bytes at that time
    is_stalled: bool = False
    running: bool = False
    url: str | None = None  # of the row, normalised, if somebody has done so
    asks: str = ""  # the origin whose robots.txt this is for; its row is none of the list
    claim: int | None = None  # the slot by which no other process asks for that file
    claimed_at: float | None = None  # when this process first tried to have it
    step: Step | None = None  # of the limiter, when it was started
    late: bool = False  # it waits for a silent host for longer than answers take
    slot: int | None = None  # of its host, while it is in flight
