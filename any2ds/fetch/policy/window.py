"""The number of transfers in flight with thread_count=auto: as many as raise goodput, found by trial.

It starts small and doubles while goodput nearly doubles, as TCP does. Then it tries a little less and a little more in
turn, in random order, and moves towards what is better: what both have in common (the hour, the hosts, the machine's
other work) cancels out. A window that is not full proves nothing: something else is the limit, the processor, the hosts
or the end of the list. More in flight must be worth it, so that on a plateau the window goes back to where that begins.
What did harm once is not tried again for a while.
"""

from __future__ import annotations

import math
import random
from collections import deque

from any2ds.core.failures import Failure
from any2ds.core.samples import Payload
from any2ds.fetch.policy.hosts import TIMEOUTS

FIRST = 32  # transfers; fewer only after trouble
LEAST = 8
MAX_CROWDED = 3  # attempts of one row that do not count because too many were in flight
_STEP = 0.12  # of the logarithm: the trials are 12 % below and above
# d log(goodput) / d log(in flight) from which more in flight is worth it: 1 where only latency counts, 0 on a plateau.
_WORTH = 0.1
_DOUBLING = 0.5  # the same for doubling at the start
_TRIPLING = 0.85
_GAIN = 0.5  # of the logarithm, per unit of the above
_MOST_AT_ONCE = math.log(2)
_MOST_PAIRS = 4  # of trials, before a decision that noise makes difficult is made all the same
_BYTES = 65536  # that are as good as another answer
_SETTLE = (0.02, 3.0)  # seconds, at least and at most, until a change of size shows in the answers
_TRIAL = (0.25, 4.0)  # seconds
_ANSWERS = 100  # that a trial should see
_FULL = 0.25  # of the time, at least, for a trial to measure the window; answers come in bursts
_FIRST_LATENCY = 0.2  # seconds, a guess until something has been answered
_HARM = 0.12  # a loss of goodput (of its logarithm) that counts as harm
_CAP = (4.0, 160.0)  # seconds for which what did harm is not tried, doubling each time
_REMEMBERED = 20.0  # seconds after that in which harm is harm again
_RAISE, _RAISE_EVERY = 0.05, 2.0  # after that, by how much (of the logarithm) and how often (seconds) more is tried
_BELOW_CAP = 0.1  # of the logarithm
_ALARM = 10  # failures of one trial that end it, if they are more than usual
_RESTART = 0.7  # with goodput growing so much with the window, it doubles again
_QUEUE = 2.5  # times the least latency of late; on a plateau, more means that most of it is waiting
_MOST_DOWN = 0.3  # of the logarithm, for such waiting
_SLOWER = 1.25  # times the latency that was expected: a trial began to count too early, and is repeated
_MOST_ANSWERED = 0.7  # of transfers: with fewer, those that hang count like the others
_SURE = 3.5  # standard deviations, before what hangs is taken for our own doing
_LATE = (1.0, 5.0)  # seconds and mean latencies after which an answer is not expected any more


def trial_seconds(latency: float, size: int, is_starting: bool) -> tuple[float, float]:
    """Seconds until a size of the window shows in the answers, and seconds of the trial that follows."""
    # Whole latencies: answers often come in waves, and each trial should see as many of them.
    waves = math.ceil(max(1.0, _TRIAL[0] / latency, _ANSWERS / size) / (2 if is_starting else 1))
    return min(max(1.1 * latency, _SETTLE[0]), _SETTLE[1]), min(waves * latency, _TRIAL[1])


class Trial:
    """One size and what became of the transfers that were started under it."""

    def __init__(self, size: int, high: bool) -> None:
        self.size = size
        self.high = high
        self.started = self.answered = self.bad = 0
        self.ended = 0.0  # when the next one began
        self.harmful = False  # so many were too many

    @property
    def in_flight(self) -> int:
        return self.started - self.answered - self.bad


class Window:
    """`size` transfers may be in flight, never more than `ceiling`. Times are seconds of a clock that is handed in.

    Whoever starts a transfer keeps the `trial` of that moment, counts it in `trial.started`, and hands it back with
    the outcome to `ended`. `turn` is called often.
    """

    def __init__(self, ceiling: int, now: float = 0.0, rng: random.Random | None = None) -> None:
        self._ceiling = max(1, ceiling)
        self._least = min(LEAST, self._ceiling)
        self._rng = rng or random.Random()
        self._center = math.log(min(FIRST, self._ceiling))
        self._starting = True
        self._before: tuple[float, float] | None = None  # log in flight and log goodput before doubling
        self._latencies: deque[float] = deque(maxlen=8)  # of the last trials
        self._latency = 0.0  # mean seconds of an answer; 0 while there is none
        self._has_answer = False  # ever
        self._usual_bad = 0.0  # share of failures
        self._bad_shares: deque[float] = deque(maxlen=8)  # of the last trials
        self._proven = FIRST  # transfers that did no harm, as far as is known
        self._direction = self._streak = 0
        self._doubted = False  # doubling did not help in the last trial
        self._repeated = False  # the trial is made for the second time
        self._plan: list[bool] = []  # trials to come of this pair: high or low
        self._measured_pair: dict[bool, tuple[float, float]] = {}  # of this pair: log in flight, log goodput
        self._pairs: list[tuple[float, float]] = []  # differences of these, since the last decision
        self._noise = 0.0025  # variance of the difference of log goodput within a pair
        self._cap = math.inf  # log of the size that did harm
        self._cap_until = 0.0
        self._cap_seconds = _CAP[0]
        self._raise = _RAISE
        self._seen = (-1, 0)  # answers and bytes
        self._stalled_at = self._harmed_at = -math.inf
        self._heard = now  # when these last changed
        self._ending: deque[Trial] = deque()  # trials with answers still to come
        self._shares = {True: (0.0, 0.0), False: (0.0, 0.0)}  # high or low: transfers without an answer and all, lately
        self._now = self._from = self._until = now  # of the last turn; from when a trial counts, and to when
        self._measured = self._area = self._full = 0.0  # seconds of that, transfers x seconds, seconds with no place
        self._answers = self._failures = self._received = 0  # in that time
        self._seconds = 0.0  # that these answers took
        self._hanging: list[Trial] = []  # trials with transfers that are late
        self._late_ones = 0  # of these, those that get other places
        self._spared = 0  # that the schedule does not count already
        self._bears_late_ones = True
        self._suspect_until = -math.inf  # until then those that hang are taken for our own doing
        self._tick = now
        self.trial = Trial(0, False)
        self._begin(now, min(FIRST, self._ceiling), False)

    @property
    def size(self) -> int:
        return min(self.trial.size + self._late_ones, self._ceiling)

    def ended(self, trial: Trial, outcome: Payload | Failure) -> None:
        """A transfer that was started under `trial` has come to its end."""
        if isinstance(outcome, Payload):
            trial.answered += 1
            self._has_answer = True
            self._answers += 1
            self._seconds += outcome.seconds
        elif outcome.transient:
            trial.bad += 1
            self._failures += 1
        else:  # a matter of this file
            trial.answered += 1

    def excuses(self, trial: Trial, failure: Failure) -> bool:
        """Whether too many transfers in flight likely caused a failure, which `ended` has counted already.

        The size must be larger than is proven to do no harm, and it did harm, or more fail than usual. A timeout
        takes too long to repeat on a suspicion."""
        if trial.size <= self._proven or not failure.transient or not self._has_answer:
            return False
        expected = min(self._bad_shares, default=1.0) * trial.started
        return trial.harmful or (failure.code not in TIMEOUTS and trial.bad > expected + 2 * math.sqrt(expected))

    def turn(self, now: float, in_flight: int, received: int, spared: int = 0) -> None:
        """What is in flight after all has been started that may be, and the bytes received ever. Of these transfers
        `spared` wait for silent hosts and do not count."""
        passed, self._now = now - self._now, now
        in_flight, self._spared = in_flight - spared, spared
        if now >= self._tick:
            self._tick = now + 0.1
            self._count_late(now)
        trial = self.trial
        new = trial.bad >= _ALARM and trial.bad > trial.started * (self._usual_bad + 0.35)
        if new and self._began >= self._harmed_at:
            self._alarm(now, in_flight)
            return
        if (seen := (self._answers, received)) != self._seen or in_flight < self.size:
            self._seen, self._heard = seen, now
        elif now - self._heard > self._late and (self._latency or trial.answered):
            self._stalled(now)
        if now < self._from:
            return
        if self._measured == 0.0:
            self._answers = self._failures = 0
            self._seconds = 0.0
            self._received = received
            passed = min(passed, now - self._from)
        self._measured += passed
        self._area += passed * max(1, in_flight - self._late_ones)
        if in_flight >= self.size:
            self._full += passed
        if now < self._until or (2 * self._answers < trial.size and now < self._from + _TRIAL[1]):
            return
        if not self._answers and received == self._received:
            return
        self._end(now, received)

    def _begin(self, now: float, size: int, high: bool) -> None:
        """A new trial. Its answers come only after a while, and are counted from then on."""
        if self.trial.started:
            self.trial.ended = now
            self._ending.append(self.trial)
        self.trial = Trial(size, high)
        self._began = now
        settle, seconds = trial_seconds(self._latency or _FIRST_LATENCY, size, self._starting)
        self._from = now + settle
        self._until = self._from + seconds
        self._measured = self._area = self._full = self._seconds = 0.0
        self._answers = self._failures = self._received = 0

    def _end(self, now: float, received: int) -> None:
        """The trial is over: learn from it, and begin the next."""
        expected = self._latency
        if self._answers:
            self._latency = max(1e-3, self._seconds / self._answers)
            self._latencies.append(self._latency)
        bad = self._failures / max(1, self._answers + self._failures)
        self._measured_bad(bad)
        if self._cap < math.inf and now > self._cap_until:  # a little more, then more of it
            self._cap = self._cap + self._raise if self._raise < 1 else math.inf
            self._raise *= 2
            self._cap_until = now + _RAISE_EVERY
        seconds = max(self._measured, 1e-9)
        good = (self._answers + (received - self._received) / _BYTES) / seconds
        in_flight = math.log(max(self._area / seconds, 1e-9))
        goodput = math.log(max(good, 1e-9)) + math.log(max(1.0 - bad, 1e-3))
        if self._full < _FULL * self._measured:
            self._forget()
            self._starting = self._starting and self._before is None
        elif expected and self._latency > _SLOWER * expected and not self._repeated:
            self._repeated = True
            self._begin(now, self.trial.size, self.trial.high)
            return
        elif self._starting:
            self._double(in_flight, goodput)
        else:
            self._compare(in_flight, goodput, now)
        self._repeated = False
        self._next(now)

    def _measured_bad(self, share: float) -> None:
        self._bad_shares.append(share)
        self._usual_bad += 0.3 * (share - self._usual_bad)

    def _forget(self) -> None:
        """Something else is the limit: drop what was measured."""
        self._measured_pair.clear()
        self._pairs.clear()
        self._plan.clear()

    def _double(self, in_flight: float, goodput: float) -> None:
        factor = 2.0
        if self._before is not None:
            more, better = in_flight - self._before[0], goodput - self._before[1]
            if more < 0.3:
                return
            if better < _DOUBLING * more:
                if better > -_HARM and not self._doubted:
                    self._doubted = True  # and repeated
                    return
                # Where goodput stopped to grow with what is in flight.
                self._starting = False
                self._center = min(self._center, self._before[0] + max(-_STEP, better))
                return
            factor = 3.0 if better > _TRIPLING * more else 2.0
        self._before = in_flight, goodput
        self._doubted = False
        self._center += math.log(factor)
        if self._center >= math.log(self._ceiling):
            self._starting = False

    def _compare(self, in_flight: float, goodput: float, now: float) -> None:
        self._measured_pair[self.trial.high] = in_flight, goodput
        if len(self._measured_pair) < 2:
            return
        (in_low, low), (in_high, high) = self._measured_pair[False], self._measured_pair[True]
        self._measured_pair.clear()
        if in_high - in_low < _STEP:
            return
        self._pairs.append((in_high - in_low, high - low))
        count = len(self._pairs)
        more = sum(pair[0] for pair in self._pairs) / count
        better = sum(pair[1] for pair in self._pairs) / count
        self._noise += 0.2 * (min(1.0, (high - low - better) ** 2) - self._noise) if count > 1 else 0.0
        slope, doubt = better / more, math.sqrt(self._noise / count) / more
        clear = abs(slope - _WORTH) >= doubt or (slope < _WORTH and self._queue > 1)
        if not clear and count < _MOST_PAIRS:
            return
        self._pairs.clear()
        if better < -_HARM and slope < -2 * doubt:
            self._harmed(in_high, now)
            return
        self._move(slope)
        if self._streak > 1 and slope - doubt > _WORTH and slope > _RESTART and self._cap == math.inf:
            self._starting = True
            self._before = in_high, high

    def _move(self, slope: float) -> None:
        step = _GAIN * min(max(slope - _WORTH, -1.5), 1.5)
        direction = 1 if step > 0 else -1
        self._streak = min(self._streak + 1, 4) if direction == self._direction else 1
        self._direction = direction
        step *= (1 + self._streak) / 2
        if step < 0 and self._queue > 1:
            step = min(step, -min(_MOST_DOWN, math.log(self._queue)))  # what waits in a queue somewhere is not missed
        center = self._center + min(max(step, -_MOST_AT_ONCE), _MOST_AT_ONCE)
        if slope > -2 * _WORTH:  # a plateau, not harm
            center = max(center, min(self._center, math.log(FIRST)))
        self._center = center

    @property
    def _queue(self) -> float:
        """More than 1 if most of the latency is not needed, by the last trials."""
        return self._latency / min(self._latencies, default=math.inf) / _QUEUE

    def _next(self, now: float) -> None:
        high = min(self._cap - _BELOW_CAP, math.log(self._ceiling))
        self._center = max(min(self._center, high - _STEP), math.log(self._least))
        if self._starting:
            self._begin(now, min(round(math.exp(self._center)), self._ceiling), False)
            return
        if not self._plan:
            self._plan = [True, False] if self._rng.random() < 0.5 else [False, True]
        above = self._plan.pop()
        size = round(math.exp(self._center + (_STEP if above else -_STEP)))
        self._begin(now, min(max(size, self._least if not above else self._least + 2), self._ceiling), above)

    def _alarm(self, now: float, in_flight: int) -> None:
        """Most of what this trial started fails, and that is new: no need to wait for its end."""
        share = self.trial.bad / max(1, self.trial.started)
        self._measured_bad(share)
        self._starting = False
        self._forget()
        self._harmed(math.log(max(1, min(self.size, in_flight))), now)
        self._next(now)

    def _stalled(self, now: float) -> None:
        """Nothing is answered. Files that hang may have taken all places: if so, a few others are answered."""
        if self._stalled_at < self._heard:
            self._stalled_at = now
            self._forget()
            self._begin(now, max(self._least, self.trial.size // 4), False)
        elif now - self._stalled_at > 1.5 * self._late:
            if self._harmed_at < self._stalled_at - self._late:
                self._starting = False
                self._harmed(self._center, now)
                self._center = min(self._center, self._cap - math.log(2))
                self._suspect_until = self._cap_until
            self._cap_until = now + self._cap_seconds  # counts from when there are answers again

    @property
    def _late(self) -> float:
        """Seconds after which an answer is not expected any more."""
        return max(_LATE[0], _LATE[1] * self._latency)

    def _harmed(self, size: float, now: float) -> None:
        """Stay well below `size` (a logarithm) for a while, and for longer each time."""
        is_repeated = now < self._cap_until + _REMEMBERED
        self._cap_seconds = min(2 * self._cap_seconds, _CAP[1]) if is_repeated else _CAP[0]
        self._harmed_at = now
        self._shares = {True: (0.0, 0.0), False: (0.0, 0.0)}
        self._cap, self._raise = size, _RAISE
        self._cap_until = now + self._cap_seconds
        self._center = min(self._center, size - 2 * _STEP)
        self._proven = min(self._proven, int(math.exp(self._center)))
        for trial in (self.trial, *self._ending, *self._hanging):
            trial.harmful = trial.harmful or math.log(trial.size) > self._center

    def _count_late(self, now: float) -> None:
        """Transfers that hang do not count, as long as others are answered: they are a matter of their files."""
        while self._ending and self._ending[0].ended + self._late < now:
            trial = self._ending.popleft()
            self._bears_late_ones = trial.answered >= _MOST_ANSWERED * trial.started
            self._hanging.append(trial)
            self._judge(trial, now)
        self._hanging = [trial for trial in self._hanging if trial.in_flight]
        trusted = self._bears_late_ones and now > self._suspect_until
        hanging = sum(trial.in_flight for trial in self._hanging) if trusted else 0
        self._late_ones = max(0, hanging - self._spared)

    def _judge(self, trial: Trial, now: float) -> None:
        """Whether more fail or hang with more in flight."""
        if trial.ended <= self._harmed_at:
            return
        lost, count = self._shares[trial.high]
        self._shares[trial.high] = 0.7 * lost + trial.started - trial.answered, 0.7 * count + trial.started
        (low, of_low), (high, of_high) = self._shares[False], self._shares[True]
        usual = low * of_high / of_low if of_low else high
        if trial.high and high - usual > max(4.0, _SURE * math.sqrt(high + usual)):
            self._harmed(math.log(trial.size), now)
            self._suspect_until = self._cap_until
