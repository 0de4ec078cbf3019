"""When something that moves no longer counts as stuck: the bound, its watch, and what is given up after it.

What a run makes of it is played in `tests/plays/test_resume.py`.
"""

from typing import Any

from any2ds.config.options import Config
from any2ds.core.processes.watchdog import Watch
from any2ds.core.rows import ShardJob
from any2ds.fetch.policy.limits import process_limit, watchdog_limit


def fetch_options(**given: Any) -> Any:
    return Config.from_options({"url_list": "-", **given}).fetch


def test_the_bound_is_longer_than_everything_that_may_pass_in_silence() -> None:
    assert watchdog_limit(fetch_options()) == 10.5 + 60 + 120 + 15 + 30  # an attempt is looked at every 0.5 s
    assert watchdog_limit(fetch_options(timeout=1000, host_delay=500, max_retry_after=0)) == 1050 + 60 + 500 + 30
    assert watchdog_limit(fetch_options(timeout=0, total_timeout=500)) == 500 + 60 + 120 + 15 + 30
    assert watchdog_limit(fetch_options(timeout=10, total_timeout=0)) == watchdog_limit(fetch_options())
    without_total = watchdog_limit(fetch_options(timeout=0, connect_timeout=7, stall_timeout=20))
    assert without_total == 11 * (7 + 20) + 60 + 120 + 15 + 30
    assert watchdog_limit(fetch_options(timeout=0, stall_timeout=0)) < float("inf")


def test_the_bound_can_be_given_and_switched_off() -> None:
    assert watchdog_limit(fetch_options(watchdog_timeout=5)) == 5
    assert watchdog_limit(fetch_options(watchdog_timeout=0)) == process_limit(fetch_options(watchdog_timeout=0)) == 0
    assert process_limit(fetch_options(watchdog_timeout=5)) > 5


def test_only_seconds_in_which_somebody_looks_count() -> None:
    watch = Watch(3.0, now=0.0)
    assert not watch.look(0.5, "a")
    assert not watch.look(1000.0, "a")  # the machine was suspended
    assert not watch.look(1001.0, "a")
    assert watch.look(1002.0, "a")


def test_a_sign_of_life_starts_the_count_anew_and_so_does_having_nothing_to_do() -> None:
    watch = Watch(2.0, now=0.0)
    for now in range(1, 10):
        assert not watch.look(float(now), sign=now)
        assert watch.silent == 0
    for now in range(10, 20):
        assert not watch.look(float(now), sign=9, expected=False)
    assert not watch.look(20.0, sign=9)
    assert watch.look(21.0, sign=9)


def test_a_watch_without_a_limit_never_ends() -> None:
    watch = Watch(0.0, now=0.0)
    assert not any(watch.look(float(now), "a") for now in range(1000))


def test_rows_that_were_under_way_in_two_hangs_are_given_up_and_all_rows_after_the_third() -> None:
    job = ShardJob(0, b"", count=4).after_hang([1, 2])
    assert job.given_up() == {}
    job = job.after_hang([2, 3])
    assert job.given_up() == {2: "2 processes that were to fetch it got stuck"}
    assert job.attempt == 2
    assert set(job.after_hang([]).given_up()) == {0, 1, 2, 3}
    assert set(job.after_hang().given_up()) == {0, 1, 2, 3}
