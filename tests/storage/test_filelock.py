"""Locks of the operating system, between real processes."""

import subprocess
import sys
from pathlib import Path

from any2ds.storage.lock.file_lock import FileLock
from any2ds.storage.lock.owner import Owner

HOLDING = """
import os, sys
from pathlib import Path
from any2ds.storage.lock.file_lock import FileLock
lock = FileLock.take(Path(sys.argv[1]))
if os.fork() == 0:
    code = "import sys; print('forked', flush=True); sys.stdin.read()"
    os.execv(sys.executable, [sys.executable, "-c", code])
sys.stdin.read()
"""


def test_a_file_is_locked_once_also_within_a_process_and_can_be_read_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock.take(path, b"mine") or pytest_fail():
        assert FileLock.take(path, b"other") is None
        assert path.read_bytes() == b"mine"
    assert not path.exists()
    lock = FileLock.take(path, b"other")
    assert lock is not None
    lock.release(remove=False)
    assert path.read_bytes() == b"other"


def pytest_fail() -> FileLock:
    raise AssertionError("not locked")


def test_a_lock_ends_with_its_process_though_a_child_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDING, str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdin is not None
    with holder.stdout, holder.stdin:
        assert holder.stdout.readline() == "forked\n"  # before it first runs, a child shares the lock
        assert FileLock.take(path) is None
        holder.kill()
        holder.wait(100)
        taken = FileLock.take(path)  # the child, which has the same pipe for its input, still waits
        assert taken is not None
        taken.release()


def test_whoever_waits_for_a_file_that_its_holder_removes_locks_no_ghost(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for _ in range(200):
        first = FileLock.take(path)
        assert first is not None
        first.release()
        second = FileLock.take(path)
        assert second is not None
        assert FileLock.take(path) is None
        second.release()


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    here = Owner.here()
    assert here.state() == "alive"
    assert here.shares_kernel()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    zombie = Owner(here.host, ended.pid, here.kernel, here.pids, here.born)
    ended.wait(100)
    assert zombie.state() == "gone"
    others = [
        (Owner(here.host, here.pid, here.kernel, here.pids, "12"), "gone"),
        (Owner("elsewhere", here.pid, here.kernel, here.pids, here.born), "alive"),  # a container has a name of its own
        (Owner(here.host, here.pid, "another boot", here.pids, here.born), "unknown"),
        (Owner(here.host, here.pid, here.kernel, "pid:[1]", here.born), "unknown"),
        (Owner(here.host, here.pid), "unknown"),
    ]
    for owner, state in others:
        assert owner.state() == state
