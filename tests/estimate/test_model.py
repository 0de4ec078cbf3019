"""Predictions and advice, from lists and samples that are made up: times can be worked out by hand."""

import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from any2ds.config.options import Config
from any2ds.core.failures import Failure
from any2ds.core.histogram import Histogram
from any2ds.core.reports import ProcessCost, RobotsCost
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched, Payload
from any2ds.estimate.advice import advise
from any2ds.estimate.facts import Sample, SampledRow, Survey, Transfer
from any2ds.estimate.model import Model, weights_of, wilson
from any2ds.fetch.policy.hosts import Attempt, HostPolicy
from any2ds.fetch.policy.limiter import Limiter
from any2ds.fetch.policy.schedule import Schedule, limits_of

FAST_LINE = 10**10


def sampled(host: str, code: str = "success", size: int = 20_000, attempts: int = 1) -> SampledRow:
    return SampledRow(code, (Transfer(host, code, size if code == "success" else 0, attempts),))


SEEN = [sampled(f"o{number % 50}") for number in range(300)]


def model(
    rows_of_hosts: Mapping[str, int],
    rows: Sequence[SampledRow] = SEEN,
    seconds: float = 0.4,
    delays: Mapping[str, float] | None = None,
    cpu: float = 1e-4,
    duplicates: float = 0.0,
    **options: Any,
) -> Model:
    """Of a list with so many rows on these hosts, of which each answers after `seconds`."""
    total = sum(rows_of_hosts.values())
    largest = dict(sorted(rows_of_hosts.items(), key=lambda item: -item[1]))
    empty = pa.table({"url": pa.array([], pa.string())})
    survey = Survey(total, True, total, 0, largest, total, duplicates, 1, "", empty)
    good = sum(row.code == "success" for row in rows)
    sample = Sample(
        "sample",
        rows,
        stored_size=20_000,
        latencies=Histogram.of([seconds] * good),
        sizes=Histogram.of(row.transfers[0].size for row in rows),
        received=20_000,
        cost=ProcessCost(cpu, cpu, 100_000_000, 20_000),
        robots=RobotsCost(delays=delays or {}),
    )
    return Model(Config.from_options({"url_list": "-", "robots": "ignore", **options}), survey, sample)


def seconds(of: Model, machines: int = 1, bandwidth: int = FAST_LINE) -> float:
    """Without the start."""
    return of.predict(machines, bandwidth).seconds.value - of.sample.start_up


def advice(of: Model, machines: Sequence[int] = (1,)) -> dict[str, str]:
    found = advise(of, [of.predict(count, FAST_LINE) for count in machines])
    return {each.option: f"{each.value}: {each.reason}" for each in found}


BODY: Any = None  # of answers: a schedule does not look at it
MANY = {f"o{number}": 100 for number in range(100)}  # hosts


@pytest.mark.parametrize(
    ("options", "expected", "limit"),
    [({"cpu": 0.01, "processes_count": 1}, 10_000 * 0.01, "cpu"), ({"delays": {"o7": 10.0}}, 100 * 10, "hosts")],
    ids=["the processor", "robots.txt"],
)
def test_the_time_is_that_of_the_narrowest_place(options: dict[str, Any], expected: float, limit: str) -> None:
    found = model(MANY, **options)
    assert seconds(found) == pytest.approx(expected, rel=0.1)
    assert found.predict(1, FAST_LINE).limit == limit


Answers = Callable[[int, random.Random], tuple[str, float]]
"""Code and seconds of the answer of a host, by its number."""


def fetched(hosts: Sequence[int], answer: Answers, **options: Any) -> tuple[float, list[SampledRow], list[float]]:
    """When the last row ends, what becomes of the rows, and the seconds of answers: by the schedule that runs have, on
    a clock that goes from one answer to the next."""
    fetch, chance = Config.from_options({"url_list": "-", **options}).fetch, random.Random(3)
    policy = HostPolicy(fetch.max_per_host, fetch.host_delay)
    schedule = Schedule(limits_of(fetch, fetch.most_transfers), policy, random.Random(4))
    schedule.fresh.extend(Row(0, n, str(host), f"http://o{host}/{n}") for n, host in enumerate(hosts))
    now, rows, answered = 0.0, list[Fetched](), list[float]()
    limiter = Limiter(schedule.slots) if fetch.thread_count == "auto" else None
    ends: list[tuple[float, int, Attempt, Any]] = []
    while not schedule.idle:
        schedule.slots = limiter.size if limiter else schedule.slots
        while attempt := schedule.next(now):
            code, takes = answer(int(attempt.row.key), chance)
            outcome = Payload(BODY, None, 200, None, takes) if code == "success" else Failure("fetch", code)
            heapq.heappush(ends, (now + takes, chance.getrandbits(62), attempt, outcome))
            if limiter:
                attempt.step = limiter.step
                attempt.step.started += 1
        if limiter:
            limiter.turn(now, schedule.in_flight, 0, schedule.spared)
        rows += schedule.given_up()
        wait = 0.0 if limiter and limiter.size > schedule.slots else schedule.wait(now)
        now = min(ends[0][0] if ends else math.inf, now + max(1e-3, wait))
        while ends and ends[0][0] <= now:
            _, _, attempt, outcome = heapq.heappop(ends)
            if limiter and attempt.step:
                limiter.ended(attempt.step, outcome)
            answered += [outcome.seconds] if isinstance(outcome, Payload) else []
            rows += filter(None, [schedule.finish(attempt, outcome, now)])
    codes = [(row, "success" if isinstance(row.outcome, Payload) else row.outcome.code) for row in rows]
    return now, [sampled(f"o{row.row.key}", code, attempts=max(1, row.attempts)) for row, code in codes], answered


def even(host: int, chance: random.Random) -> tuple[str, float]:
    return "success", 0.5


def silent_hosts(host: int, chance: random.Random) -> tuple[str, float]:
    return ("timeout_total", 4.0) if host % 8 == 3 else ("success", 0.4)


def mixture(host: int, chance: random.Random) -> tuple[str, float]:
    gone_or_silent = {0: ("http_404", 0.3), 1: ("http_404", 0.3), 2: ("timeout_total", 5.0)}
    return gone_or_silent.get(chance.randrange(15), ("success", chance.uniform(0.3, 1.5)))


def flaky(host: int, chance: random.Random) -> tuple[str, float]:
    return ("http_503" if chance.random() < 0.15 else "success"), 0.6


def uneven_hosts(host: int, chance: random.Random) -> tuple[str, float]:
    return "success", min(3.0, random.Random(host).lognormvariate(-0.9, 0.8))


@pytest.mark.parametrize(
    ("answer", "options", "limit"),
    [
        (even, {"thread_count": 50}, "latency"),
        (even, {"thread_count": "auto"}, "latency"),
        (mixture, {"thread_count": "auto", "timeout": 5}, "latency"),
        (even, {"max_per_host": 1}, "hosts"),
        (even, {"host_delay": 0.5}, "hosts"),
        (silent_hosts, {"thread_count": 40, "timeout": 4}, "timeouts"),
        (mixture, {"thread_count": 40, "timeout": 5}, "latency"),
        (flaky, {"thread_count": 40, "retries": 2}, "latency"),
        (flaky, {"thread_count": 400, "retries": 2}, "latency"),
        (uneven_hosts, {"thread_count": 30}, "latency"),
    ],
)
def test_the_form_agrees_with_the_schedule_of_a_run(answer: Answers, options: dict[str, Any], limit: str) -> None:
    hosts = [number % 60 for number in range(1500)]
    took, _, _ = fetched(hosts, answer, **options)
    _, rows, answered = fetched(random.Random(5).sample(hosts, 300), answer, **{"host_delay": 0.25, **options})
    found = model({f"o{host}": 25 for host in range(60)}, rows, **options)
    found = Model(found.config, found.survey, replace(found.sample, latencies=Histogram.of(answered)))
    assert seconds(found) == pytest.approx(took, rel=0.15)
    assert found.predict(1, FAST_LINE).limit == limit


def test_a_line_is_the_limit_and_machines_have_one_each() -> None:
    found = model(MANY, number_sample_per_shard=100, thread_count=1000)
    assert seconds(found, bandwidth=16_000_000) == pytest.approx(10_000 * 20_000 * 8 / 16e6, rel=0.1)
    assert seconds(found, 4, bandwidth=16_000_000) == pytest.approx(25, rel=0.1)
    assert found.predict(1, 16_000_000).limit == "bandwidth"


def test_a_sample_without_timeouts_does_not_promise_a_run_without() -> None:
    run = model(MANY, thread_count=400, timeout=5).predict(1, FAST_LINE).seconds
    assert run.high > run.value + 5


def test_rows_that_steps_refuse_are_not_stored() -> None:
    found = model(MANY, [*SEEN[:240], *(sampled(f"o{number}", "not_decodable") for number in range(60))])
    assert found.stored.value == 8000
    assert found.stored.low < 8000 < found.stored.high
    assert found.shares == {"success": 0.8, "not_decodable": 0.2}


def test_few_rows_of_a_large_host_stand_for_all_of_them() -> None:
    rows = [*(sampled("big", "http_404") for _ in range(40)), *(sampled(f"o{number}") for number in range(60))]
    hosts = {"big": 9000, **{f"o{number}": 10 for number in range(100)}}
    weights = weights_of(rows, hosts, 10_000)
    assert sum(weights[:40]) == pytest.approx(90)
    assert sum(weights) == pytest.approx(100)
    assert model(hosts, rows).success.value == pytest.approx(0.1)


def test_wilson_holds_near_the_ends() -> None:
    assert wilson(0.0, 100).low == 0 < wilson(0.0, 100).high < 0.05
    assert wilson(1.0, 0).low == 0
    assert wilson(0.5, 10).high - wilson(0.5, 10).low > 0.5 > wilson(0.5, 100).high - wilson(0.5, 100).low


def test_duplicates_are_fetched_once_with_dedupe() -> None:
    urls = {dedupe: model(MANY, duplicates=0.5, dedupe=dedupe).urls for dedupe in ("none", "shard", "run")}
    assert urls == {"none": 10_000, "shard": 5000, "run": 5000}  # all are in one shard
    assert model(MANY, duplicates=0.5, dedupe="run").stored.value == 5000
    assert "dedupe" in advice(model(MANY, duplicates=0.5, number_sample_per_shard=1000))


def test_a_host_with_a_hundredth_of_a_large_list_is_named() -> None:
    hosts = {"big.example": 4_000_000, **{f"o{number}": 396_000 for number in range(1000)}}
    found = model(hosts, max_per_host=1_000_000)
    reason = advice(found, (1, 64))["max_per_host"]
    assert reason.startswith("32: big.example holds 1.0% of the rows; at 32 transfers at once it needs 13:5")
    assert "64 machines as predicted ask the largest host" in reason
    assert "max_per_host" not in advice(model(MANY))


@pytest.mark.parametrize("rows_of_shard", [10_000, 100_000])
def test_billions_of_rows_make_no_more_than_100_000_shards(rows_of_shard: int) -> None:
    """As docs/scale.md has it, even if shards have more than 2 GB then."""
    found = model({f"o{number}": 5_000_000 for number in range(1000)}, number_sample_per_shard=rows_of_shard)
    found.sample = replace(found.sample, stored_size=62_000)
    assert advice(found, (64,))["number_sample_per_shard"].startswith("50000: ")


def test_failures_that_may_pass_are_worth_a_retry() -> None:
    busy = [*SEEN[:270], *(sampled(f"o{number}", "http_503") for number in range(30))]
    assert advice(model(MANY, busy))["retries"].startswith("1: 10.0% of the rows")
    assert "retries" not in advice(model(MANY, busy, retries=1))
    assert "retries" not in advice(model(MANY))
