"""distributor=ray, on a cluster of two nodes with one CPU each, and on one of its own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import ray

from any2ds import download
from any2ds.config.options import Config
from any2ds.core import plugins
from any2ds.core.errors import LockLost, OptionError, RunError
from any2ds.core.reports import Event, Progress, ShardReport
from any2ds.distributors._contract import Distributor
from any2ds.storage.lock.lock_file import LockRef
from any2ds.testing.distributing import ProcessDistributorContract, ScriptedWorker, jobs_of
from any2ds.testing.processes import LONG, children, wait_until, wait_until_gone
from any2ds.testing.server import Server, serve
from any2ds.worker.worker import ShardWorker
from tests.support.crowd import Crowd
from tests.support.folder import names_in
from tests.support.killed_builds import HELD as HELD_IN_BUILD
from tests.support.killed_builds import ROWS, KilledBuild
from tests.support.raycluster import HEAD, SECOND, RayCluster, ray_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster(HEAD, SECOND) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(scope="class")
def ours(cluster: RayCluster) -> Iterator[RayCluster]:
    """The cluster, to which this process is connected already, as a user's may be."""
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    yield cluster
    ray.shutdown()


def distributor(**given: Any) -> Distributor:
    config = Config.from_options({"url_list": "-", "distributor": "ray", "subjob_size": 8, **given})
    made: Distributor = plugins.load("distributors", "ray")(config.run)
    return made


def reports(events: list[Event]) -> list[ShardReport]:
    return [event for event in events if isinstance(event, ShardReport)]


@pytest.mark.usefixtures("ours")
class TestRay(ProcessDistributorContract):
    def make_distributor(self) -> Distributor:
        return distributor()

    def test_both_nodes_work(self, ours: RayCluster) -> None:
        where: dict[int, str] = {}
        worker = ScriptedWorker(seconds=0.01)
        with closing(self.map(distributor(subjob_size=1000), worker, jobs_of(100_000))) as events:
            for event in events:
                if isinstance(event, ShardReport) and (pid := int(event.start_time)) not in where:
                    (where[pid],) = [ip for ip in (HEAD, SECOND) if pid in ours.workers(ip)]
                if len(where) == 2:
                    break
        assert set(where.values()) == {HEAD, SECOND}

    def test_workers_for_which_there_is_no_room_are_no_failure(self) -> None:
        events = list(self.map(distributor(processes_count=5), ScriptedWorker(), jobs_of(30)))
        assert len(reports(events)) == 30

    def test_a_process_of_ray_that_dies_costs_nothing(self, ours: RayCluster) -> None:
        worker, killed = ScriptedWorker(seconds=0.05), 0
        events: list[Event] = []
        for event in self.map(distributor(subjob_size=1000), worker, jobs_of(40)):
            events.append(event)
            if isinstance(event, ShardReport) and not killed:
                (killed,) = [a for ip in (HEAD, SECOND) for a in ours.processes(ip) if event.start_time in children(a)]
                os.kill(killed, signal.SIGKILL)
        assert sorted(report.shard_id for report in reports(events)) == list(range(40))
        reported = sum(event.outcomes.get("success", 0) for event in events if isinstance(event, Progress))
        assert reported == sum(range(41))

    def test_a_folder_that_others_do_not_see_is_told_as_that(self, tmp_path: Path) -> None:
        config = Config.from_options({"url_list": "-", "output_folder": tmp_path})
        worker = ShardWorker(config.output, config.fetch, locks=(LockRef(".any2ds/lock", "a run"),))
        with pytest.raises(LockLost, match=r"does not see .*use a shared folder, or an object store"):
            list(self.make_distributor().map(worker, jobs_of(1)))

    def test_what_the_caller_has_connected_stays_so(self) -> None:
        self.run(ScriptedWorker(), jobs_of(1))
        assert ray.is_initialized()


def test_nobody_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, said in {
        "127.0.0.2:1": "no Ray cluster can be reached there",
        "ray://127.0.0.2:1": "no Ray cluster can be reached there",
        "nonsense": "expected auto, host:port or ray://host:port",
    }.items():
        with pytest.raises(OptionError, match=said):
            distributor(ray_address=address)
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(OptionError, match=said):
            distributor()


def test_what_is_no_cluster_is_told_before_anything_is_made(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("any2ds.distributors._ray_connection._INIT_TIMEOUT", 5.0)
    address = server.url("").partition("//")[2].strip("/")
    with pytest.raises(OptionError, match="no Ray cluster can be reached there"):
        download(
            [server.url("file")], output_folder=tmp_path / "out", distributor="ray", ray_address=address, quiet=True
        )
    assert not (tmp_path / "out").exists()


# --- the command line ---


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Of whose files the first 60 come at once, and the others when they are released."""
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / "file").write_bytes(b"file" * 1000)
    with serve(folder, {"file": [*["ok"] * 60, "hold"]}) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path, server: Server) -> Iterator[Start]:
    """Starts a run of 200 rows in 40 shards; two transfers at a time in each worker."""
    (tmp_path / "urls.txt").write_text("".join(f"{server.url('file')}?{n}\n" for n in range(200)))
    started = []

    def begin(*options: str, command: str = "download") -> subprocess.Popen[str]:
        given = ["--url_list=urls.txt", "--output_folder=out", "--output_format=webdataset", "--distributor=ray"]
        given += ["--number_sample_per_shard=5", "--thread_count=2", f"--timeout={LONG}", *options]
        line = [sys.executable, "-m", "any2ds", *given] if command == "download" else [sys.executable, *options]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(line, cwd=tmp_path, start_new_session=True, **pipes))
        return started[-1]

    yield begin
    for running in started:
        running.kill()
        running.communicate()


def descendants(pid: int) -> list[int]:
    found = children(pid)
    return found + [further for child in found for further in descendants(child)]


def expect_whole(folder: Path) -> None:
    """Each row once, all stored, and nothing besides."""
    out = folder / "out"
    urls = []
    for path in out.glob("*.parquet"):
        table = pq.read_table(path)
        assert set(table["status"].to_pylist()) == {"success"}
        assert json.loads((out / f"{path.stem}_stats.json").read_text())["successes"] == table.num_rows
        urls += table["url"].to_pylist()
    assert sorted(urls) == sorted((folder / "urls.txt").read_text().split())
    assert names_in(out / ".any2ds") == {"run", "segments", "shards"}
    verified = subprocess.run([sys.executable, "-m", "any2ds", "verify", "out"], cwd=folder, capture_output=True)
    assert verified.returncode == 0, verified.stdout


def test_hosts_see_no_more_of_all_nodes_than_they_allow_also_of_those_that_die_and_come_late(
    cluster: RayCluster, crowded: Crowd, tmp_path: Path
) -> None:
    def strike() -> None:
        try:
            crowded.wait_for_requests(12)
            wait_until(lambda: bool(cluster.workers(SECOND)))
            cluster.kill(SECOND)
            cluster.start(SECOND)
            cluster.wait()
            crowded.wait_for_requests(36)
        finally:
            crowded.server.release()

    with ThreadPoolExecutor(1) as threads:
        struck = threads.submit(strike)
        download(output_folder=tmp_path / "out", distributor="ray", ray_address=cluster.address, **crowded.options)
        struck.result()
    crowded.expect_polite(tmp_path / "out")


def test_a_node_that_is_lost_costs_nothing(cluster: RayCluster, tmp_path: Path, server: Server, start: Start) -> None:
    running = start(f"--ray_address={cluster.address}")
    server.wait_for("file", 64, within=LONG)  # in both workers all transfers are held
    lost = cluster.workers(SECOND)
    assert len(lost) == len(cluster.workers(HEAD)) == 1
    cluster.kill(SECOND)
    wait_until_gone(lost)
    server.release()
    said = running.communicate(timeout=LONG)[1]
    assert running.returncode == 0, said
    assert "is restarted" in said
    expect_whole(tmp_path)
    wait_until(lambda: not cluster.workers(HEAD))


def test_a_driver_that_is_on_no_node_reaches_the_cluster(
    cluster: RayCluster, tmp_path: Path, server: Server, start: Start
) -> None:
    server.release()
    running = start(f"--ray_address={cluster.client_address}")
    said = running.communicate(timeout=LONG)[1]
    assert running.returncode == 0, said
    expect_whole(tmp_path)


def test_workers_end_when_the_driver_is_killed(cluster: RayCluster, server: Server, start: Start) -> None:
    running = start(f"--ray_address={cluster.address}")
    server.wait_for("file", 62, within=LONG)
    wait_until(lambda: cluster.workers(HEAD))
    running.kill()
    wait_until(lambda: not cluster.workers(HEAD))


def test_a_build_whose_driver_dies_is_finished_by_another(cluster: RayCluster, listed: Any, tmp_path: Path) -> None:
    """Of rows with two URLs each."""
    flags = ["--distributor=ray", f"--ray_address={cluster.address}"]
    build = KilledBuild(listed(HELD_IN_BUILD).server, tmp_path, f"{tmp_path}/data", ROWS, flags)
    before = build.kill_in_the_middle(4)
    build.finish(before)
    assert build.counts_of([*before]) == {1}


def test_a_run_is_stopped_and_goes_on_with_a_ray_of_its_own(tmp_path: Path, server: Server, start: Start) -> None:
    running = start("--processes_count=2", "--grace=1")
    server.wait_for("file", 64, within=LONG)
    with_it = descendants(running.pid)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does it
    said = running.communicate(timeout=LONG)[1]
    assert running.returncode == 130, said
    assert "Traceback" not in said
    wait_until_gone(with_it)
    server.release()
    again = start("--processes_count=2")
    said = again.communicate(timeout=LONG)[1]
    assert again.returncode == 0, said
    expect_whole(tmp_path)


def test_sigterm_stops_a_run_although_ray_has_a_handler_for_it(
    cluster: RayCluster, server: Server, start: Start
) -> None:
    running = start(f"--ray_address={cluster.address}", "--grace=1")
    server.wait_for("file", 62, within=LONG)
    running.terminate()
    said = running.communicate(timeout=LONG)[1]
    assert running.returncode == 143, said
    assert "shards written to out/" in said  # it has ended in good order
    wait_until(lambda: not cluster.workers(HEAD))


def test_a_node_without_any2ds_is_told_with_what_to_do(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # Ray's workers look in the driver's folder first
    (tmp_path / "any2ds").mkdir()
    (tmp_path / "any2ds" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'any2ds'\")")
    environment = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    ray.init(cluster.address, log_to_driver=False, logging_level="error", runtime_env=environment)
    try:
        with pytest.raises(RunError, match=r"is not installed on 127.0.0.\d: install it there.*runtime_env"):
            list(distributor().map(ScriptedWorker(), jobs_of(1)))
    finally:
        ray.shutdown()
