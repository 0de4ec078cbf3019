"""Folders of ours in temporary folders that other users share: whoever took their names first gets nothing of ours."""

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest

from any2ds import download
from any2ds.storage.disk.private import named_for_user
from any2ds.storage.disk.staging import shared_root, staging, sweep
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.run_lock import Intervals, locked

QUICK = Intervals(beat=0.1, stale=20.0, look=0.05, settle=0.1, orphans=0.3, trust=0.0)


def link_of_another(path: Path) -> Path:
    """A link at `path` to a folder elsewhere, which is returned."""
    target = path.with_name("elsewhere")
    target.mkdir(mode=0o700)
    path.symlink_to(target)
    return target


def writable_for_all(path: Path) -> Path:
    path.mkdir()
    path.chmod(0o777)
    return path


def of_another_user(path: Path) -> Path:
    """Only root can give a folder away; what others see of a stranger's is that they may not write in it."""
    path.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        path.chmod(0o777)
    return path


@pytest.fixture
def store(s3_server: None) -> OutputFolder:
    name = f"b-{uuid.uuid4().hex[:12]}"
    client = boto3.client("s3")
    client.create_bucket(Bucket=name)
    client.close()
    return OutputFolder(f"s3://{name}/data")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)  # as /tmp
    return folder


@pytest.fixture(params=[link_of_another, writable_for_all, of_another_user])
def take(request: pytest.FixtureRequest) -> Callable[[Path], Path]:
    """Take a name before any2ds does; the folder in which nothing may ever appear is returned."""
    found: Callable[[Path], Path] = request.param
    return found


def test_a_staging_folder_that_somebody_else_made_is_never_used(
    take: Callable[[Path], Path], shared: Path, tmp_path: Path
) -> None:
    taken = take(shared_root(shared))
    before = taken.stat().st_mtime_ns
    rows = [f"data:,{number}" for number in range(6)]
    out = tmp_path / "out"
    report = download(rows, out, staging_dir=str(shared), quiet=True, number_sample_per_shard=2, processes_count=2)
    assert report.successes == 6
    stored = sorted(path.read_bytes() for path in out.glob("0000?/*.txt"))
    assert stored == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert taken.stat().st_mtime_ns == before
    assert not any(taken.iterdir())
    assert [path for path in shared.iterdir() if path not in (taken, shared_root(shared))] == []


def test_a_staging_folder_that_somebody_else_took_meanwhile_is_left(
    take: Callable[[Path], Path], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, taken, random_name = shared_root(shared), [], uuid.uuid4

    def while_others_act() -> uuid.UUID:
        """Between the root that was found private and the folder in it, the empty root goes, and its name is taken."""
        if not taken:
            root.rmdir()
            taken.append(take(root))
        return random_name()

    monkeypatch.setattr(uuid, "uuid4", while_others_act)
    with staging(root) as folder:
        assert folder.is_dir()
        assert folder.parent.parent == shared
        assert folder.parent.stat().st_mode & 0o777 == 0o700
        assert folder.parent not in (root, taken[0])
        assert not any(taken[0].iterdir())
    assert set(shared.iterdir()) == {root, taken[0]}


def test_a_staging_folder_of_ours_is_closed_to_others(shared: Path) -> None:
    with staging(shared_root(shared)) as folder:
        assert folder.parent == shared_root(shared)
        assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert not any(shared.iterdir())


def test_what_a_killed_process_left_in_a_fresh_folder_is_removed(shared: Path) -> None:
    taken = writable_for_all(shared_root(shared))
    script = (
        "import sys; from pathlib import Path; from any2ds.storage.disk.staging import staging\n"
        "with staging(Path(sys.argv[1])) as folder: print(folder, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(taken)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        process.send_signal(signal.SIGKILL)
    assert left.is_dir()
    assert left.parent != taken
    sweep(shared_root(shared))
    assert not left.parent.exists()


def test_a_lock_of_a_store_is_not_taken_in_a_folder_of_somebody_else(
    take: Callable[[Path], Path], store: OutputFolder, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    taken = take(named_for_user(shared, "any2ds-locks"))
    before = taken.stat().st_mtime_ns
    with locked(store, "download", QUICK):
        pass
    assert taken.stat().st_mtime_ns == before
    assert not any(taken.iterdir())


def test_nothing_of_a_lock_stays_in_the_temporary_folder(
    store: OutputFolder, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with locked(store, "download", QUICK):
        assert any(named_for_user(shared, "any2ds-locks").iterdir())
    assert not any(shared.iterdir())
