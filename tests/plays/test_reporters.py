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
    outcome = Play(ROWS, reporters="jsonl", number_sample_per_shard=2, distributor=distributor).run()
    events = progress(outcome)
    assert [events[0]["event"], events[-1]["event"]] == ["start", "finish"]
    assert events[0]["options"]["number_sample_per_shard"] == 2
    shards = [event for event in events if event["event"] == "shard"]
    assert sorted(event["shard_id"] for event in shards) == [0, 1, 2]
    for total in (events[-1], {name: sum(event[name] for event in shards) for name in ("count", "successes", "bytes")}):
        assert (total["count"], total["successes"]) == (5, 3)
        assert total["bytes"] == sum(len(sample.data) for sample in outcome.samples)
    assert events[-1]["status_dict"] == outcome.codes
    last = [event for event in events if event["event"] == "progress"][-1]
    assert (last["outcomes"], last["shards_done"], last["share"]) == (outcome.codes, 3, 1.0)


def test_each_command_writes_a_file_of_its_own() -> None:
    play = Play({"a.jpg": "ok", "b.jpg": ["http_503", "ok"]}, reporters="jsonl")
    play.run()
    outcome = play.run("retry", reporters="jsonl")
    assert [event["command"] for event in progress(outcome) if event["event"] == "start"] == ["download", "retry"]
    assert [event["count"] for event in progress(outcome) if event["event"] == "finish"] == [2, 1]


def test_lines_of_json_in_a_bucket() -> None:
    outcome = Play(ROWS, store="s3", reporters="jsonl").run()
    assert progress(outcome)[-1]["status_dict"] == outcome.codes


def test_prometheus_reads_the_figures_of_the_moment() -> None:
    play = Play(ROWS | {"f.jpg": ["hold"]}, number_sample_per_shard=1, timeout=0, metrics_port=free_port())
    running = play.start(log_interval=1)
    running.until("published 5")
    running.until("request f.jpg")
    figures: dict[str, float] = {}
    while figures.get("any2ds_in_flight_transfers") != 1 or figures.get('any2ds_shards_total{result="finished"}') != 5:
        assert running.process.poll() is None
        figures = _metrics(play.options["metrics_port"])
    assert figures['any2ds_rows_total{outcome="success"}'] == 3
    assert figures['any2ds_rows_total{outcome="http_404"}'] == 1
    assert figures["any2ds_attempts_total"] == 5
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
    (samples,) = (play.folder / "wandb").rglob("samples*.table.json")
    assert len(json.loads(samples.read_text())["data"]) == 3
    assert not [name for name in outcome.names if "wandb" in name]
    assert ".any2ds/wandb" in outcome.files


def test_tensorboard_gets_the_same_figures() -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    play = Play(ROWS)
    outcome = play.run(reporters="tensorboard", tensorboard_dir="board", way="command")
    assert outcome.exit_code == 0
    (path,) = [path for path in (play.folder / "board").rglob("*") if path.is_file()]
    values: dict[str, float] = {}
    for record in _records(path):
        for value in Event.FromString(record).summary.value:
            values[value.tag] = value.simple_value or (value.tensor.float_val or [0.0])[0]
    assert {
        tag.partition("/")[2]: value for tag, value in values.items() if tag.startswith("outcomes/")
    } == outcome.codes


def _records(path: Path) -> list[bytes]:
    content, found = path.read_bytes(), []
    while content:
        length = int.from_bytes(content[:8], "little")
        found.append(content[12 : 12 + length])
        content = content[16 + length :]
    return found


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
    assert all(line["total_rows"] == 4 for line in lines)
    assert all(line["rows"] == sum(line["outcomes"].values()) <= 4 for line in lines)


def test_the_table_of_the_end() -> None:
    screen = Play(ROWS, number_sample_per_shard=2).run().stderr
    for code, rows, share in (("success", 3, "60.0%"), ("http_404", 1, "20.0%"), ("http_503", 1, "20.0%")):
        assert re.search(rf"^{code} +{rows} +{share}", screen, re.MULTILINE)
    assert re.search(r"5 rows, 3 stored, 2 failed", screen)
    assert "{00000..00002}.tar" in screen
    assert re.search(r"retry.*\(1 row\)", screen)
