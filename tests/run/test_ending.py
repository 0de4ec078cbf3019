"""However a run is ended, or its processes are: nothing half, nothing twice, nothing forgotten, nobody left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from any2ds.testing.processes import LONG, children, is_running, wait_until, wait_until_gone
from any2ds.testing.server import Server, serve
from tests.support.folder import names_in

WAIT = LONG  # seconds, where something is sure to happen


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for name in ("ok", "bad", "held"):
        (folder / name).write_bytes(name.encode() * 1000)
    return folder


@pytest.fixture
def server(media: Path) -> Iterator[Server]:
    with serve(media, {"held": ["hold"]}) as running:
        yield running


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a command, of any2ds unless another is given, that is gone when the test ends."""
    started = []

    def begin(*options: str, command: Sequence[str] = (), **more: Any) -> subprocess.Popen[str]:
        given = command or [sys.executable, "-m", "any2ds", "--url_list=urls.txt", "--output_folder=out", *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(given, cwd=tmp_path, start_new_session=True, **pipes, **more))
        return started[-1]

    yield begin
    for running in started:
        running.kill()
        running.communicate()


# --- a worker process dies ---


# --- the run is stopped ---


def waiting_run(tmp_path: Path, server: Server, start: Start, *options: str) -> subprocess.Popen[str]:
    """A run of three shards, the last row of the second of which hangs."""
    urls = [server.url("held" if n == 9 else "ok") + f"?{n}" for n in range(15)]
    (tmp_path / "urls.txt").write_text("\n".join(urls))
    shards = ("--number_sample_per_shard=5", "--output_format=webdataset", "--processes_count=2")
    running = start(*shards, "--timeout=0", *options)
    server.wait_for("held", within=WAIT)
    server.wait_for("ok", 14, within=WAIT)  # all three are open
    return running


@pytest.mark.parametrize("signals", [1, 2])
def test_at_once_means_at_once(signals: int, tmp_path: Path, server: Server, start: Start) -> None:
    """With a second signal, or without grace; to the whole group, as a terminal does it."""
    running = waiting_run(tmp_path, server, start, f"--grace={WAIT if signals == 2 else 0}")
    assert running.stderr is not None
    workers = children(running.pid)
    started = time.monotonic()
    os.killpg(running.pid, signal.SIGINT)
    if signals == 2:
        for line in running.stderr:
            if line.startswith("stopping: "):
                break
        os.killpg(running.pid, signal.SIGINT)
    running.communicate(timeout=WAIT)
    assert time.monotonic() - started < WAIT / 2
    assert running.returncode == 130
    wait_until_gone(workers)
    assert not list((tmp_path / "out").glob("00001*"))


def test_shards_that_cannot_be_finished_are_not_waited_for(tmp_path: Path, server: Server, start: Start) -> None:
    urls = [server.url("held") + f"?{n}" for n in range(3000)]  # more rows than transfers, none of which ever ends
    (tmp_path / "urls.txt").write_text("\n".join(urls))
    running = start("--timeout=0", "--thread_count=4", "--processes_count=1", f"--grace={WAIT}")
    server.wait_for("held", within=WAIT)
    workers = children(running.pid)
    started = time.monotonic()
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=WAIT)
    assert time.monotonic() - started < WAIT / 2
    assert running.returncode == 143
    wait_until_gone(workers)
    assert names_in(tmp_path / "out") == {".any2ds/run", ".any2ds/segments"}


@pytest.mark.parametrize(("number", "text"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_an_interrupt_stays_one_where_a_library_makes_another_error_of_it(
    number: int, text: str, tmp_path: Path
) -> None:
    swallows = f"""
import signal
try:
    signal.raise_signal({number:d})
except BaseException:
    raise TypeError("expected a message argument") from None  # as Python does in the middle of an import
"""
    (tmp_path / "letters.py").write_text(swallows)
    command = [sys.executable, "-m", "any2ds", "build", "letters.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT)
    assert (ended.returncode, text in ended.stderr) == (128 + number, True), ended.stderr


def test_a_run_under_nohup_is_not_ended_by_a_hangup(tmp_path: Path, server: Server, start: Start) -> None:
    (tmp_path / "urls.txt").write_text(server.url("held"))
    running = start(command=["nohup", sys.executable, "-m", "any2ds", "urls.txt", "out", "--timeout=0"])
    server.wait_for("held", within=WAIT)
    os.killpg(running.pid, signal.SIGHUP)
    server.release()
    running.communicate(timeout=WAIT)
    assert running.returncode == 0


SCRIPT = """
import json, os, signal, sys, threading
from any2ds import download

before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
ended = []

def run():
    try:
        download(
            json.loads(sys.argv[1]), output_folder="out", output_format="webdataset", number_sample_per_shard=5,
            processes_count=1, grace=0.2, timeout=0, quiet=True, distributor=sys.argv[3],
        )
    except BaseException as error:
        ended.append(type(error).__name__)
        raise
    finally:
        print(*ended, [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before, flush=True)

if sys.argv[2] == "thread":
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
    except KeyboardInterrupt:
        print("mine", [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before, flush=True)
else:
    run()
"""


@pytest.mark.parametrize(
    ("where", "number", "code", "said"),
    [
        ("main", signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt True"),
        ("main", signal.SIGTERM, 143, "Terminated True"),
        ("thread", signal.SIGINT, 0, "mine True"),
        ("thread", signal.SIGTERM, -signal.SIGTERM, ""),
    ],
)
@pytest.mark.slow
def test_a_script_that_downloads_is_stopped_as_any_script(
    where: str, number: signal.Signals, code: int, said: str, tmp_path: Path, server: Server, start: Start
) -> None:
    command = [sys.executable, "-c", SCRIPT, json.dumps([server.url("held")]), where, "multiprocessing"]
    running = start(command=command)
    server.wait_for("held", within=WAIT)
    workers = children(running.pid)
    assert workers
    running.send_signal(number)
    out, err = running.communicate(timeout=WAIT)
    assert (running.returncode, out.strip()) == (code, said), err
    wait_until_gone(workers)


# --- the parent is killed ---

PARENT = """
import ctypes, os, signal, sys, threading
from any2ds.config.options import Config
from any2ds.distributors.multiprocessing import MultiprocessingDistributor
from any2ds.testing.distributing import ScriptedWorker, jobs_of
from busy_worker import BusyWorker

distributor = MultiprocessingDistributor(Config.from_options({"url_list": "-", "processes_count": 1}).run)
for event in distributor.map(BusyWorker(sys.argv[1]), jobs_of(3)):
    print("busy", flush=True)
"""
BUSY_WORKER = """
import ctypes, threading, time
from any2ds.testing.distributing import ScriptedWorker
from any2ds.core.reports import Progress

class BusyWorker(ScriptedWorker):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.how == "start":
            time.sleep(1000)

    def __call__(self, jobs):
        next(iter(jobs))
        yield Progress()
        if self.how == "native":
            ctypes.PyDLL(None).sleep(1000)  # in C, and keeps the interpreter's lock
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
"""


@pytest.mark.parametrize("how", ["native", "lock", "start", "stopped"])
def test_no_worker_outlives_its_parent(how: str, tmp_path: Path, start: Start) -> None:
    (tmp_path / "busy_worker.py").write_text(BUSY_WORKER)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    parent = start(command=[sys.executable, "-c", PARENT, how], env={**os.environ, "PYTHONPATH": path})
    assert parent.stdout is not None
    if how != "start":
        parent.stdout.readline()
    wait_until(lambda: children(parent.pid))
    workers = children(parent.pid)
    if how == "stopped":
        os.kill(workers[0], signal.SIGSTOP)
    parent.kill()
    parent.wait()
    if how == "stopped" and is_running(workers[0]):
        os.kill(workers[0], signal.SIGCONT)
    wait_until_gone(workers)
