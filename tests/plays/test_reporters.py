"""All reporters of a run have the same figures, and none of them ends it."""

import json
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.play import Outcome, Play

ROWS = {"a.jpg": "ok", "b.jpg": "http_404", "c.txt": "ok", "d.jpg": "http_503", "e.jpg": "ok"}


def progress(outcome: Outcome) -> list[dict[str, Any]]:
    names = sorted(name for name in outcome.files if name.startswith(".any2ds/progress/"))
    return [json.loads(line) for name in names for line in outcome.files[name].splitlines()]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.mark.parametrize("distributor", ["inline", "multiprocessing"])
def test_lines_of_json_have_the_figures_of_the_dataset(distributor: str) -> None:
    how = {"log_format": "json", "number_sample_per_shard": 2, "distributor": distributor, "headers": "X-Key: hunter2"}
    outcome = Play(ROWS, reporters="jsonl", **how).run()
    events = progress(outcome)
    assert (events[0]["event"], events[-1]["event"]) == ("start", "finish")
    assert events[0]["options"]["number_sample_per_shard"] == 2
    assert "hunter2" not in json.dumps(events)
    end, last = events[-1], [event for event in events if event["event"] == "progress"][-1]
    for facts in (end, last):
        assert (facts["rows"], facts["stored"], facts["failed"], facts["success_ratio"]) == (5, 3, 2, 0.6)
        assert facts["bytes"] == sum(len(sample.data) for sample in outcome.samples)
        assert (facts["shards_done"], facts["attempts"]) == (3, 5)
    assert (last["outcomes"], last["share"]) == (outcome.codes, 1.0)
    assert {each["code"]: each["rows"] for each in end["outcomes"]} == outcome.codes
    assert _without_times(outcome.log[-1]) == _without_times(end)  # the terminal says the same


def _without_times(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "time"}


def test_each_command_writes_a_file_of_its_own() -> None:
    play = Play({"a.jpg": "ok", "b.jpg": ["http_503", "ok"]}, reporters="jsonl")
    play.run()
    outcome = play.run("retry", reporters="jsonl")
    assert [event["command"] for event in progress(outcome) if event["event"] == "start"] == ["download", "retry"]
    assert [event["rows"] for event in progress(outcome) if event["event"] == "finish"] == [2, 1]
    assert play.run("verify").exit_code == 0
    assert not progress(play.run(incremental_mode="overwrite", reporters=None))  # they go with the dataset


def test_lines_of_json_in_a_bucket() -> None:
    outcome = Play(ROWS, store="s3", reporters="jsonl").run()
    assert {each["code"]: each["rows"] for each in progress(outcome)[-1]["outcomes"]} == outcome.codes


def test_a_page_names_every_field_of_the_lines() -> None:
    outcome = Play(ROWS, log_format="json").run()
    page = (Path(__file__).parents[2] / "docs/watching.md").read_text(encoding="utf-8")
    for event in outcome.log:
        (row,) = re.findall(rf"^\| `{event['event']}`.*$", page, re.MULTILINE)
        assert set(event) - {"event", "time"} <= set(re.findall(r"`(\w+)`", row))


def test_a_retry_counts_what_it_tried_and_gained_and_suggests_another_one_only_then() -> None:
    play = Play({"a.jpg": "ok", "b.jpg": ["http_503", "http_503", "ok"], "c.jpg": ["http_503"] * 3 + ["ok"]})
    assert "to retry what may work now (2 rows): any2ds.retry(" in play.run().stderr
    in_vain = play.run("retry")
    assert "tried again: 2 rows, of which 0 are stored now" in in_vain.stderr
    assert "to retry" not in in_vain.stderr
    gained = play.run("retry")
    assert "tried again: 2 rows, of which 1 is stored now" in gained.stderr
    assert "to retry what may work now (1 row): any2ds.retry(" in gained.stderr
    last = play.run("retry", log_format="json").log[-1]
    assert (last["rows"], last["stored"], last["failed"], last["retry"]) == (1, 1, 0, None)
    assert "nothing to retry: no row in out/ has a failure" in play.run("retry").stderr


def test_prometheus_reads_the_figures_of_the_moment() -> None:
    play = Play(ROWS | {"f.jpg": ["hold"]}, number_sample_per_shard=1, timeout=0, metrics_port=free_port())
    running = play.start(log_interval=1)
    running.until("published 5")
    running.until("request f.jpg")
    figures: dict[str, float] = {}
    while figures.get("any2ds_in_flight") != 1 or figures.get("any2ds_shards_done") != 5:
        assert running.process.poll() is None
        figures = _metrics(play.options["metrics_port"])
    assert figures['any2ds_outcomes{code="success"}'] == figures["any2ds_stored"] == 3
    assert figures['any2ds_outcomes{code="http_404"}'] == 1
    assert figures["any2ds_attempts"] == 5
    assert figures["any2ds_window"] > 0
    assert not [name for name in figures if name.startswith(("python_", "process_"))]  # of the process that runs us
    play.web.release()
    assert running.wait().codes == {"success": 4, "http_404": 1, "http_503": 1}


def _metrics(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_a_port_in_use_is_refused_before_anything_is_sent() -> None:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        outcome = Play(ROWS).run(metrics_port=listener.getsockname()[1])
    assert (outcome.exit_code, outcome.requests.total(), outcome.files) == (2, 0, {})
    assert "metrics_port" in outcome.stderr


def test_weights_and_biases_gets_the_same_figures() -> None:
    play = Play(ROWS, environment={"WANDB_MODE": "offline", "WANDB_SILENT": "true"})
    play.environment["WANDB_DIR"] = str(play.folder)
    outcome = play.run(enable_wandb=True, wandb_project="plays", way="command")
    assert outcome.exit_code == 0
    (table,) = (play.folder / "wandb").rglob("status*.table.json")
    found = json.loads(table.read_text())
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["data"]]
    assert {row["status"]: round(row["frequency"] * 5) for row in rows} == outcome.codes
    assert not [name for name in outcome.names if "wandb" in name]
    assert ".any2ds/wandb" in outcome.files


def test_a_reporter_without_effect_on_what_is_stored() -> None:
    plain, reported = (Play(ROWS, **options).run() for options in ({}, {"reporters": "jsonl"}))
    assert plain.codes == reported.codes
    assert plain.names == reported.names


def test_lines_of_progress_without_a_terminal() -> None:
    play = Play({f"{n}.jpg": "ok" for n in range(3)} | {"last.jpg": ["hold"]}, number_sample_per_shard=1, timeout=0)
    running = play.start(log_interval=1, log_format="json")
    running.until("published 3")
    running.until('said "progress"')
    play.web.release()
    outcome = running.wait()
    lines = [line for line in outcome.log if line["event"] == "progress"]
    assert lines
    assert {line["total_rows"] for line in lines} <= {None, 4}  # None: the list is not read yet
    assert lines[-1]["total_rows"] == 4
    assert all(line["rows"] == sum(line["outcomes"].values()) <= 4 for line in lines)


def test_the_table_of_the_end() -> None:
    screen = Play(ROWS, number_sample_per_shard=2).run().stderr
    for code, rows, share in (("success", 3, "60.0%"), ("http_404", 1, "20.0%"), ("http_503", 1, "20.0%")):
        assert re.search(rf"^{code} +{rows} +{share}", screen, re.MULTILINE)
    assert re.search(r"5 rows, 3 stored, 2 failed", screen)
    assert "{00000..00002}.tar" in screen
    assert re.search(r"^http_404 .*\n.*get a newer list.*\n +e\.g\. http://\S+/b\.jpg$", screen, re.MULTILINE)
    assert re.search(r"retry.*\(1 row\)", screen)


def test_rows_of_workers_that_are_killed_are_counted_once() -> None:
    rows: dict[str, Any] = {f"{n}.jpg": "ok" for n in range(5)}
    play = Play(rows | {"last.jpg": ["hold"]}, number_sample_per_shard=2, timeout=0, log_format="json")
    running = play.start(distributor="multiprocessing", processes_count=2)
    running.kill_at("published 2", "workers")
    play.web.release()
    outcome = running.wait()
    last = [line for line in outcome.log if line["event"] == "progress"][-1]
    assert (outcome.exit_code, last["outcomes"], last["rows"], last["share"]) == (0, {"success": 6}, 6, 1.0)


def test_a_run_that_goes_on_counts_its_own_rows() -> None:
    play = Play({f"{n}.jpg": "ok" for n in range(6)}, number_sample_per_shard=2)
    play.run()
    (play.folder / "out/00001_stats.json").unlink()
    progress = [line for line in play.run(log_format="json").log if line["event"] == "progress"]
    assert {line["total_rows"] for line in progress} == {2}
    assert (progress[-1]["outcomes"], progress[-1]["shards_before"]) == ({"success": 2}, 2)
    (play.folder / "out/00001_stats.json").unlink()
    assert "1 shard written to out/, 2 finished before" in play.run().stderr


def test_nothing_of_a_list_reaches_the_terminal_as_more_than_words() -> None:
    evil = "nope://user:hunter2@host/\x1b[2J[bold]x[/bold]" + "y" * 5000
    screen = Play(lists={"urls.jsonl": json.dumps({"url": evil})}).run().screen
    assert "[bold]x[/bold]" in screen
    assert not [secret for secret in ("\x1b", "hunter2") if secret in screen]
    assert len(screen) < 3000


def test_statistics_have_attempts_and_an_example_of_each_failure() -> None:
    outcome = Play({"a.jpg": "ok", "b.jpg": ["http_503", "ok"], "c.jpg": "http_404"}, retries=1).run()
    stats = json.loads(outcome.files["00000_stats.json"])
    assert stats["attempts"] == sum(row["attempts"] for row in outcome.metadata) == outcome.requests.total() == 4
    assert list(stats["examples"]) == ["http_404"]
    assert stats["examples"]["http_404"].endswith("/c.jpg")
    assert sum(stats["latencies"].values()) == 2
