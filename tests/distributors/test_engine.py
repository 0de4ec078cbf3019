"""What runs on clusters, on the smallest one there can be: each task in a thread of this process."""

import math
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from any2ds.config.options import Config, RunOptions
from any2ds.core.errors import RunError, error_text
from any2ds.core.reports import ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._engine import EngineDistributor
from any2ds.distributors._mailbox import Mailbox
from any2ds.distributors._task import PackedJob, Task, UnseenFolder
from any2ds.readers.plan import cuts
from any2ds.testing.distributing import ProcessDistributorContract, ScriptedWorker, jobs_of
from any2ds.testing.processes import LONG, descendants
from any2ds.worker.worker import ShardWorker
from tests.support.crowd import MOST, SHARD, crowd
from tests.support.jobs import plan

TASKS = 7  # of a cluster that has grown


def running(**options: object) -> RunOptions:
    return Config.from_options({"url_list": "-", "distributor": "pyspark", "subjob_size": 8, **options}).run


class Calls:
    """A batch whose tasks are called, each in a thread, by `call`."""

    def __init__(self, tasks: Sequence[Task], call: Callable[[Task], None]) -> None:
        self._words = ""
        self._call = call
        self._threads = [threading.Thread(target=self._run, args=(task,), daemon=True) for task in tasks]
        for thread in self._threads:
            thread.start()

    def has_ended(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def error(self) -> str:
        return self._words

    def cancel(self) -> None:
        """A thread cannot be ended; its task finds out by itself that nobody listens any more."""

    def _run(self, task: Task) -> None:
        try:
            self._call(task)
        except Exception as error:
            self._words = error_text(error)


class Threads:
    slots, machines, patience = 2, 1, 0.0
    end_timeout = 1.0  # a thread that hangs cannot be ended, however long it is waited for

    def __init__(self, call: Callable[[Task], None], most: float = math.inf) -> None:
        self._call, self.most = call, most

    def begin(self, tasks: Sequence[Task]) -> Calls:
        return Calls(tasks, self._call)


class ThreadsDistributor(EngineDistributor):
    def __init__(
        self, options: RunOptions, call: Callable[[Task], None] = Task.__call__, most: float = math.inf
    ) -> None:
        super().__init__(options)
        self._call, self._most = call, most

    @contextmanager
    def engine(self) -> Iterator[Threads]:
        yield Threads(self._call, self._most)


class TestEngine(ProcessDistributorContract):
    def make_distributor(self) -> ThreadsDistributor:
        return ThreadsDistributor(running())


def run(
    distributor: ThreadsDistributor, worker: ScriptedWorker, jobs: Iterator[ShardJob]
) -> tuple[list[int], list[int]]:
    """The shards that were made, and those that were told as failed."""
    made, failed = [], []
    for event in distributor.map(worker, jobs):
        if isinstance(event, ShardReport):
            made.append(event.shard_id)
        elif isinstance(event, ShardError):
            failed.append(event.shard_id)
    return sorted(made), sorted(failed)


def test_tasks_that_a_cluster_loses_are_given_out_again(tmp_path: Path) -> None:
    lost = iter([True])

    def call(task: Task) -> None:
        if task.number == 1 and next(lost, False):
            raise OSError("the machine is gone")
        task()

    worker = ScriptedWorker(output=str(tmp_path))
    assert run(ThreadsDistributor(running(), call), worker, jobs_of(12)) == (list(range(12)), [])
    assert [path.name for path in tmp_path.rglob("*")] == [".any2ds"]  # in which a run has its state


def test_no_more_tasks_run_than_there_may_be(tmp_path: Path) -> None:
    """While one takes its time, the next sub-job is begun."""
    running_now, most = set(), 0
    is_over = threading.Event()

    def call(task: Task) -> None:
        nonlocal most
        running_now.add(task.number)
        most = max(most, len(running_now))
        if task.number == 0:
            is_over.wait(LONG)
        elif task.number == 5:
            is_over.set()
        task()
        running_now.discard(task.number)

    worker = ScriptedWorker(output=str(tmp_path))
    made = run(ThreadsDistributor(running(subjob_size=4), call, most=2), worker, jobs_of(12))
    assert (made, most) == ((list(range(12)), []), 2)


def test_a_task_that_is_called_twice_reports_once(tmp_path: Path) -> None:
    def call(task: Task) -> None:
        twin = threading.Thread(target=task)
        twin.start()
        task()
        twin.join()

    worker = ScriptedWorker(output=str(tmp_path), seconds=0.05)
    assert run(ThreadsDistributor(running(), call), worker, jobs_of(6)) == (list(range(6)), [])


def test_shards_of_a_task_that_was_lost_often_get_tasks_of_their_own(tmp_path: Path) -> None:
    numbers = []

    def call(task: Task) -> None:
        numbers.append(task.number)
        if task.number == 0:
            (tmp_path / f"{task.mailbox.mark(0)}.begun").write_bytes(b"....")
        task()

    worker = ScriptedWorker(output=str(tmp_path))
    assert run(ThreadsDistributor(running(), call), worker, jobs_of(8)) == (list(range(8)), [])
    assert sorted(numbers) == list(range(2 + 4))


def test_a_cluster_that_can_do_nothing_ends_the_run(tmp_path: Path) -> None:
    def call(task: Task) -> None:
        raise OSError("no such image")

    with pytest.raises(RunError, match="the cluster failed the job: no such image"):
        run(ThreadsDistributor(running(), call), ScriptedWorker(output=str(tmp_path)), jobs_of(4))


def test_a_machine_that_sees_another_folder_is_told(tmp_path: Path) -> None:
    mailbox = Mailbox("run", b"key")
    with pytest.raises(UnseenFolder, match="is not the folder of the run, seen from here"):
        Task(0, ScriptedWorker(output=str(tmp_path)), mailbox, running())()


def test_a_task_that_was_given_up_does_nothing(tmp_path: Path) -> None:
    worker, mailbox = ScriptedWorker(output=str(tmp_path)), Mailbox("run", b"key")
    mailbox.open(worker.folder)
    task = Task(0, worker, mailbox, running())
    task.leave([PackedJob.of(job) for job in jobs_of(1)])
    mailbox.give_up(worker.folder, 0)
    task()
    assert worker.folder.names(mailbox.deliveries) == []


def test_what_is_left_for_a_task_has_no_secrets(tmp_path: Path) -> None:
    worker, mailbox = ScriptedWorker(output=str(tmp_path)), Mailbox("run", b"the key of all letters")
    mailbox.open(worker.folder)
    task = Task(0, worker, mailbox, running())
    task.leave([PackedJob.of(job) for job in jobs_of(1)])
    content = (tmp_path / mailbox.task_file(0)).read_bytes()
    assert mailbox.key not in content
    assert str(tmp_path).encode() not in content
    task()
    assert worker.folder.names(mailbox.deliveries)
    assert not (tmp_path / mailbox.task_file(0)).exists()


def test_stopping_is_heard_while_the_list_gives_nothing(tmp_path: Path) -> None:
    asked, end = threading.Event(), threading.Event()

    def jobs() -> Iterator[ShardJob]:
        asked.set()
        end.wait()
        yield from ()

    distributor = ThreadsDistributor(running())
    found: list[object] = []
    thread = threading.Thread(
        target=lambda: found.extend(distributor.map(ScriptedWorker(output=str(tmp_path)), jobs())), daemon=True
    )
    thread.start()
    asked.wait()
    distributor.stop(0.0)
    thread.join(60.0)
    assert not thread.is_alive()
    end.set()


MACHINE = "import pickle, sys; pickle.load(sys.stdin.buffer)()"


@pytest.mark.slow
def test_hosts_see_no_more_of_all_tasks_than_they_allow_on_a_cluster_that_grows_and_loses_some(tmp_path: Path) -> None:
    """Real workers, of which the first has a row that is held, so that many other tasks begin and end beside it."""

    def attempts(task: Task) -> None:
        if task.number == 1 and lost:
            lost.pop()
            machine = subprocess.Popen([sys.executable, "-c", MACHINE], stdin=subprocess.PIPE)
            assert machine.stdin is not None
            pickle.dump(task, machine.stdin)
            machine.stdin.close()
            here.wait_for_requests(12)
            for pid in (machine.pid, *descendants(machine.pid)):
                os.kill(pid, signal.SIGKILL)
            machine.wait()  # and another one begins the task anew, as clusters have it
        if task.number == 3:
            cluster.slots = cluster.most = TASKS  # more than the transfers that the host allows
        task()

    lost, cluster = [True], Threads(attempts, most=2)
    (media := tmp_path / "media").mkdir()
    with crowd(media) as here, ThreadPoolExecutor(1) as threads:
        config = Config.from_options({**here.options, "output_folder": tmp_path / "out", "distributor": "pyspark"})
        (tmp_path / "out").mkdir()
        table = pa.table({"url": here.urls})
        jobs = plan(cuts(table.to_batches(), SHARD), table.schema)

        class Growing(EngineDistributor):
            @contextmanager
            def engine(self) -> Iterator[Threads]:
                yield cluster

        def release() -> None:
            try:
                here.wait_for_requests(24)  # others have its slot in vain
            finally:
                here.server.release()

        released = threads.submit(release)
        events = list(Growing(running(subjob_size=4)).map(ShardWorker(config.output, config.fetch), jobs))
        released.result()
    assert {event.shard_id for event in events if isinstance(event, ShardReport)} == set(range(12))
    here.expect_limits()
    assert cluster.slots == TASKS > MOST
