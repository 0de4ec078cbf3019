"""How the hosts of a list behave, as a sample shows it: what a simulation answers with in their place."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from any2ds.config.options import FetchOptions
from any2ds.core.failures import SUCCESS
from any2ds.core.rows import Row
from any2ds.fetch.policy.hosts import TIMEOUTS
from any2ds.forecast.simulation import NEVER, Answer, failure_of
from any2ds.forecast.transfers import Transfer, by_host

if TYPE_CHECKING:
    from any2ds.forecast.survey import Hosts

_ENOUGH = 5  # transfers of a host, with which it is taken as it was seen
_FAST_FAILURES = frozenset({"dns", "bad_url", "bad_row", "unsupported_scheme", "blocked_address"})
_FAST = 0.02  # seconds of those
_MOST_TAIL = 20_000  # hosts of the tail that are told apart
_NOT_ASKED = frozenset({"robots", "robots_unreachable", "bad_url", "bad_row", "unsupported_scheme", "host_down"})


class Behaviour:
    """Hosts with their shares of the rows, and what each answers.

    A host of which the sample has some transfers answers as these did. Another one takes the whole behaviour of a host
    of the sample that is drawn at random, so that hosts that are down stay down.
    """

    def __init__(self, hosts: Hosts, transfers: Sequence[Transfer], options: FetchOptions, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._options = options
        self._seen = by_host(transfers)
        self._pool = [found for host, found in self._seen.items() if host] or [[Transfer("", SUCCESS, 0.2, 0)]]
        self._weights = [sum(each.weight for each in found) for found in self._pool]
        self._answers: dict[str, list[Answer]] = {}
        self._of_all = [each for each in transfers if each.code == SUCCESS]
        names, shares = _shares(hosts)
        self._names, self._cumulated = names, list(itertools.accumulate(shares))

    def rows(self, count: int) -> Iterator[Row]:
        """Rows in a random order."""
        rng, names, cumulated = self._rng, self._names, self._cumulated
        position = 0
        while position < count:
            for name in rng.choices(names, cum_weights=cumulated, k=min(10_000, count - position)):
                yield Row(0, position, "", f"http://{name}/{position}" if name else "no url")
                position += 1

    def answer(self, host: str, row: Row, at_once: int) -> Answer:
        answers = self._answers.get(host)
        if answers is None:
            answers = self._answers[host] = [self._answer(each) for each in self._of(host)]
        return self._rng.choice(answers)

    def _of(self, host: str) -> Sequence[Transfer]:
        found = self._seen.get(host, [])
        if len(found) >= _ENOUGH:
            return found
        return found or self._rng.choices(self._pool, self._weights)[0]

    def _answer(self, transfer: Transfer) -> Answer:
        code = transfer.code
        if code == SUCCESS:
            return Answer(transfer.seconds, transfer.size)
        if code == "host_down":
            code = "timeout_total"
        options = self._options
        if code == "timeout_connect" and options.connect_timeout:
            return Answer(options.connect_timeout, 0, failure_of(code))
        if code == "timeout_stalled":
            return Answer(options.stall_timeout, 0, failure_of(code))
        if code in TIMEOUTS:
            return Answer(NEVER, 0, failure_of(code))
        seconds = _FAST if code in _FAST_FAILURES or not self._of_all else self._rng.choice(self._of_all).seconds
        if code in _NOT_ASKED:  # the answer to its robots.txt, or nothing
            return Answer(seconds, 0)
        return Answer(seconds, 0, failure_of(code))


def _shares(hosts: Hosts) -> tuple[list[str], list[float]]:
    """The names of hosts and their rows. Hosts of the tail are made up, a random part of them if they are many."""
    names, shares = list(hosts.largest), [float(rows) for rows in hosts.largest.values()]
    count = sum(hosts.others.values())
    part = min(1.0, _MOST_TAIL / count) if count else 1.0
    number = 0
    for rows, several in sorted(hosts.others.items()):
        kept = max(1, round(several * part))
        for _ in range(kept):
            names.append(f"h{number}.tail.example")
            shares.append(rows * several / kept / hosts.part)
            number += 1
    return (names, shares) if names else ([""], [1.0])


def mean_seconds(transfers: Sequence[Transfer]) -> Mapping[str, float]:
    """Host -> mean seconds of its successful transfers."""
    found = {}
    for host, of_host in by_host(transfers).items():
        good = [each.seconds for each in of_host if each.code == SUCCESS]
        if good:
            found[host] = sum(good) / len(good)
    return found
