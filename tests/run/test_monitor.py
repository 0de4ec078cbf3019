"""Everybody who watches sees the same figures, while shards are open; over a clock that is handed in."""

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from any2ds.core.metrics import HostLoad, WorkerMetrics
from any2ds.core.reports import Progress, ShardError, ShardReport
from any2ds.run.monitor import Monitor, Outlook


class Watched:
    """A monitor, its clock, and how much there is to do."""

    def __init__(self, **outlook: Any) -> None:
        self.now = 100.0
        self.outlook = Outlook(**outlook)
        self.open_shards = 0
        self.monitor = Monitor(
            0, lambda: self.outlook, lambda: self.open_shards, clock=lambda: self.now, memory=lambda: 1000
        )

    def rows(self, count: int, code: str = "success", **metrics: Any) -> None:
        worker = metrics.pop("worker", "here:1")
        self.monitor.take(Progress({code: count}, 10 * max(0, count), WorkerMetrics(worker, 0.5, **metrics)))

    def figures(self) -> Any:
        return SimpleNamespace(**self.monitor.progress())

    def pass_time(self, seconds: float, rows_per_second: int = 0) -> None:
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            if rows_per_second:
                self.rows(rows_per_second // 2, attempts=rows_per_second)
            self.figures()


def test_rates_are_those_of_the_last_ten_seconds() -> None:
    watched = Watched()
    watched.pass_time(30, rows_per_second=100)
    watched.pass_time(10, rows_per_second=20)
    snapshot = watched.figures()
    assert snapshot.rows_per_second == pytest.approx(20, rel=0.1)
    assert snapshot.successes_per_second == snapshot.rows_per_second
    assert snapshot.attempts_per_second == pytest.approx(40, rel=0.1)
    assert snapshot.outcomes == {"success": 3200}


def test_rates_begin_with_the_first_rows_and_not_with_the_imports() -> None:
    watched = Watched()
    watched.pass_time(8)
    watched.pass_time(2, rows_per_second=100)
    assert watched.figures().rows_per_second == pytest.approx(100)


def test_nobody_who_looks_twice_at_a_time_sees_other_rates() -> None:
    watched = Watched()
    watched.pass_time(5, rows_per_second=100)
    assert watched.figures() == watched.figures()


def test_the_time_left_follows_the_recent_pace() -> None:
    watched = Watched(rows=100_000)
    watched.pass_time(100, rows_per_second=100)
    watched.pass_time(150, rows_per_second=20)
    snapshot = watched.figures()
    assert snapshot.total_rows == 100_000
    assert snapshot.share == pytest.approx(0.13)
    assert snapshot.eta == pytest.approx(87_000 / 20, rel=0.1)


def test_the_time_left_is_no_less_than_that_of_the_slowest_row() -> None:
    watched = Watched(rows=1000)
    watched.pass_time(9, rows_per_second=110)
    watched.rows(0, worker="here:1", remaining=9.5, in_flight=2)
    watched.rows(0, worker="here:2", remaining=3.0, in_flight=2)
    assert watched.figures().eta == pytest.approx(9.5)


def test_nothing_is_said_of_the_time_left_while_nothing_moves() -> None:
    watched = Watched(rows=1000)
    assert watched.figures().eta is None
    watched.pass_time(10, rows_per_second=10)
    watched.pass_time(200)
    assert watched.figures().eta is None
    assert watched.figures().share == 0.1


def test_rows_that_were_done_before_are_no_progress_of_this_run() -> None:
    watched = Watched(rows=10_000, planned=6000, passed_over=5000)
    watched.pass_time(10, rows_per_second=100)
    snapshot = watched.figures()
    assert snapshot.total_rows == 5000
    assert snapshot.share == 0.2
    assert snapshot.eta == pytest.approx(40)


def test_a_list_of_unknown_length_is_reckoned_by_its_bytes() -> None:
    watched = Watched(planned=2000, share_read=0.1, passed_over=500)
    assert watched.outlook.expected == 19_500
    watched.pass_time(10, rows_per_second=195)
    snapshot = watched.figures()
    assert snapshot.total_rows is None
    assert snapshot.share == pytest.approx(0.1, rel=0.02)
    assert snapshot.eta == pytest.approx(90, rel=0.05)


def test_a_run_with_nothing_to_do_is_done() -> None:
    snapshot = Watched(rows=100, planned=100, passed_over=100).figures()
    assert (snapshot.total_rows, snapshot.share, snapshot.eta) == (0, 1.0, 0.0)


def test_a_shard_that_is_lost_takes_its_rows_back_and_no_rate_is_below_nothing() -> None:
    watched = Watched(rows=10_000)
    watched.pass_time(20, rows_per_second=100)
    watched.rows(-1500)
    watched.monitor.take(ShardError(0, "the disk", again=True))
    snapshot = watched.figures()
    assert snapshot.outcomes == {"success": 500}
    assert snapshot.share == 0.05
    assert snapshot.shards_failed == 0
    assert snapshot.rows_per_second == pytest.approx(100, rel=0.1)


def test_where_nothing_is_told_before_a_shard_is_finished_that_counts() -> None:
    watched = Watched(rows=4000)
    for _ in range(3):
        watched.pass_time(30)
        report = ShardReport(
            shard_id=0, count=1000, status_dict={"success": 900, "dns": 100}, bytes=5000, attempts=1200
        )
        watched.monitor.take(report)
        watched.monitor.take(Progress())
        watched.figures()
    snapshot = watched.figures()
    assert snapshot.outcomes == {"success": 2700, "dns": 300}
    assert (snapshot.attempts, snapshot.bytes, snapshot.shards_done) == (3600, 15_000, 3)
    assert snapshot.share == 0.75
    assert snapshot.eta is not None
    assert snapshot.successes_per_second > 0


def test_while_it_stops_nobody_knows_what_is_left_or_gets_advice() -> None:
    watched = Watched(rows=1000, planned=1000)
    watched.open_shards = 3
    for _ in range(20):
        watched.now += 0.5
        watched.rows(10, waits={"hosts": 0.5})
        before = watched.figures()
    watched.monitor.is_stopping = True
    now = watched.figures()
    assert before.eta is not None
    assert before.limit is not None
    assert (now.eta, now.limit, now.limit_words) == (None, None, None)
    assert (now.outcomes, now.share, now.shards_open) == (before.outcomes, before.share, 3)


def test_a_worker_that_says_nothing_any_more_does_not_count() -> None:
    watched = Watched()
    watched.rows(1, worker="here:1", in_flight=100, window=256, memory=5)
    watched.rows(1, worker="here:2", in_flight=50, window=256, memory=7)
    snapshot = watched.figures()
    assert (snapshot.workers, snapshot.in_flight, snapshot.window) == (2, 150, 512)
    assert snapshot.memory == 1012
    watched.now += 8
    watched.rows(1, worker="here:2", in_flight=60)
    watched.now += 8
    snapshot = watched.figures()
    assert (snapshot.workers, snapshot.in_flight) == (1, 60)


def test_memory_of_a_worker_in_this_process_is_counted_once() -> None:
    watched = Watched()
    watched.rows(1, worker=f"{socket.gethostname()}:{os.getpid()}", memory=5000)
    assert watched.figures().memory == 5000


def test_latencies_are_those_of_late() -> None:
    watched = Watched()
    watched.rows(1, latencies={0: 100})
    watched.figures()
    assert watched.figures().latency_p50 == pytest.approx(1, rel=0.1)
    for _ in range(3):
        watched.now += 11
        watched.rows(1, latencies={8: 10})
        watched.figures()
    assert watched.figures().latency_p95 == pytest.approx(2, rel=0.1)
    watched.now += 30
    watched.figures()
    assert watched.figures().latency_p50 is None


def test_hosts_that_several_workers_wait_for_are_added_up() -> None:
    watched = Watched()
    for worker in ("here:1", "here:2"):
        hosts = (HostLoad("a", 10, 1, 2, "slow"), HostLoad(worker, 15, 1, 1, "slow"))
        watched.rows(1, worker=worker, hosts=hosts)
    worst = watched.figures().hosts[0]
    assert (worst["name"], worst["waiting"], worst["in_flight"], worst["limit"]) == ("a", 20, 2, 4)


def test_the_verdict_is_about_the_last_seconds() -> None:
    watched = Watched()
    for seconds, cause in ((20, "dns"), (11, "hosts")):
        for _ in range(seconds * 2):
            watched.now += 0.5
            watched.rows(1, waits={cause: 0.5}, cores=4.0)
            limit = watched.figures().limit
        assert limit == cause
    watched.pass_time(15)
    assert watched.figures().limit is None
