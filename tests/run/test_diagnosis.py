"""What limits a run is told from what its workers have measured, with the figure and with what to do about it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from any2ds.core.metrics import HostLoad, Wait, WorkerMetrics
from any2ds.run.diagnosis import verdict


class Verdict(NamedTuple):
    """What limits a run, and the message for a person."""

    limit: str
    message: str


def metrics(worker: str = "here:1", seconds: float = 10.0, **known: Any) -> WorkerMetrics:
    """One of a worker that has 256 places on a machine of 8 cores, and uses a fifth of one."""
    usual: dict[str, Any] = {"cpu": 2.0, "own_cpu": 2.0, "cores": 8.0, "in_flight": 256, "window": 256}
    return WorkerMetrics(worker, seconds, **{**usual, **known})


def waiting(cause: Wait, seconds: float = 7.0, **known: Any) -> WorkerMetrics:
    return metrics(waits={cause: seconds, "cpu": 10.0 - seconds}, **known)


def judged(*workers: WorkerMetrics, **known: Any) -> Verdict:
    found = verdict(workers, **known)
    assert found is not None
    return Verdict(*found)


def test_too_little_tells_nothing() -> None:
    assert verdict([]) is None
    assert verdict([metrics(seconds=0.5, waits={"cpu": 0.5})]) is None


@pytest.mark.parametrize(
    ("cause", "limit", "words"),
    [
        ("answers", "nothing", "--thread_count: 70% of the time all 256 connections"),
        ("bodies", "bodies", "The network: 70% of the time all 256 connections are receiving"),
        ("dns", "dns", "--nameservers"),
        ("hosts", "hosts", "Hosts: rows wait 70% of the time"),
        ("disk", "disk", "--staging_dir"),
        ("store", "store", "The output store: 70% of the time"),
        ("transforms", "transforms", "--transform_threads"),
        ("rows", "rows", "The url list: 70% of the time"),
        ("network", "network", "no host answers"),
    ],
)
def test_what_most_time_is_waited_for_is_the_limit(cause: Wait, limit: str, words: str) -> None:
    found = judged(waiting(cause))
    assert found.limit == limit
    assert words in found.message


def test_the_longest_wait_counts_over_all_workers() -> None:
    few = metrics("here:1", waits={"dns": 3.0, "hosts": 4.0, "cpu": 3.0})
    more = metrics("here:2", waits={"dns": 8.0, "hosts": 1.0, "cpu": 1.0})
    assert judged(few, more).limit == "dns"
    assert judged(few, replace(more, waits={"hosts": 5.0, "dns": 1.0, "cpu": 4.0})).limit == "hosts"


def test_the_host_that_most_rows_wait_for_is_named() -> None:
    worst = HostLoad("slow.example", 1200, 2, 2, "2 at once, by --max_per_host")
    assert "slow.example (1,200 rows: 2 at once, by --max_per_host)" in judged(waiting("hosts"), hosts=[worst]).message


def test_shuffling_is_advised_only_while_rows_of_other_hosts_may_come_and_are_not_shuffled() -> None:
    for is_list_read, can_shuffle, expected in ((False, True, True), (True, True, False), (False, False, False)):
        message = judged(waiting("hosts"), is_list_read=is_list_read, can_shuffle=can_shuffle).message
        assert ("--shuffle" in message) is expected


def test_an_outage_counts_before_everything_else() -> None:
    assert judged(metrics(waits={"answers": 6.0, "network": 4.0})).limit == "network"


def test_a_size_that_was_found_by_trying_is_not_to_be_raised() -> None:
    answers, bodies = (judged(waiting(cause, adapts=True)) for cause in ("answers", "bodies"))
    assert answers.limit == "answers"
    assert "--thread_count=auto has found" in answers.message
    assert "raise" not in answers.message + bodies.message


def test_bodies_that_fill_memory_while_places_are_free_are_told_from_a_full_line() -> None:
    assert "--max_buffered_bytes" in judged(waiting("bodies", in_flight=20)).message


def test_what_arrives_is_told_in_bytes_per_second() -> None:
    workers = [waiting("bodies", worker=f"here:{pid}", received=500_000_000) for pid in (1, 2)]
    assert "100.0 MB/s in all" in judged(*workers).message
    assert "2.0 kB/s in all" in judged(waiting("bodies", received=20_000)).message


def test_at_the_end_of_the_list_nobody_is_told_to_read_it_faster() -> None:
    assert "The end of the list" in judged(waiting("rows"), is_list_read=True).message


def test_a_process_that_is_always_busy_wants_company() -> None:
    found = judged(metrics(waits={"cpu": 9.0, "answers": 1.0}, cpu=8.5, own_cpu=8.5))
    assert found.limit == "cpu"
    assert "busy 90% of the time" in found.message
    assert "--processes_count" in found.message


def test_processes_that_take_all_cores_want_a_bigger_machine() -> None:
    workers = [metrics(f"here:{pid}", waits={"cpu": 6.0, "answers": 4.0}, cpu=9.5, own_cpu=9.0) for pid in range(8)]
    found = judged(*workers)
    assert found.limit == "cpu"
    assert "7.6 of 8 cores" in found.message
    assert "--processes_count" not in found.message


def test_steps_that_take_all_cores_are_named_whatever_they_make_wait() -> None:
    for cause in ("transforms", "answers"):
        found = judged(metrics(waits={cause: 6.0, "cpu": 4.0}, cpu=78.0, own_cpu=3.0))
        assert found.limit == "transforms"
        assert "7.8 of 8 cores" in found.message


def test_cores_of_different_machines_are_not_lumped_together() -> None:
    busy = metrics("one:1", waits={"cpu": 10.0}, cpu=19.8, own_cpu=9.9, cores=2.0)
    idle = [metrics(f"two:{pid}", waits={"cpu": 9.0, "answers": 1.0}, cpu=1.0, own_cpu=9.0) for pid in range(3)]
    assert "2.0 of 2 cores" in judged(busy, *idle).message


def test_a_process_that_gets_no_core_says_that_others_have_it() -> None:
    found = judged(metrics(waits={"cpu": 9.0, "answers": 1.0}, cpu=2.0, own_cpu=2.0))
    assert found.limit == "cpu"
    assert "other programs" in found.message


def test_half_busy_is_not_yet_the_limit() -> None:
    assert judged(metrics(waits={"cpu": 4.9, "answers": 5.1}, cpu=4.9, own_cpu=4.9)).limit == "nothing"


def test_the_questions_quote_what_is_printed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "faq.md").read_text(encoding="utf-8")
    quoted = re.findall(r"`((?:CPU|Hosts): [^`]+)`", page)
    busy = {"cpu": 9.75, "own_cpu": 9.75, "cores": 4.0, "waits": {"cpu": 10.0}}
    printed = [
        judged(*(metrics(f"here:{n}", **busy) for n in range(4))).message,
        judged(waiting("hosts", 6.4)).message,
    ]
    assert len(quoted) == len(printed)
    for text, message in zip(quoted, printed, strict=True):
        assert message.startswith(text)
