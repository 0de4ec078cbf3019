"""Beam: the runner of this machine, what Dataflow and Flink would get, and what a user gets to read."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from apache_beam.internal import pickler
from apache_beam.options.pipeline_options import (
    DebugOptions,
    DirectOptions,
    GoogleCloudOptions,
    PortableOptions,
    SetupOptions,
)

from any2ds import download
from any2ds.config.options import RunOptions
from any2ds.core.errors import OptionError, RunError
from any2ds.distributors._task import Task
from any2ds.distributors.beam import BeamDistributor, _Perform, graph
from any2ds.testing.distributing import ProcessDistributorContract, ScriptedWorker, jobs_of, run_options
from any2ds.testing.server import serve
from tests.support.crowd import Crowd

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


def running(*flags: str, **options: Any) -> RunOptions:
    given = {"distributor": "beam", "processes_count": 2, "subjob_size": 20, "beam_options": list(flags) or None}
    return run_options(**{**given, **options})


class TestDirect(ProcessDistributorContract):
    def make_distributor(self) -> BeamDistributor:
        return BeamDistributor(running())


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


def test_nothing_but_our_own_words_comes_to_the_terminal(listed: Any, tmp_path: Path) -> None:
    here = listed()
    command = [sys.executable, "-m", "any2ds", *here.flags(tmp_path), f"--output_folder={tmp_path / 'out'}"]
    done = subprocess.run([*command, "--distributor=beam"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    here.expect_whole(str(tmp_path / "out"))


def test_a_folder_that_workers_do_not_see_is_told_in_one_line(tmp_path: Path) -> None:
    unseen = Task(ScriptedWorker(output=str(tmp_path)), running(), "elsewhere", 1.0)
    with pytest.raises(RunError, match="is not the folder of the run") as caught:
        BeamDistributor(running()).run([unseen])
    assert "\n" not in str(caught.value)


# --- options ---


def test_the_runner_of_this_machine_has_threads_as_each_task_has_a_process_anyway() -> None:
    direct = BeamDistributor(running("--direct_running_mode=multi_processing", processes_count=3))
    options = direct.beam_options.view_as(DirectOptions)
    assert (options.direct_running_mode, options.direct_num_workers, direct.slots) == ("multi_threading", 3, 3)


def test_dataflow_gets_its_options() -> None:
    made = BeamDistributor(running(*DATAFLOW))
    google = made.beam_options.view_as(GoogleCloudOptions)
    assert (google.project, google.region, google.temp_location) == ("a-project", "europe-west1", "gs://bucket/tmp")
    assert made.beam_options.view_as(SetupOptions).requirements_file == "requirements.txt"
    assert made.beam_options.view_as(DebugOptions).number_of_worker_harness_threads == 1
    threads = BeamDistributor(running(*DATAFLOW, "--number_of_worker_harness_threads=4")).beam_options.view_as(
        DebugOptions
    )
    assert threads.number_of_worker_harness_threads == 4


def test_flink_gets_its_options_and_those_that_only_its_job_server_knows() -> None:
    made = BeamDistributor(running(*FLINK, processes_count=None))
    assert made.beam_options.view_as(PortableOptions).environment_type == "EXTERNAL"
    every = made.beam_options.get_all_options(retain_unknown_options=True)
    assert (every["flink_master"], every["parallelism"], every["of_the_server"]) == ("127.0.0.1:8081", 7, "8")
    assert (made.slots, made.machines) == (64, 64)


def tasks_in(folder: Path, count: int) -> list[Task]:
    template = Task(ScriptedWorker(output=str(folder)), running(), ".any2ds/work/run", 1.0)
    return [template.with_jobs(list(jobs_of(2)), number) for number in range(count)]


@pytest.mark.parametrize("flags", [DATAFLOW, FLINK], ids=["dataflow", "flink"])
def test_the_graph_is_small_however_large_tasks_are(flags: Sequence[str], tmp_path: Path) -> None:
    tasks = tasks_in(tmp_path, 1) * 1000
    made = graph(BeamDistributor(running(*flags)).beam_options, tasks).to_runner_api()
    assert made.ByteSize() < 200_000
    assert {"Tasks", "One by one", "Perform"} <= {part.unique_name for part in made.components.transforms.values()}


@pytest.mark.parametrize("library", ["cloudpickle", "default"])
def test_what_travels_passes_the_pickler_of_beam(library: str, tmp_path: Path) -> None:
    (task,) = tasks_in(tmp_path, 1)
    pickler.set_library(library)
    packed = pickler.dumps(_Perform(task))
    assert len(packed) < 10_000
    pickler.loads(packed).process((0, task.digest))
    assert sorted(task.progress(task.worker.folder).made) == [0, 1]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("--projct=a", "Beam knows no --projct"),
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
    assert running(beam_options=given).beam_options == flags


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
