"""Predictions and advice, from lists and samples that are made up."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from any2ds.config.options import Config
from any2ds.core import text
from any2ds.core.reports import RunReport
from any2ds.core.rows import Row
from any2ds.forecast import model as models
from any2ds.forecast import simulation
from any2ds.forecast.advice import advise
from any2ds.forecast.model import Model, Prediction
from any2ds.forecast.prices import Prices
from any2ds.forecast.simulation import Answer, Machine, Simulated, simulate
from any2ds.forecast.survey import Hosts, Survey
from any2ds.forecast.transfers import Cost, Sample, Transfer

PRICES = Prices.read(None)


@pytest.fixture(autouse=True)
def few_rows_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "SIMULATED", 2000)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each simulation."""
    times: list[float] = []

    def noted(*given: Any) -> Simulated:
        found = simulate(*given)
        times.append(found.seconds)
        return found

    monkeypatch.setattr(models, "simulate", noted)
    return times


def model(
    rows: dict[str, int], transfers: Sequence[Transfer], cpu: float = 4e-4, size: int = 20_000, **options: Any
) -> Model:
    """Of a list with `rows` on these hosts, "" for all; the others are on many hosts."""
    total = rows.pop("", 0) or sum(rows.values())
    rest = total - sum(rows.values())
    others = {f"o{number}": rest // 1000 for number in range(1000)} if rest else {}
    survey = Survey(
        rows=total,
        is_exact=True,
        read=total,
        bad=0,
        schemes={"http": total},
        hosts=Hosts(len(rows) + len(others), rows, others),
        distinct=total,
        duplicates=0.0,
        duplicates_in_shards=0.0,
        urls_per_row=1,
        error="",
        seconds=1.0,
        sample=pa.table({"url": pa.array([], pa.string())}),
    )
    good = sum(each.code == "success" for each in transfers)
    report = RunReport(count=len(transfers), successes=good, bytes=good * size)
    cost = Cost(len(transfers), 10.0, cpu * len(transfers), cpu * len(transfers), 100_000_000)
    return Model(Config.from_options({"url_list": "-", **options}), survey, Sample("sample", transfers, cost, report))


def predicted(of: Model, *machines: int) -> list[Prediction]:
    return [of.predict(count, 10**10, PRICES) for count in machines]


def max_per_host(of: Model, predictions: Sequence[Prediction]) -> list[str]:
    return [f"{each.value}: {each.reason}" for each in advise(of, predictions) if each.option == "max_per_host"]


SEEN = [Transfer(f"o{number % 50}", "success", 0.4, 20_000) for number in range(300)]


def test_a_host_with_a_hundredth_of_a_large_list_is_named() -> None:
    found = model({"": 400_000_000, "big.example": 4_000_000}, SEEN)
    runs = predicted(found, 1, 64)
    rate = runs[1].largest_host
    assert rate == pytest.approx(4_000_000 / runs[1].seconds.value)
    assert rate > 300
    (reason,) = max_per_host(found, runs)
    assert reason.startswith(
        "32: the largest host, big.example, holds 1.0% of the rows; at 32 transfers at once it needs"
    )
    assert "it needs 13:53:20, whatever you buy; 64 machines as predicted ask the largest host" in reason


def test_a_limit_that_is_given_is_the_one_of_the_reason() -> None:
    found = model({"": 400_000_000, "big.example": 4_000_000}, SEEN, max_per_host=8)
    runs = predicted(found, 1)
    assert runs[0].limit == "hosts"
    assert runs[0].seconds.value == pytest.approx(4_000_000 * 0.4 / 8, rel=0.01)
    (reason,) = max_per_host(found, runs)
    assert reason.startswith(
        "8: the largest host, big.example, holds 1.0% of the rows; at 8 transfers at once it needs 2 d"
    )
    own = model({"": 400_000_000, "big.example": 4_000_000}, SEEN, hosts={"*.example": {"host_delay": 0.5}})
    assert own.slowest_host().seconds == 2_000_000


def test_a_sorted_list_takes_as_long_as_the_engine_takes_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host has a block of the list, of which a worker reads so many rows ahead."""
    for module in (models, simulation):
        monkeypatch.setattr(module, "ROWS_AHEAD", 1000)
    names = [f"o{number}" for number in range(40)]
    given = {"number_sample_per_shard": 1000, "max_per_host": 2, "thread_count": 100, "robots": "ignore"}
    found = model(dict.fromkeys(names, 200), SEEN, processes_count=1, **given)
    found.survey = replace(found.survey, hosts=replace(found.survey.hosts, per_shard=6.0))
    urls = (Row(0, number, str(number), f"http://{names[number // 200]}/{number}") for number in range(8000))
    run = simulate(found.config.fetch, urls, lambda host, row, at_once: Answer(0.4, 20_000), Machine(cpu=4e-4), 1)
    (said,) = predicted(found, 1)
    assert said.seconds.value == pytest.approx(run.seconds, rel=0.2)
    assert said.limit == "hosts"
    assert said.seconds_if_shuffled < 0.6 * said.seconds.value
    (reason,) = (each.reason for each in advise(found, [said]) if each.option == "shuffle")
    assert "has the rows of 6 hosts, and would have those of 40 in a random order" in reason
    assert reason.endswith(f"which takes 0:02:41 instead of {text.duration(said.seconds_if_shuffled)}")


def test_where_the_line_is_the_limit_the_range_is_that_of_sizes() -> None:
    transfers = [replace(each, size=5_000 if number % 10 else 155_000) for number, each in enumerate(SEEN)]
    even, uneven = (model({"": 20_000}, seen).predict(1, 4_000_000, PRICES) for seen in (SEEN, transfers))
    assert even.limit == uneven.limit == "bandwidth"
    assert even.seconds.value == pytest.approx(uneven.seconds.value, rel=0.1)
    assert uneven.seconds.low < 0.75 * uneven.seconds.value < 0.85 * even.seconds.low


def test_hosts_that_decide_nothing_are_not_named() -> None:
    found = model({"": 40_000_000, "some.example": 8_000}, SEEN)
    assert max_per_host(found, predicted(found, 1)) == []


def test_the_delay_of_a_robots_txt_holds_for_all_machines() -> None:
    slow = [Transfer("slow.example", "success", 0.1, 20_000, delay=10.0) for _ in range(5)]
    found = model({"": 1_000_000, "big.example": 100_000, "slow.example": 5_000}, [*SEEN, *slow])
    (run,) = predicted(found, 16)
    assert (run.limit, found.slowest_host().name) == ("hosts", "slow.example")
    assert run.seconds.value == pytest.approx(50_000, rel=0.01)


def test_the_same_worker_is_simulated_once(simulated: list[float]) -> None:
    found = model({"": 100_000_000, "a.example": 1000}, SEEN, processes_count=16)
    runs = predicted(found, 1, 4, 16)
    assert len(simulated) == 3
    assert runs[0].seconds.value > 3.5 * runs[1].seconds.value > 12 * runs[2].seconds.value


def test_where_draws_differ_more_of_them_make_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """With half of the hosts refusing, three draws said anything from seconds to an hour."""
    seconds = iter([40.0, 300.0, 900.0, 310.0, 290.0, 320.0, 5.0, 330.0, 250.0])
    monkeypatch.setattr(models, "simulate", lambda *given: Simulated(next(seconds)))
    (run,) = predicted(model({"a.example": 40}, SEEN), 1)
    assert next(seconds, None) is None
    assert run.seconds.value == pytest.approx(300, abs=2)
    assert 25 < run.seconds.low < 40
    assert 330 < run.seconds.high < 500


def test_billions_of_rows_make_no_more_than_100_000_shards() -> None:
    """As docs/scale.md has it, even if shards have more than 2 GB then."""
    for rows_of_shard in (10_000, 100_000):
        found = model({"": 5_000_000_000}, SEEN, size=62_000, number_sample_per_shard=rows_of_shard)
        runs = predicted(found, 64)
        (advice,) = (each for each in advise(found, runs) if each.option == "number_sample_per_shard")
        assert advice.value == "50000"


def test_one_shard_is_made_by_one_process() -> None:
    found = model({"": 9_000}, SEEN, cpu=0.05, number_sample_per_shard=10_000)
    runs = predicted(found, 1)
    (advice,) = (each for each in advise(found, runs) if each.option == "processes_count")
    assert (runs[0].limit, advice.value) == ("cpu", "1")
    assert advice.reason.endswith("one shard is made by one process, which is the limit")
