"""A standalone cluster of two machines: both work, one dies, a run is stopped, its driver dies, tasks run twice."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.sql import SparkSession

from any2ds import download
from any2ds.config.options import Config
from any2ds.core.errors import RunError
from any2ds.distributors.pyspark import PysparkDistributor
from any2ds.testing.distributing import ProcessDistributorContract
from any2ds.testing.processes import LONG, descendants, wait_until
from any2ds.testing.server import Server
from tests.support.crowd import Crowd
from tests.support.killed_builds import HELD as HELD_IN_BUILD
from tests.support.killed_builds import ROWS, KilledBuild
from tests.support.s3 import enter, serve_buckets
from tests.support.sparkcluster import SparkCluster, driver_environment, spark_cluster

HELD = {"18.bin": ["hold"], "22.bin": ["hold"]}  # of shards 4 and 5: one of each of two tasks
SPECULATIVE = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.efficiency.enabled": "false",
}


@pytest.fixture(scope="module")
def cluster(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("spark")) as running:
        yield running


def have_two(cluster: SparkCluster) -> None:
    while sum(worker.poll() is None for worker in cluster.workers) < 2:
        cluster.add_worker()


@contextlib.contextmanager
def new_session(cluster: SparkCluster, further: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session on both machines, in this process."""
    have_two(cluster)
    builder = SparkSession.builder
    for name, value in {**cluster.conf, **(further or {})}.items():
        builder = builder.config(name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()
            cluster.wait_until_idle()


@pytest.fixture(scope="class")
def session(cluster: SparkCluster) -> Iterator[SparkSession]:
    with new_session(cluster) as made:
        yield made


def at_work(cluster: SparkCluster) -> list[Any]:
    """The machines on which a process of any2ds runs."""
    return [worker for worker in cluster.workers if any(map(is_ours, descendants(worker.pid)))]


def is_ours(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"any2ds.distributors._process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@contextlib.contextmanager
def meanwhile(server: Server, action: Callable[[], None]) -> Iterator[None]:
    """`action` goes on beside the block, and must have come to its end without an error when that does.

    After it `server` gives what it has held back.
    """
    errors: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as error:
            errors.append(error)
        finally:
            server.release()

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    yield
    thread.join(LONG)
    assert not errors, errors
    assert not thread.is_alive()


@pytest.mark.usefixtures("session")
class TestContract(ProcessDistributorContract):
    def make_distributor(self) -> PysparkDistributor:
        return PysparkDistributor(
            Config.from_options({"url_list": "-", "distributor": "pyspark", "subjob_size": 8}).run
        )


@pytest.mark.usefixtures("session")
class TestDataset:
    def test_both_machines_make_all_shards(self, cluster: Any, listed: Any, published: Any, tmp_path: Path) -> None:
        here, out = listed(HELD), tmp_path / "out"

        def look() -> None:
            wait_until(lambda: len(at_work(cluster)) == 2 and published(out) >= {0, 1, 2, 3})

        with meanwhile(here.server, look):
            report = download(output_folder=out, distributor="pyspark", **here.options)
        assert (report.shards, report.successes) == (12, 48)
        here.expect_whole(str(out))

    def test_a_machine_that_dies_in_the_middle_costs_nothing(
        self, cluster: Any, listed: Any, published: Any, tmp_path: Path
    ) -> None:
        here, out = listed(HELD), tmp_path / "out"

        def strike() -> None:
            wait_until(lambda: len(at_work(cluster)) == 2 and published(out) >= {0, 1, 2, 3})
            cluster.kill(at_work(cluster)[0])
            assert published(out).isdisjoint({4, 5})

        with meanwhile(here.server, strike):
            report = download(output_folder=out, distributor="pyspark", **here.options)
        assert (report.shards, report.failed_shards) == (12, ())
        here.expect_whole(str(out))

    def test_hosts_see_no_more_of_all_machines_than_they_allow_also_of_those_that_die_and_come_late(
        self, cluster: Any, crowded: Crowd, tmp_path: Path
    ) -> None:
        have_two(cluster)

        def strike() -> None:
            crowded.wait_for_requests(12)
            wait_until(lambda: len(at_work(cluster)) == 2)
            cluster.kill(at_work(cluster)[0])
            have_two(cluster)
            crowded.wait_for_requests(36)

        with meanwhile(crowded.server, strike):
            download(output_folder=tmp_path / "out", distributor="pyspark", **crowded.options)
        crowded.expect_polite(tmp_path / "out")

    def test_rows_of_a_shard_may_be_more_than_spark_sends(self, listed: Any, tmp_path: Path) -> None:
        """Of one task it sends 128 MB at most."""
        here, out = listed(), tmp_path / "out"
        notes = [os.urandom(35 << 20) for _ in range(4)]
        table = pa.table({"url": here.urls[:4], "note": pa.array(notes, pa.large_binary())})
        pq.write_table(table, tmp_path / "urls.parquet")
        options = {**here.options, "url_list": str(tmp_path / "urls.parquet"), "save_additional_columns": ["note"]}
        report = download(output_folder=out, distributor="pyspark", **options)
        assert (report.shards, report.successes) == (1, 4)
        assert pq.read_table(out / "00000.parquet")["note"].to_pylist() == notes


class TestTwice:
    def test_a_task_that_runs_twice_publishes_once(
        self, cluster: Any, listed: Any, published: Any, tmp_path: Path
    ) -> None:
        here, out = listed({"18.bin": ["hold"]}), tmp_path / "out"
        with new_session(cluster, SPECULATIVE) as session:
            tracker = session.sparkContext.statusTracker()

            def are_two_attempts() -> bool:
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                return any(stage and (stage.numCompletedTasks, stage.numActiveTasks) == (1, 2) for stage in stages)

            def look() -> None:
                wait_until(are_two_attempts)
                wait_until(lambda: published(out) >= {1, 3, 5, 7, 9, 11})

            with meanwhile(here.server, look):
                report = download(output_folder=out, distributor="pyspark", **here.options)
        assert (report.shards, report.successes) == (12, 48)
        here.expect_whole(str(out))
        assert set(here.server.counts.values()) == {1}


class TestEnds:
    """The driver is a process of its own: the command line, which finds the cluster by spark-defaults.conf."""

    def begin(self, cluster: SparkCluster, listed: Any, out: Path) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "any2ds", *listed.flags(out.parent), f"--output_folder={out}"]
        command += ["--distributor=pyspark", "--grace=20"]
        environment = driver_environment(cluster.conf_folder)
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def finish(self, cluster: SparkCluster, listed: Any, out: Path) -> None:
        with self.begin(cluster, listed, out) as process:
            assert process.stderr is not None
            said = process.stderr.read()
        assert (process.returncode, said) == (0, "")
        listed.expect_whole(str(out))

    def test_stopped_by_ctrl_c_it_is_completed_by_the_next_run(
        self, cluster: SparkCluster, listed: Any, published: Any, tmp_path: Path
    ) -> None:
        here, out = listed(HELD), tmp_path / "out"
        with self.begin(cluster, here, out) as process:
            wait_until(lambda: published(out) >= {0, 1, 2, 3})
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            said = process.stderr.read()
        assert process.returncode == 130, said
        assert "Traceback" not in said
        assert not (out / ".any2ds/work").exists()
        assert published(out).isdisjoint({4, 5})
        cluster.wait_until_idle()
        here.server.release()
        self.finish(cluster, here, out)
        assert here.server.counts["0.bin"] == 1

    def test_a_driver_that_dies_is_followed_by_another(
        self, cluster: SparkCluster, listed: Any, published: Any, tmp_path: Path
    ) -> None:
        here, out = listed(HELD), tmp_path / "out"
        with self.begin(cluster, here, out) as process:
            wait_until(lambda: published(out) >= {0, 1, 2, 3})
            process.kill()
        before = {path: path.stat().st_ino for path in out.glob("*_stats.json")}
        here.server.release()  # now they could finish what belongs to nobody any more
        self.finish(cluster, here, out)
        assert before == {path: path.stat().st_ino for path in before}


def test_a_build_on_s3_whose_driver_dies_is_finished_by_another(
    cluster: SparkCluster, listed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows with two URLs each."""
    with serve_buckets() as new_bucket:
        bucket = new_bucket()
        enter(bucket, monkeypatch)
        further = {f"spark.executorEnv.{name}": value for name, value in bucket.environment.items()}
        environment = driver_environment(cluster.write_conf(tmp_path / "conf", further))
        server, flags = listed(HELD_IN_BUILD).server, ["--distributor=pyspark"]
        build = KilledBuild(server, tmp_path, f"{bucket.url}/data", ROWS, flags, environment)
        before = build.kill_in_the_middle(4)
        build.finish(before)
        assert build.counts_of([*before]) == {1}


def test_a_script_is_submitted(cluster: SparkCluster, listed: Any, tmp_path: Path) -> None:
    here = listed()
    script = tmp_path / "script.py"
    options = {**here.options, "output_folder": str(tmp_path / "out"), "distributor": "pyspark"}
    script.write_text(f"from any2ds import download\nprint(download(**{options!r}).shards, 'shards')\n")
    submit = Path(pyspark.__path__[0]) / "bin" / "spark-submit"
    environment = {**driver_environment(cluster.conf_folder), "SPARK_HOME": pyspark.__path__[0]}
    done = subprocess.run([submit, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("12 shards\n")  # before it are warnings of other libraries, in the same stream
    here.expect_whole(str(tmp_path / "out"))


@pytest.mark.usefixtures("session")
class TestFolders:
    def test_a_folder_that_executors_do_not_see_is_told_at_once(
        self, cluster: Any, listed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        here = listed()
        with pytest.raises(RunError, match="is not the folder of the run, seen from here: all machines of a cluster"):
            download(output_folder="/proc/self/cwd/out", distributor="pyspark", **here.options)  # another one for each
        assert not here.server.counts

    def test_a_relative_folder_is_that_of_the_driver(
        self, cluster: Any, listed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        here = listed()
        download(output_folder="out", distributor="pyspark", **here.options)
        here.expect_whole(str(tmp_path / "out"))


@pytest.mark.usefixtures("s3_server")
class TestS3:
    @pytest.mark.parametrize("how", ["environment", "storage_options"])
    def test_a_bucket_is_written_by_executors(
        self, cluster: Any, listed: Any, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from s3fs import S3FileSystem

        known = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
        bucket = f"of-{how.replace('_', '-')}"
        S3FileSystem().mkdir(bucket)
        storage: dict[str, Any] = {}
        further = {f"spark.executorEnv.{name}": value for name, value in known.items()}
        if how == "storage_options":
            for name in known:
                monkeypatch.delenv(name)
            storage = {
                "key": known["AWS_ACCESS_KEY_ID"],
                "secret": known["AWS_SECRET_ACCESS_KEY"],
                "endpoint_url": known["AWS_ENDPOINT_URL"],
                "client_kwargs": {"region_name": known["AWS_DEFAULT_REGION"]},
            }
            further = {}
        here = listed()
        options = {**here.options, **({"storage_options": {"s3": storage}} if storage else {})}
        with new_session(cluster, further):
            report = download(output_folder=f"s3://{bucket}/out", distributor="pyspark", **options)
        assert (report.shards, report.successes) == (12, 48)
        here.expect_whole(f"s3://{bucket}/out", **storage)
