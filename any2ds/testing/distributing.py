"""What every distributor promises, as tests; a plugin's author subclasses `DistributorContract`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from any2ds.protocols import Distributor
from any2ds.types import Event, Progress, ShardError, ShardJob, ShardReport


@dataclass
class ScriptedWorker:
    """Reports each job at once, but for the shards that it is told to treat otherwise."""

    poisoned: frozenset[int] = frozenset()  # reported as errors
    fatal: frozenset[int] = frozenset()  # the process ends as if killed
    raising: frozenset[int] = frozenset()  # the worker raises
    hanging: frozenset[int] = frozenset()  # nothing comes back, ever
    seconds: float = 0.0  # that each shard takes
    patience: float = 0.0
    waiting: bool = False
    looks_ahead: bool = False  # takes all jobs before it reports on the first, as a worker does that overlaps shards

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        for job in list(jobs) if self.looks_ahead else jobs:
            time.sleep(self.seconds)
            yield Progress({"success": job.count})
            if job.shard_id in self.poisoned:
                yield ShardError(job.shard_id, "poisoned")
            elif job.shard_id in self.fatal:
                os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
            elif job.shard_id in self.raising:
                raise ValueError(f"shard {job.shard_id} is too much")
            elif job.shard_id in self.hanging:
                threading.Event().wait()
            else:
                yield ShardReport(job.shard_id, count=job.count, start_time=float(os.getpid()))


def jobs_of(count: int) -> Iterator[ShardJob]:
    return (ShardJob(shard_id, b"rows" * 50_000, shard_id + 1) for shard_id in range(count))


class DistributorContract:
    def make_distributor(self) -> Distributor:
        raise NotImplementedError

    def run(self, worker: ScriptedWorker, jobs: Iterator[ShardJob]) -> list[Event]:
        with closing(self.events(worker, jobs)) as events:
            return list(events)

    def events(self, worker: ScriptedWorker, jobs: Iterator[ShardJob]) -> Any:
        return self.make_distributor().map(worker, jobs)

    def test_every_job_is_reported_once(self) -> None:
        events = self.run(ScriptedWorker(), jobs_of(20))
        reports = [event for event in events if isinstance(event, ShardReport)]
        assert sorted((report.shard_id, report.count) for report in reports) == [(n, n + 1) for n in range(20)]

    def test_progress_comes_through(self) -> None:
        events = self.run(ScriptedWorker(), jobs_of(5))
        assert sum(event.outcomes["success"] for event in events if isinstance(event, Progress)) == 1 + 2 + 3 + 4 + 5

    def test_no_jobs_end_at_once(self) -> None:
        assert self.run(ScriptedWorker(), jobs_of(0)) == []

    def test_a_poisoned_shard_is_told_and_the_others_are_made(self) -> None:
        events = self.run(ScriptedWorker(poisoned=frozenset({3})), jobs_of(8))
        assert [event.shard_id for event in events if isinstance(event, ShardError)] == [3]
        made = {event.shard_id for event in events if isinstance(event, ShardReport)}
        assert made == {0, 1, 2, 4, 5, 6, 7}

    def test_an_error_while_planning_is_raised(self) -> None:
        def jobs() -> Iterator[ShardJob]:
            yield from jobs_of(1)
            raise LookupError("the plan broke off")

        raised = ""
        try:
            self.run(ScriptedWorker(), jobs())
        except LookupError as error:
            raised = str(error)
        assert raised == "the plan broke off"

    def test_jobs_are_pulled_as_there_is_room(self) -> None:
        pulled = []

        def jobs() -> Iterator[ShardJob]:
            for job in jobs_of(1000):
                pulled.append(job.shard_id)
                yield job

        with closing(self.events(ScriptedWorker(), jobs())) as events:
            next(event for event in events if isinstance(event, ShardReport))
            assert len(pulled) < 100

    def test_closing_stops_it_within_a_second(self) -> None:
        events = self.events(ScriptedWorker(), jobs_of(1000))
        next(event for event in events if isinstance(event, ShardReport))
        started = time.monotonic()
        events.close()
        assert time.monotonic() - started < 1


class ProcessDistributorContract(DistributorContract):
    """Further promises of those that run workers in other processes."""

    def test_workers_run_elsewhere(self) -> None:
        events = self.run(ScriptedWorker(), jobs_of(5))
        assert float(os.getpid()) not in {event.start_time for event in events if isinstance(event, ShardReport)}

    def test_a_killed_process_costs_its_own_shards_only(self) -> None:
        events = self.run(ScriptedWorker(fatal=frozenset({2})), jobs_of(12))
        lost = {event.shard_id for event in events if isinstance(event, ShardError)}
        made = {event.shard_id for event in events if isinstance(event, ShardReport)}
        assert 2 in lost
        assert lost | made == set(range(12))
        assert not lost & made

    def test_a_worker_that_raises_costs_its_own_shards_only_and_says_why(self) -> None:
        events = self.run(ScriptedWorker(raising=frozenset({2})), jobs_of(12))
        errors = {event.shard_id: event.reason for event in events if isinstance(event, ShardError)}
        assert errors[2] == "ValueError: shard 2 is too much"
        made = {event.shard_id for event in events if isinstance(event, ShardReport)}
        assert set(errors) | made == set(range(12))

    def test_shards_of_a_process_that_dies_after_it_took_the_last_job_are_not_forgotten(self) -> None:
        for worker in (
            ScriptedWorker(looks_ahead=True, fatal=frozenset({0, 1, 2, 3})),
            ScriptedWorker(looks_ahead=True, raising=frozenset({0, 1, 2, 3})),
        ):
            events = self.run(worker, jobs_of(4))
            lost = {event.shard_id for event in events if isinstance(event, ShardError)}
            made = {event.shard_id for event in events if isinstance(event, ShardReport)}
            assert lost | made == {0, 1, 2, 3}
            assert lost

    def test_closing_leaves_no_process_behind_even_if_a_worker_hangs(self) -> None:
        worker = ScriptedWorker(hanging=frozenset({1, 2, 3}))
        events = self.events(worker, jobs_of(1000))
        pid = int(next(event for event in events if isinstance(event, ShardReport)).start_time)
        events.close()
        assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
