"""Beam: each runner that this machine can run, what Dataflow and Flink would get, and machines that vanish."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import (
    DebugOptions,
    DirectOptions,
    GoogleCloudOptions,
    PortableOptions,
    SetupOptions,
)

from any2ds import download, verify
from any2ds.config.options import Config, RunOptions
from any2ds.core.errors import OptionError
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.distributors._beam import _Perform, _Wanted, graph
from any2ds.distributors._beam_protocol import Asked
from any2ds.distributors._mailbox import Inbox, Mailbox
from any2ds.distributors._task import PackedJob, Task
from any2ds.distributors.beam import BeamDistributor
from any2ds.readers.plan import cuts
from any2ds.storage.folders import OutputFolder
from any2ds.testing.distributing import ProcessDistributorContract, ScriptedWorker, jobs_of
from any2ds.testing.processes import children, state, wait_until, wait_until_gone
from any2ds.testing.server import serve
from any2ds.worker.worker import ShardWorker
from tests.support.crowd import Crowd
from tests.support.jobs import plan

IN_MEMORY = ("--direct_running_mode=in_memory",)
PROCESSES = ("--direct_running_mode=multi_processing",)
PORTABLE = ("--runner=PortableRunner", "--job_endpoint=embed", "--environment_type=LOOPBACK")
DASK = ("--runner=DaskRunner",)
RUNNERS: dict[str, Sequence[str]] = {
    "in_memory": IN_MEMORY,
    "multi_threading": (),
    "multi_processing": PROCESSES,
    "portable": PORTABLE,
    "dask": DASK,
}
DATAFLOW = (
    "--runner=DataflowRunner",
    "--project=a-project",
    "--region=europe-west1",
    "--temp_location=gs://bucket/tmp",
    "--requirements_file=requirements.txt",
    "--experiments=one,two",
)
FLINK = (
    "--runner=FlinkRunner",
    "--flink_master=127.0.0.1:8081",
    "--environment_type=EXTERNAL",
    "--environment_config=127.0.0.1:50000",
    "--parallelism=7",
    "--of_the_server=8",
)


@pytest.fixture(scope="module", autouse=True)
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What Beam asks Google about a bucket is answered here: there is none."""
    with pytest.MonkeyPatch.context() as patch, serve(tmp_path_factory.mktemp("google")) as server:
        patch.setenv("STORAGE_EMULATOR_HOST", server.base_url)
        patch.setenv("NO_GCE_CHECK", "true")
        yield


def running(flags: Sequence[str] = (), **options: Any) -> RunOptions:
    given = {
        "distributor": "beam",
        "processes_count": 2,
        "subjob_size": 20,
        "beam_options": list(flags) or None,
        **options,
    }
    return Config.from_options({"url_list": "-", **given}).run


class BeamContract(ProcessDistributorContract):
    flags: Sequence[str] = ()

    def make_distributor(self) -> BeamDistributor:
        return BeamDistributor(running(self.flags))


class TestInMemory(BeamContract):
    flags = IN_MEMORY


class TestThreads(BeamContract):
    flags = ()


class TestProcesses(BeamContract):
    flags = PROCESSES


class TestPortable(BeamContract):
    flags = PORTABLE


class TestDask(BeamContract):
    flags = DASK


# --- datasets ---


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for number in range(12):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 1000)
    return folder


def stored(out: Path) -> dict[str, dict[str, bytes]]:
    """Shard -> name of a member -> its content."""
    found = {}
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as tar:
            found[path.name] = {
                member.name: tar.extractfile(member).read()  # type: ignore[union-attr]
                for member in tar
                if not member.name.endswith(".json")  # which says when
            }
    return found


OPTIONS: dict[str, Any] = {
    "output_format": "webdataset",
    "number_sample_per_shard": 3,
    "processes_count": 2,
    "quiet": True,
}


def descendants(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *descendants(child))]


def command(out: Path, urls: Path, flags: Sequence[str], **options: Any) -> list[str]:
    given = {**OPTIONS, "url_list": urls, "output_folder": out, "distributor": "beam", **options}
    words = [f"--{name}={value}" for name, value in given.items()]
    return [sys.executable, "-m", "any2ds", *words, *([f"--beam_options={','.join(flags)}"] if flags else [])]


@pytest.mark.parametrize("runner", ["multi_threading", "multi_processing"])
def test_ctrl_c_ends_all_and_the_same_command_goes_on(runner: str, media: Path, tmp_path: Path) -> None:
    out, urls = tmp_path / "out", tmp_path / "urls.txt"
    with serve(media, {"11.bin": ["hold"]}) as server:
        urls.write_text("\n".join(server.url(f"{number}.bin") for number in range(12)))
        asked = command(out, urls, RUNNERS[runner], timeout=600, grace=1)
        first = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: len(list(out.glob("*_stats.json"))) == 3)
        server.wait_for("11.bin")
        begun = descendants(first.pid)
        assert begun
        first.send_signal(signal.SIGINT)
        said, complained = first.communicate()
        assert first.returncode == 130, complained
        wait_until_gone(begun)
        assert not (out / ".any2ds/work").exists()
        assert not (out / ".any2ds/lock").exists()
        server.release()
        second = subprocess.run(asked, capture_output=True, text=True, check=False)
        assert second.returncode == 0, second.stderr
        assert said == second.stdout == ""
    assert len(stored(out)) == 4
    assert verify(out, quiet=True).ok


def test_nothing_but_our_own_words_comes_to_the_terminal(media: Path, tmp_path: Path) -> None:
    urls = tmp_path / "urls.txt"
    with serve(media) as server:
        urls.write_text(server.url("0.bin"))
        for runner, flags in RUNNERS.items():
            done = subprocess.run(command(tmp_path / runner, urls, flags), capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- machines that vanish ---


def beam_workers() -> list[int]:
    """The processes of multi_processing that belong to us."""
    found = []
    for pid in descendants(os.getpid()):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"apache_beam.runners.worker.sdk_worker_main" in line and state(pid) != "Z":
            found.append(pid)
    return found


def test_a_killed_worker_costs_nothing_but_time(media: Path, tmp_path: Path) -> None:
    killed = []

    def kill() -> None:
        server.wait_for("11.bin")
        killed.append(beam_workers()[0])
        os.kill(killed[0], signal.SIGKILL)
        wait_until_gone(killed)
        server.release()

    with serve(media, {f"{number}.bin": ["hold"] for number in range(6, 12)}) as server:
        urls = [server.url(f"{number}.bin") for number in range(12)]
        killer = threading.Thread(target=kill)
        killer.start()
        report = download(
            urls, output_folder=tmp_path / "out", distributor="beam", beam_options=PROCESSES, timeout=600, **OPTIONS
        )
        killer.join()
    assert len(killed) == 1
    assert report.successes == 12
    assert len(stored(tmp_path / "out")) == 4
    assert verify(tmp_path / "out", quiet=True).ok
    assert not beam_workers()


def test_hosts_see_no_more_of_all_tasks_than_they_allow(crowded: Crowd, tmp_path: Path) -> None:
    def release() -> None:
        try:
            crowded.wait_for_requests(24)
        finally:
            crowded.server.release()

    with ThreadPoolExecutor(1) as threads:
        released = threads.submit(release)
        download(output_folder=tmp_path / "out", distributor="beam", **crowded.options)
        released.result()
    crowded.expect_polite(tmp_path / "out")


class Impatient(BeamDistributor):
    """Loses patience before a minute is over."""

    @contextmanager
    def engine(self) -> Iterator[Any]:
        with super().engine() as engine:
            engine.patience = 12.0
            yield engine


def test_what_is_silent_is_given_to_others(tmp_path: Path) -> None:
    """A frozen process is not dead for Beam, which would wait for it for ever."""
    worker = ScriptedWorker(output=str(tmp_path), hanging=frozenset({1}))
    frozen: list[int] = []
    events: list[Event] = []
    with closing(Impatient(running(PROCESSES)).map(worker, jobs_of(2))) as stream:
        for event in stream:
            events.append(event)
            if isinstance(event, Progress) and event.outcomes == {"success": 2} and not frozen:
                frozen = beam_workers()
                for pid in frozen:
                    os.kill(pid, signal.SIGSTOP)
            if frozen and isinstance(event, Progress) and event.outcomes == {"success": -2}:
                break  # it was taken back
    assert frozen
    wait_until_gone(frozen)
    assert not [event for event in events if isinstance(event, ShardError)]


def test_an_attempt_that_was_given_up_publishes_nothing(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with serve(media, {"0.bin": ["hold"]}) as server:
        config = Config.from_options({**OPTIONS, "url_list": [server.url("0.bin")], "output_folder": out})
        worker = ShardWorker(config.output, config.fetch)
        folder = worker.folder
        mailbox = Mailbox("run", b"key", 0.1)
        mailbox.open(folder)
        table = pa.table({"url": [server.url("0.bin")]})
        jobs = [PackedJob.of(job) for job in plan(cuts(table.to_batches(), 5), table.schema)]
        task = Task(0, worker, mailbox, config.run)
        task.leave(jobs)
        thread = threading.Thread(target=task)
        thread.start()
        server.wait_for("0.bin")
        mailbox.give_up(folder, 0)
        server.release()
        thread.join()
    assert not list(out.glob("*.tar"))
    assert not reports(mailbox, folder)
    task()  # no attempt begins any more
    assert server.counts["0.bin"] == 1


def reports(mailbox: Mailbox, folder: OutputFolder) -> list[int]:
    """The shards that tasks have told of as made."""
    said = [content for delivery in Inbox(mailbox, folder).deliveries() for _, content in delivery.messages]
    return sorted(event.shard_id for event in said if isinstance(event, ShardReport))


# --- options ---


def wanted(*flags: str, slots: int | None = None) -> _Wanted:
    return _Wanted(Asked(flags, slots, 30))


def test_without_options_tasks_run_in_threads_as_each_has_a_process_anyway() -> None:
    direct = wanted(slots=3).options.view_as(DirectOptions)
    assert (direct.direct_running_mode, direct.direct_num_workers) == ("multi_threading", 3)
    assert wanted(slots=3).terms.slots == 3
    assert wanted("--direct_running_mode=in_memory").terms.slots == 1
    assert wanted("--direct_num_workers=5").terms.slots == 5


def test_dataflow_gets_its_options() -> None:
    found = wanted(*DATAFLOW)
    google = found.options.view_as(GoogleCloudOptions)
    assert (google.project, google.region, google.temp_location) == ("a-project", "europe-west1", "gs://bucket/tmp")
    assert found.options.view_as(SetupOptions).requirements_file == "requirements.txt"
    assert found.options.view_as(DebugOptions).number_of_worker_harness_threads == 1
    assert type(found.runner).__name__ == "DataflowRunner"
    assert (found.terms.is_local, found.terms.patience) == (False, 0.0)
    threads = wanted(*DATAFLOW, "--number_of_worker_harness_threads=4").options.view_as(DebugOptions)
    assert threads.number_of_worker_harness_threads == 4


def test_flink_gets_its_options_and_those_that_only_its_job_server_knows() -> None:
    found = wanted(*FLINK)
    assert found.options.view_as(PortableOptions).environment_type == "EXTERNAL"
    every = found.options.get_all_options(retain_unknown_options=True)
    assert (every["flink_master"], every["parallelism"], every["of_the_server"]) == ("127.0.0.1:8081", 7, "8")
    assert type(found.runner).__name__ == "FlinkRunner"
    assert found.terms.slots == wanted(*DATAFLOW).terms.slots == 64


@pytest.mark.parametrize("flags", [DATAFLOW, FLINK], ids=["dataflow", "flink"])
def test_the_graph_is_small_however_large_tasks_are(flags: Sequence[str], tmp_path: Path) -> None:
    worker = ScriptedWorker(output=str(tmp_path))
    mailbox = Mailbox("run", os.urandom(32))
    mailbox.open(worker.folder)
    jobs = [PackedJob.of(replace(job, rows=os.urandom(1 << 20))) for job in jobs_of(3)]
    task = Task(7, worker, mailbox, running())
    task.leave(jobs)
    left = (tmp_path / mailbox.task_file(7)).read_bytes()
    assert len(left) > 3 << 20
    assert mailbox.key not in left  # whoever may read in the folder
    made = graph(wanted(*flags), range(1000), task).to_runner_api()
    assert made.ByteSize() < 100_000
    assert {"Tasks", "One by one", "Perform"} <= {part.unique_name for part in made.components.transforms.values()}


@pytest.mark.parametrize("library", ["cloudpickle", "default"])
def test_what_travels_passes_the_pickler_of_beam(library: str, tmp_path: Path) -> None:
    worker = ScriptedWorker(output=str(tmp_path))
    mailbox = Mailbox("run", os.urandom(32))
    mailbox.open(worker.folder)
    task = Task(0, worker, mailbox, running())
    task.leave([PackedJob.of(job) for job in jobs_of(2)])
    pickler.set_library(library)
    packed = pickler.dumps(_Perform(task))
    assert len(packed) < 10_000
    pickler.loads(packed).process(0)
    assert reports(mailbox, worker.folder) == [0, 1]
    assert not worker.folder.exists(mailbox.task_file(0))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--projct=a", "did you mean --project?"),
        ("--num_workers=many", "invalid int value: 'many'"),
        ("--runner=NoRunner", "Unexpected pipeline runner"),
        ("--runner=DataflowRunner,--region=a,--temp_location=gs://bucket/tmp", "project"),
        ("--direct_running_mode=fast", "invalid choice: 'fast'"),
        ("runner=DirectRunner", "flags such as"),
    ],
)
def test_what_beam_does_not_know_is_refused_before_anything_is_made(given: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        download(["http://127.0.0.1/"], output_folder=tmp_path / "out", distributor="beam", beam_options=given)
    assert words in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "flags"),
    [
        ("--a=1,--b", ("--a=1", "--b")),
        ('--experiments=one,two,--c={"d": 1, "e": 2}', ("--experiments=one,two", '--c={"d": 1, "e": 2}')),
        (json.dumps(["--a=x,--y"]), ("--a=x,--y",)),
        (["--a=x,--y", "--b"], ("--a=x,--y", "--b")),
    ],
)
def test_commas_belong_to_values_unless_a_flag_follows(given: Any, flags: tuple[str, ...]) -> None:
    assert (
        Config.from_options({"url_list": "-", "distributor": "beam", "beam_options": given}).run.beam_options == flags
    )


def test_without_beam_the_extra_is_named(tmp_path: Path) -> None:
    script = (
        "import sys; sys.modules['apache_beam'] = None\n"
        "from any2ds.cli import main\n"
        f"main(['--url_list=urls.txt', '--distributor=beam', '--output_folder={tmp_path / 'out'}'])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install '" in done.stderr
    assert "[beam]'" in done.stderr  # of any2ds, or of the clone that it was installed from


def test_a_folder_that_workers_cannot_write_is_told_as_such(tmp_path: Path) -> None:
    """What a task raises comes through all of Beam as one line."""
    mailbox = Mailbox("run", b"key")
    (tmp_path / "elsewhere").mkdir()
    perform = _Perform(Task(0, ScriptedWorker(output=str(tmp_path / "elsewhere")), mailbox, running()))
    from any2ds.distributors._beam import _message

    with pytest.raises(Exception, match="is not the folder of the run") as caught, beam.Pipeline("FnApiRunner") as made:
        _ = made | beam.Create([0]) | beam.ParDo(perform)
    assert "all machines of a cluster need the same" in _message(caught.value)
    assert "\n" not in _message(caught.value)
