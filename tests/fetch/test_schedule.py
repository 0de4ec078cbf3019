"""The schedule is a state machine over a clock that the test turns."""

import random
from typing import Any

import pytest

from any2ds.core.failures import Failure
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched
from any2ds.fetch.policy.hosts import Attempt, HostPolicy
from any2ds.fetch.policy.schedule import MAX_BACKOFF, Schedule, ScheduleLimits
from tests.support.params import sampled

TIMEOUT = Failure("fetch", "timeout_total")
GONE = Failure("fetch", "http_404")


def rows(count: int) -> list[Row]:
    return [Row(0, n, f"{n:05d}", "http://host/") for n in range(count)]


def schedule(count: int, slots: int = 2, timeout: float = 10, **limits: Any) -> Schedule:
    made = Schedule(ScheduleLimits(slots, timeout, **limits), rng=random.Random(0))
    made.fresh.extend(rows(count))
    return made


def nothing(attempt: Attempt) -> int:
    """The bytes of one that hangs."""
    return 0


def start_all(made: Schedule, now: float) -> list[Attempt]:
    started = []
    while attempt := made.next(now):
        started.append(attempt)
    return started


def test_never_more_in_flight_than_slots_and_rows_start_in_order() -> None:
    made = schedule(5, slots=2)
    first = start_all(made, 0)
    assert [attempt.row.position for attempt in first] == [0, 1]
    made.finish(first[1], GONE, 1)
    assert [attempt.row.position for attempt in start_all(made, 1)] == [2]


def test_idle_only_when_nothing_is_in_flight_and_nothing_waits() -> None:
    made = schedule(1, retries=1)
    (attempt,) = start_all(made, 0)
    assert not made.idle
    assert made.finish(attempt, TIMEOUT, 1) is None
    assert not made.idle
    (again,) = start_all(made, 1000)
    assert again.number == 2
    made.finish(again, TIMEOUT, 1001)
    assert made.idle


def test_a_passing_failure_is_tried_again_up_to_retries_and_a_final_one_never() -> None:
    made = schedule(1, retries=2)
    now, outcome = 0.0, None
    for number in (1, 2, 3):
        (attempt,) = start_all(made, now)
        assert attempt.number == number
        outcome = made.finish(attempt, TIMEOUT, now)
        now += 1000
    assert outcome == Fetched(rows(1)[0], TIMEOUT, 3)

    made = schedule(1, retries=2)
    (attempt,) = start_all(made, 0)
    assert made.finish(attempt, GONE, 0) == Fetched(rows(1)[0], GONE, 1)


def test_a_waiting_retry_takes_no_slot() -> None:
    made = schedule(3, slots=1, retries=1)
    (attempt,) = start_all(made, 0)
    made.finish(attempt, TIMEOUT, 0)
    assert [attempt.row.position for attempt in start_all(made, 0)] == [1]


def test_backoff_doubles_with_jitter_up_to_a_bound() -> None:
    made = schedule(0)
    for number, most in ((1, 1.0), (2, 2.0), (5, 16.0), (30, MAX_BACKOFF)):
        waits = [made.backoff(number) for _ in range(200)]
        assert max(waits) <= most
        assert max(waits) > 0.8 * most
        assert min(waits) < 0.2 * most


def test_overdue_attempts_are_told_once_in_order_of_their_deadlines() -> None:
    made = schedule(3, slots=3, timeout=10)
    first = made.next(0)
    second = made.next(1)
    third = made.next(2)
    assert first
    assert second
    assert third
    made.finish(second, GONE, 3)
    assert made.overdue(9.9, nothing) == []
    assert made.wait(9.9) == pytest.approx(0.1)
    assert made.overdue(12, nothing) == [first, third]
    assert made.overdue(99, nothing) == []


def test_without_a_timeout_nothing_is_ever_overdue() -> None:
    made = schedule(1, timeout=0)
    start_all(made, 0)
    assert made.overdue(1e9, nothing) == []
    assert made.wait(0) == float("inf")


def seconds_until_cut(sizes: list[int], timeout: float = 10, **limits: Any) -> float | None:
    """When an attempt is cut that has received `sizes[n]` bytes after n seconds, or None."""
    made = schedule(1, timeout=timeout, **limits)
    (attempt,) = start_all(made, 100)
    for second, size in enumerate(sizes):
        for tenth in range(10):
            if made.overdue(100 + second + tenth / 10, {attempt: size}.__getitem__):
                return second + tenth / 10
    return None


@pytest.mark.parametrize(
    ("sizes", "earliest", "latest"),
    [
        ([0] * 60, 4, 5),
        ([50 * second for second in range(60)], 4, 5),
        ([150 * second for second in range(60)], None, None),
        ([min(5, second) * 10_000 for second in range(60)], 8, 10),  # it stops after 5 s
        ([10_000 * second if second < 5 else 10 for second in range(60)], 8, 10),  # redirected to what says nothing
    ],
)
def test_what_is_too_slow_for_too_long_is_stalled(sizes: list[int], earliest: float | None, latest: float) -> None:
    seconds = seconds_until_cut(sizes, timeout=0, total_timeout=0, stall_timeout=4, min_speed=100)
    assert seconds is None if earliest is None else earliest <= (seconds or 0) <= latest


def steady(speed: float, seconds: int) -> list[int]:
    return [int(speed * second) for second in range(seconds)]


@pytest.mark.parametrize(
    ("sizes", "options", "earliest", "latest"),
    [
        (steady(0, 60), {}, 10, 10),
        (steady(20, 60), {}, 10, 11),  # what drips
        (steady(500, 60), {}, 10, 12),
        ([0] + [200_000] * 60, {}, 11, 14),  # what stops
        ([0] + [200_000] * 60, {"total_timeout": 0}, 11, 14),
        (steady(5_000, 120), {}, 24, 26),  # the time grows, but more slowly than it passes
        (steady(9_000, 5_000), {}, 4_100, 4_200),  # 37 MB: a large file has to come faster than that
        (steady(30_000, 7_000), {}, 6_500, 6_700),
        (steady(100_000, 60), {"total_timeout": 7}, 7, 7),
        (steady(100_000, 60), {"timeout": 0, "total_timeout": 7}, 7, 7),
        (steady(0, 60), {"timeout": 4, "total_timeout": 30}, 4, 4),
    ],
)
def test_an_attempt_that_brings_too_little_is_cut(
    sizes: list[int], options: dict[str, float], earliest: float, latest: float
) -> None:
    cut = seconds_until_cut(sizes, **options)
    assert cut is not None
    assert earliest <= cut <= latest


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        (steady(2_000_000 / 14, 15), {}),
        (steady(9_000, 500), {}),
        (steady(70_000, 15_000), {}),  # a gigabyte
        (steady(5_000, 21), {}),  # 100 KB
        (steady(20, 600), {"total_timeout": 0}),
        ([second // 8 for second in range(600)], {"total_timeout": 0}),
        (steady(20, 600), {"timeout": 0}),
    ],
)
def test_an_attempt_that_brings_enough_goes_on(sizes: list[int], options: dict[str, float]) -> None:
    assert seconds_until_cut(sizes, **options) is None


@pytest.mark.parametrize("count", sampled([20_000, 200_000]))
def test_many_rows_of_which_some_hang_all_come_back_once(count: int) -> None:
    made = Schedule(ScheduleLimits(100, 10, 1), rng=random.Random(1))
    dice = random.Random(2)
    seen: set[int] = set()
    now = 0.0
    made.fresh.extend(Row(0, n, str(n), None) for n in range(count))
    while not made.idle:
        for attempt in start_all(made, now):
            if dice.random() > 0.01:
                outcome = TIMEOUT if dice.random() < 0.05 else GONE
                if fetched := made.finish(attempt, outcome, now):
                    seen.add(fetched.row.position)
        for attempt in made.overdue(now, nothing):
            if fetched := made.finish(attempt, TIMEOUT, now):
                seen.add(fetched.row.position)
        now += 0.5
    assert seen == set(range(count))


def test_the_time_that_is_left_is_that_of_the_slowest_row() -> None:
    plan = Schedule(ScheduleLimits(4, timeout=10.0, retries=1), HostPolicy(max_per_host=1), random.Random(0))
    plan.fresh.extend(
        [Row(0, 0, "0", "http://silent/"), Row(0, 1, "1", "http://busy/"), Row(0, 2, "2", "http://busy/")]
    )
    attempts = [attempt for _ in range(3) if (attempt := plan.next(0.0)) is not None]
    assert len(attempts) == 2
    assert 0 < plan.backlog(0.0).remaining < 1  # about as long as an answer usually takes
    assert plan.overdue(2.0, lambda attempt: 0) == []
    assert plan.backlog(2.0).remaining == pytest.approx(8.0)  # they are late, and may take all of their time
    for attempt in attempts:
        plan.finish(attempt, Failure("fetch", "http_429", retry_after=60.0), 3.0)
    assert 60 <= plan.backlog(3.0).remaining <= 62
