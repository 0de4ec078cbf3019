"""Who may work in an output folder, on every kind of store, with intervals short enough to wait for."""

import contextlib
import errno
import fcntl
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import s3fs

from any2ds import download
from any2ds.config.options import Config
from any2ds.core import layout
from any2ds.core.errors import LockLost, OutputError, OutputInUse
from any2ds.core.reports import Event, ShardError
from any2ds.core.rows import ShardJob
from any2ds.readers.plan import cuts, plan
from any2ds.run.ledger import Ledger
from any2ds.run.loop import run
from any2ds.run.monitor import Outlook
from any2ds.storage.disk.staging import staging
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.file_lock import FileLock
from any2ds.storage.lock.lock_file import Holder
from any2ds.storage.lock.owner import Owner
from any2ds.storage.lock.run_lock import Guard, Intervals, locked
from any2ds.storage.swap import swap
from any2ds.testing.server import serve
from any2ds.worker.worker import ShardWorker
from tests.support.folder import names_in

QUICK = Intervals(beat=0.1, stale=20.0, look=0.05, settle=0.1, orphans=0.3, trust=0.0)
ELSEWHERE = Owner("elsewhere", 12, "another kernel", "pid:[1]", "34")


def record_of(owner: Owner, beat: int = 0) -> bytes:
    return Holder("0" * 32, "download", time.time(), owner, beat).to_bytes()


def names(folder: Path) -> list[str]:
    return sorted(names_in(folder))


def lock_file(out: OutputFolder) -> Path:
    """Its path, in a folder that is there."""
    path = Path(out.path) / layout.LOCK_FILE
    path.parent.mkdir(exist_ok=True)
    return path


def put(out: OutputFolder, content: bytes) -> None:
    lock_file(out).write_bytes(content)


@pytest.fixture
def out(tmp_path: Path) -> OutputFolder:
    (tmp_path / "out").mkdir()
    return OutputFolder(str(tmp_path / "out"))


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network file system that is mounted without locks."""

    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)


@contextlib.contextmanager
def beating(write: Any, owner: Owner = ELSEWHERE) -> Iterator[None]:
    """A run elsewhere that shows signs of life."""
    stop = threading.Event()
    write(record_of(owner))

    def beat() -> None:
        count = 0
        while not stop.wait(0.1):
            count += 1
            write(record_of(owner, count))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_folder_is_had_once_and_nothing_of_it_stays(out: OutputFolder) -> None:
    path = Path(out.path)
    with locked(out, "download", QUICK):
        assert names(path) == [".any2ds/lock", ".any2ds/lock.flock"]
        with (
            pytest.raises(OutputInUse, match=r"in use by another run \(download, process \d+ on "),
            locked(OutputFolder(out.path + "/."), "retry", QUICK),
        ):
            raise AssertionError
        assert names(path) == [".any2ds/lock", ".any2ds/lock.flock"]
    assert names(path) == []
    with pytest.raises(ZeroDivisionError), locked(out, "download", QUICK):
        raise ZeroDivisionError
    assert names(path) == []


def test_a_folder_that_was_made_for_nothing_is_removed_again(tmp_path: Path) -> None:
    output = OutputFolder(str(tmp_path / "a" / "b" / "c"))
    (tmp_path / "a").mkdir()
    with pytest.raises(OutputError, match="refused"), locked(output, "download", QUICK):
        raise OutputError("refused")
    assert names(tmp_path) == ["a"]
    assert names(tmp_path / "a") == []
    with locked(output, "download", QUICK):
        output.write(".any2ds/run", b"{}")
    assert names(tmp_path / "a" / "b" / "c") == [".any2ds/run"]


def test_a_run_that_is_refused_for_its_options_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out"
    options: dict[str, Any] = {"output_folder": path, "distributor": "inline", "quiet": True}
    (tmp_path / "a").write_bytes(b"a")
    with serve(tmp_path) as server:
        download([server.url("a")], **options)
        before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
        with pytest.raises(OutputError, match="oom_shard_count"):
            download([server.url("a")], oom_shard_count=7, **options)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_who_is_interrupted_on_the_way_to_it_leaves_nothing(
    out: OutputFolder, no_flock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock_file(out)
    path.touch()  # whoever takes over a blank one has to wait whether others do, too
    seen = []

    def interrupted(seconds: float) -> None:
        if seconds == QUICK.settle:
            seen.append(names(Path(out.path)))
            raise KeyboardInterrupt

    monkeypatch.setattr("any2ds.storage.lock.run_lock.time.sleep", interrupted)
    with pytest.raises(KeyboardInterrupt), locked(out, "download", QUICK):
        raise AssertionError
    assert seen == [[".any2ds/lock"]]
    assert names(Path(out.path)) == []


def test_of_many_at_the_same_moment_one_gets_it(out: OutputFolder) -> None:
    count, rounds = 6, 40
    everybody = threading.Barrier(count)
    won: list[int] = []

    def contend() -> None:
        for number in range(rounds):
            everybody.wait(100)
            with contextlib.suppress(OutputInUse), locked(out, "download", QUICK):
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
    assert names(Path(out.path)) == []


CONTENDER = """
import sys
import fsspec, pyarrow.fs
from fsspec.implementations.arrow import ArrowFSWrapper
from any2ds.core.errors import OutputInUse
from any2ds.storage.lock.run_lock import Intervals, locked
from any2ds.storage.folders import OutputFolder

class Remote(ArrowFSWrapper):
    protocol = "plain"
    def __init__(self, **options):
        super().__init__(pyarrow.fs.LocalFileSystem(), **options)

fsspec.register_implementation("plain", Remote, clobber=True)
output = OutputFolder(sys.argv[1])
intervals = Intervals(beat=0.1, stale=20.0, look=0.05, settle=0.5)
print("ready", flush=True)
for line in sys.stdin:
    try:
        with locked(output, "download", intervals):
            print("won", flush=True)
            sys.stdin.readline()
    except OutputInUse:
        print("refused", flush=True)
        sys.stdin.readline()
"""


def contend(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, rounds: int) -> None:
    """Let processes that share no temporary folder, as if on different machines, compete for an output."""
    processes = []
    for number in range(count):
        (tmp_path / f"tmp{number}").mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / f"tmp{number}"))
        command = [sys.executable, "-c", CONTENDER, url]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    with contextlib.ExitStack() as stack:
        for process in processes:
            stack.enter_context(process)
            stack.callback(process.kill)
        assert [process.stdout.readline() for process in processes] == ["ready\n"] * count  # type: ignore[union-attr]
        for _ in range(rounds):
            for process in processes:
                process.stdin.write("go\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
            said = sorted(process.stdout.readline() for process in processes)  # type: ignore[union-attr]
            assert said == ["refused\n"] * (count - 1) + ["won\n"]
            for process in processes:
                process.stdin.write("on\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]


@pytest.fixture
def bucket(s3_server: None) -> Iterator[str]:
    fs = s3fs.S3FileSystem()
    fs.mkdir("locks")
    yield "s3://locks"
    fs.rm("locks", recursive=True)


@pytest.mark.slow
def test_of_many_machines_one_gets_an_object_store(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contend(f"{bucket}/contended", tmp_path, monkeypatch, count=3, rounds=6)


def test_of_many_machines_one_gets_a_store_that_cannot_create_exclusively(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contend(f"plain://{tmp_path}/out", tmp_path, monkeypatch, count=3, rounds=3)


@pytest.mark.parametrize(
    "owner",
    [
        replace(Owner.here(), born="12"),  # another process had this number
        replace(Owner.here(), host="container", pids="pid:[1]"),  # locks are of the kernel, and this one is free
    ],
    ids=["pid reused", "other container"],
)
def test_a_dead_run_of_this_machine_is_succeeded_at_once(owner: Owner, out: OutputFolder) -> None:
    put(out, record_of(owner))
    (Path(out.path) / ".any2ds/lock.flock").write_bytes(record_of(owner))
    never = replace(QUICK, stale=1000, settle=1000)
    with locked(out, "download", never) as lock:
        (hold,) = lock.locks
        assert hold.run in (Path(out.path) / ".any2ds/lock").read_text()


@pytest.mark.parametrize("name", [layout.LOCK_FILE, layout.member_lock("rank-0-of-2")])
def test_a_dead_run_whose_forked_child_still_has_to_close_the_lock_is_succeeded(
    name: str, out: OutputFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lock_file(out).parent.parent / layout.kernel_lock(name)
    kept = FileLock.take(path, record_of(replace(Owner.here(), born="12")))
    assert kept is not None
    (path.parent.parent / name).write_bytes(path.read_bytes())
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        kept.release(remove=False)

    monkeypatch.setattr(time, "sleep", sleep)
    with locked(out, "download", QUICK):
        pass
    assert len(waits) == 1
    assert names(Path(out.path)) == []


def test_a_silent_run_of_another_machine_is_watched_and_succeeded(
    out: OutputFolder, caplog: pytest.LogCaptureFixture
) -> None:
    put(out, record_of(ELSEWHERE))
    with caplog.at_level(logging.WARNING, "any2ds"), locked(out, "download", replace(QUICK, stale=0.2)):
        pass
    assert "process 12 on elsewhere" in caplog.text
    assert names(Path(out.path)) == []


def test_a_run_of_another_machine_that_shows_signs_of_life_is_left_alone(out: OutputFolder) -> None:
    path = lock_file(out)
    with (
        beating(path.write_bytes),
        pytest.raises(OutputInUse, match="process 12 on elsewhere"),
        locked(out, "download", QUICK),
    ):
        raise AssertionError
    assert Holder.parse(path.read_bytes()).owner == ELSEWHERE  # type: ignore[union-attr]


def test_a_lock_that_was_never_written_is_taken_and_a_foreign_file_of_its_name_is_not(out: OutputFolder) -> None:
    path = lock_file(out)
    for blank in (b"", bytes(1024)):
        put(out, blank)
        with locked(out, "download", QUICK):
            assert Holder.parse(path.read_bytes()) is not None
    put(out, b'{"lockfileVersion": 3}')
    with pytest.raises(OutputError, match="any2ds did not write"), locked(out, "download", QUICK):
        raise AssertionError
    assert path.read_text() == '{"lockfileVersion": 3}'
    assert names(Path(out.path)) == [".any2ds/lock"]


@pytest.mark.usefixtures("no_flock")
def test_of_many_that_wait_for_the_same_run_to_be_dead_one_succeeds_it(out: OutputFolder) -> None:
    count = 4
    put(out, record_of(ELSEWHERE))
    everybody = threading.Barrier(count)
    said: list[str] = []

    def contend() -> None:
        try:
            with locked(out, "download", replace(QUICK, stale=0.5, settle=1.0)):
                said.append("won")
                everybody.wait(100)
        except OutputInUse:
            said.append("refused")
            everybody.wait(100)

    threads = [threading.Thread(target=contend) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert sorted(said) == ["refused"] * (count - 1) + ["won"]
    assert names(Path(out.path)) == []


@pytest.mark.usefixtures("no_flock")
def test_without_locks_of_the_system_signs_of_life_decide(out: OutputFolder) -> None:
    path = Path(out.path)
    with locked(out, "download", QUICK):
        assert names(path) == [".any2ds/lock"]
        with pytest.raises(OutputInUse, match="in use by another run"), locked(out, "download", QUICK):
            raise AssertionError
    assert names(path) == []
    put(out, record_of(replace(Owner.here(), born="12")))
    with locked(out, "download", replace(QUICK, stale=1000)):
        pass
    with staging(out.staging_root) as mine:  # of a process that lives: it could publish
        with pytest.raises(OutputInUse, match="not all of its processes"), locked(out, "download", QUICK):
            raise AssertionError
        assert mine.is_dir()
    assert names(path) == []


def test_a_run_that_lost_the_folder_ends_and_leaves_it_to_the_other(out: OutputFolder) -> None:
    path = lock_file(out)

    class Endless:
        def map(self, worker: Any, jobs: Any) -> Iterator[Event]:
            while True:
                time.sleep(0.01)
                yield ShardError(0, "")

        def stop(self, grace: float) -> None:
            """Nobody asks for it."""

    class NoJobs:
        shards, skipped = (), 0

        def jobs(self) -> Iterator[ShardJob]:
            yield from ()

        def outlook(self) -> Outlook:
            return Outlook()

    with locked(out, "download", QUICK) as lock:
        guard = Guard(out, lock.locks)
        guard()
        path.write_bytes(record_of(ELSEWHERE))
        with pytest.raises(LockLost, match="taken over by another run"):
            guard()
        with pytest.raises(LockLost, match="taken over by another run"):
            out.write(".any2ds/run", b"{}")
        with pytest.raises(LockLost, match="process 12 on elsewhere"):
            run(Any, Endless(), [], Ledger(NoJobs(), lock, 0), 10.0)  # type: ignore[arg-type]
    assert Holder.parse(path.read_bytes()).owner == ELSEWHERE  # type: ignore[union-attr]
    path.unlink()
    with pytest.raises(LockLost, match=r".any2ds/lock was removed"):
        guard()
    out.write(".any2ds/run", b"{}")  # which has no lock to lose any more


def test_a_run_that_lost_the_folder_removes_nothing_of_the_other(out: OutputFolder, tmp_path: Path) -> None:
    of_other = Path(out.path) / ".any2ds/swap" / "00000" / "00000.tar"
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    with locked(out, "download", QUICK):
        put(out, record_of(ELSEWHERE))
        of_other.parent.mkdir(parents=True)
        of_other.write_bytes(b"of the other")  # which is about to write its commit
        with pytest.raises(LockLost):
            swap(out, "00000", {"00000.tar": mine})
        assert of_other.read_bytes() == b"of the other"
        for remove in (out.remove, out.remove_tree, lambda name: out.remove_many([name])):
            with pytest.raises(LockLost):
                remove(".any2ds/swap/00000/00000.tar")
        assert of_other.exists()


def jobs_of(url: str) -> Any:
    table = pa.table({"url": [url]})
    return plan(cuts(table.to_batches(), 10), table.schema)


@pytest.mark.parametrize("remote", [False, True])
def test_a_worker_publishes_nothing_once_its_run_has_lost_the_folder(
    remote: bool, tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("any2ds.storage.lock.run_lock.Guard", lambda output, locks, *_: Guard(output, locks, QUICK))
    url = f"{bucket}/lost" if remote else str(tmp_path / "out")
    output = OutputFolder(url)
    (tmp_path / "a").write_bytes(b"a")
    with serve(tmp_path, {"a": ["hold"]}) as server:
        options = {"url_list": "-", "output_folder": url, "output_format": "webdataset"}
        config = Config.from_options(options)
        with locked(output, "download", QUICK) as lock:
            found: list[Event] = []
            worker = ShardWorker(config.output, config.fetch, locks=lock.locks)
            thread = threading.Thread(target=lambda: found.extend(worker(jobs_of(server.url("a")))))
            thread.start()
            server.wait_for("a")
            taken, record = f"{output.path}/.any2ds/lock", record_of(ELSEWHERE)
            while output.fs.cat_file(taken) != record:  # as others do: the holder may be writing at the same moment
                output.fs.pipe_file(taken, record)
                time.sleep(2 * QUICK.settle)
            server.release()
            thread.join(100)
            errors = [event for event in found if isinstance(event, ShardError)]
            assert len(errors) == 1
            assert "taken over by another run" in errors[0].reason
            assert sorted(names_in(output) - {".any2ds/lock.flock", ".any2ds/tmp"}) == [".any2ds/lock"]
            late = ShardWorker(config.output, config.fetch, locks=lock.locks)
            with pytest.raises(LockLost):
                list(late(jobs_of(server.url("a"))))
        assert sorted(names_in(output)) == ([".any2ds/lock"] if remote else [".any2ds/lock", ".any2ds/lock.flock"])


def test_a_process_that_does_not_end_is_named_and_its_files_are_left(out: OutputFolder) -> None:
    script = (
        "import sys; from pathlib import Path; from any2ds.storage.disk.staging import staging\n"
        "with staging(Path(sys.argv[1])) as folder: print(folder, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(out.staging_root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        with pytest.raises(OutputInUse, match=f"end process {other.pid} on "), locked(out, "download", QUICK):
            raise AssertionError
        assert folder.is_dir()
        assert names(Path(out.path)) == [".any2ds/tmp"]
        other.kill()
        other.wait(100)
        with locked(out, "download", QUICK):
            assert names(Path(out.path)) == [".any2ds/lock", ".any2ds/lock.flock"]


def test_leftovers_of_dead_runs_go_and_whatever_else_there_is_stays(out: OutputFolder) -> None:
    path = Path(out.path)
    foreign = [
        ".any2ds/tmp/0.feather",
        ".any2ds/tmp/host-1-zzzzzzzz/a",
        ".any2ds/tmp/notes.lock",
        ".any2ds/probe-zzzzzzzz",
        ".any2ds/probe-00000001",
    ]
    foreign += [".any2ds/tmp/host-1-00000000.lock", ".any2ds/lock.txt", "00000.tar", ".any2ds/tmp/host-2-0123456789/a"]
    for name in foreign:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("mine")
    dead = replace(Owner.here(), born="12")
    for name, owner in {"a-1-00000001": dead, "b-2-00000002": ELSEWHERE}.items():
        (path / ".any2ds/tmp" / name).mkdir()
        (path / ".any2ds/tmp" / name / "00000.tar").write_bytes(b"half")
        said = {"any2ds_staging": {"owner": {n: getattr(owner, n) for n in Owner.__slots__}, "serves": ""}}
        (path / ".any2ds/tmp" / f"{name}.lock").write_text(json.dumps(said))
    (path / ".any2ds/tmp" / "c-3-00000003").mkdir()  # its lock file was never there
    (path / ".any2ds/tmp" / "d-4-00000004.lock").write_bytes(b"")
    (path / ".any2ds/probe-0123abcd").write_bytes(b"any2ds")
    with locked(out, "download", QUICK):
        pass
    left = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    assert left == sorted(foreign)
    assert not (path / ".any2ds/tmp" / "c-3-00000003").exists()


class Fleeting(type(Path())):  # type: ignore[misc]
    """The path of a folder that another process makes and removes between two looks of `mkdir`."""

    looks = 0

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if parents:
            Fleeting.looks += 1
            if Fleeting.looks < 3:
                raise FileExistsError(errno.EEXIST, "File exists", str(self))
        super().mkdir(mode, parents, exist_ok)


def test_a_folder_for_staging_that_another_process_just_removes_is_made_again(tmp_path: Path) -> None:
    with staging(Fleeting(tmp_path / "tmp")) as folder:
        assert folder.is_dir()
    assert Fleeting.looks == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError), staging(tmp_path / "file"):
        raise AssertionError


def test_staging_for_another_output_is_left_to_its_process(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    output, another = OutputFolder(f"{bucket}/one"), OutputFolder(f"{bucket}/another")
    with staging(another.staging_root, another.identity) as theirs:
        with locked(output, "download", QUICK):
            assert theirs.is_dir()
        with pytest.raises(OutputInUse, match="not all of its processes"), locked(another, "download", QUICK):
            raise AssertionError
        assert theirs.is_dir()
    assert names(tmp_path) == []


def test_two_runs_of_this_machine_on_an_object_store(bucket: str) -> None:
    output = OutputFolder(f"{bucket}/both")
    with locked(output, "download", QUICK):
        assert names_in(output) == {".any2ds/lock"}
        with pytest.raises(OutputInUse, match=r"in use by another run \(download, process"), locked(output, "retry"):
            raise AssertionError
    assert output.names() == []


def test_runs_of_other_machines_on_an_object_store(bucket: str) -> None:
    output = OutputFolder(f"{bucket}/others")

    def write(content: bytes) -> None:
        output.fs.pipe_file(f"{output.path}/.any2ds/lock", content)

    with beating(write), pytest.raises(OutputInUse, match="on elsewhere"), locked(output, "download", QUICK):
        raise AssertionError
    with locked(output, "download", replace(QUICK, stale=0.2)) as lock:  # it has fallen silent
        Guard(output, lock.locks)()
    write(record_of(replace(Owner.here(), born="12")))  # one of this machine, killed
    output.write(".any2ds/probe-0123abcd", b"any2ds")
    with locked(output, "download", replace(QUICK, stale=1000)):
        pass
    assert output.names() == []


@pytest.mark.slow
def test_a_run_on_an_object_store_leaves_nothing_but_its_dataset(bucket: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    options: dict[str, Any] = {"output_folder": f"{bucket}/run", "output_format": "webdataset", "quiet": True}
    with serve(tmp_path) as server:
        report = download([server.url("a")], processes_count=1, **options)
    assert report.successes == 1
    assert names_in(OutputFolder(f"{bucket}/run")) == {
        "00000.parquet",
        "00000.tar",
        "00000.tar.idx",
        "00000_stats.json",
        ".any2ds/run",
        ".any2ds/shards",
    }
    with pytest.raises(OutputError, match="cannot be written"):
        download(["http://127.0.0.1:9/a"], output_folder="s3://absent/run", quiet=True)
