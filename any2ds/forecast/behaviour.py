"""How the hosts of a list behave, as a sample shows it: what a simulation answers with in their place."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
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
NO_URLS = frozenset({"bad_row", "bad_url", "unsupported_scheme", "scheme_not_allowed"})
_FAST_FAILURES = NO_URLS | {"dns", "blocked_address"}
_FAST = 0.02  # seconds of those
_FEW = 3  # transfers without an answer, from which on it is the host that refuses
_TRIED_AGAIN = "http_503"  # for an attempt that was not the last one, and is not known in detail
_OF_HOSTS = frozenset({*TIMEOUTS, "dns", "connect", "host_down"})  # failures that are of a host, rather than passing
_MOST_TAIL = 20_000  # hosts of the tail that are told apart
_NOT_ASKED = NO_URLS | {"robots", "robots_unreachable", "host_down"}


class Behaviour:
    """Hosts with their shares of the rows, and what each answers.

    A host of which the sample has some transfers answers as these did. Another one takes the whole behaviour of a host
    of the sample that is drawn at random, so that hosts that are down stay down.
    """

    def __init__(self, hosts: Hosts, transfers: Sequence[Transfer], options: FetchOptions, seed: int = 0) -> None:
        self._rng = random.Random(seed)
        self._options = options
        # What is no URL is not fetched; without a host are data: and file:.
        self._seen = by_host(each for each in transfers if each.host or each.code not in NO_URLS)
        of_hosts = [found for host, found in self._seen.items() if host]
        self._pool = of_hosts or [*self._seen.values()] or [[Transfer("", SUCCESS, 0.2, 0)]]
        self._weights = [sum(each.weight for each in found) for found in self._pool]
        self._answers: dict[str, list[Answer]] = {}
        self._of_all = [each for each in transfers if each.code == SUCCESS]
        self._refusing = refusing_hosts(transfers)
        self._flaky, self._flaky_code = _flakiness(transfers, self._refusing)
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
        if self._flaky and self._rng.random() < self._flaky and host not in self._refusing:
            return replace(self._answer(self._of(host)[0], self._flaky_code), size=0)
        answers = self._answers.get(host)
        if answers is None:
            answers = self._answers[host] = [self._usual(host, each) for each in self._of(host)]
        return self._rng.choice(answers)

    def _of(self, host: str) -> Sequence[Transfer]:
        found = self._seen.get(host, [])
        if len(found) >= _ENOUGH:
            return found
        return found or self._rng.choices(self._pool, self._weights)[0]

    def _usual(self, host: str, transfer: Transfer) -> Answer:
        """What it answers to an attempt that no passing failure concerns."""
        if _is_flaky(transfer) and host not in self._refusing and self._of_all:
            transfer = self._rng.choice(self._of_all)
        return self._answer(transfer, transfer.code)

    def _answer(self, transfer: Transfer, code: str) -> Answer:
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


def refusing_hosts(transfers: Sequence[Transfer]) -> set[str]:
    """Those that refuse all of several requests."""
    return {host for host, found in by_host(transfers).items() if len(found) >= _FEW and all(map(_is_flaky, found))}


def _is_flaky(transfer: Transfer) -> bool:
    """Whether its last attempt failed in passing, so that the next one may do."""
    return transfer.is_transient and transfer.code not in _OF_HOSTS


def _flakiness(transfers: Sequence[Transfer], refusing: Collection[str]) -> tuple[float, str]:
    """The share of attempts that fail in passing, over all hosts that do not refuse everything, and the usual code.

    Of one host there are too few attempts to tell, and the engine is slow with a host that seems to refuse.
    """
    failed = total = 0.0
    codes: Counter[str] = Counter()
    for each in transfers:
        if each.host in refusing or each.code in _OF_HOSTS:
            continue
        is_flaky = _is_flaky(each)
        failed += each.weight * (each.attempts - 1 + is_flaky)
        total += each.weight * max(1, each.attempts)
        codes[each.code] += is_flaky
    code, count = next(iter(codes.most_common(1)), ("", 0))
    return (failed / total if total else 0.0), code if count else _TRIED_AGAIN


def _shares(hosts: Hosts) -> tuple[list[str], list[float]]:
    """The names of hosts and their rows; of very many a random part, each with the rows of several."""
    others = list(hosts.others.items())
    if len(others) > _MOST_TAIL:
        others = random.Random(0).sample(others, _MOST_TAIL)
    part = hosts.part * len(others) / max(1, len(hosts.others))
    names = [*hosts.largest, *(host for host, _ in others)]
    shares = [*map(float, hosts.largest.values()), *(rows / part for _, rows in others)]
    return (names, shares) if names else ([""], [1.0])


def mean_seconds(transfers: Sequence[Transfer]) -> Mapping[str, float]:
    """Host -> mean seconds of its successful transfers."""
    found = {}
    for host, of_host in by_host(transfers).items():
        good = [each.seconds for each in of_host if each.code == SUCCESS]
        if good:
            found[host] = sum(good) / len(good)
    return found
