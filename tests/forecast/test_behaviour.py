"""How hosts behave in a simulation, as a sample shows it."""

from collections import Counter

from any2ds.config.options import Config
from any2ds.core.rows import Row
from any2ds.forecast.behaviour import Behaviour
from any2ds.forecast.simulation import NEVER, Machine, simulate
from any2ds.forecast.survey import Hosts
from any2ds.forecast.transfers import Transfer

OPTIONS = Config.from_options({"url_list": "-", "retries": 2, "robots": "ignore", "thread_count": 40}).fetch


def of(transfers: list[Transfer], hosts: int) -> Behaviour:
    return Behaviour(Hosts(hosts, {f"h{host}": 20 for host in range(hosts)}), transfers, OPTIONS)


def test_attempts_that_fail_in_passing_slow_no_host_down() -> None:
    some = [Transfer(f"h{number % 100}", "success", 0.6, 5000, 1 + (number % 8 == 0)) for number in range(397)]
    lost = [Transfer(f"h{number}", "http_503", attempts=3) for number in range(3)]
    behaviour = of([*some, *lost], 100)
    found = simulate(OPTIONS, behaviour.rows(2000), behaviour.answer, Machine())
    assert 1970 < found.codes["success"] <= 2000
    assert found.attempts > 2150
    assert 2000 * 0.6 / 40 < found.seconds < 60


def test_a_host_that_refuses_everything_goes_on_to() -> None:
    refusing = [Transfer("h0", "http_503", attempts=3) for _ in range(8)]
    fine = [Transfer(f"h{number % 9 + 1}", "success", 0.1, 5000) for number in range(90)]
    behaviour = of([*refusing, *fine], 10)
    codes = Counter(str(behaviour.answer("h0", Row(0, 0, "", ""), 1).failure is None) for _ in range(50))
    assert codes == {"False": 50}


def test_a_host_that_was_not_seen_is_wholly_like_one_that_was() -> None:
    silent = [Transfer(f"s{number % 10}", "timeout_total") for number in range(40)]
    fine = [Transfer(f"h{number % 10}", "success", 0.1, 5000) for number in range(40)]
    behaviour = of([*silent, *fine], 10)
    kinds: Counter[bool] = Counter()
    for host in range(200):
        answers = {behaviour.answer(f"new{host}", Row(0, 0, "", ""), 1).seconds >= NEVER for _ in range(10)}
        assert len(answers) == 1
        kinds.update(answers)
    assert 70 < kinds[True] < 130
