"""Distinguishes failures of ours (no network, route or name server) from failures of the hosts, and pauses for ours.

The sign of an outage is silence: nothing comes in from anybody, and hosts that have answered before do not answer a
probe either, although each is asked for what it answered most quickly and gets several times as long. A host that is
down, or a list that ends in dead or slow URLs, is not silent in that sense: the probes are answered. A failure that
began with a silence is not the row's: the row is tried again, and no retry is used up.

A state machine over a clock that is handed in; it neither sends nor waits.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from dataclasses import dataclass

from any2ds.core.errors import NetworkDown
from any2ds.core.failures import BROKEN_OFF, Failure
from any2ds.fetch.engines.dns import asks_dns
from any2ds.fetch.policy.hosts import TIMEOUTS, Attempt

log = logging.getLogger(__name__)

_QUIET = 2.0  # seconds without a sign of life, while transfers are in flight, before somebody is probed
_SILENCE = 4.0  # seconds without one, and with the probes unanswered, that make an outage
_TIMES = 5  # as long as its answer took before, a probe may take
_FEW = 8  # transfers, or quick failures in doubt, that are not worth one
_HASTE = 0.5  # seconds without one after which a failure in doubt stops new transfers and calls for a probe
PROBE_EVERY = 2.0  # seconds
_PROBED = 3  # hosts at once
_WITNESSES = 8  # hosts that answered last, which are probed in turn
_REMEMBERED = 16  # outages that failures are compared with
MAX_EXCUSES = 5  # outages that one row may be caught in
_DNS_EXCUSES = 3  # the same where only the name servers are silent, which may be about this name after all

# So many failures that only this machine can be blamed for, before anybody has ever answered, are an outage too.
_FROM_THE_START = 200


@dataclass(slots=True)
class Witness:
    """The URL that a host has answered most quickly."""

    url: str
    seconds: float

    @property
    def patience(self) -> float:
        """Seconds until a probe of it tells of an outage."""
        return max(_SILENCE - _QUIET, _TIMES * self.seconds)


class Breaker:
    """Watches over all transfers of one process. Pauses for at most `patience` seconds (0: for any time)."""

    def __init__(self, patience: float, now: float) -> None:
        self._patience = patience or float("inf")
        self._heard = now  # when the last sign of life came, or when there was last nothing to wait for
        self._witnesses: OrderedDict[str, Witness] = OrderedDict()  # by host; the next one to be probed is at the end
        self._outages: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._doubts: list[tuple[Attempt, Failure, float]] = []  # with the time of the failure
        self._in_flight = 0
        self._more = True
        self._quiet = 0.0  # seconds of silence, at the last look
        self._named = False  # one of them was resolved by a name server
        self._no_network = 0  # failures without a network, before anybody has answered
        self._answers_due: float | None = None  # when probes that nobody has answered prove an outage
        self._next_probe = 0.0
        self.paused = False

    @property
    def holding(self) -> bool:
        """Whether new transfers have to wait."""
        return self.paused or (self._urgent and self._quiet >= _HASTE)

    @property
    def _urgent(self) -> bool:
        """Whether the failures in doubt are worth a probe: a few that failed at once are not."""
        if not self._witnesses:
            return False
        if self._doubts and self._more and self._quiet >= _QUIET:
            return True
        return len(self._doubts) >= _FEW or any(at - attempt.started >= _QUIET for attempt, _, at in self._doubts)

    @property
    def idle(self) -> bool:
        """Whether no failure waits to be judged."""
        return not self._doubts

    def hear(self, now: float, attempt: Attempt | None = None) -> None:
        """Something arrived: bytes, or an answer to `attempt`, of any status."""
        if self.paused:
            log.warning("The network is back after %.0f s", now - self._heard)
            self._outages.append((self._heard, now))
            self.paused = False
        self._heard = now
        self._answers_due = None
        self._no_network = 0
        if attempt is not None and attempt.row.url is not None and not attempt.probe:
            self._note(attempt.host.name, Witness(attempt.row.url, now - attempt.started))

    def _note(self, host: str, witness: Witness) -> None:
        known = self._witnesses.get(host)
        if known is None:
            self._named = self._named or asks_dns(host.partition(":")[0])
        if known is None or witness.seconds <= known.seconds:
            self._witnesses[host] = witness
        self._witnesses.move_to_end(host)
        if len(self._witnesses) > _WITNESSES:
            self._witnesses.popitem(last=False)

    def doubts(self, attempt: Attempt, failure: Failure, now: float) -> bool:
        """Whether the cause of a failure is still unknown; `judged` returns it as soon as it is known."""
        if failure.code not in BROKEN_OFF or failure.blame == "host" or attempt.excuses >= MAX_EXCUSES:
            return False
        if not self._witnesses:
            self._no_network += failure.blame == "us"
            if self._no_network >= _FROM_THE_START:
                self._pause()
            if not (self.paused or failure.blame == "us"):
                return False
        self._doubts.append((attempt, failure, now))
        return True

    def judged(self, now: float) -> list[tuple[Attempt, Failure, bool]]:
        """The failures that are in doubt no longer, each with whether it is excused."""
        if not self._doubts:
            return []
        judged, left = [], []
        # Without an end in sight nobody may be there to be probed, and rows wait for these very failures.
        is_over = not (self._in_flight or self._urgent) and (not self._more or self._quiet >= _SILENCE)
        for doubt in self._doubts:
            attempt, failure, at = doubt
            if self._excuses(attempt, failure, at):
                judged.append((attempt, failure, True))
            elif (
                is_over or self._heard >= at or (at - attempt.started >= 2 * _SILENCE and self._heard >= at - _SILENCE)
            ):
                judged.append((attempt, failure, False))  # others were answered when it was not
            else:
                left.append(doubt)
        self._doubts = left
        return judged

    def look(self, now: float, in_flight: int, more: bool = True) -> None:
        """To be called every turn; `more` if there are rows that wait for nothing but a place.

        Raises NetworkDown when the patience is over.
        """
        self._in_flight, self._more = in_flight, more
        if not (in_flight or self.paused or self._doubts):
            self._heard = now
        self._quiet = now - self._heard
        # Probes that have just left prove nothing yet, however long the only transfer has been silent.
        if self._quiet >= _SILENCE and self._answers_due is not None and now >= self._answers_due:
            self._pause()
        if self.paused and self._quiet > self._patience:
            raise NetworkDown(f"nothing has answered for {self._quiet:.0f} s, not even hosts that did before")

    def probes(self, now: float) -> list[Witness]:
        """The URLs to ask for now, only to see whether anything comes back."""
        if not self._witnesses or now < self._next_probe:
            return []
        worth_it = self._quiet >= _HASTE if self._urgent else self._quiet >= _QUIET and self._in_flight >= _FEW
        if not (worth_it or self.paused):
            return []
        self._next_probe = now + PROBE_EVERY
        chosen = [self._next_witness() for _ in range(min(_PROBED, len(self._witnesses)))]
        if self._answers_due is None:
            self._answers_due = now + max(witness.patience for witness in chosen)
        return chosen

    def _next_witness(self) -> Witness:
        host, witness = self._witnesses.popitem(last=True)
        self._witnesses[host] = witness
        self._witnesses.move_to_end(host, last=False)
        return witness

    def try_one(self, now: float) -> bool:
        """Whether one transfer may start although others have to wait: where nobody can be probed, a row must do."""
        if self._witnesses or now < self._next_probe:
            return False
        self._next_probe = now + PROBE_EVERY
        return True

    def _pause(self) -> None:
        if not self.paused:
            log.warning("Nothing answers any more: waiting for the network, for up to %.0f s", self._patience)
        self.paused = True

    def _excuses(self, attempt: Attempt, failure: Failure, at: float) -> bool:
        silent_from = max(attempt.started, attempt.heard)
        outages = [*self._outages, (self._heard, at)] if self.paused else self._outages
        for start, end in outages:
            overlaps = silent_from < end and start < at
            # A transfer that had waited longer before the silence than it had still to wait failed for its own reasons.
            if overlaps and (failure.code not in TIMEOUTS or start - silent_from <= at - start):
                return True
        # Hosts whose addresses are known may answer while the name servers do not.
        return failure.blame == "us" and self._named and attempt.excuses < _DNS_EXCUSES
