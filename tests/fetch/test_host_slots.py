"""Slots of hosts: processes that ask for them, and one that is killed."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from any2ds.fetch.host_slots import HostSlots

_OTHER = """
import sys
from pathlib import Path
from any2ds.fetch.host_slots import HostSlots
path, host, limit, delay, count = sys.argv[1:]
slots = HostSlots(Path(path))
print(sum(slots.acquire(host, int(limit), float(delay))[0] is not None for _ in range(int(count))), flush=True)
sys.stdin.read()
"""

_FORKS = """
import os, signal, threading
from any2ds.fetch.host_slots import HOST_SLOTS

def use_slots():
    while True:
        HOST_SLOTS.release(HOST_SLOTS.acquire("h.example", 2, 0.0)[0])

threading.Thread(target=use_slots, daemon=True).start()
for _ in range(50):
    if not (child := os.fork()):
        signal.alarm(20)
        HOST_SLOTS.acquire("other.example", 2, 0.0)
        os._exit(0)
    if status := os.waitpid(child, 0)[1]:
        raise SystemExit(f"a child has ended with {status}")
"""


class Other:
    """Another process, which takes what it gets of so many slots, and keeps that until it is killed."""

    def __init__(self, path: Path, host: str, limit: int, delay: float = 0.0, count: int = 1) -> None:
        arguments = [str(path), host, str(limit), str(delay), str(count)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([sys.executable, "-c", _OTHER, *arguments], text=True, **pipes)  # type: ignore[call-overload]
        self.count = int(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "slots-of-a-user"


def test_a_process_that_is_alone_gets_all_and_no_more(path: Path) -> None:
    slots = HostSlots(path)
    found = [slots.acquire("h.example", 3, 0.0)[0] for _ in range(4)]
    assert len({slot for slot in found[:3] if slot is not None}) == 3
    assert found[3] is None
    assert slots.acquire("other.example", 3, 0.0)[0] is not None
    slots.release(found[1] or 0)
    assert slots.acquire("h.example", 3, 0.0)[0] == found[1]


def test_what_another_process_has_is_taken_and_free_again_when_it_is_killed(path: Path) -> None:
    slots = HostSlots(path)
    other = Other(path, "h.example", 3, count=2)
    assert other.count == 2
    assert slots.acquire("h.example", 3, 0.0)[0] is not None
    slot, wait = slots.acquire("h.example", 3, 0.0)
    assert slot is None
    assert wait > 0
    other.kill()
    assert None not in [slots.acquire("h.example", 3, 0.0)[0] for _ in range(2)]


def test_a_start_is_as_far_from_that_of_another_process_as_the_host_wants(path: Path) -> None:
    slots = HostSlots(path)
    other = Other(path, "h.example", 1_000_000, delay=3600.0, count=2)
    assert other.count == 1
    slot, wait = slots.acquire("h.example", 1_000_000, 3600.0)
    assert slot is None
    assert 3000.0 < wait <= 3600.0
    assert slots.acquire("other.example", 1_000_000, 3600.0)[0] is not None
    other.kill()
    assert slots.acquire("h.example", 1_000_000, 3600.0)[0] is None  # it has asked all the same


def test_where_no_file_can_be_made_each_process_is_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "no-folder").touch()
    slots = HostSlots(tmp_path / "no-folder" / "slots-of-a-user")
    assert slots.acquire("h.example", 1, 0.0)[0] is not None
    assert "each process by itself" in caplog.text


def test_a_folder_that_others_may_write_in_is_not_used(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.mkdir()
    path.chmod(0o777)
    HostSlots(path).acquire("h.example", 1, 0.0)
    assert "each process by itself" in caplog.text
    assert not list(path.iterdir())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_is_forked_while_a_thread_asks_for_slots_can_ask_too(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", _FORKS]
    assert subprocess.run(command, env=environment, check=False).returncode == 0


def test_where_the_next_start_cannot_be_written_the_process_is_by_itself(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    resource = pytest.importorskip("resource")
    slots = HostSlots(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        found = [slots.acquire("h.example", 1, 3600.0)[0] for _ in range(2)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert None not in found
    assert caplog.text.count("each process by itself") == 1
    other = Other(path, "h.example", 1)
    assert other.count == 1  # nothing has stayed locked
    other.kill()


def test_hosts_are_spread_over_files_that_are_opened_as_they_are_needed(path: Path) -> None:
    slots = HostSlots(path)
    slots.acquire("h.example", 1, 0.0)
    assert len(list(path.iterdir())) == 1
    found = [slots.acquire(f"{number}.example", 1, 0.0)[0] for number in range(1000)]
    assert len(set(found)) == 1000
    assert 32 < len(list(path.iterdir())) <= 64
    other = Other(path, "7.example", 1)
    assert other.count == 0
    other.kill()


def test_a_fetcher_can_be_imported_where_there_is_no_temporary_folder() -> None:
    script = """
import tempfile
def nowhere():
    raise FileNotFoundError("no usable temporary directory")
tempfile.gettempdir = nowhere
from any2ds.fetch.fetcher import HOST_SLOTS
print(HOST_SLOTS.acquire("h.example", 1, 0.0)[0])
"""
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert run.stdout
    assert "None" not in run.stdout


def test_a_slot_that_was_used_for_long_is_left_to_others_for_a_moment(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("any2ds.fetch.host_slots._TENURE", -1.0)
    slots = HostSlots(path)
    slot = slots.acquire("h.example", 1, 0.0)[0]
    slots.release(slot or 0)
    assert slots.acquire("h.example", 1, 0.0)[0] is None
    other = Other(path, "h.example", 1)
    assert other.count == 1
    other.kill()


def test_released_slots_are_given_again_before_others_in_any_order_and_never_twice(path: Path) -> None:
    slots = HostSlots(path)
    rng = random.Random(0)
    held = [slots.acquire("h.example", 20, 0.0)[0] or 0 for _ in range(20)]
    lowest = min(held)
    for _ in range(200):
        for slot in rng.sample(held, rng.randint(1, len(held))):
            held.remove(slot)
            slots.release(slot)
        while (slot := slots.acquire("h.example", 20, 0.0)[0]) is not None:
            held.append(slot)
        assert sorted(held) == list(range(lowest, lowest + 20))
