"""The stall rule, with a clock that the test turns."""

import pytest

from any2ds.fetch.policy.stall import Flow, StallRule


def seconds_until_cut(sizes: list[int], limit: float = 4.0, speed: int = 100, away: float = 0.0) -> float | None:
    """When a transfer is cut that has `sizes[n]` bytes after n tenths of a second, or None.

    Nobody reads for `away` seconds after each second.
    """
    rule, flow, now = StallRule(limit, speed), Flow(), 0.0
    rule.due(now)
    rule.begin(flow)
    for tenth, size in enumerate(sizes, 1):
        now += 0.1 + (away if tenth % 10 == 0 else 0.0)
        if rule.due(now) and rule.stalled(flow, size):
            return tenth / 10
    return None


def flow(*speeds: int) -> list[int]:
    """Bytes by tenths of a second, of a transfer with these speeds, one for each second."""
    sizes, size = [], 0.0
    for speed in speeds:
        for _ in range(10):
            size += speed / 10
            sizes.append(round(size))
    return sizes


@pytest.mark.parametrize(
    ("speeds", "earliest", "latest"),
    [
        ([0] * 20, 4, 5),
        ([99] * 20, 4, 5),
        ([1000] * 3 + [0] * 20, 7, 8.5),
        ([1_000_000_000] + [0] * 20, 5, 6.5),  # what came at first buys no time
        ([50, 50, 0, 1000] * 3 + [0] * 20, 16, 17.5),
    ],
)
def test_a_transfer_that_is_too_slow_for_too_long_is_cut(speeds: list[int], earliest: float, latest: float) -> None:
    cut = seconds_until_cut(flow(*speeds))
    assert cut is not None
    assert earliest <= cut <= latest


@pytest.mark.parametrize("speeds", [[102] * 60, [0, 0, 400] * 20, [10_000] * 60])
def test_one_that_is_fast_enough_now_and_then_is_not(speeds: list[int]) -> None:
    assert seconds_until_cut(flow(*speeds)) is None


def test_without_a_limit_nothing_is_cut() -> None:
    assert seconds_until_cut(flow(*[0] * 1000), limit=0) is None


def test_short_limits_hold_as_well() -> None:
    cut = seconds_until_cut(flow(*[0] * 3), limit=0.5)
    assert cut is not None
    assert 0.5 <= cut <= 0.8


def test_a_consumer_that_is_away_costs_nobody_a_transfer() -> None:
    assert seconds_until_cut(flow(*[200] * 30), away=100.0) is None
    cut = seconds_until_cut(flow(*[0] * 20), away=100.0)
    assert cut is not None
    assert cut >= 3
