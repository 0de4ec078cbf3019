"""What Weights & Biases is told, read back from what its library wrote offline; and runs whose wandb fails or hangs."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from any2ds.testing.processes import children, wait_until, wait_until_gone
from any2ds.testing.server import Server, serve
from tests.support.wandb_files import environment, history, newest, of_kind, recorded, table

PICTURES = Path(__file__).parents[3] / "examples" / "data" / "images"
ROOT = str(Path(__file__).parents[3])
NAMES = sorted(path.name for path in PICTURES.glob("bars-0*.jpg"))[:6]
SECRET = "hunter2"


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(PICTURES, {"slow.jpg": ["timeout"]}) as server:
        yield server


@pytest.fixture
def late_server() -> Iterator[Server]:
    """A server whose last picture arrives when it is asked for again."""
    with serve(PICTURES, {"bars-10.jpg": ["timeout", "ok"]}) as server:
        yield server


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "any2ds", *arguments, "--enable_wandb", "--log_interval=0.1", "--processes_count=1"]


def ran(folder: Path, *arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments, "--distributor=inline"),
        cwd=folder,
        env=environment(folder, **{"WANDB_MODE": "offline", **more}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def write_list(folder: Path, server: Server, *more: str) -> None:
    urls = [server.url(name) for name in (*NAMES, *more)]
    (folder / "urls.txt").write_text("\n".join(urls) + "\n")


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


@pytest.mark.slow
def test_a_run_that_goes_on_is_one_run_there_and_so_is_a_retry(server: Server, tmp_path: Path) -> None:
    write_list(tmp_path, server, "missing", "more")
    options = ["--url_list=urls.txt", "--output_format=webdataset", "--output_folder=out"]
    options += ["--number_sample_per_shard=3", "--enable_wandb", "--wandb_project=mine"]
    first = ran(tmp_path, *options)
    assert first.returncode == 0, first.stderr
    assert "wandb" not in first.stderr + first.stdout  # its chatter is not on the terminal
    (tmp_path / "out" / "00001_stats.json").unlink()
    again = ran(tmp_path, *options)
    assert again.returncode == 0, again.stderr
    tried = ran(tmp_path, "retry", "out", "--codes=http_4xx", *options[-2:])
    assert tried.returncode == 0, tried.stderr

    runs = recorded(tmp_path)
    about = [of_kind(records, "run")[0] for records in runs]
    assert len({run["run_id"] for run in about}) == 1
    assert [run["project"] for run in about] == ["mine"] * 3

    steps = [item["_step"] for records in runs for item in history(records)]
    assert steps == sorted(set(steps))  # no step twice, none before another
    seconds = [item["seconds"] for records in runs for item in history(records)]
    assert seconds == sorted(seconds)

    shards = [item for item in history(runs[0]) if "worker/count" in item]
    assert sorted((item["worker/count"], item["worker/success"]) for item in shards) == [(2, 0), (3, 1), (3, 1)]
    end = newest(runs[0])
    assert (end["total/count"], end["total/success"], end["total/failed_to_download"]) == (8, 0.75, 0.25)
    assert end["total/failed_to_resize"] == 0
    assert end["total/img_per_sec"] > 0
    assert (end["live/rows"], end["live/success_ratio"]) == (8, 0.75)
    later = newest(runs[1])
    assert (later["total/count"], later["live/rows"]) == (11, 3)  # of all runs; of this one
    assert newest(runs[2])["live/rows"] == 2  # of the retry, which gains nothing

    status = table(tmp_path, "status")
    assert status["columns"] == ["status", "frequency", "count"]
    assert [row[0] for row in status["data"]] == ["success", "http_404"]
    config = {name: value for run in about[:1] for name, value in run["config"]["update"].items()}
    assert config["number_sample_per_shard"] == 3


def test_without_a_login_it_is_recorded_for_later_and_nothing_secret_with_it(server: Server, tmp_path: Path) -> None:
    write_list(tmp_path, server)
    urls = (tmp_path / "urls.txt").read_text().replace("://", f"://me:{SECRET}-list@")
    (tmp_path / "urls.txt").write_text(urls)
    config = {
        "headers": [f"X-Key: {SECRET}-header"],
        "proxy": f"http://me:{SECRET}-proxy@127.0.0.1:9",
        "storage_options": {"s3": {"secret": f"{SECRET}-store"}},
        "hosts": {"a.test": {"headers": [f"Authorization: Bearer {SECRET}-bearer"]}},
        "retries": 0,
    }
    (tmp_path / "any2ds.json").write_text(json.dumps(config))
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)  # wandb looks for a repository
    arguments = ["--url_list=urls.txt", "--config=any2ds.json", f"--headers=X-Key: {SECRET}-argument"]
    done = ran(tmp_path, *arguments, f"--output_folder={tmp_path / 'out'}", WANDB_MODE="online")
    assert done.returncode == 4, done.stderr  # nothing listens where the proxy should
    words = " ".join(done.stderr.split())
    assert words.count("WARNING") == 1
    assert "`wandb sync` uploads that" in words
    files = [path for path in (tmp_path / "wandb").rglob("*") if path.is_file()]
    assert any(path.suffix == ".wandb" for path in files)
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
    (records,) = recorded(tmp_path)
    assert newest(records)["total/count"] == len(NAMES)
    said = json.dumps(records)
    assert SECRET not in said
    assert "number_sample_per_shard" in said  # the options are there
    assert SECRET not in done.stderr + done.stdout


@pytest.mark.slow
def test_files_are_never_in_the_dataset_and_there_are_none_where_it_is_disabled(server: Server, tmp_path: Path) -> None:
    here = tmp_path / "dataset"
    here.mkdir()
    write_list(tmp_path, server)
    nobody = {"WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_API_KEY": "a" * 40, "WANDB_INIT_TIMEOUT": "3"}
    for mode in ("disabled", "online"):
        urls = f"--url_list={tmp_path / 'urls.txt'}"
        done = ran(here, urls, "--output_folder=.", WANDB_MODE=mode, **nobody)
        assert done.returncode == 0, done.stderr
        assert (here / ".any2ds/wandb").exists() == bool(list(tmp_path.rglob("*.wandb"))) == (mode == "online")
        (here / "00000_stats.json").unlink()
    assert "`wandb sync` uploads that" in " ".join(done.stderr.split())  # as nobody could be reached
    assert not (here / "wandb").exists()
    assert newest(recorded(tmp_path)[-1])["live/rows"] == len(NAMES)


@pytest.mark.slow
def test_a_server_that_does_not_answer_holds_nobody_up(server: Server, tmp_path: Path) -> None:
    """Ctrl-C ends the run at once, with its own exit code, and no process is left."""
    write_list(tmp_path, server, *["slow.jpg"])
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        login = {"WANDB_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}", "WANDB_API_KEY": "a" * 40}
        run = subprocess.Popen(
            command("--url_list=urls.txt", "--output_folder=out", "--number_sample_per_shard=6", "--timeout=600"),
            cwd=tmp_path,
            env=environment(tmp_path, WANDB_MODE="online", **login),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        stats = tmp_path / "out" / "00000_stats.json"
        silent.settimeout(60)
        connection, _ = silent.accept()  # wandb asks
        wait_until(stats.exists)  # and the run goes on
        family = descendants(run.pid)
        assert len(family) >= 2  # a worker, and that of wandb
        run.send_signal(signal.SIGINT)
        run.send_signal(signal.SIGINT)
        _, words = run.communicate(timeout=30)  # nobody else holds the pipe
        assert run.returncode == 130, words
        wait_until_gone(family)
        connection.close()


@pytest.mark.slow
def test_a_killed_run_leaves_no_process_and_the_next_goes_on(late_server: Server, tmp_path: Path) -> None:
    write_list(tmp_path, late_server, "bars-10.jpg")
    arguments = ["--url_list=urls.txt", "--output_folder=out", "--number_sample_per_shard=6", "--timeout=600"]
    run = subprocess.Popen(
        command(*arguments),
        cwd=tmp_path,
        env=environment(tmp_path, WANDB_MODE="offline"),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    files = [tmp_path / "out" / name for name in (".any2ds/wandb", "00000_stats.json")]
    wait_until(lambda: all(file.exists() for file in files))
    family = descendants(run.pid)
    assert len(family) >= 2  # a worker, and that of wandb
    run.kill()
    run.communicate(timeout=30)  # nobody else holds the pipe
    wait_until_gone(family)
    saved = json.loads(files[0].read_text())
    again = ran(tmp_path, *[each for each in arguments if "timeout" not in each])
    assert again.returncode == 0, again.stderr
    after = recorded(tmp_path)[-1]
    assert of_kind(after, "run")[0]["run_id"] == saved["id"]
    assert history(after)[0]["_step"] > 0
