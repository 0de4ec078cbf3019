"""The limiter against models of servers, with a clock that the test turns."""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from any2ds.core.failures import Failure
from any2ds.core.samples import Payload
from any2ds.fetch.policy.limiter import FIRST, LEAST, Limiter

TIMEOUT = Failure("fetch", "timeout_total")
BUSY = Failure("fetch", "http_503")
RESET = Failure("fetch", "reset")
MISSING = Failure("fetch", "http_404")

Server = Callable[[float, int], tuple[float, Payload | Failure]]
"""What becomes of a request at a time, with so many at the server, itself included: seconds, and the outcome."""


def ok(seconds: float) -> tuple[float, Payload]:
    return seconds, Payload(body=None, media_type=None, http_status=200, final_url=None, seconds=seconds)  # type: ignore[arg-type]


def queue(
    latency: Callable[[float], float],
    per_second: Callable[[float, int], float] = lambda now, crowd: 1e9,
    spread: float = 0.0,
    seed: int = 0,
) -> Server:
    """Answers after `latency`, and so many per second at most; `spread` is the sigma of its logarithm."""
    free_at, rng = 0.0, random.Random(seed)

    def serve(now: float, crowd: int) -> tuple[float, Payload | Failure]:
        nonlocal free_at
        free_at = max(free_at, now) + 1 / per_second(now, crowd)
        jitter = rng.lognormvariate(-(spread**2) / 2, spread) if spread else 1.0
        return ok(free_at - now + latency(now) * jitter)

    return serve


def beyond(bears: int, seconds: float, failure: Failure) -> Server:
    """Answers after 0.1 s, but fails all requests beyond so many at once, after `seconds`."""
    return lambda now, crowd: (seconds, failure) if crowd > bears else ok(0.1)


@dataclass
class Second:
    """What happened in one second."""

    size: int
    in_flight: int
    good: int
    bad: int
    lost: int  # of the bad ones, those that count for their rows


class Play:
    """A fetcher that has always more to start, unless `rows` or `most` limit it."""

    def __init__(
        self,
        server: Server,
        seconds: float,
        seed: int = 0,
        ceiling: int = 8192,
        hanging: float = 0.0,
        missing: float = 0.0,
        rows: int = 10**9,
        most: Callable[[float], int] = lambda now: 10**9,
        size: int = 20_000,
    ) -> None:
        self.limiter = Limiter(ceiling, 0.0)
        self.seconds: list[Second] = []
        rng, order = random.Random(seed + 1), itertools.count()
        landing: list[tuple[float, int, object, Payload | Failure, bool]] = []
        now, at_server, good, bad, lost, received, reported = 0.0, 0, 0, 0, 0, 0, 1.0
        while now < seconds and (rows or landing):
            begun, limit = 0, min(self.limiter.size, most(now))
            while rows and begun < 32 and len(landing) < limit:
                begun, rows = begun + 1, rows - 1
                step = self.limiter.step
                step.started += 1
                if hangs := rng.random() < hanging:
                    takes, outcome = 10.0, TIMEOUT
                elif rng.random() < missing:
                    takes, outcome = 0.05, MISSING
                else:
                    at_server += 1
                    takes, outcome = server(now, at_server)
                    if takes >= 10.0:
                        takes, outcome = 10.0, TIMEOUT
                heapq.heappush(landing, (now + takes, next(order), step, outcome, not (hangs or outcome is MISSING)))
            before = self.limiter.size
            self.limiter.turn(now, len(landing), received)
            later = max(now + 0.001, min(landing[0][0] if landing else now, now + 0.1))
            now = now + 0.0005 if begun == 32 or self.limiter.size > before else later
            while landing and landing[0][0] <= now:
                _, _, step, outcome, served = heapq.heappop(landing)
                at_server -= served
                self.limiter.ended(step, outcome)  # type: ignore[arg-type]
                if isinstance(outcome, Payload):
                    good, received = good + 1, received + size
                else:
                    bad += 1
                    lost += not self.limiter.excuses(step, outcome)  # type: ignore[arg-type]
            if now >= reported:
                self.seconds.append(Second(self.limiter.size, len(landing), good, bad, lost))
                good, bad, lost, reported = 0, 0, 0, reported + 1

    def rate(self, start: int, end: int | None = None) -> float:
        """Good answers per second between two seconds."""
        seconds = self.seconds[start:end]
        return sum(second.good for second in seconds) / len(seconds)

    def size(self, start: int, end: int | None = None) -> float:
        """The mean window between two seconds."""
        seconds = self.seconds[start:end]
        return sum(second.size for second in seconds) / len(seconds)


seeds = pytest.mark.parametrize("seed", range(3))


@seeds
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_latency_is_covered_up_to_what_the_server_does_per_second(seed: int, spread: float) -> None:
    play = Play(queue(lambda now: 0.2, lambda now, crowd: 5000, spread, seed), 25, seed)
    assert play.rate(0) > 0.85 * 5000 * (25 - 0.2) / 25  # with 1500 at once from the start it is so many
    assert play.rate(8) > 0.9 * 5000
    assert 750 < play.size(12) < 2500  # 1000 would do


@pytest.mark.parametrize("latency", [0.05, 0.3, 0.5, 1.0])
def test_answers_that_all_take_the_same_time_raise_the_window_too(latency: float) -> None:
    play = Play(queue(lambda now: latency), 60, ceiling=1000)
    assert play.size(50) > 800
    assert next(number for number, second in enumerate(play.seconds) if second.size == 1000) <= 2 + 6 * latency


@seeds
@pytest.mark.parametrize("failure", [BUSY, RESET], ids=lambda failure: failure.code)
def test_what_makes_a_server_fail_is_found_and_kept_away_from(seed: int, failure: Failure) -> None:
    play = Play(beyond(50, 0.004, failure), 60, seed)
    assert play.rate(10) > 350  # of 500
    assert play.size(10) <= 50
    assert sum(second.lost for second in play.seconds) == 0
    assert sum(second.bad for second in play.seconds) < 0.015 * sum(second.good for second in play.seconds)


@seeds
def test_a_server_that_hangs_in_a_crowd_gets_less_than_a_crowd(seed: int) -> None:
    play = Play(beyond(50, 10.0, TIMEOUT), 150, seed)
    assert play.rate(75) > 100  # of 500; without a limit it answers nothing at all
    assert play.size(75) < 50


@seeds
def test_a_server_that_gets_slower_in_a_crowd_without_errors_is_not_crowded(seed: int) -> None:
    falling = Play(queue(lambda now: 0.1, lambda now, crowd: 500 * min(1, 50 / crowd) ** 2), 60, seed)
    assert falling.rate(20) > 330  # of 440 with 44 at once
    assert falling.size(20) < 60
    exploding = Play(lambda now, crowd: ok(0.1 * (1 + (crowd / 50) ** 3)), 60, seed)
    assert exploding.rate(20) > 0.9 * 265
    assert exploding.size(20) < 60


@seeds
def test_hanging_files_take_no_places_from_others(seed: int) -> None:
    slow = Play(queue(lambda now: 0.2, lambda now, crowd: 2000), 40, seed, hanging=0.03)
    assert slow.rate(10) > 0.85 * 2000
    fast = Play(queue(lambda now: 0.01, lambda now, crowd: 2000), 40, seed, hanging=0.03)
    assert fast.rate(5) > 0.85 * 2000
    assert fast.size(20) < 1500  # 600 of them hang


@seeds
def test_it_follows_a_server_that_becomes_slower_and_faster(seed: int) -> None:
    rates = queue(lambda now: 0.2, lambda now, crowd: 500 if 20 <= now < 50 else 4000)
    play = Play(rates, 80, seed)
    assert play.rate(15, 20) > 0.9 * 4000
    assert play.size(45, 50) < 1.5 * play.size(15, 20)
    assert play.rate(62, 80) > 0.9 * 4000
    latency = Play(queue(lambda now: 1.0 if 20 <= now < 60 else 0.2, lambda now, crowd: 1500), 60, seed)
    assert latency.rate(40, 60) > 0.7 * 1500  # a step takes 2 s there


@seeds
def test_big_files_fill_the_line_with_few_transfers(seed: int) -> None:
    play = Play(queue(lambda now: 0.05, lambda now, crowd: 100), 60, seed, size=1 << 20)
    assert play.rate(5) > 95
    assert play.size(10) < 2 * FIRST


@seeds
def test_a_window_that_is_not_full_does_not_grow(seed: int) -> None:
    play = Play(queue(lambda now: 0.1), 40, seed, most=lambda now: 40)  # the hosts or the processor
    assert max(second.size for second in play.seconds) <= 3 * FIRST
    later = Play(queue(lambda now: 0.1), 14, seed, most=lambda now: 40 if now < 10 else 10**9)
    assert later.seconds[-1].size > 1000


@seeds
def test_a_share_of_dead_urls_is_no_sign_of_anything(seed: int) -> None:
    rng = random.Random(seed)
    alive = queue(lambda now: 0.2, lambda now, crowd: 2000)

    def serve(now: float, crowd: int) -> tuple[float, Payload | Failure]:
        return (0.2, RESET) if rng.random() < 0.3 else alive(now, crowd)

    play = Play(serve, 40, seed, missing=0.2)
    assert play.rate(15) > 0.85 * 2000


@seeds
def test_a_network_that_is_gone_for_a_while_is_used_again(seed: int) -> None:
    alive = queue(lambda now: 0.2, lambda now, crowd: 2000)
    play = Play(lambda now, crowd: (10.0, TIMEOUT) if 20 <= now < 30 else alive(now, crowd), 90, seed)
    assert play.rate(10, 19) > 0.85 * 2000
    assert play.rate(75) > 0.85 * 2000


@pytest.mark.parametrize("ceiling", [1, 2, 5, 20, 100])
def test_never_more_than_the_ceiling(ceiling: int) -> None:
    play = Play(queue(lambda now: 0.1), 20, ceiling=ceiling, hanging=0.02)
    assert max(second.size for second in play.seconds) <= ceiling
    assert play.rate(0) > 0


def test_never_so_few_that_nothing_can_be_learned() -> None:
    play = Play(lambda now, crowd: (0.05, BUSY), 60)
    assert min(second.size for second in play.seconds) >= LEAST


@pytest.mark.parametrize("rows", [0, 1, 10, 100])
def test_the_last_rows_teach_nothing(rows: int) -> None:
    play = Play(queue(lambda now: 0.5), 1000, rows=rows)
    assert play.limiter.size <= 4 * FIRST


def test_a_window_that_others_keep_from_being_full_does_not_grow_with_what_is_in_flight() -> None:
    play = Play(queue(lambda now: 0.1), 40, most=lambda now: min(FIRST - 1, 4 + int(now)))
    assert {second.size for second in play.seconds} == {FIRST}


@seeds
def test_files_that_hang_do_not_stop_the_start(seed: int) -> None:
    play = Play(queue(lambda now: 0.01, lambda now, crowd: 1000), 10, seed, hanging=0.2)
    assert play.rate(0, 10) > 100


def places(count: int) -> Server:
    """Answers after 0.1 s who gets one of the places; who does not is never answered, and harms nobody else."""
    taken: list[float] = []

    def serve(now: float, crowd: int) -> tuple[float, Payload | Failure]:
        while taken and taken[0] <= now:
            heapq.heappop(taken)
        if len(taken) >= count:
            return 10.0, TIMEOUT
        heapq.heappush(taken, now + 0.1)
        return ok(0.1)

    return serve


@seeds
def test_rows_are_not_lost_to_a_server_that_hangs_only_what_is_too_much(seed: int) -> None:
    play = Play(places(50), 90, seed)
    assert play.rate(40) > 330
    assert sum(second.lost for second in play.seconds) < 50
