"""Reporters beside the terminal: whatever they do, the run goes on, ends, and says so once."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport, ShardReport
from any2ds.run import reporting
from any2ds.run.ledger import Ledger
from any2ds.run.loop import run
from any2ds.run.monitor import Monitor, Outlook
from any2ds.run.reporters._contract import Reporter
from any2ds.run.reporting import Reporters, ThreadedReporter
from any2ds.storage.lock.lease import RunLock
from any2ds.testing.server import serve

PICTURES = Path(__file__).parents[2] / "examples" / "data" / "images"
ROOT = str(Path(__file__).parents[2])
PLACES = ["made", "on_start", "on_progress", "on_shard", "on_finish"]


class Told(Reporter):
    """Does something to whoever tells it, at one place, and writes down what it was told."""

    def __init__(self, place: str = "", act: Any = None) -> None:
        self._place, self._act = place, act
        self.reported: list[tuple[str, Any]] = []
        self.was_cancelled = threading.Event()
        self._hear("made")

    def _hear(self, method: str, what: Any = None) -> None:
        self.reported.append((method, what))
        if method == self._place:
            self._act()

    def on_start(self, finished_shards: int) -> None:
        self._hear("on_start", finished_shards)

    def on_progress(self, now: Snapshot) -> None:
        self._hear("on_progress", now)

    def on_shard(self, event: Any) -> None:
        self._hear("on_shard", event)

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._hear("on_stopping", open_shards)

    def on_finish(self, total: RunReport) -> None:
        self._hear("on_finish", total)

    def cancel(self) -> None:
        self.was_cancelled.set()


@pytest.fixture
def hang() -> Iterator[Any]:
    """Hangs until the test is over."""
    over = threading.Event()
    yield over.wait
    over.set()


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "_TIMEOUT", 0.3)


def play(*reporters: Any, shards: int = 3, was_stopped: bool = False) -> None:
    """A run, as reporters are told of it."""
    tell = Reporters(reporters)
    tell.on_start(0)
    with tell.watching(Monitor()):
        for number in range(shards):
            tell.on_shard(ShardReport(shard_id=number))
    tell.on_finish(RunReport(shards=shards), was_stopped)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_each_is_told_everything_in_order_and_the_newest_snapshot() -> None:
    made: list[Told] = []
    play(ThreadedReporter("one", lambda: made.append(Told()) or made[0]), ThreadedReporter("two", Told))
    methods = [method for method, _ in made[0].reported if method != "on_progress"]
    assert methods == ["made", "on_start", "on_shard", "on_shard", "on_shard", "on_finish"]
    assert made[0].reported[-2][0] == "on_progress"
    assert made[0].reported[-1][1].shards == 3
    assert not made[0].was_cancelled.is_set()


@pytest.mark.parametrize("place", PLACES)
def test_one_that_hangs_is_left_behind_with_one_warning(
    place: str, hang: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Told] = []

    class Hanging(Told):
        def __init__(self) -> None:
            made.append(self)
            super().__init__(place, hang)

    other = Told()
    play(other, ThreadedReporter("hanging", Hanging))
    assert other.reported[-1][0] == "on_finish"
    assert warnings_in(caplog) == ["the reporter hanging is switched off: it has not finished in time"]
    if place != "made":  # until then nobody has it
        assert made[0].was_cancelled.wait(10)


@pytest.mark.parametrize("error", [ValueError("no\nmore"), SystemExit(3)], ids=["error", "exit"])
@pytest.mark.parametrize("place", PLACES)
def test_one_that_raises_is_switched_off_with_one_warning(
    place: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    other = Told()
    play(other, ThreadedReporter("failing", lambda: Told(place, fail)))
    assert len([method for method, _ in other.reported if method == "on_shard"]) == 3
    (words,) = warnings_in(caplog)
    assert words.startswith(f"the reporter failing is switched off: {type(error).__name__}: ")
    assert "\n" not in words


def test_one_that_is_stuck_for_long_is_told_of_once_and_not_waited_for(
    hang: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "_LONGEST_CALL", 0.0)
    monkeypatch.setattr(reporting, "_TIMEOUT", 1000.0)
    aside = ThreadedReporter("stuck", lambda: Told("on_start", hang))
    tell = Reporters([aside])
    tell.on_start(0)
    while not warnings_in(caplog):
        tell.on_progress(Snapshot())
    tell.on_finish(RunReport())
    assert warnings_in(caplog) == ["the reporter stuck is switched off: it has not come back for 0 s"]


def test_one_that_falls_far_behind_is_switched_off(
    hang: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "_MOST_WAITING", 10)
    play(ThreadedReporter("slow", lambda: Told("made", hang)), shards=100)
    assert warnings_in(caplog) == ["the reporter slow is switched off: it is 10 calls behind"]


def test_who_stops_the_run_does_not_wait_for_them(hang: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "_TIMEOUT", 1000.0)
    monkeypatch.setattr(reporting, "_TIMEOUT_STOPPED", 0.2)
    started = time.monotonic()
    play(ThreadedReporter("hanging", lambda: Told("on_start", hang)), was_stopped=True)
    assert time.monotonic() - started < 100


def test_who_interrupts_the_beginning_finds_everything_put_back() -> None:
    class Nobody:
        shards, skipped = (), 0

        def jobs(self) -> Iterator[Any]:
            yield from ()

        def outlook(self) -> Outlook:
            return Outlook()

        def map(self, worker: Any, jobs: Any) -> Iterator[Any]:
            yield from ()

        def stop(self, grace: float) -> None:
            """There is nothing to be stopped."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    first: Any = Told()
    second: Any = Told("on_start", interrupt)
    nobody: Any = Nobody()
    with pytest.raises(KeyboardInterrupt):
        run(nobody, nobody, [first, second], Ledger(nobody, RunLock(), 0), 10.0)
    assert [method for method, _ in first.reported] == ["made", "on_start", "on_finish"]


PLUGIN = """
from any2ds.run.reporters._contract import Reporter
class Telling(Reporter):
    def __init__(self, watch, run):
        print("made", run.command, watch.log_interval, flush=True)
    def on_start(self, finished_shards): print("start", finished_shards, flush=True)
    def on_shard(self, event): print("shard", event.shard_id, event.count, flush=True)
    def on_finish(self, total): print("finish", total.successes, flush=True)
class Refusing(Telling):
    @staticmethod
    def check(watch):
        from any2ds.core.errors import UsageError
        raise UsageError("nobody listens")
"""


def test_other_packages_bring_reporters_of_their_own(tmp_path: Path) -> None:
    """As they lie there once they are installed."""
    about = tmp_path / "site" / "telling-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: telling\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[any2ds.reporters]\ntelling = telling:Telling\nrefusing = telling:Refusing\nbroken = missing_module:X\n"
    )
    (tmp_path / "site" / "telling.py").write_text(PLUGIN)
    program = f"import sys; sys.path[:0] = [{str(tmp_path / 'site')!r}, {ROOT!r}]; from any2ds.cli import main; main()"

    def ran(reporters: str) -> "subprocess.CompletedProcess[str]":
        given = ["--url_list=urls.txt", f"--output_folder={reporters}", "--distributor=inline", "--log_interval=7"]
        command = [sys.executable, "-c", program, *given, f"--reporters={reporters}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    with serve(PICTURES) as server:
        (tmp_path / "urls.txt").write_text(server.url("bars-01.jpg"))
        done = ran("telling,jsonl")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["made download 7.0", "start 0", "shard 0 1", "finish 1"]
    assert list((tmp_path / "telling,jsonl" / ".any2ds/progress").iterdir())
    refused = ran("refusing")
    assert (refused.returncode, refused.stderr) == (2, "any2ds: nobody listens\n")
    unknown = ran("teling")
    assert unknown.returncode == 2
    assert "telling" in unknown.stderr
    assert not (tmp_path / "refusing").exists()
