"""`any2ds estimate` says what a run would take, and writes nothing into the dataset."""

import json
from typing import Any

import pytest

from tests.support.play import Outcome, Play, body_of

ROWS = {f"{n}.jpg": "ok" for n in range(6)} | {"6.jpg": "http_404", "7.jpg": "http_503"}


def figures(outcome: Outcome) -> dict[str, Any]:
    assert outcome.exit_code == 0
    found: dict[str, Any] = json.loads(outcome.stdout)
    return found


@pytest.fixture
def trial() -> Play:
    """A play with a finished dataset."""
    play = Play(ROWS, number_sample_per_shard=4)
    play.run()
    return play


def test_a_sample_of_the_list_is_fetched_into_a_dataset_of_its_own() -> None:
    play = Play(ROWS, host_delay=0)
    outcome = play.run("estimate", format="json", sample=5, sample_folder="sample")
    found = figures(outcome)
    assert (found["list"]["rows"], found["list"]["hosts"], found["sample"]["rows"]) == (8, 1, 5)
    assert outcome.requests.total() == 5
    assert outcome.files == {}
    play.out = "sample"
    assert len(play.run("inspect").metadata) == 5
    again = figures(play.run("estimate", "list.jsonl", format="json", sample=5, sample_folder="sample"))
    assert again["sample"]["outcomes"] == found["sample"]["outcomes"]


def test_a_dataset_is_taken_as_the_sample(trial: Play) -> None:
    outcome = trial.run("estimate", format="json", from_dataset="out", machines="1,3")
    found = figures(outcome)
    assert outcome.requests.total() == 0
    assert found["sample"]["outcomes"] == {"success": 0.75, "http_404": 0.125, "http_503": 0.125}
    assert found["sample"]["success"]["low"] < 0.75 < found["sample"]["success"]["high"]
    assert found["dataset"]["stored_rows"]["value"] == 6
    assert found["dataset"]["stored_bytes"] == pytest.approx(sum(len(body_of(f"{n}.jpg")) for n in range(6)), rel=0.01)
    assert found["dataset"]["shards"] == 2
    assert [run["machines"] for run in found["predictions"]] == [1, 3]
    for run in found["predictions"]:
        assert run["seconds"]["low"] <= run["seconds"]["value"] <= run["seconds"]["high"]
        assert run["rows_per_second"] == pytest.approx(8 / run["seconds"]["value"], rel=0.3)
    assert "retries" in {advice["option"] for advice in found["advice"]}


@pytest.mark.parametrize(("output_format", "start"), [("md", "#"), ("screen", "the list")])
def test_other_forms_have_the_same_figures(trial: Play, output_format: str, start: str) -> None:
    text = trial.run("estimate", format=output_format, from_dataset="out").stdout
    assert text.lstrip().startswith(start)
    assert "75.0%" in text
    assert "http" in text


def test_prices_are_those_of_the_file(trial: Play) -> None:
    (trial.folder / "prices.json").write_text('{"currency": "EUR", "machine_hour": 3600, "requests_1000": 0}')
    found = figures(trial.run("estimate", format="json", from_dataset="out", price="prices.json", machines="1"))
    assert (found["prices"]["currency"], found["prices"]["machine_hour"], found["prices"]["egress_gb"]) == (
        "EUR",
        3600,
        0.09,
    )
    (run,) = found["predictions"]
    assert run["costs"]["compute"] == pytest.approx(run["seconds"]["value"], rel=0.01)


def test_duplicates_and_bad_rows_of_the_list_are_counted(trial: Play) -> None:
    (trial.folder / "other.txt").write_text(
        f"{trial.web.url('0.jpg')}\n" * 3 + "nonsense\n" + f"{trial.web.url('1.jpg')}\n"
    )
    found = figures(trial.run("estimate", "other.txt", format="json", from_dataset="out"))["list"]
    assert (found["rows"], found["distinct_urls"], found["duplicates"]) == (5, 3, 0.4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"machines": "0"}, "machines"),
        ({"machines": "x"}, "machines"),
        ({"bandwidth": "fast"}, "bandwidth"),
        ({"price": "none.json"}, "none.json"),
        ({"from_dataset": "nothing"}, "nothing"),
        ({"format": "pdf"}, "format"),
        ({"sample": 0}, "sample"),
        ({"timeot": 1}, "timeout"),
    ],
    ids=str,
)
def test_wrong_options_are_refused(trial: Play, options: dict[str, Any], said: str) -> None:
    outcome = trial.run("estimate", **{"from_dataset": "out", **options} if "sample" not in options else options)
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert said in outcome.stderr


def test_a_faster_line_takes_no_longer(trial: Play) -> None:
    times = [
        figures(trial.run("estimate", format="json", from_dataset="out", bandwidth=line, machines="1"))["predictions"][
            0
        ]
        for line in ("1kbit", "1Gbit")
    ]
    assert times[0]["seconds"]["value"] > times[1]["seconds"]["value"]
    assert times[0]["limit"] == "bandwidth"


def test_estimate_from_python(trial: Play) -> None:
    outcome = trial.run("estimate", way="python", from_dataset=trial.path, machines=[1, 2], output_format="webdataset")
    assert outcome.error is None
    assert [run.machines for run in outcome.result.predictions] == [1, 2]
    assert outcome.result.to_json()["list"]["rows"] == 8
    assert outcome.result.to_markdown().startswith("#")
