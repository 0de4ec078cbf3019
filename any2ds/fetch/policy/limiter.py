"""The number of transfers in flight with thread_count=auto: as many as raise goodput, found by trying.

A *step* is the time in which so many transfers may be in flight. At first each step doubles the size, and ends when
three quarters of its places have brought an answer, which takes about one round trip. The first step that does not
bring enough more goodput (answers and bytes per second) ends this start. From then on steps try a little more or fewer
than the best size: the stride grows with success, and after a failure it is halved and turned round. Such a step counts
answers only when those of the size before have come. A step that was not full proves nothing: something else is the
limit, the processor, the hosts or the end of the list.

Each transfer counts for the step in which it began. When that has lost more transfers than is usual, by failures or
because they hang, its size did *harm*: this size is not tried again for a while, which doubles each time.
"""

from __future__ import annotations

import math

from any2ds.core.failures import Failure
from any2ds.core.samples import Payload
from any2ds.fetch.policy.hosts import TIMEOUTS

FIRST = 32  # transfers; fewer only after trouble
LEAST = 8
MAX_CROWDED = 3  # attempts of one row that do not count because too many were in flight
# d log(goodput) / d log(size) from which more in flight is worth it: 1 where only latency counts, 0 on a plateau.
_WORTH = 0.2
_LEAST_STRIDE, _MOST_STRIDE = 0.2, math.log(3)  # of the logarithm of the size
_BYTES = 65536  # that are as good as another answer
_ANSWERS = 100  # that a step after the start should see
_SHORTEST, _LONGEST = 0.25, 4.0  # seconds of counting answers
_FULL = 0.25  # of the time, at least, for a step to measure its size; answers come in bursts
_LOSS, _PROVEN_LOSS = 0.05, 0.35  # share of lost transfers beyond the usual that is harm; at a size that did none
_SURE = 3.5  # standard deviations
_DOUBT = 2.0  # standard deviations, for a failure to be excused
_CAP, _AFTER_HARM = 0.8, 0.6  # of the size that did harm: what is tried at most, and at first
_HOLD = (4.0, 160.0)  # seconds for which no more is tried, doubling each time
_REMEMBERED = 20.0  # seconds after that in which harm is harm again
_LATE = 5.0  # mean latencies after which an answer is not expected any more; a second at least
_HOPELESS = 2.5  # times that without any answer, after which the size is to blame
_TICK = 0.1  # seconds between two looks at the steps before


class Step:
    """The transfers that were begun while `size` might be in flight, and how many of them have ended."""

    def __init__(self, size: int, now: float) -> None:
        self.size, self.began = size, now
        self.started = self.answered = self.failed = 0
        self.ended = math.inf
        self.is_judged = False
        self.is_usual = False  # no more transfers were lost than usual
        self.is_harmful = False  # `size` was too much

    @property
    def in_flight(self) -> int:
        return self.started - self.answered - self.failed


class Limiter:
    """`size` transfers may be in flight, never more than `ceiling`. Times are seconds of a clock that is handed in.

    An attempt keeps the `step` in which it is started and counts there in `started`; its outcome goes to `ended`.
    """

    def __init__(self, ceiling: int, now: float = 0.0) -> None:
        self._ceiling = max(1, ceiling)
        self._best = min(FIRST, self._ceiling)
        self._best_goodput = 0.0  # 0: not measured
        self._is_starting = True
        self._stride, self._is_up = math.log(2), True
        self._latency = 0.2  # mean seconds of an answer; a guess at first
        self._losses, self._usual_loss = 0, 0.0  # how many shares of lost transfers are known, and their mean of late
        self._proven = self._best  # the largest size without harm
        self._cap, self._cap_until, self._hold = math.inf, -math.inf, _HOLD[0]
        self._harmed_at = -math.inf
        self._now = self._heard = self._tick = now
        self._signs = (0, 0)  # of life: outcomes and bytes
        self._outcomes = 0
        self._before: list[Step] = []  # with transfers in flight
        self._spare = 0  # places for transfers that hang
        self.step = Step(0, now)
        self._begin(now, self._best)

    @property
    def size(self) -> int:
        return min(self.step.size + self._spare, self._ceiling)

    def ended(self, step: Step, outcome: Payload | Failure) -> None:
        """A transfer that was started in `step` has come to its end."""
        self._outcomes += 1
        if isinstance(outcome, Payload):
            self._answers += 1
            self._seconds += outcome.seconds
        is_lost = isinstance(outcome, Failure) and outcome.transient  # another failure is a matter of this file
        step.failed += is_lost
        step.answered += not is_lost

    def excuses(self, step: Step, failure: Failure) -> bool:
        """Whether too many transfers in flight likely caused a failure, which `ended` has counted already. A timeout
        takes too long to repeat on a suspicion."""
        if step.size <= self._proven or not failure.transient or not self._losses:
            return False
        expected = self._usual_loss * step.started
        is_suspect = failure.code not in TIMEOUTS and step.failed > expected + _DOUBT * math.sqrt(expected)
        return step.is_harmful or is_suspect

    def turn(self, now: float, in_flight: int, received: int, spared: int = 0) -> None:
        """To be called often, with what is in flight after all has been started that may be, and the bytes received
        ever. Of the transfers `spared` wait for silent hosts and do not count."""
        passed, self._now = now - self._now, now
        if now >= self._tick:
            self._tick = now + _TICK
            self._judge_steps(now, spared)
        step, is_full = self.step, in_flight - spared >= self.size
        if (signs := (self._outcomes, received)) != self._signs or not is_full:
            self._signs, self._heard = signs, now
        silence = now - self._heard
        if silence > self._late and self._heard < self._harmed_at:
            self._cap_until = now + self._hold  # counts from when there are answers again
        elif silence > _HOPELESS * self._late or (self._losses and self._is_loss(step, step.failed)):
            self._harm(step.size, now)
        elif silence > _LATE * self._latency + _SHORTEST and step.began <= self._heard:
            self._is_up = True  # files that hang may have taken all places
            self._begin(now, self._best)
        else:
            self._full += passed * is_full
            self._look_at_round(now, received)

    @property
    def _late(self) -> float:
        """Seconds after which an answer is not expected any more."""
        return max(1.0, _LATE * self._latency)

    def _begin(self, now: float, size: int) -> None:
        self._before.append(self.step)
        self.step.ended = now
        self.step = Step(size, now)
        self._is_settling = not self._is_starting
        self._begin_round(now, self._signs[1], max(0.02, 1.1 * self._latency) if self._is_settling else 0.0)

    def _begin_round(self, now: float, received: int, seconds: float) -> None:
        """Count answers anew, for at least so many seconds."""
        self._since, self._received, self._until = now, received, now + min(seconds, _LONGEST)
        self._answers, self._seconds, self._full = 0, 0.0, 0.0

    def _look_at_round(self, now: float, received: int) -> None:
        if now < self._until:
            return
        if self._is_settling:
            self._is_settling = False
            # Whole latencies: answers often come in waves, and each step should see as many of them.
            waves = math.ceil(max(_SHORTEST / self._latency, _ANSWERS / self.step.size))
            self._begin_round(now, received, waves * self._latency)
            return
        enough = self.step.size * (0.75 if self._is_starting else 0.5)
        if self._answers >= enough or (now >= self._since + _LONGEST and (self._answers or received > self._received)):
            self._end_step(now, received)

    def _end_step(self, now: float, received: int) -> None:
        """Learn from the step, and begin the next one."""
        step, seconds = self.step, max(now - self._since, 1e-9)
        if self._answers:
            self._latency = max(1e-3, self._seconds / self._answers)
        if not self._losses:
            self._note_loss(step.failed / max(1, step.answered + step.failed))
        goodput = (self._answers + (received - self._received) / _BYTES) / seconds
        if self._full < _FULL * seconds:
            self._best_goodput = 0.0
            self._begin(now, self._best)
        elif step.size == self._best:
            self._best_goodput = goodput
            self._try(now)
        elif math.log(goodput / self._best_goodput) > _WORTH * math.log(step.size / self._best):
            self._best, self._best_goodput = step.size, goodput
            if not self._is_starting:
                self._stride = min(2 * self._stride, _MOST_STRIDE)
            self._try(now)
        else:
            self._is_starting = False
            self._stride, self._is_up = max(self._stride / 2, _LEAST_STRIDE), not self._is_up
            self._begin(now, self._best)

    def _try(self, now: float) -> None:
        """Begin a step with more or fewer transfers than the best, or as many where harm forbids more for now."""
        most = int(min(self._ceiling, self._cap if now < self._cap_until else math.inf))
        least = min(LEAST, self._ceiling)
        if self._best >= self._ceiling if self._is_up else self._best <= least:
            self._stride, self._is_up = _LEAST_STRIDE, not self._is_up
        size = round(self._best * math.exp(self._stride if self._is_up else -self._stride))
        self._begin(now, max(least, min(size, most)))

    def _judge_steps(self, now: float, spared: int) -> None:
        """Look at the steps before: transfers that hang do not count, if no more do than usual: their files hang."""
        for step in self._before:
            if step.is_judged or (step.in_flight and step.ended + self._late > now):
                continue
            step.is_judged = True
            if step.is_harmful or not step.started:
                continue
            lost, expected = step.started - step.answered, self._usual_loss * step.started
            if step.began >= self._harmed_at and self._is_loss(step, lost):
                self._harm(step.size, now)
                continue
            step.is_usual = not self._losses or lost <= expected + _SURE * math.sqrt(expected)
            if step.is_usual:
                self._proven = max(self._proven, step.size)
            self._note_loss(lost / step.started)
        self._before = [step for step in self._before if step.in_flight or not step.is_judged]
        hanging = sum(step.in_flight for step in self._before if step.is_usual)
        self._spare = max(0, hanging - spared) if now > self._cap_until else 0

    def _note_loss(self, share: float) -> None:
        self._losses += 1
        self._usual_loss += max(0.3, 1 / self._losses) * (share - self._usual_loss)

    def _is_loss(self, step: Step, lost: int) -> bool:
        usual = self._usual_loss * step.started
        margin = _LOSS if step.size > self._proven else _PROVEN_LOSS
        return lost - usual > max(5.0, _SURE * math.sqrt(lost + usual), margin * step.started)

    def _harm(self, size: int, now: float) -> None:
        """Stay well below `size` for a while, and for longer each time."""
        self._is_starting = False
        is_repeated = now < self._cap_until + _REMEMBERED
        self._hold = min(2 * self._hold, _HOLD[1]) if is_repeated else _HOLD[0]
        self._harmed_at, self._cap, self._cap_until = now, _CAP * size, now + self._hold
        self._best = max(min(LEAST, self._ceiling), min(self._best, int(_AFTER_HARM * size)))
        self._best_goodput, self._stride, self._is_up = 0.0, 2 * _LEAST_STRIDE, True
        self._proven = min(self._proven, self._best)
        for step in (self.step, *self._before):
            step.is_harmful = step.is_harmful or step.size > self._best
        self._begin(now, self._best)
