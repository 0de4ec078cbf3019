"""Who may work in an output folder, on every kind of store, with intervals short enough to wait for."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from any2ds import download
from any2ds.core.errors import LockLost, OutputError, OutputInUse
from any2ds.core.layout import member_lock
from any2ds.run.ranks import Rank, joined
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.file_lock import FileLock
from any2ds.storage.lock.lease import Intervals, RunLock
from any2ds.storage.lock.lock_file import Holder
from any2ds.storage.lock.run_lock import Guard, locked, working
from any2ds.storage.opening import open_folder
from tests.support.s3 import Bucket, enter

QUICK = Intervals(beat=0.1, stale=20.0, look=0.05, settle=0.3, orphans=0.3, refusal=0.0, trust=0.0)
HASTY = replace(QUICK, stale=0.3)
STILL = replace(QUICK, beat=1000.0)  # no sign of life comes between
LOCK = ".any2ds/lock"
ELSEWHERE = Holder("0" * 32, "download", "elsewhere", 12, 0.0)


def alone(out: OutputFolder, intervals: Intervals = QUICK) -> AbstractContextManager[RunLock]:
    return locked(out, "download", intervals=intervals)


def rank(out: OutputFolder, number: int, size: int = 2) -> AbstractContextManager[RunLock]:
    return joined(out, Rank(number, size), QUICK)


def names_in(out: OutputFolder) -> set[str]:
    found, state = set(out.names()), set(out.state_files())
    return (found - {".any2ds"} if state else found) | state


def put(out: OutputFolder, content: bytes, name: str = LOCK) -> None:
    out.fs.makedirs(f"{out.path}/.any2ds", exist_ok=True)
    out.fs.pipe_file(f"{out.path}/{name}", content)


@contextmanager
def beating(out: OutputFolder, name: str = LOCK) -> Iterator[None]:
    """A run elsewhere that shows signs of life, in a file that is never seen empty."""
    stop = threading.Event()
    put(out, ELSEWHERE.to_bytes(), name)

    def beat() -> None:
        count = 0
        while not stop.wait(0.1):
            count += 1
            out.replace(name, replace(ELSEWHERE, beat=count).to_bytes(), out.version(name))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def bucket(new_bucket: Callable[[], Bucket], monkeypatch: pytest.MonkeyPatch) -> Bucket:
    bucket = new_bucket()
    enter(bucket, monkeypatch)
    return bucket


@pytest.fixture
def folder(tmp_path: Path) -> OutputFolder:
    (tmp_path / "out").mkdir()
    return open_folder(str(tmp_path / "out"))


@pytest.fixture(params=["folder", "store", "no locks"])
def out(request: pytest.FixtureRequest, folder: OutputFolder, monkeypatch: pytest.MonkeyPatch) -> OutputFolder:
    """On a disk, in a bucket, and on a network disk that is mounted without locks."""
    if request.param == "store":
        return open_folder(request.getfixturevalue("bucket").url)

    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    if request.param == "no locks":
        monkeypatch.setattr(fcntl, "flock", flock)
    return folder


@pytest.fixture
def on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From when it is called, locks of this machine lie in another folder, so that they tell nothing."""
    (tmp_path / "another").mkdir()
    return lambda: monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "another"))


@pytest.mark.parametrize("there", ["a file", "a link"])
def test_what_is_no_folder_is_told_by_its_name(tmp_path: Path, there: str) -> None:
    path = tmp_path / "out"
    if there == "a file":
        path.write_bytes(b"mine")
    else:
        path.symlink_to(tmp_path / "nowhere")
    for url in (path, path / "inner"):
        with pytest.raises(OutputError, match=f"{path} is a file, or a link that leads nowhere, and no folder"):
            download(["nope://host/1"], str(url), distributor="inline", quiet=True)
    assert os.listdir(tmp_path) == ["out"]


# --- one at a time ---


def test_a_folder_is_had_once_and_nothing_of_it_stays(out: OutputFolder) -> None:
    with alone(out):
        assert names_in(out) == {LOCK}
        with pytest.raises(OutputInUse, match=r"in use by another run \(download, process \d+ on "), alone(out):
            raise AssertionError
        assert names_in(out) == {LOCK}
    assert names_in(out) == set()
    with pytest.raises(ZeroDivisionError), alone(out):
        raise ZeroDivisionError
    assert names_in(out) == set()


def test_a_folder_that_was_made_for_nothing_is_removed_again(tmp_path: Path) -> None:
    output = open_folder(str(tmp_path / "a" / "b" / "c"))
    (tmp_path / "a").mkdir()
    with pytest.raises(OutputError, match="refused"), alone(output):
        raise OutputError("refused")
    assert list((tmp_path / "a").iterdir()) == []


def test_of_many_at_the_same_moment_one_gets_it(folder: OutputFolder) -> None:
    count, rounds = 6, 40
    everybody = threading.Barrier(count)
    won: list[int] = []

    def contend() -> None:
        for number in range(rounds):
            everybody.wait(100)
            with contextlib.suppress(OutputInUse), alone(folder):
                won.append(number)
                everybody.wait(100)  # it is held until everybody has tried
                continue
            everybody.wait(100)

    threads = [threading.Thread(target=contend) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert won == list(range(rounds))
    assert names_in(folder) == set()


CONTENDER = """
import sys
import fsspec, pyarrow.fs
from fsspec.implementations.arrow import ArrowFSWrapper
from any2ds.core.errors import OutputInUse
from any2ds.storage.lock.lease import Intervals
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.opening import open_folder

class Remote(ArrowFSWrapper):
    protocol = "plain"
    def __init__(self, **options):
        super().__init__(pyarrow.fs.LocalFileSystem(), **options)

fsspec.register_implementation("plain", Remote, clobber=True)
output = open_folder(sys.argv[1])
intervals = Intervals(beat=0.1, stale=20.0, look=0.05, settle=0.5)
print("ready", flush=True)
for line in sys.stdin:
    try:
        with locked(output, "download", intervals=intervals):
            print("won", flush=True)
            sys.stdin.readline()
    except OutputInUse:
        print("refused", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.parametrize("store", [pytest.param("s3", marks=pytest.mark.slow), "plain"])
def test_of_many_machines_one_gets_a_store(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """S3 has conditional writes, and a plain file server has not. Each process has a temporary folder of its own."""
    url = request.getfixturevalue("bucket").url if store == "s3" else f"plain://{tmp_path}/out"
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(3):
            (tmp_path / f"tmp{number}").mkdir()
            environment = {**os.environ, "TMPDIR": str(tmp_path / f"tmp{number}")}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            command = [sys.executable, "-c", CONTENDER, url]
            process: Any = subprocess.Popen(command, env=environment, **pipes)  # type: ignore[call-overload]
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
        for _ in range(3):
            for process in processes:
                print("go", file=process.stdin, flush=True)
            assert sorted(process.stdout.readline() for process in processes) == ["refused\n"] * 2 + ["won\n"]
            for process in processes:
                print("on", file=process.stdin, flush=True)


def test_whoever_waits_for_a_file_that_its_holder_removes_locks_no_ghost(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(200):
        first = FileLock.acquire(path)
        assert first is not None
        first.release()
        second = FileLock.acquire(path)
        assert second is not None
        assert FileLock.acquire(path) is None
        assert FileLock.acquire(path, shared=True) is None
        second.release()


# --- runs that are dead, or look so ---


def test_a_silent_run_of_another_machine_is_watched_and_succeeded(
    out: OutputFolder, caplog: pytest.LogCaptureFixture
) -> None:
    put(out, ELSEWHERE.to_bytes())
    with caplog.at_level("WARNING", "any2ds"), alone(out, HASTY) as lock:
        Guard(out, lock.locks)()
    assert "process 12 on elsewhere" in caplog.text
    assert names_in(out) == set()


def test_a_run_of_another_machine_that_shows_signs_of_life_is_left_alone(out: OutputFolder) -> None:
    with beating(out), pytest.raises(OutputInUse, match="process 12 on elsewhere"), alone(out):
        raise AssertionError
    assert Holder.parse(out.read(LOCK) or b"").host == "elsewhere"  # type: ignore[union-attr]


def test_a_run_lives_while_its_store_is_slow_to_read(bucket: Bucket, on_another_machine: Callable[[], None]) -> None:
    output, other = open_folder(bucket.url), open_folder(bucket.url)
    with alone(output) as lock, bucket.slow("GET", 0.5):
        on_another_machine()
        with pytest.raises(OutputInUse, match=f"process {os.getpid()}"), alone(other):
            raise AssertionError
        lock.check()


def test_a_lock_that_was_never_written_is_taken_and_a_foreign_file_of_its_name_is_not(out: OutputFolder) -> None:
    for blank in (b"", bytes(1024)):
        put(out, blank)
        with alone(out):
            pass
    put(out, b'{"lockfileVersion": 3}')
    with pytest.raises(OutputError, match="any2ds did not write"), alone(out):
        raise AssertionError
    assert out.read(LOCK) == b'{"lockfileVersion": 3}'


KILLED = """
import os, sys
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.opening import open_folder
with locked(open_folder(sys.argv[1]), "download"):
    os._exit(9)
"""


@pytest.mark.parametrize("place", ["folder", "store"])
def test_a_dead_run_of_this_machine_is_succeeded_at_once(place: str, request: pytest.FixtureRequest) -> None:
    found = request.getfixturevalue("folder" if place == "folder" else "bucket")
    url = found.path if place == "folder" else found.url
    subprocess.run([sys.executable, "-c", KILLED, url], check=False)
    output = open_folder(url)
    assert LOCK in names_in(output)
    with alone(output, replace(QUICK, stale=10_000, settle=10_000)):
        pass
    assert names_in(output) == set()


def test_a_request_that_is_under_way_when_a_signal_comes_leaves_no_lock(bucket: Bucket) -> None:
    interrupted, sent = threading.Event(), threading.Event()

    def held_up(method: str, target: str) -> str:
        if method == "PUT" and not sent.is_set():
            sent.set()
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupted.wait(60)
        return ""

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGINT, interrupt)
    bucket.answers(held_up)
    try:
        with pytest.raises(KeyboardInterrupt), alone(open_folder(bucket.url)):
            raise AssertionError
    finally:
        signal.signal(signal.SIGINT, former)
    assert names_in(open_folder(bucket.url)) == set()


# --- a run that lost the folder ---


def test_a_run_that_lost_the_folder_publishes_and_removes_nothing(out: OutputFolder) -> None:
    with alone(out, STILL) as lock:
        guard = Guard(out, lock.locks, STILL)
        guard()
        out.write("00000.tar", b"mine")
        put(out, ELSEWHERE.to_bytes())
        late = [lambda: out.write("a", b"{}"), lambda: out.remove("00000.tar"), lambda: out.remove_many(["00000.tar"])]
        for action in (guard, *late):
            with pytest.raises(LockLost, match="taken over by another run"):
                action()
        out.fs.rm_file(f"{out.path}/{LOCK}")
        with pytest.raises(LockLost, match=r".any2ds/lock was removed"):
            guard()
    assert names_in(out) - {LOCK} == {"00000.tar"}


def test_a_run_notices_that_it_was_taken_over_and_leaves_the_lock_to_the_other(out: OutputFolder) -> None:
    with alone(out) as lock:
        taken = ELSEWHERE.to_bytes()
        while lock.lost is None:  # the holder may be writing at the same moment
            put(out, taken)
            time.sleep(2 * QUICK.beat)
        with pytest.raises(LockLost, match="process 12 on elsewhere"):
            lock.check()
    assert out.read(LOCK) == taken


def test_a_worker_that_ends_leaves_the_file_that_those_of_other_machines_have_locked(folder: OutputFolder) -> None:
    workers = Path(folder.path) / ".any2ds/workers"
    with alone(folder) as lock:
        with working(folder, lock.locks):
            before = workers.stat()
        assert os.path.samestat(workers.stat(), before)
    assert names_in(folder) == set()


def test_a_worker_of_a_run_that_lost_the_folder_does_not_begin(out: OutputFolder) -> None:
    with alone(out, STILL) as lock:
        put(out, ELSEWHERE.to_bytes())
        with pytest.raises(LockLost, match="taken over by another run"), working(out, lock.locks):
            raise AssertionError
        out.fs.rm_file(f"{out.path}/{LOCK}")
        with pytest.raises(LockLost, match=r"was removed"), working(out, lock.locks):
            raise AssertionError


# --- what dead runs leave ---


def test_a_process_that_does_not_end_is_named_and_its_files_are_left(folder: OutputFolder) -> None:
    workers, staged = Path(folder.path) / ".any2ds/workers", Path(folder.path) / ".any2ds/tmp/any2ds-0-1/00000.tar"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"half")
    script = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_SH); print(flush=True); input()"
    command = [sys.executable, "-c", script, str(workers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(OutputInUse, match=f"not all of its processes are: end process {other.pid}"), alone(folder):
            raise AssertionError
        assert staged.exists()
        other.kill()
        other.wait(100)
        with alone(folder):
            assert names_in(folder) == {LOCK}


def test_what_dead_runs_have_left_goes_and_the_data_stay(out: OutputFolder) -> None:
    for name in ("00000.tar", ".any2ds/run", ".any2ds/lock.txt"):
        put(out, b"mine", name)
    out.fs.makedirs(f"{out.path}/.any2ds/work/a", exist_ok=True)
    put(out, b"", ".any2ds/work/a/open")
    with alone(out):
        pass
    assert names_in(out) == {"00000.tar", ".any2ds/run", ".any2ds/lock.txt"}


# --- ranks ---


def test_a_rank_is_there_once_and_with_its_like(out: OutputFolder) -> None:
    with rank(out, 0):
        for other in (rank(out, 0), rank(out, 1, 3), alone(out)):
            with pytest.raises(OutputInUse, match=r"in use by another run \(.*rank 0 of 2, process"), other:
                raise AssertionError
        with rank(out, 1):
            assert {member_lock("rank-0-of-2"), member_lock("rank-1-of-2")} <= names_in(out)
    with alone(out), pytest.raises(OutputInUse, match=r"\(download"), rank(out, 0):
        raise AssertionError
    assert names_in(out) == set()


@pytest.mark.parametrize("late", [lambda out: locked(out, "retry", intervals=HASTY), lambda out: rank(out, 0, 3)])
def test_ranks_that_are_dead_are_out_of_the_way(
    late: Callable[[OutputFolder], AbstractContextManager[RunLock]], folder: OutputFolder
) -> None:
    script = KILLED.replace('"download"', '"a rank", ".any2ds/lock-rank-1-of-2"')
    subprocess.run([sys.executable, "-c", script, folder.path], check=False)
    assert member_lock("rank-1-of-2") in names_in(folder)
    with late(folder):
        pass
    assert names_in(folder) == set()


def test_ranks_of_machines_that_are_gone_are_watched_and_removed(out: OutputFolder) -> None:
    name = member_lock("rank-1-of-2")
    put(out, ELSEWHERE.to_bytes(), name)
    with alone(out, HASTY):
        assert name not in names_in(out)
    with beating(out, name), pytest.raises(OutputInUse, match="process 12 on elsewhere"), alone(out):
        raise AssertionError


# --- folders of ours among those of other users ---


def test_nothing_is_staged_or_locked_in_a_folder_that_somebody_else_prepared(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)  # as /tmp
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    user = os.geteuid()
    prepared = [shared / f"any2ds-locks-{user}", shared / f"any2ds-staging-{user}", shared / f"any2ds-{user}"]
    for path in prepared:
        path.mkdir()
        path.chmod(0o777)
    rows = [f"data:,{number}" for number in range(6)]
    assert download(rows, bucket.url, quiet=True, number_sample_per_shard=2, processes_count=2).successes == 6
    assert set(shared.iterdir()) == set(prepared)
    assert [list(path.iterdir()) for path in prepared] == [[], [], []]


def test_what_a_killed_process_has_staged_goes_and_what_a_live_one_has_stays(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = (
        "import os, sys; from any2ds.storage.opening import open_folder\n"
        "with open_folder(sys.argv[1]).staging(): os._exit(9)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script, bucket.url], check=False, env=environment)
    (left,) = tmp_path.iterdir()
    assert left.stat().st_mode & 0o777 == 0o700
    with open_folder(bucket.url).staging() as staged, alone(open_folder(bucket.url)):
        assert (left.exists(), staged.exists()) == (False, True)
    assert list(tmp_path.iterdir()) == []


def test_a_small_file_that_a_killed_worker_was_writing_goes_when_its_run_ends(folder: OutputFolder) -> None:
    script = (
        "import os, sys; from any2ds.storage.opening import open_folder\n"
        "os.replace = lambda *paths: os._exit(9)\n"  # killed before the file has its name
        "open_folder(sys.argv[1]).write('00000_stats.json', b'{}')"
    )
    with alone(folder):
        subprocess.run([sys.executable, "-c", script, folder.path], check=False)
        left = list(Path(folder.path, ".any2ds/tmp").iterdir())
        assert [file.read_bytes() for file in left] == [b"{}"]
    assert names_in(folder) == set()
