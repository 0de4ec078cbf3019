"""Reporters of other packages: each is told everything; whatever they do, the run goes on, ends, and says so once."""

from typing import Any

import pytest

from tests.support.play import Answers, Play

CODE = """
import threading
from any2ds.core.errors import UsageError
from any2ds.run.reporters._contract import Reporter

class Telling(Reporter):
    def __init__(self, watch, run):
        super().__init__(watch, run)
        self.rows = None
        print("made", run.command, watch.log_interval, flush=True)

    def report(self, event, facts):
        if event == "progress":
            self.rows = facts["rows"]
        else:
            print(event, self.rows if event == "finish" else facts.get("rows"), flush=True)

class Refusing(Telling):
    @staticmethod
    def check(watch):
        raise UsageError("nobody listens")

class Failing(Reporter):
    def __init__(self, watch, run):
        super().__init__(watch, run)
        self.report("made", {})

    def report(self, event, facts):
        if event == self.place:
            raise self.error

class Made(Failing):
    place, error = "made", ValueError("no\\nmore")

class Start(Failing):
    place, error = "start", SystemExit(3)

class ShardFinished(Failing):
    place, error = "shard_finished", ValueError("no\\nmore")

class Finish(Failing):
    place, error = "finish", SystemExit(3)

class Hanging(Reporter):
    def report(self, event, facts):
        threading.Event().wait()

    def cancel(self):
        print("cancelled", flush=True)
"""
FAILING = {"made": "Made", "start": "Start", "shard": "ShardFinished", "finish": "Finish"}
PARTS = {"telling": "Telling", "refusing": "Refusing", "hanging": "Hanging", **FAILING}
ROWS: dict[str, Answers] = dict.fromkeys(["a.jpg", "b.jpg", "c.jpg"], "ok")


def with_reporters(rows: dict[str, Answers], **options: Any) -> Play:
    """A play of shards of one row, with a package that brings reporters, as it lies there once it is installed."""
    play = Play(rows, number_sample_per_shard=1, way="command", **options)
    about = play.folder / "site" / "telling-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: telling\nVersion: 1.0\n")
    points = [f"{name} = telling:{part}" for name, part in PARTS.items()]
    (about / "entry_points.txt").write_text("\n".join(["[any2ds.reporters]", *points]))
    (play.folder / "site/telling.py").write_text(CODE)
    play.environment["PYTHONPATH"] = str(play.folder / "site")
    return play


def test_a_reporter_is_told_everything_in_order_and_the_newest_progress_at_the_end() -> None:
    outcome = with_reporters(ROWS).run(reporters="telling,jsonl", log_interval=7)
    told = outcome.stdout.splitlines()
    assert told == ["made download 7.0", "start None", *["shard_finished 1"] * 3, "finish 3"]
    assert [name for name in outcome.files if name.startswith(".any2ds/progress/")]


@pytest.mark.parametrize(("name", "words"), [("refusing", "nobody listens"), ("teling", "telling")])
def test_a_reporter_that_refuses_or_is_unknown_ends_the_run_before_anything_is_made(name: str, words: str) -> None:
    outcome = with_reporters(ROWS).run(reporters=name)
    assert (outcome.exit_code, outcome.requests.total(), outcome.files) == (2, 0, {})
    assert words in outcome.stderr


def test_a_reporter_that_raises_is_switched_off_with_one_warning() -> None:
    outcome = with_reporters(ROWS).run(reporters=",".join(["telling", *FAILING]))
    assert outcome.codes == {"success": 3}
    assert "finish 3" in outcome.stdout
    said = " ".join(outcome.stderr.split())
    for name, error in (
        ("made", "ValueError"),
        ("start", "SystemExit"),
        ("shard", "ValueError"),
        ("finish", "SystemExit"),
    ):
        assert said.count(f"the reporter {name} is switched off: {error}: ") == 1


def test_a_reporter_that_hangs_is_not_waited_for_once_it_is_far_behind() -> None:
    play = with_reporters(ROWS)
    (play.folder / "many.txt").write_text("".join(f"data:,{number}\n" for number in range(1100)))
    outcome = play.run("download", "many.txt", reporters="hanging", output_format="dummy")
    assert len(outcome.shards) == 1100
    assert (
        " ".join(outcome.stderr.split()).count("the reporter hanging is switched off: it is 1,000 events behind") == 1
    )
    assert "cancelled" in outcome.stdout


def test_a_run_that_is_stopped_does_not_wait_for_a_reporter_that_hangs() -> None:
    running = with_reporters({**ROWS, "c.jpg": ["hold"]}, timeout=0, grace=0).start(reporters="hanging")
    running.until("published 2")
    running.signal()
    assert running.wait().exit_code == 130
