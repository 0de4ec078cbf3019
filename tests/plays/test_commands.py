"""The command line: help, exit codes, config files, what goes to which stream, and words that are wrong."""

import json
import subprocess
import sys
from typing import Any

import pytest

import any2ds
from tests.support.play import ROOT, Play, Row

COMMANDS = (
    "download retry estimate verify inspect report card build new recipes completion".split()  # noqa: SIM905
)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str) -> None:
    play = Play()
    pages = [play.run(*words) for words in ((command, "--help"), ("help", command))]
    for page in pages:
        assert (page.exit_code, page.stderr) == (0, "")
        assert page.stdout.startswith("usage: any2ds" if command != "completion" else "any2ds completion:")
    assert pages[0].stdout == pages[1].stdout


# --- wrong words ---

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown option": ({"timeot": 3}, "timeout"),
    "a number that is none": ({"timeout": "x"}, "timeout"),
    "a negative number": ({"retries": -1}, "retries"),
    "a number too large": ({"retries": 10**30}, "retries"),
    "a choice that is none": ({"output_format": "zip"}, "webdataset"),
    "no boolean": ({"compute_md5": "maybe"}, "compute_md5"),
    "an option without its partner": ({"resize_mode": "border"}, "file_size"),
    "a format without its format": ({"row_group_bytes": 1000}, "parquet"),
    "no rows in a shard": ({"number_sample_per_shard": 0}, "number_sample_per_shard"),
    "no bytes": ({"max_file_bytes": "1XB"}, "max_file_bytes"),
    "an unknown distributor": ({"distributor": "slurm"}, "multiprocessing"),
    "an unknown reporter": ({"reporters": "jsonl,mail"}, "mail"),
    "an unknown preset": ({"preset": "other"}, "img2dataset"),
    "a column that is not in the list": ({"url_col": "link"}, "link"),
    "a caption that is not in the list": ({"caption_col": "text"}, "text"),
    "a config file that is not there": ({"config": "none.yaml"}, "none.yaml"),
    "a step that is not there": ({"transform": "none.py:step"}, "none.py"),
    "a header that is none": ({"headers": "nothing"}, "headers"),
    "a proxy of another kind": ({"proxy": "ftp://127.0.0.1:1"}, "proxy"),
    "an option of a config file": ({"hosts": "x"}, "hosts"),
    "a limit below nothing": ({"limit": -1}, "limit"),
    "an input format that is none": ({"input_format": "xls"}, "input_format"),
    "a list inside the dataset": ({"output_folder": "list.jsonl"}, "list.jsonl"),
    "options of a store without its name": ({"storage_options": '{"key": 1}'}, "storage_options"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_refused_before_anything_is_sent_or_written(name: str) -> None:
    options, said = WRONG[name]
    outcome = Play({"a.jpg": "ok"}).run(**options)
    assert (outcome.exit_code, outcome.stdout, outcome.files, outcome.requests.total()) == (2, "", {}, 0)
    assert outcome.stderr.startswith("any2ds: ")
    assert outcome.stderr.count("\n") == 1 or said in outcome.stderr
    assert said in outcome.stderr


@pytest.mark.parametrize(
    "name", ["an unknown option", "a number that is none", "a choice that is none", "a limit below nothing"]
)
def test_python_raises_the_same_as_a_usage_error(name: str) -> None:
    options, said = WRONG[name]
    error = Play({"a.jpg": "ok"}).run(way="python", **options).error
    assert isinstance(error, any2ds.UsageError | TypeError)
    assert said in str(error)


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        ("verfy", (), "verify"),
        ("completion", ("csh",), "fish"),
        ("completion", (), "fish"),
        ("verify", ("a", "b"), "b"),
        ("inspect", ("a", "--samples"), "samples"),
        ("inspect", ("a", "--nothing=1"), "nothing"),
        ("report", ("a", "--format=pdf"), "md"),
        ("verify", ("a", "-x"), "-x"),
        ("report", ("a", "--format=md", "--samples=3"), "html"),
        ("verify", ("a", "--seed=1"), "sample"),
    ],
)
def test_wrong_words_of_other_commands_are_refused(command: str, arguments: tuple[str, ...], said: str) -> None:
    play = Play()
    with play.inside() as printed:
        from any2ds.cli import run

        code = run([command, *arguments])
    assert (code, printed()["stdout"]) == (2, "")
    assert said in printed()["stderr"]


# --- exit codes and streams ---


@pytest.mark.parametrize(
    ("rows", "exit_code"),
    [
        ({"a.jpg": "ok"}, 0),
        ({"a.jpg": "ok", "b.jpg": "http_404"}, 0),
        ({"a.jpg": "http_404"}, 4),
        ({"a.jpg": "http_404", "b.jpg": "http_404"}, 4),
    ],
    ids=["stored", "some stored", "none", "none of two"],
)
def test_the_exit_code_says_whether_anything_was_stored(rows: dict[str, str], exit_code: int) -> None:
    play = Play(rows)
    outcome = play.run()
    assert (outcome.exit_code, outcome.stdout) == (exit_code, "")
    if exit_code == 4:
        assert "404" in outcome.stderr.splitlines()[-1]
    assert play.run("retry", codes="all").exit_code == 0


def test_everything_about_a_run_is_on_standard_error() -> None:
    outcome = Play({"a.jpg": "ok", "b.jpg": "http_404"}).run(way="command")
    assert outcome.stdout == ""
    assert "http_404" in outcome.stderr
    assert "1 stored" in outcome.stderr


def test_quiet_says_nothing_but_errors() -> None:
    play = Play({"a.jpg": "ok", "b.jpg": "http_404"})
    assert play.run(quiet=True).screen == ""
    assert play.run(quiet=True, number_sample_per_shard=1).stderr.startswith("any2ds: ")


def test_the_events_of_a_run_for_machines() -> None:
    rows = {"a.jpg": "ok", "b.jpg": "http_404", "c.txt": Row(body=b"12345"), "d.jpg": "http_503"}
    outcome = Play(rows, number_sample_per_shard=2, save_additional_columns=None).run(log_format="json")
    events = {line["event"]: line for line in outcome.log}
    assert len(outcome.log) == len(outcome.stderr.splitlines())
    assert (events["start"]["command"], events["start"]["shards_before"]) == ("download", 0)
    finish = events["finish"]
    assert [finish[name] for name in ("rows", "stored", "failed", "samples", "attempts", "shards_done")] == [
        4,
        2,
        2,
        2,
        4,
        2,
    ]
    assert finish["bytes"] == sum(len(sample.data) for sample in outcome.samples)
    assert {one["code"]: one["rows"] for one in finish["outcomes"]} == outcome.codes
    assert {one["code"]: one["transient"] for one in finish["outcomes"]}["http_503"] is True
    assert (finish["retryable_rows"], finish["types"]) == (1, {"image/jpeg": 1, "text/plain": 1})
    assert "retry" in finish["retry"]


def test_an_error_for_machines() -> None:
    (event,) = Play({"a.jpg": "ok"}).run(log_format="json", timeout="x").log
    assert (event["event"], event["exit_code"]) == ("error", 2)
    assert "timeout" in event["message"]


def test_columns_that_are_not_kept_are_named() -> None:
    play = Play({"a.jpg": Row(columns={"licence": "x", "alt": "y"})})
    outcome = play.run()
    assert all(word in outcome.stderr for word in ("licence", "alt"))
    log = Play({"a.jpg": Row(columns={"licence": "x", "alt": "y"})}, caption_col="alt").run(log_format="json").log
    assert log[0]["columns_left_out"] == ["licence"]


# --- config files ---


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.yaml", "number_sample_per_shard: 1\ncaption_col: text\nretries: 1\n"),
        ("run.json", '{"number_sample_per_shard": 1, "caption_col": "text", "retries": 1}'),
    ],
)
def test_a_config_file_gives_options_and_the_command_line_wins(name: str, text: str) -> None:
    rows = {"a.jpg": Row(["http_503", "ok"], columns={"text": "eins"}), "b.jpg": Row(columns={"text": "zwei"})}
    play = Play(rows)
    (play.folder / name).write_text(text)
    outcome = play.run(config=name)
    assert outcome.codes == {"success": 2}
    assert len(outcome.shards) == 2
    assert [sample.files["txt"] for sample in outcome.samples] == [b"eins", b"zwei"]
    assert play.run(config=name, incremental_mode="overwrite", number_sample_per_shard=2).shards == ["00000"]


@pytest.mark.parametrize("text", ["timeot: 3\n", "- 1\n", "timeout: [1\n", "timeout: x\n"])
def test_a_config_file_that_is_wrong_is_refused(text: str) -> None:
    play = Play({"a.jpg": "ok"})
    (play.folder / "run.yaml").write_text(text)
    outcome = play.run(config="run.yaml")
    assert (outcome.exit_code, outcome.files, outcome.requests.total()) == (2, {}, 0)
    assert "run.yaml" in outcome.stderr or "timeout" in outcome.stderr


def test_options_of_hosts_are_for_these_hosts_alone() -> None:
    play = Play({"a.jpg": ["http_503", "ok"]})
    (play.folder / "run.yaml").write_text(
        "hosts:\n  127.0.0.1: {headers: {X-Mine: one}}\n  other.example: {headers: {X-Mine: two}}\n"
    )
    play.run(config="run.yaml", retries=1)
    assert {request.headers["X-Mine"] for request in play.web.requests if request.path.endswith("a.jpg")} == {"one"}


def test_the_version() -> None:
    for flag in ("--version", "-V"):
        done = subprocess.run(
            [sys.executable, "-m", "any2ds", flag], cwd=ROOT, text=True, capture_output=True, check=True
        )
        assert any2ds.__version__ in done.stdout


def test_a_bare_command_shows_the_help() -> None:
    play = Play()
    with play.inside() as printed:
        from any2ds.cli import run

        assert run([]) in (0, 2)
    assert "usage: any2ds" in printed()["stdout"] + printed()["stderr"]


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_file_of_others_is_not_replaced_by_json(command: str) -> None:
    play = Play({"a.jpg": "ok"})
    play.run()
    (play.folder / "mine.json").write_text('{"mine": 1}')
    outcome = play.run(command, json="mine.json")
    assert outcome.exit_code in (1, 2)
    assert json.loads((play.folder / "mine.json").read_text()) == {"mine": 1}
    assert "mine.json" in outcome.stderr
