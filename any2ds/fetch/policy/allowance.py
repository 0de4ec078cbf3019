"""How much one host is asked at a time: the number of transfers at once, found by its answers as TCP finds a window.

The allowance doubles per round trip until a good part of the answers are refusals (429 and 503) or timeouts; a few
among many are a matter of these files, or of a moment. Then it is cut, grows back quickly to a little less than what
did harm, and stays there for a second, or for twice as long as the last time if the trouble comes back. After that it
grows again, ever faster, so that a false alarm costs little. Where fewer requests only bring fewer answers, the
refusals have another reason: so many are usual from then on. Below 1 the allowance is the share of the time in which
a transfer is under way: a host that takes 20 requests a second and answers each in 10 ms gets 0.2, which is a start
every 50 ms. A host that refuses everything is left alone for a while that grows each time, and asked for one file then.

A state machine over a clock that is handed in.
"""

from __future__ import annotations

MOST_DELAY = 15.0  # seconds between two starts
# Seconds in which a host is left alone that answers nothing but refusals, and by how much they grow: by 2, a host that
# is out of order every other second might be met in its bad ones only.
_FIRST_PAUSE, _LONGER = 0.25, 1.8
_LIMITED = 0.1  # share of 429 from which a host is asked less: this status says that the rate is the reason
_UNAVAILABLE = 0.2  # the same with 503, which servers also answer for one file, or by chance
_DOUBTFUL = 0.05  # share of refusals from which it is not asked more
_LEAST_REFUSALS, _FEW_REFUSALS = 8, 3  # that prove anything while others are answered; where few are under way
_USEFUL = 0.9  # a cut was of use if at least so much of the answers is left; more than _HARMLESS, to which it grows
_MOST_USUAL = 0.8  # share of refusals that may be usual
_MEMORY = 100  # answers without trouble, after which they are counted anew
_HARMLESS = 0.8  # of what did harm
_HOLD, _LONGEST_HOLD = 1.0, 60.0  # seconds at that size, doubling when trouble comes back
_REMEMBERED, _ROUNDS_REMEMBERED = 10.0, 20  # seconds, or requests one after the other, in which trouble is the same
_FIRST_RISE = 0.05  # growth in a round trip beyond that; doubles with each
_LEAST_ROUND = 5  # answers that count as a round trip, where the allowance is smaller
_LATENCY = 0.1  # seconds, a guess until something was answered


class Allowance:
    """`size` transfers may be under way, at most `most`; below 1 with `delay` seconds between two starts."""

    def __init__(self, size: float, most: float) -> None:
        self.size, self.most = min(size, most), most
        self.fruitless = 0  # rounds of refusals without any answer in between
        self._is_outage = False  # there were none of these rounds for a while before
        self._refused_until = float("-inf")  # when the last of these rounds was
        self._latency = 0.0  # mean seconds of an answer; 0 while there is none
        self._rise = 0.0  # growth in a round trip beyond that
        self._grown = 0  # answers since it was last changed
        self._harmless = float("inf")  # up to here it grows quickly
        self._held_until, self._hold = float("-inf"), _HOLD
        self._yield = 0.0  # transfers under way that were answered well, at the last cut
        self._usual = 0.0  # share of refusals whatever it is asked
        self._count_from(float("-inf"))

    @property
    def latency(self) -> float:
        """Mean seconds of an answer; a guess until there is one."""
        return self._latency or _LATENCY

    @property
    def delay(self) -> float:
        """Seconds between two starts."""
        return 0.0 if self.size >= 1 else min(MOST_DELAY, self.latency / self.size)

    @property
    def is_reduced(self) -> bool:
        """Whether it has not grown back since its last cut."""
        return self.size < self.most and self._harmless < float("inf")

    @property
    def refuses_much(self) -> bool:
        """Whether refusals are a good part of the answers of late."""
        limited, refused = self._limited, self._refusals
        answers = self._answers + refused
        return limited > (_LIMITED + self._usual) * answers or refused > (_UNAVAILABLE + self._usual) * answers

    def answered(self, now: float, started: float) -> None:
        """A request that was started then got something else than a refusal."""
        self.fruitless = 0
        self._latency += (now - started - self._latency) * (0.1 if self._latency else 1.0)
        self._answers += started >= self._from
        if self._answers + self._refusals >= _MEMORY:
            self._usual = min(self._usual, self._refusals / _MEMORY)
            self._count_from(now)
        doubtful = (_DOUBTFUL + self._usual) * (self._answers + self._refusals)
        if self._refusals <= max(_FEW_REFUSALS, doubtful):
            self._grow(now)

    def _grow(self, now: float) -> None:
        gain = min(1.0, self.size)  # doubles it in a round trip
        if self.size < self._harmless:
            self.size = min(self.most, self._harmless, self.size + gain)
        elif now >= self._held_until:
            self.size = min(self.most, self.size + self._rise * gain)
            self._grown += 1
            if self._grown >= max(_LEAST_ROUND, self.size):
                self._grown, self._rise = 0, 2 * self._rise
                if self._rise > 1:
                    self._harmless = float("inf")

    def refused(self, now: float, started: float, is_limit: bool, in_flight: int) -> float | None:
        """Count a refusal, a 429 (`is_limit`) or a 503, of a request started then; `in_flight` others are under way.

        None if it changes nothing; otherwise the host is asked less from now on, and not at all for so many seconds.
        """
        if started < self._from:
            return None  # it tells of an earlier allowance
        self._limited += is_limit
        self._refusals += 1
        least = _FEW_REFUSALS if self.size <= 2 or not self._answers else _LEAST_REFUSALS
        is_proven = self._refusals >= least or (self.size <= 2 and not self._answers)
        if not (is_proven and self.refuses_much):
            return None
        if not self._answers:
            self.fruitless += 1
            if self.fruitless == 1:
                self._is_outage = now >= self._refused_until + _REMEMBERED
            self._refused_until = now
            if self.fruitless > 1 and self._is_outage:  # which says nothing of how much it bears: only the pause grows
                self.size = min(self.size, 1.0)
                self._count_from(now)
            else:
                self._cut(now, in_flight)
            return _FIRST_PAUSE * _LONGER ** (self.fruitless - 1)
        share = self._refusals / (self._answers + self._refusals)
        answered = min(self.size, in_flight + 1.0) * (1 - share)
        if self._is_repeated(now) and answered < _USEFUL * self._yield:
            self._usual = min(share, _MOST_USUAL)
            self._harmless = float("inf")
            self._count_from(now)
            self._yield = 0.0
            return None
        self._cut(now, in_flight)
        self._yield = answered
        return 0.0

    def timed_out(self, now: float, started: float, in_flight: int) -> None:
        """More requests time out than are answered."""
        if started >= self._from:
            self._cut(now, in_flight)
            self.size = max(1.0, self.size)

    def limit_to(self, size: float) -> None:
        self.size = min(self.size, size)

    def _is_repeated(self, now: float) -> bool:
        """Whether the last trouble was not long ago."""
        return now < self._held_until + max(_REMEMBERED, _ROUNDS_REMEMBERED * max(self.latency, self.delay))

    def _cut(self, now: float, in_flight: int) -> None:
        """Ask half as much; what was started before proves nothing after it."""
        self._hold = min(2 * self._hold, _LONGEST_HOLD) if self._is_repeated(now) else _HOLD
        self._held_until = now + self._hold
        self.size = min(self.size, in_flight + 1.0)
        self._harmless = _HARMLESS * self.size
        self.size = max(self.size / 2, self.latency / MOST_DELAY)
        self._rise, self._grown = _FIRST_RISE, 0
        self._count_from(now)

    def _count_from(self, now: float) -> None:
        self._from = now
        self._answers = self._limited = self._refusals = 0
