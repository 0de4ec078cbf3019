import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from any2ds.config.options import Config, RunOptions
from any2ds.core.errors import LockLost, RunError
from any2ds.core.reports import Event, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._child import Child
from any2ds.distributors.inline import InlineDistributor
from any2ds.distributors.multiprocessing import MultiprocessingDistributor
from any2ds.storage.lock.lock_file import LockRef
from any2ds.testing.distributing import DistributorContract, ProcessDistributorContract, ScriptedWorker, jobs_of
from any2ds.testing.processes import LONG, wait_until
from any2ds.worker.worker import ShardWorker


def options(**given: object) -> RunOptions:
    return Config.from_options({"url_list": "-", **given}).run


class TestInline(DistributorContract):
    def make_distributor(self) -> InlineDistributor:
        return InlineDistributor(options())


class Sharing(ScriptedWorker):
    """Ends its first shard when two processes have one, and its second when no other has."""

    told: tuple[int, ...] = ()

    def share(self, processes: int) -> None:
        self.told += (processes,)

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        for job in jobs:
            expected = (2,) if job.shard_id == 0 else (2, 1)
            wait_until(lambda expected=expected: self.told == expected)  # type: ignore[misc]
            yield ShardReport(shard_id=job.shard_id, count=job.count, status_dict={"success": job.count})


class TestMultiprocessing(ProcessDistributorContract):
    def make_distributor(self) -> MultiprocessingDistributor:
        return MultiprocessingDistributor(options(processes_count=2))

    def test_all_processes_get_work(self) -> None:
        events = self.run(ScriptedWorker(seconds=0.05), jobs_of(60))
        assert len({event.start_time for event in events if isinstance(event, ShardReport)}) == 2

    def test_processes_know_how_many_share_the_machine(self) -> None:
        reports = self.run(Sharing(), jobs_of(2))
        assert sum(isinstance(event, ShardReport) for event in reports) == 2

    def test_processes_that_end_one_after_the_other_end_the_run(self) -> None:
        worker = ScriptedWorker(raising=frozenset(range(1000)))
        with pytest.raises(RunError, match="ValueError: shard"):
            self.run(worker, jobs_of(1000))

    def test_a_folder_that_is_another_runs_ends_the_run_and_says_so(self, tmp_path: Path) -> None:
        config = Config.from_options({"url_list": "-", "output_folder": tmp_path / "out"})
        worker = ShardWorker(config.output, config.fetch, locks=(LockRef(".any2ds/lock", "one that is over"),))
        with pytest.raises(LockLost, match="others may be at work there"):
            list(self.make_distributor().map(worker, jobs_of(1)))

    def test_the_default_is_the_cores_that_may_be_used(self) -> None:
        assert MultiprocessingDistributor(options()).processes_count == len(os.sched_getaffinity(0))


def test_a_process_that_does_not_read_holds_nobody_up() -> None:
    child = Child(ScriptedWorker(), SimpleQueue())
    os.kill(child.pid, signal.SIGSTOP)
    for job in jobs_of(5):  # each is more than a pipe holds
        child.give(job)
    child.end()
    child.wait(time.monotonic() + LONG)
    assert child.was_killed
