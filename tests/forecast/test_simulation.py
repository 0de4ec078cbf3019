"""The simulation: the engine in virtual time, by figures that can be worked out by hand."""

import random

import pytest

from any2ds.config.options import Config, FetchOptions
from any2ds.core.rows import Row
from any2ds.forecast.simulation import (
    NEVER,
    Answer,
    Answers,
    Machine,
    Simulated,
    failure_of,
    simulate,
)


def options(**given: object) -> FetchOptions:
    return Config.from_options({"url_list": "-", "robots": "ignore", **given}).fetch


def played(answers: Answers, rows: int, machine: Machine | None = None, hosts: int = 100, **given: object) -> Simulated:
    urls = (Row(0, number, str(number), f"http://h{number % hosts}.example/{number}") for number in range(rows))
    return simulate(options(**given), urls, answers, machine or Machine(), seed=1)


def test_a_fixed_number_of_transfers_takes_rows_by_latency() -> None:
    found = played(lambda host, row, at_once: Answer(0.2), 6000, thread_count=60)
    assert found.seconds == pytest.approx(6000 * 0.2 / 60, rel=0.03)
    assert found.codes == {"success": 6000}
    assert found.most_in_flight == 60


def test_a_line_is_shared() -> None:
    found = played(lambda host, row, at_once: Answer(0.05, 100_000), 2000, Machine(line=10e6), thread_count=100)
    assert found.seconds == pytest.approx(2000 * 100_000 / 10e6, rel=0.03)


def test_a_processor_is_shared() -> None:
    found = played(lambda host, row, at_once: Answer(0.01), 5000, Machine(cpu=1e-3), thread_count=200)
    assert found.seconds == pytest.approx(5.0, rel=0.05)


def test_a_host_with_a_limit_takes_its_time() -> None:
    found = played(lambda host, row, at_once: Answer(0.1), 1000, hosts=1, max_per_host=5)
    assert found.seconds == pytest.approx(1000 * 0.1 / 5, rel=0.05)


def test_a_silent_host_costs_a_timeout_and_its_rows_fail() -> None:
    def answers(host: str, row: Row, at_once: int) -> Answer:
        return Answer(NEVER, 0, failure_of("timeout_total")) if host == "h3.example" else Answer(0.1)

    found = played(answers, 2000, timeout=5)
    assert found.codes["success"] == 1980
    assert found.codes["timeout_total"] + found.codes["host_down"] == 20
    assert 5 < found.seconds < 12


def test_robots_txt_is_asked_of_each_host() -> None:
    found = played(lambda host, row, at_once: Answer(0.1), 500, hosts=50, robots="respect")
    assert sum(found.asked.values()) == 550
    assert found.codes == {"success": 500}


def test_options_of_single_hosts_hold() -> None:
    """Those of a --config file: limits, delays, and whether robots.txt is asked for."""

    def of_hosts(count: int, **given: object) -> Simulated:
        urls = (Row(0, number, str(number), f"http://h{number % count}.example/{number}") for number in range(200))
        return simulate(options(**given), urls, lambda host, row, at_once: Answer(0.1), Machine(), seed=1)

    assert of_hosts(2, hosts={"h0.example": {"max_per_host": 2}}).seconds == pytest.approx(100 * 0.1 / 2, rel=0.05)
    assert of_hosts(20, hosts={"*.example": {"host_delay": 1}}).seconds == pytest.approx(9.1, rel=0.05)
    asked = of_hosts(20, robots="respect", hosts={"h0.example": {"robots": "ignore"}}).asked
    assert (asked["h0.example"], asked["h1.example"], sum(asked.values())) == (10, 11, 219)


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> Simulated:
        rng = random.Random(5)
        rows = (Row(0, number, str(number), f"http://h{number % 9}.example/{number}") for number in range(3000))
        return simulate(options(), rows, lambda host, row, at_once: Answer(rng.expovariate(5)), Machine(), seed)

    assert run(3) == run(3)


def test_a_worker_of_many_is_as_slow_as_its_share_of_a_host() -> None:
    rows = [Row(0, n, str(n), f"http://h.example/{n}") for n in range(40)]

    def seconds(of: int) -> float:
        machine = Machine(workers=of)
        return simulate(options(max_per_host=8), rows, lambda host, row, at_once: Answer(1.0), machine, 1).seconds

    assert seconds(1) == pytest.approx(5.0, rel=0.1)
    assert seconds(8) == pytest.approx(40.0, rel=0.1)
