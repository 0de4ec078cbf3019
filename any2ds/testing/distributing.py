"""The promises of every distributor, as tests; a plugin's author subclasses `DistributorContract`."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

import orjson

from any2ds.config.options import Config, RunOptions
from any2ds.core.layout import Layout
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._contract import Distributor
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.lock_file import LockRef
from any2ds.storage.opening import open_folder
from any2ds.testing.processes import wait_until_gone

_SOON = 20.0  # seconds, for what takes less than one: the machine may be busy


@dataclass
class ScriptedWorker:
    """Reports each job at once, but for the shards that it is told to treat otherwise."""

    poisoned: frozenset[int] = frozenset()  # reported as errors
    fatal: frozenset[int] = frozenset()  # the process ends as if killed
    raising: frozenset[int] = frozenset()  # the worker raises
    hanging: frozenset[int] = frozenset()  # nothing comes back, ever
    seconds: float = 0.0  # that each shard takes
    patience: float = 0.0
    rows_per_process: int = 1
    waiting: bool = False
    looks_ahead: bool = False  # takes the jobs that it can get before it begins, as a worker does that overlaps shards
    output: str = ""  # the folder that a real one publishes in
    locks: tuple[LockRef, ...] = ()

    @property
    def folder(self) -> OutputFolder:
        return open_folder(self.output)

    @property
    def layout(self) -> Layout:
        return Layout(10_000, 5)

    def under(self, locks: tuple[LockRef, ...]) -> ScriptedWorker:
        return replace(self, locks=(*self.locks, *locks))

    def stop(self) -> None:
        """Nothing to do: it ends when the jobs do."""

    def share(self, processes: int) -> None:
        """Nothing to do: it takes no cores."""

    def among(self, machines: int) -> ScriptedWorker:
        return self

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        for job in _gathered(jobs) if self.looks_ahead else jobs:
            time.sleep(self.seconds)
            yield Progress({"success": job.count})
            if job.shard_id in self.poisoned:
                yield Progress({"success": -job.count})
                yield ShardError(job.shard_id, "poisoned")
            elif job.shard_id in self.fatal:
                os.kill(os.getpid(), signal.SIGTERM if os.name == "nt" else signal.SIGKILL)
            elif job.shard_id in self.raising:
                raise ValueError(f"shard {job.shard_id} is too much")
            elif job.shard_id in self.hanging:
                threading.Event().wait()
            else:
                outcomes = {"success": job.count}
                report = ShardReport(
                    shard_id=job.shard_id, count=job.count, status_dict=outcomes, start_time=float(os.getpid())
                )
                if self.output:
                    self.folder.write(self.layout.stats_name(job.shard_id), orjson.dumps(report.to_json()))
                yield report


def _gathered(jobs: Iterable[ShardJob]) -> Iterator[ShardJob]:
    """The jobs, given only once none has come for a moment."""
    queue: SimpleQueue[ShardJob | None] = SimpleQueue()

    def pull() -> None:
        for job in jobs:
            queue.put(job)
        queue.put(None)

    threading.Thread(target=pull, daemon=True).start()
    gathered: list[ShardJob] = []
    while True:
        try:
            job = queue.get(timeout=0.3 if gathered else None)
        except Empty:
            job = None
            is_end = False
        else:
            is_end = job is None
        if job is not None:
            gathered.append(job)
            continue
        yield from gathered
        gathered.clear()
        if is_end:
            return


def run_options(**given: object) -> RunOptions:
    """The options that an engine for clusters is made from in tests, with the options of `download` that are given.

    Sub-jobs have few shards: the contract wants jobs to be pulled no earlier than there is room.
    """
    return Config.from_options({"url_list": "-", "distributor": "pyspark", "subjob_size": 8, **given}).run


def jobs_of(count: int) -> Iterator[ShardJob]:
    return (ShardJob(shard_id, b"rows" * 50_000, shard_id + 1) for shard_id in range(count))


class DistributorContract:
    _folder: list[str]

    def setup_method(self) -> None:
        self._folder = []

    def teardown_method(self) -> None:
        for folder in self._folder:
            shutil.rmtree(folder, ignore_errors=True)  # a machine may be just ending what was cancelled

    def make_distributor(self) -> Distributor:
        raise NotImplementedError

    def run(self, worker: ScriptedWorker, jobs: Iterator[ShardJob]) -> list[Event]:
        with closing(self.events(worker, jobs)) as events:
            return list(events)

    def events(self, worker: ScriptedWorker, jobs: Iterator[ShardJob]) -> Any:
        return self.map(self.make_distributor(), worker, jobs)

    def map(self, distributor: Distributor, worker: ScriptedWorker, jobs: Iterator[ShardJob]) -> Any:
        if not self._folder:
            self._folder.append(tempfile.mkdtemp(prefix="any2ds-contract-"))
        return distributor.map(replace(worker, output=self._folder[0]), jobs)

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

    def test_closing_stops_it_soon(self) -> None:
        events = self.events(ScriptedWorker(), jobs_of(1000))
        next(event for event in events if isinstance(event, ShardReport))
        started = time.monotonic()
        events.close()
        assert time.monotonic() - started < _SOON

    def test_asked_to_stop_it_gives_out_no_more_jobs_and_what_was_given_out_is_finished(self) -> None:
        pulled = []

        def jobs() -> Iterator[ShardJob]:
            for job in jobs_of(1000):
                pulled.append(job.shard_id)
                yield job

        distributor = self.make_distributor()
        events = list(self.until_stopped(distributor, self.map(distributor, ScriptedWorker(), jobs()), 60.0))
        assert isinstance(events[0], ShardReport)
        assert len(pulled) < 100
        made = [event.shard_id for event in events if isinstance(event, ShardReport)]
        assert len(made) == len(set(made)) <= len(pulled)
        assert not [event for event in events if isinstance(event, ShardError)]

    def test_after_it_was_stopped_there_is_nothing_more(self) -> None:
        distributor = self.make_distributor()
        distributor.stop(60.0)
        assert list(self.map(distributor, ScriptedWorker(), jobs_of(5))) == []

    def until_stopped(self, distributor: Distributor, events: Any, grace: float) -> Iterator[Event]:
        """The first report, and what comes after another thread has asked to stop."""
        with closing(events):
            yield next(event for event in events if isinstance(event, ShardReport))
            asking = threading.Thread(target=distributor.stop, args=(grace,))
            asking.start()
            asking.join()
            yield from events


class ProcessDistributorContract(DistributorContract):
    """Further promises of those that run workers in other processes."""

    def test_what_a_worker_has_told_that_died_is_taken_back(self) -> None:
        events = self.run(ScriptedWorker(fatal=frozenset({3}), looks_ahead=True), jobs_of(8))
        successes = sum(event.outcomes.get("success", 0) for event in events if isinstance(event, Progress))
        assert successes == sum(event.count for event in events if isinstance(event, ShardReport)) == 36 - 4

    def test_workers_run_elsewhere(self) -> None:
        events = self.run(ScriptedWorker(), jobs_of(5))
        assert float(os.getpid()) not in {event.start_time for event in events if isinstance(event, ShardReport)}

    def test_a_shard_that_kills_its_process_is_the_only_one_lost_and_was_tried_again(self) -> None:
        for looks_ahead in (False, True):
            events = self.run(ScriptedWorker(fatal=frozenset({2}), looks_ahead=looks_ahead), jobs_of(12))
            errors = [event for event in events if isinstance(event, ShardError)]
            assert [error.shard_id for error in errors] == [2]
            assert errors[0].attempt >= 1
            made = [event.shard_id for event in events if isinstance(event, ShardReport)]
            assert sorted(made) == [0, 1, *range(3, 12)]

    def test_a_worker_that_raises_costs_its_own_shards_only_and_says_why(self) -> None:
        events = self.run(ScriptedWorker(raising=frozenset({2})), jobs_of(12))
        errors = {event.shard_id: event.reason for event in events if isinstance(event, ShardError)}
        assert errors == {2: "ValueError: shard 2 is too much"}
        made = [event.shard_id for event in events if isinstance(event, ShardReport)]
        assert sorted(made) == [0, 1, *range(3, 12)]

    def test_shards_of_a_process_that_dies_after_it_took_the_last_job_are_not_forgotten(self) -> None:
        events = self.run(ScriptedWorker(looks_ahead=True, fatal=frozenset({0, 1, 3})), jobs_of(4))
        assert sorted(event.shard_id for event in events if isinstance(event, ShardError)) == [0, 1, 3]
        assert [event.shard_id for event in events if isinstance(event, ShardReport)] == [2]

    def test_stopping_breaks_off_what_is_not_finished_in_time(self) -> None:
        distributor = self.make_distributor()
        mapped = self.map(distributor, ScriptedWorker(hanging=frozenset(range(1, 1000))), jobs_of(1000))
        pid = 0
        started = time.monotonic()
        for event in self.until_stopped(distributor, mapped, 0.5):
            assert not isinstance(event, ShardError)
            if isinstance(event, ShardReport):
                pid, started = int(event.start_time), time.monotonic()
        assert time.monotonic() - started < _SOON
        wait_until_gone([pid])

    def test_closing_leaves_no_process_behind_even_if_a_worker_hangs(self) -> None:
        worker = ScriptedWorker(hanging=frozenset({1, 2, 3}))
        events = self.events(worker, jobs_of(1000))
        pid = int(next(event for event in events if isinstance(event, ShardReport)).start_time)
        events.close()
        wait_until_gone([pid])
