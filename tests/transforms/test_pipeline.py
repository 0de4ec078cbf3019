"""Samples on their way through threads: in any order, in bounded memory, and always to an end."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds import Sample
from any2ds.config.media import MediaOptions, TransformLimits, TransformOptions
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.errors import DiskFull
from any2ds.core.processes.resources import cores
from any2ds.core.rows import Row
from any2ds.core.samples import release
from any2ds.testing.processes import children, wait_until, wait_until_gone
from any2ds.testing.server import Server, serve
from any2ds.transforms import threads
from any2ds.transforms.chain import Pipeline, StepGroup
from any2ds.transforms.contract import Plan
from any2ds.transforms.pipeline import PipelineRunner
from any2ds.transforms.threads import Budget
from tests.support.smalldisk import small_disk

MIB = 1 << 20


@pytest.fixture
def buffer() -> Iterator[Buffer]:
    buffer = Buffer(64 * MIB, 4)
    yield buffer
    buffer.close()


class Clock:
    """The time of the threads that do steps, which goes on when a test says so."""

    def __init__(self) -> None:
        self.now = 1.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(threads, "time", clock)
    return clock


def pipeline(*steps: Any, **more: Any) -> Pipeline:
    return Pipeline(MediaOptions(TransformOptions(file_size=0, disable_all_reencoding=True, transform=steps, **more)))


def new(
    steps: Sequence[Any], threads: int = 2, timeout: float = 60, memory: int = 64 * MIB, **more: Any
) -> PipelineRunner:
    return PipelineRunner(pipeline(*steps), TransformLimits(threads, timeout, memory), has_members=True, **more)


def submit(
    transforming: PipelineRunner,
    buffer: Buffer,
    files: Sequence[bytes],
    isolated: bool = False,
    mime_type: str | None = None,
) -> None:
    for number, data in enumerate(files):
        row = Row(0, number, f"{number:09d}", f"http://a/{number}")
        fields = {"status": "success", "mime_type": mime_type, "ext": "flat", "bytes": len(data)}
        transforming.submit(Sample(row, buffer.hold(data), "flat", fields), buffer, isolated)


def finish(transforming: PipelineRunner, seconds: float = 60) -> list[list[Sample]]:
    """The samples of all rows, by row."""
    found: list[list[Sample]] = []
    until = time.monotonic() + seconds
    while transforming.pending:
        found += [list(samples) for samples in transforming.turn(is_ending=True, seconds=0.1)]
        assert time.monotonic() < until
    return sorted(found, key=lambda samples: samples[0].row.position)


def finish_until(transforming: PipelineRunner, condition: Callable[[], object]) -> list[list[Sample]]:
    """The samples of the rows that are done until then."""
    found: list[list[Sample]] = []

    def is_so() -> bool:
        found.extend(list(samples) for samples in transforming.turn())
        return bool(condition())

    wait_until(is_so)
    return found


def test_rows_come_back_in_any_order_and_a_slow_one_holds_up_no_other(buffer: Buffer) -> None:
    go = threading.Event()

    def step(sample: Sample) -> Sample:
        if sample.data == b"0":
            assert go.wait(60)
        return sample

    transforming = new([step])
    submit(transforming, buffer, [b"0", *[b"1"] * 50])
    seen: list[int] = []
    while len(seen) < 50:
        seen += [samples[0].row.position for samples in transforming.turn(seconds=1)]
    assert sorted(seen) == list(range(1, 51))
    go.set()
    assert [samples[0].row.position for samples in finish(transforming)] == [0]
    transforming.close()


# --- archives ---


def zipped(*files: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for number, data in enumerate(files):
            archive.writestr(f"{number:03d}.bin", data)
    return stream.getvalue()


def test_the_files_of_an_archive_keep_their_order_and_are_numbered_when_all_is_done(buffer: Buffer) -> None:
    def step(sample: Sample) -> Any:
        """As many as the file says, in a random order of time."""
        time.sleep(0.01 * (int(sample.data) % 3))
        count = int(sample.data)
        return sample if count == 9 else [sample.with_data(b"%d.%d" % (count, n)) for n in range(count)]

    transforming = PipelineRunner(pipeline(step, unpack=True), TransformLimits(4, 60, 64 * MIB), has_members=True)
    archives = [zipped(b"2", b"9", b"0", b"3", b"1"), zipped(b"9"), zipped(b"1")]
    submit(transforming, buffer, archives, mime_type="application/zip")
    rows = finish(transforming)
    assert [[sample.data for sample in samples] for samples in rows] == [
        [b"2.0", b"2.1", b"9", b"", b"3.0", b"3.1", b"3.2", b"1.0"],
        [b"9"],
        [b"1.0"],
    ]
    assert [[(sample.part, sample.parts) for sample in samples] for samples in rows] == [
        [(part, 8) for part in range(8)],
        [(0, 1)],
        [(0, 1)],
    ]
    assert rows[0][3].fields["status"] == "filtered"
    for samples in rows:
        release(samples)
    assert buffer.used == 0
    transforming.close()


# --- batches ---


class Batches:
    """A step that remembers how it was called."""

    def __init__(self, size: int, then: Callable[[list[Sample]], Any] = list) -> None:
        self.sizes: list[int] = []
        self._then = then
        any2ds.transform(batch_size=size)(self)

    def __call__(self, samples: list[Sample]) -> Any:
        self.sizes.append(len(samples))
        return self._then(samples)


def test_a_batch_does_not_wait_for_ever_while_nothing_comes(buffer: Buffer) -> None:
    step = Batches(100)
    transforming = new([step])
    submit(transforming, buffer, [b"x"] * 3)
    done = 0
    while not done:
        done = sum(1 for _ in transforming.turn(seconds=0.1))
        time.sleep(0.01)  # nothing is at work, so that there is nothing to wait for
    assert (done, step.sizes) == (3, [3])
    transforming.close()


def test_one_bad_file_costs_a_batch_few_further_calls(buffer: Buffer) -> None:
    def picky(samples: list[Sample]) -> list[Sample]:
        if any(sample.data == b"bad" for sample in samples):
            raise ValueError("bad")
        return samples

    step = Batches(256, picky)
    transforming = new([step])
    submit(transforming, buffer, [b"good"] * 100 + [b"bad"] + [b"good"] * 155)
    failed = [samples[0].key for samples in finish(transforming) if samples[0].failure]
    assert failed == ["000000100"]
    assert len(step.sizes) <= 2 * 8 + 1
    transforming.close()


# --- timeouts ---


def test_a_step_that_never_returns_costs_its_row_and_nothing_else(buffer: Buffer, clock: Clock) -> None:
    never = threading.Event()
    hanging: list[bytes] = []

    def step(sample: Sample) -> Sample:
        if sample.data.startswith(b"hang"):
            hanging.append(sample.data)
            never.wait()
        return sample

    transforming = new([step], threads=2, timeout=0.2)
    submit(transforming, buffer, [b"hang1", b"hang2", b"hang3", *[b"fine"] * 20])
    finish_until(transforming, lambda: len(hanging) == 2)  # which takes all threads
    clock.now += 1
    rows = finish_until(transforming, lambda: len(hanging) == 3 and transforming.pending == 1)
    clock.now += 1
    rows = sorted([*rows, *finish(transforming)], key=lambda samples: samples[0].row.position)
    assert [samples[0].failure.code if samples[0].failure else None for samples in rows] == [
        *["transform_timeout"] * 3,
        *[None] * 20,
    ]
    assert rows[0][0].fields["error_message"] == "after 0.2 s"
    assert buffer.used == 20 * len(b"fine")
    never.set()
    transforming.close()


def test_a_step_that_turns_in_circles_is_ended(buffer: Buffer) -> None:
    threads: list[threading.Thread] = []

    def step(sample: Sample) -> Sample:
        threads.append(threading.current_thread())
        while True:
            pass

    transforming = new([step], threads=1, timeout=0.2)
    submit(transforming, buffer, [b"x"])
    ((sample,),) = finish(transforming)
    assert sample.failure is not None
    threads[0].join(60)  # else it would take turns with all others for ever
    assert not threads[0].is_alive()
    transforming.close()


def test_after_a_batch_that_never_returned_a_new_instance_goes_on(buffer: Buffer, clock: Clock) -> None:
    never, is_stuck = threading.Event(), threading.Event()
    made: list[object] = []

    @any2ds.transform(batch_size=2)
    class Stuck:
        def __init__(self) -> None:
            made.append(self)

        def __call__(self, samples: list[Sample]) -> list[Sample]:
            if len(made) == 1:
                is_stuck.set()
                never.wait()
            return samples

    transforming = new([Stuck], timeout=0.3)
    submit(transforming, buffer, [b"x"] * 6)
    assert finish_until(transforming, is_stuck.is_set) == []
    clock.now += 1
    codes = [samples[0].failure and samples[0].failure.code for samples in finish(transforming)]
    assert codes == ["transform_timeout"] * 2 + [None] * 4
    assert len(made) == 2
    never.set()
    transforming.close()


def test_a_file_that_waits_for_memory_is_not_late(buffer: Buffer) -> None:
    class Slow(Weighed):
        def __call__(self, sample: Sample) -> Sample:
            time.sleep(0.4)
            return sample

    line = pipeline(lambda sample: sample)
    line.groups = (StepGroup((Slow(),)),)
    transforming = PipelineRunner(line, TransformLimits(4, 1.5, 100), has_members=True)
    submit(transforming, buffer, [b"100"] * 8)
    assert [samples[0].failure for samples in finish(transforming)] == [None] * 8
    transforming.close()


def test_a_file_that_cannot_be_looked_at_costs_its_row_alone(buffer: Buffer) -> None:
    class Unreadable(Weighed):
        def plan(self, sample: Sample) -> Plan:
            raise OSError("the disk has lost it")

    line = pipeline(lambda sample: sample)
    line.groups = (StepGroup((Unreadable(),)),)
    transforming = PipelineRunner(line, TransformLimits(1, 0, 1000), has_members=True)
    submit(transforming, buffer, [b"100"])
    ((sample,),) = finish(transforming)
    assert sample.failure is not None
    assert (sample.failure.code, sample.failure.detail) == ("transform_error", "OSError: the disk has lost it")
    transforming.close()


def test_each_sample_of_a_row_has_the_whole_time(buffer: Buffer) -> None:
    def slow(sample: Sample) -> Sample:
        time.sleep(0.3)
        return sample

    transforming = new([Batches(1, lambda samples: [[sample] * 6 for sample in samples]), slow], timeout=1.5)
    submit(transforming, buffer, [b"x"])
    (samples,) = finish(transforming)
    assert [sample.failure for sample in samples] == [None] * 6
    transforming.close()


# --- memory ---


class Weighed:
    """A built-in step that says what it needs, and sees how much all threads have at once."""

    columns: dict[str, Any] = {}  # noqa: RUF012
    seconds = 0.005  # that it takes

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()

    def plan(self, sample: Sample) -> Plan:
        return Plan(lambda: int(sample.data), lambda: self(sample))

    def __call__(self, sample: Sample) -> Sample:
        with self._lock:
            self.now += int(sample.data)
            self.most = max(self.most, self.now)
        time.sleep(self.seconds)
        with self._lock:
            self.now -= int(sample.data)
        return sample


def test_decoded_bytes_are_bounded_for_all_threads_together(buffer: Buffer) -> None:
    step = Weighed()
    line = pipeline(lambda sample: sample)
    line.groups = (StepGroup((step,)),)
    transforming = PipelineRunner(line, TransformLimits(8, 60, 100), has_members=True)
    submit(transforming, buffer, [b"30", b"60", b"250", *[b"40"] * 20])
    finish(transforming)
    assert step.most == 250  # alone: it needs more than there is
    submit(transforming, buffer, [b"40"] * 20)
    step.most = 0
    finish(transforming)
    assert step.most == 80
    transforming.close()


def test_a_large_file_does_not_wait_for_as_long_as_small_ones_come() -> None:
    budget = Budget(10)
    budget.take(6)
    order: list[int] = []

    def take(count: int) -> None:
        order.append(budget.take(count))

    large = threading.Thread(target=take, args=(10,))
    large.start()
    wait_until(lambda: len(budget._line) == 1)
    small = threading.Thread(target=take, args=(1,))
    small.start()
    wait_until(lambda: len(budget._line) == 2)
    assert order == []
    budget.change(6, 0)
    large.join(60)
    assert order == [10]
    budget.change(10, 0)
    small.join(60)
    assert order == [10, 1]


def test_what_steps_have_made_is_in_the_account(buffer: Buffer) -> None:
    grown = 3 * MIB
    made: list[int] = []

    def step(sample: Sample) -> Sample:
        made.append(1)
        return sample.with_data(bytes(grown))

    transforming = new([step], threads=4, memory=8 * MIB)
    submit(transforming, buffer, [b"x"] * 100)
    found = [list(samples) for samples in transforming.turn()]  # the worker's thread is away then: at its disk, say
    wait_until(lambda: transforming._budget._used >= 6 * MIB)
    wait_until(lambda: len(transforming._budget._line) == 4)
    # Those that the call has returned are in the account no more. Of the others two fit, and each thread may have begun
    # one more before it showed how large they become.
    assert len(made) - len(found) <= 2 + 4
    for samples in [*found, *finish(transforming)]:
        assert all(sample.body is not None for sample in samples)
        release(samples)
    assert buffer.used == 0
    transforming.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("media")
    (folder / "large.bin").write_bytes(os.urandom(400_000))
    (folder / "medium.bin").write_bytes(os.urandom(10_000))
    (folder / "small.bin").write_bytes(b"small")
    with serve(folder) as server:
        yield server


def test_a_slow_step_holds_back_a_fast_server(server: Server, tmp_path: Path) -> None:
    rows, lead = 1200, 0
    done: list[int] = []

    def slow(sample: Sample) -> Sample:
        nonlocal lead
        if not done:
            wait_until(lambda: sum(server.counts.values()) > 300)
        done.append(1)
        time.sleep(0.003)
        lead = max(lead, sum(server.counts.values()) - len(done))
        return sample.with_data(b"done")

    report = any2ds.download(
        [f"{server.url('large.bin')}?{number}" for number in range(rows)],
        output_folder=tmp_path / "out",
        output_format="webdataset",
        distributor="inline",
        transform=slow,
        transform_threads=1,
        thread_count=32,
        quiet=True,
    )
    assert report.successes == rows
    # 128 MiB that wait, 32 MiB in the queue of the thread, and what was in flight.
    assert lead * 400_000 < 200 * MIB
    assert lead > 250


def test_a_row_waits_for_others_of_its_shard_while_a_step_is_slow(server: Server, tmp_path: Path) -> None:
    def uneven(sample: Sample) -> Any:
        number = int((sample.url or "").rpartition("?")[2])
        time.sleep(0.2 if number % 10 == 0 else 0)
        return sample.with_data(str(number).encode()) if number % 7 else None

    any2ds.download(
        [f"{server.url('small.bin')}?{number}" for number in range(60)],
        output_folder=tmp_path / "out",
        output_format="parquet",
        number_sample_per_shard=20,
        distributor="inline",
        transform=uneven,
        transform_threads=4,
        quiet=True,
    )
    rows = [row for path in sorted((tmp_path / "out").glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert [row["data"] for row in rows] == [str(n).encode() if n % 7 else None for n in range(60)]


MEETING = """
import threading
together = threading.Barrier({})
def meet(sample):
    together.wait(60)
    return sample
"""


def test_one_shard_has_all_cores(server: Server, tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(MEETING.format(cores()))
    report = any2ds.download(
        [f"{server.url('small.bin')}?{number}" for number in range(3 * cores())],
        output_folder=tmp_path / "out",
        processes_count=max(2, cores()),
        transform=f"{tmp_path / 'step.py'}:meet",
        quiet=True,
    )
    assert report.successes == 3 * cores()


# --- ends ---


def test_a_disk_that_fills_under_what_steps_have_made_leaves_whole_shards_and_can_be_gone_on_with(
    server: Server, tmp_path: Path
) -> None:
    def grown(sample: Sample) -> Sample:
        return sample.with_data(sample.data * 20)

    with small_disk(tmp_path / "disk", 2_000_000) as disk:
        output = disk.folder / "dataset"
        options: dict[str, Any] = {
            "output_folder": output,
            "output_format": "webdataset",
            "number_sample_per_shard": 2,
            "min_free_bytes": disk.min_free_bytes,
            "distributor": "inline",
            "transform": grown,
            "quiet": True,
        }
        urls = [f"{server.url('medium.bin')}?{number}" for number in range(20)]
        with pytest.raises(DiskFull):
            any2ds.download(urls, **options)
        stats, tars = list(output.glob("*_stats.json")), list(output.glob("*.tar"))
        assert len(stats) == len(tars) < 10
        disk.grow()
        any2ds.download(urls, **options)
        found = [row for path in sorted(output.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
        assert [row["stored_bytes"] for row in found] == [200_000] * 20


STEPS = """
import time
def sleeps(sample):
    open("begun", "a").close()
    time.sleep(1000)
def turns(sample):
    open("begun", "a").close()
    while True: pass
"""


@pytest.mark.parametrize(
    ("distributor", "how", "step"),
    [("inline", signal.SIGTERM, "turns"), ("multiprocessing", signal.SIGINT, "sleeps")],
)
def test_a_run_ends_by_a_signal_though_its_steps_never_do(
    distributor: str, how: signal.Signals, step: str, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "steps.py").write_text(STEPS)
    (tmp_path / "urls.txt").write_text("\n".join(f"{server.url('small.bin')}?{number}" for number in range(20)))
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "any2ds", "--url_list=urls.txt", "--output_folder=out", "--grace=0.5"),
            *(f"--transform=steps.py:{step}", f"--distributor={distributor}", "--processes_count=1"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until((tmp_path / "begun").exists)
        processes = children(run.pid)
        run.send_signal(how)
        assert run.wait(60) == 128 + how
    finally:
        run.kill()
        run.wait()
    wait_until_gone(processes)
    assert not list((tmp_path / "out").glob(".any2ds/tmp/*"))
    assert not (tmp_path / "out" / ".any2ds/lock").exists()
