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

from any2ds.run.reporters._contract import Facts, Reporter
from any2ds.run.reporting import ThreadedReporter
from any2ds.testing.server import serve

PICTURES = Path(__file__).parents[2] / "examples" / "data" / "images"
ROOT = str(Path(__file__).parents[2])
PLACES = ["made", "start", "shard_finished", "finish"]


class Told(Reporter):
    """Does something to whoever tells it, at one event, and writes down what it was told."""

    def __init__(self, place: str = "", act: Any = None) -> None:
        self._place, self._act = place, act
        self.reported: list[tuple[str, Facts]] = []
        self.was_cancelled = threading.Event()
        self.report("made", {})

    def report(self, event: str, facts: Facts) -> None:
        self.reported.append((event, facts))
        if event == self._place:
            self._act()

    def cancel(self) -> None:
        self.was_cancelled.set()


@pytest.fixture
def hang() -> Iterator[Any]:
    """Hangs until the test is over."""
    over = threading.Event()
    yield over.wait
    over.set()


def tell(reporter: ThreadedReporter, shards: int = 3, seconds: float = 100.0) -> None:
    """A run, as the reporter is told of it; at its end it has some seconds."""
    reporter.put("start", {})
    for number in range(shards):
        reporter.put("progress", {"rows": number})
        reporter.put("shard_finished", {"shard_id": number})
    reporter.put("finish", {})
    reporter.join(time.monotonic() + seconds)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_each_is_told_everything_in_order_and_the_newest_progress() -> None:
    made: list[Told] = []
    tell(ThreadedReporter("one", lambda: made.append(Told()) or made[0]))  # type: ignore[func-returns-value]
    events = [event for event, _ in made[0].reported if event != "progress"]
    assert events == ["made", "start", "shard_finished", "shard_finished", "shard_finished", "finish"]
    assert made[0].reported[-2] == ("progress", {"rows": 2})
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

    tell(ThreadedReporter("hanging", Hanging), seconds=0.3)
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

    tell(ThreadedReporter("failing", lambda: Told(place, fail)))
    (words,) = warnings_in(caplog)
    assert words.startswith(f"the reporter failing is switched off: {type(error).__name__}: ")
    assert "\n" not in words


def test_one_that_falls_far_behind_is_switched_off_and_not_waited_for(
    hang: Any, caplog: pytest.LogCaptureFixture
) -> None:
    tell(ThreadedReporter("slow", lambda: Told("made", hang)), shards=1100, seconds=1e6)
    assert warnings_in(caplog) == ["the reporter slow is switched off: it is 1,000 events behind"]


PLUGIN = """
from any2ds.run.reporters._contract import Reporter
class Telling(Reporter):
    def __init__(self, watch, run):
        super().__init__(watch, run)
        print("made", run.command, watch.log_interval, flush=True)
    def report(self, event, facts):
        if event != "progress":
            print(event, facts.get("rows"), flush=True)
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
    assert done.stdout.splitlines() == ["made download 7.0", "start None", "shard_finished 1", "finish 1"]
    assert list((tmp_path / "telling,jsonl" / ".any2ds/progress").iterdir())
    refused = ran("refusing")
    assert (refused.returncode, refused.stderr) == (2, "any2ds: nobody listens\n")
    unknown = ran("teling")
    assert unknown.returncode == 2
    assert "telling" in unknown.stderr
    assert not (tmp_path / "refusing").exists()
