"""What runs on clusters, on the smallest one there can be: each task in a thread of this process."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from any2ds.config.options import Config, RunOptions
from any2ds.core import layout
from any2ds.core.errors import LockLost, RunError
from any2ds.core.reports import Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._cluster import ClusterDistributor
from any2ds.distributors._task import Task, TaskProgress, UnseenFolder
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.lock_file import LockRef
from any2ds.storage.patience import persist
from any2ds.testing.distributing import ProcessDistributorContract, ScriptedWorker, jobs_of, run_options
from any2ds.testing.processes import LONG


class Threads(ClusterDistributor):
    """A cluster of two slots, in which `call` does what a machine does with a task."""

    slots, machines = 2, 1

    def __init__(self, options: RunOptions, call: Callable[[Task], None] = Task.__call__) -> None:
        super().__init__(options)
        self._call = call

    def run(self, tasks: Sequence[Task]) -> None:
        with ThreadPoolExecutor(len(tasks)) as pool:
            list(pool.map(self._call, tasks))

    def cancel(self) -> None:
        """A thread cannot be ended; its task sees that it is to stop."""


class TestCluster(ProcessDistributorContract):
    def make_distributor(self) -> Threads:
        return Threads(run_options())


def run(distributor: Threads, worker: ScriptedWorker, jobs: Iterator[ShardJob]) -> tuple[list[int], list[int]]:
    """The shards that are made, and those that failed."""
    events = list(distributor.map(worker, jobs))
    made = [event.shard_id for event in events if isinstance(event, ShardReport)]
    return sorted(made), sorted(event.shard_id for event in events if isinstance(event, ShardError))


def test_a_task_that_the_cluster_loses_is_submitted_again_and_nothing_is_left_behind(tmp_path: Path) -> None:
    lost = iter([True])

    def call(task: Task) -> None:
        if task.number == 1 and next(lost, False):
            raise OSError("the machine is gone")
        task()

    worker = ScriptedWorker(output=str(tmp_path))
    assert run(Threads(run_options(), call), worker, jobs_of(12)) == (list(range(12)), [])
    assert [path.name for path in (tmp_path / ".any2ds").rglob("*")] == []


class FailsBatches(Threads):
    """A task that fails fails its batch, as with Spark and Beam: tasks that are at work end without their shards, and
    the others never begin. Shard `fatal` takes its machine with it."""

    def __init__(self, options: RunOptions, fatal: int = -1) -> None:
        super().__init__(options)
        self._fatal = fatal
        self.sizes: list[int] = []  # tasks of each batch with the fatal shard
        self.attempts: dict[int, int] = {}  # shard -> the highest at which it was submitted

    def run(self, tasks: Sequence[Task]) -> None:
        jobs_of_tasks = [task.jobs(task.worker.folder) or () for task in tasks]
        for job in (job for jobs in jobs_of_tasks for job in jobs):
            self.attempts[job.shard_id] = max(self.attempts.get(job.shard_id, 0), job.attempt)
        fatal = [self._fatal in [job.shard_id for job in jobs] for jobs in jobs_of_tasks]
        if not any(fatal):
            return super().run(tasks)
        self.sizes.append(len(tasks))
        begun = {fatal.index(True), 0}
        for number in begun:
            tasks[number].worker.folder.write(tasks[number].file("progress"), TaskProgress(1).to_bytes())
        raise OSError("the machine is gone")


def test_a_shard_that_fails_its_batch_harms_no_other_one(tmp_path: Path) -> None:
    """Each shard is a task, and all of them fail with it."""
    options = run_options(subjob_size=40, max_shard_retry=2)
    cluster = FailsBatches(options, fatal=20)
    cluster.slots = 40
    made = run(cluster, ScriptedWorker(output=str(tmp_path)), jobs_of(40))
    assert made == ([shard for shard in range(40) if shard != 20], [20])
    assert cluster.sizes == [40, 1, 1, 1]
    assert {shard for shard, attempt in cluster.attempts.items() if attempt} == {20}  # the others are not to blame


def test_without_retries_the_neighbours_of_a_shard_that_fails_its_batch_are_made(tmp_path: Path) -> None:
    cluster = FailsBatches(run_options(subjob_size=8, max_shard_retry=0), fatal=3)
    cluster.slots = 4
    assert run(cluster, ScriptedWorker(output=str(tmp_path)), jobs_of(8)) == ([0, 1, 2, 4, 5, 6, 7], [3])


def test_no_more_tasks_run_than_there_may_be(tmp_path: Path) -> None:
    """While one takes its time, the next sub-job is begun."""
    at_work: set[int] = set()
    most = 0
    is_over = threading.Event()

    def call(task: Task) -> None:
        nonlocal most
        at_work.add(task.number)
        most = max(most, len(at_work))
        if task.number == 0:
            is_over.wait(LONG)
        elif task.number == 5:
            is_over.set()
        task()
        at_work.discard(task.number)

    worker = ScriptedWorker(output=str(tmp_path))
    made = run(Threads(run_options(subjob_size=4, processes_count=2), call), worker, jobs_of(12))
    assert (made, most) == ((list(range(12)), []), 2)


def test_a_task_that_runs_twice_makes_its_shards_once(tmp_path: Path) -> None:
    def call(task: Task) -> None:
        with ThreadPoolExecutor(1) as pool:
            twin = pool.submit(task)
            task()
            twin.result()

    worker = ScriptedWorker(output=str(tmp_path), seconds=0.05)
    assert run(Threads(run_options(), call), worker, jobs_of(6)) == (list(range(6)), [])


def test_shards_of_a_task_that_was_lost_often_get_tasks_of_their_own(tmp_path: Path) -> None:
    numbers: list[int] = []

    def call(task: Task) -> None:
        numbers.append(task.number)
        if task.number == 0:
            task.worker.folder.write(task.file("progress"), TaskProgress(4).to_bytes())
        task()

    worker = ScriptedWorker(output=str(tmp_path))
    assert run(Threads(run_options(), call), worker, jobs_of(8)) == (list(range(8)), [])
    assert sorted(numbers) == list(range(2 + 4))


def test_an_attempt_goes_on_where_the_one_before_has_died(tmp_path: Path) -> None:
    """It has published a shard, of which it has told nothing, and has told of rows that are in none."""

    def call(task: Task) -> None:
        if task.number == 0:
            before = TaskProgress(1)
            before.add(Progress({"success": 3}))
            task.worker.folder.write(task.file("progress"), before.to_bytes())
            list(task.worker(jobs_of(1)))
        task()

    worker = ScriptedWorker(output=str(tmp_path))
    events = list(Threads(run_options(), call).map(worker, jobs_of(4)))
    assert sorted(event.shard_id for event in events if isinstance(event, ShardReport)) == [0, 1, 2, 3]
    assert sum(event.outcomes.get("success", 0) for event in events if isinstance(event, Progress)) == 1 + 2 + 3 + 4


def test_what_a_cluster_says_when_it_can_do_nothing_ends_the_run(tmp_path: Path) -> None:
    def call(task: Task) -> None:
        raise OSError("no such image")

    with pytest.raises(RunError, match="the cluster failed the job: no such image"):
        run(Threads(run_options(), call), ScriptedWorker(output=str(tmp_path)), jobs_of(4))


def test_a_run_whose_folder_is_another_runs_is_ended(tmp_path: Path) -> None:
    from any2ds.worker.worker import ShardWorker

    config = Config.from_options({"url_list": "-", "output_folder": tmp_path})
    worker = ShardWorker(config.output, config.fetch, locks=(LockRef(".any2ds/lock", "one that is over"),))
    with pytest.raises(LockLost, match="others may be at work there"):
        list(Threads(run_options()).map(worker, jobs_of(1)))


def task_in(folder: Path) -> Task:
    worker = ScriptedWorker(output=str(folder))
    return Task(worker, run_options(), f"{layout.WORK_FOLDER}/run", 0.05)


def test_a_machine_that_sees_another_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(UnseenFolder, match="is not the folder of the run, seen from here"):
        task_in(tmp_path)()


def test_a_task_that_was_given_up_makes_nothing_also_if_it_is_at_work(tmp_path: Path) -> None:
    task = replace(task_in(tmp_path), worker=GivenUp(output=str(tmp_path), hanging=frozenset(range(4))))
    task = task.with_jobs(list(jobs_of(4)), 0)
    for _ in range(2):
        task()
        progress = task.progress(task.worker.folder)
        assert (progress.attempt <= 1, progress.made, progress.has_ended) == (True, [], False)


class GivenUp(ScriptedWorker):
    """Its task is given up as soon as it has begun."""

    def under(self, locks: tuple[LockRef, ...]) -> ScriptedWorker:
        self.folder.remove_many([f"{layout.WORK_FOLDER}/run/000000.{kind}" for kind in ("jobs", "lock")])
        return super().under(locks)


def test_jobs_that_somebody_else_has_written_are_not_read(tmp_path: Path) -> None:
    task = task_in(tmp_path).with_jobs(list(jobs_of(2)), 0)
    task.worker.folder.write(task.file("jobs"), b"cos\nsystem\n(S'false'\ntR.")
    task()
    assert list(tmp_path.glob("*_stats.json")) == []


def test_stopping_is_heard_while_the_list_gives_nothing(tmp_path: Path) -> None:
    asked, end = threading.Event(), threading.Event()

    def jobs() -> Iterator[ShardJob]:
        asked.set()
        end.wait()
        yield from ()

    distributor = Threads(run_options())
    with ThreadPoolExecutor(1) as pool:
        events = pool.submit(lambda: list(distributor.map(ScriptedWorker(output=str(tmp_path)), jobs())))
        asked.wait()
        distributor.stop(0.0)
        assert events.result(LONG) == []
        end.set()


class Unreachable(ScriptedWorker):
    """Its store gives the driver no answer when that tells the tasks to stop."""

    @property
    def folder(self) -> OutputFolder:
        return self._as_seen_by_driver if hasattr(self, "_as_seen_by_driver") else super().folder

    def seen_by_driver(self, order: list[str]) -> None:
        folder = super().folder

        def write(name: str, content: bytes) -> None:
            def refused() -> None:
                order.append(f"write {name.rpartition('/')[2]}")
                raise ConnectionError("no answer")

            if name.endswith("stop"):
                persist(name, refused, folder.stop)
            else:
                type(folder).write(folder, name, content)

        folder.write = write  # type: ignore[method-assign]
        self._as_seen_by_driver = folder

    def __reduce__(self) -> tuple[Any, ...]:  # in a task it is what any worker is
        return ScriptedWorker, (), {"output": self.output, "hanging": self.hanging}


@pytest.mark.parametrize("is_asked", [True, False], ids=["stop", "close"])
def test_tasks_are_ended_before_a_store_that_gives_no_answer_is_asked(is_asked: bool, tmp_path: Path) -> None:
    order: list[str] = []
    ended = threading.Event()

    class Recording(Threads):
        def run(self, tasks: Sequence[Task]) -> None:
            for task in tasks:
                task.worker.folder.write(task.file("progress"), TaskProgress(1, outcomes=Counter(success=1)).to_bytes())
            ended.wait(LONG)

        def cancel(self) -> None:
            order.append("cancel")
            ended.set()

    worker = Unreachable(output=str(tmp_path))
    worker.seen_by_driver(order)
    distributor = Recording(run_options())
    events: Any = distributor.map(worker, jobs_of(8))
    assert isinstance(next(events), Progress)
    began = time.monotonic()
    if is_asked:
        distributor.stop(1.0)
        list(events)
        assert order[-2:] == ["cancel", "write stop"]
    else:
        events.close()
        assert order == ["cancel", "write stop"]
    assert time.monotonic() - began < 10
