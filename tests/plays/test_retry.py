"""`any2ds retry` downloads again what failed, into new shards: keys stay, as do the shards that are there."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support import stored
from tests.support.play import Play, Row, body_of

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")
MIXED = {
    "0.jpg": "ok",
    "1.jpg": ["http_503", "ok"],
    "2.jpg": ["http_404", "ok"],
    "3.jpg": "ok",
    "4.jpg": ["http_403", "ok"],
    "5.jpg": ["reset", "ok"],
}
FIRST = {"success": 2, "http_503": 1, "http_404": 1, "http_403": 1, "reset": 1}


@pytest.mark.parametrize("output_format", FORMATS)
def test_what_is_recovered_has_the_key_of_its_row_in_each_format(output_format: str) -> None:
    play = Play(MIXED, number_sample_per_shard=3, output_format=output_format)
    first = play.run()
    assert first.codes == FIRST
    outcome = play.run("retry")
    assert outcome.exit_code == 0
    assert outcome.requests == {"1.jpg": 1, "5.jpg": 1}
    assert outcome.codes == {"success": 4, "http_404": 1, "http_403": 1}
    assert [row["key"] for row in outcome.metadata] == [row["key"] for row in first.metadata]
    assert outcome.shards == [*first.shards, "00002"]
    assert all(outcome.files[name] == content for name, content in first.files.items() if name.startswith("0"))
    assert stored.stats(outcome.files)["00002"]["replaces"] == {"http_503": 1, "reset": 1}
    recovered = [row["url"].rpartition("/")[2] for row in outcome.metadata if row["status"] == "success"]
    assert list(outcome.data.values()) == [body_of(name) for name in recovered]
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize("output_format", FORMATS)
def test_overwrite_removes_the_shards_of_a_retry_too(output_format: str) -> None:
    play = Play({"0.jpg": ["http_503", "ok"], "1.jpg": "ok"}, number_sample_per_shard=1, output_format=output_format)
    play.run()
    assert play.run("retry").shards == ["00000", "00001", "00002"]
    outcome = play.run(incremental_mode="overwrite", number_sample_per_shard=2)
    assert outcome.codes == {"success": 2}
    assert outcome.shards == ["00000"]
    assert [name for name in outcome.files if name.startswith("00") and not name.startswith("00000")] == []
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize(
    ("codes", "asked"),
    [
        ("transient", {"1.jpg", "5.jpg"}),
        ("all", {"1.jpg", "2.jpg", "4.jpg", "5.jpg"}),
        ("http_404", {"2.jpg"}),
        ("http_4xx", {"2.jpg", "4.jpg"}),
        ("http_5xx", {"1.jpg"}),
        ("http_5xx,http_404", {"1.jpg", "2.jpg"}),
        ("reset", {"5.jpg"}),
        ("dns", set()),
    ],
)
def test_codes_decide_which_rows_are_asked_for_again(codes: str, asked: set[str]) -> None:
    play = Play(MIXED, number_sample_per_shard=3)
    play.run()
    outcome = play.run("retry", codes=codes)
    assert outcome.exit_code == 0
    assert set(outcome.requests) == asked
    assert outcome.codes["success"] == 2 + len(asked)


@pytest.mark.parametrize("codes", ["bogus", "success", "http_99", "http_6xx", ""])
def test_what_is_no_code_is_refused(codes: str) -> None:
    play = Play(MIXED)
    first = play.run()
    outcome = play.run("retry", codes=codes)
    assert (outcome.exit_code, outcome.requests.total(), outcome.files) == (2, 0, first.files)
    assert "codes" in outcome.stderr


def test_a_row_that_fails_otherwise_has_its_new_outcome() -> None:
    play = Play({"0.jpg": "ok", "1.jpg": ["http_503", "http_410", "ok"]}, number_sample_per_shard=2)
    first = play.run()
    outcome = play.run("retry")
    assert outcome.codes == {"success": 1, "http_410": 1}
    assert outcome.files["00000.tar"] == first.files["00000.tar"]
    assert play.run("retry").requests.total() == 0


def test_each_row_counts_once_by_its_last_outcome_over_several_retries() -> None:
    rows = {"0.jpg": "ok", "1.jpg": ["http_503", "http_502", "http_404"], "2.jpg": ["reset", "http_503", "ok"]}
    play = Play(rows, number_sample_per_shard=2)
    assert play.run().codes == {"success": 1, "http_503": 1, "reset": 1}
    assert play.run("retry").codes == {"success": 1, "http_502": 1, "http_503": 1}
    outcome = play.run("retry")
    assert outcome.codes == {"success": 2, "http_404": 1}
    assert [stored.stats(outcome.files)[shard].get("replaces") for shard in outcome.shards] == [
        None,
        None,
        {"http_503": 1, "reset": 1},
        {"http_502": 1, "http_503": 1},
    ]
    assert play.run("retry").requests.total() == 0
    assert play.run("verify").exit_code == 0


def test_failed_rows_are_gathered_into_shards_of_the_usual_size() -> None:
    play = Play({f"{number}.txt": ["http_503", "ok"] for number in range(5)}, number_sample_per_shard=2)
    play.run()
    outcome = play.run("retry")
    assert outcome.codes == {"success": 5}
    assert [stored.stats(outcome.files)[shard]["count"] for shard in outcome.shards] == [2, 2, 1, 2, 2, 1]


def test_a_list_that_grows_after_a_retry_goes_on_behind_it() -> None:
    rows = {
        **dict.fromkeys([f"{n}.txt" for n in range(6)], "ok"),
        "1.txt": ["http_503", "ok"],
        "4.txt": ["http_503", "ok"],
    }
    names = sorted(rows)
    play = Play(rows, number_sample_per_shard=2)
    play.run("download", *play.write_list(names[:3]))
    play.run("retry")
    outcome = play.run("download", *play.write_list(names))
    assert outcome.codes == {"success": 5, "http_503": 1}
    assert set(outcome.requests) == {"3.txt", "4.txt", "5.txt"}
    assert outcome.shards == ["00000", "00001", "00002", "00003", "00004"]
    outcome = play.run("retry")
    assert (outcome.codes, set(outcome.requests)) == ({"success": 6}, {"4.txt"})
    assert play.run("verify").exit_code == 0


def test_a_shard_that_is_made_again_leaves_to_the_retry_what_that_has() -> None:
    play = Play({"0.txt": "ok", "1.txt": ["http_503", "ok"], "2.txt": "ok"}, number_sample_per_shard=3)
    play.run()
    play.run("retry")
    for name in ("00000.tar", "00000.parquet", "00000_stats.json"):
        Path(play.path, name).unlink()
    outcome = play.run()
    assert (outcome.codes, set(outcome.requests)) == ({"success": 3}, {"0.txt", "2.txt"})


def test_a_shard_of_a_retry_is_made_again_by_the_next_retry() -> None:
    play = Play({"0.txt": "ok", "1.txt": ["http_503", "ok"], "2.txt": "ok"}, number_sample_per_shard=2)
    play.run()
    play.run("retry")
    for name in ("00002.tar", "00002.parquet", "00002_stats.json"):
        Path(play.path, name).unlink()
    outcome = play.run("retry")
    assert (outcome.codes, outcome.shards[-1]) == ({"success": 3}, "00002")


def test_a_dataset_whose_list_was_not_read_to_its_end_is_completed_first() -> None:
    play = Play({"0.txt": ["http_503", "ok"], "1.txt": "hold", "2.txt": "ok"}, number_sample_per_shard=1)
    running = play.start(timeout=0, thread_count=1, max_per_host=1)
    running.kill_at("published 1")
    running.wait()
    end = Path(play.path, ".any2ds/segments/0000.end")
    end.unlink(missing_ok=True)
    outcome = play.run("retry")
    assert (outcome.exit_code, outcome.requests.total()) == (2, 0)
    assert "run the original download command" in outcome.stderr


def test_options_on_fetching_may_be_others() -> None:
    play = Play({"0.jpg": ["http_503", "http_503", "http_503", "ok"]}, timeout=5)
    assert play.run().codes == {"http_503": 1}
    assert play.run("retry", retries=1, timeout=7).requests == {"0.jpg": 2}
    outcome = play.run("retry")
    assert outcome.codes == {"success": 1}


@pytest.mark.parametrize("option", [{"output_format": "parquet"}, {"file_size": 16}, {"number_sample_per_shard": 1}])
def test_options_that_decide_what_is_stored_are_not_taken(option: dict[str, Any]) -> None:
    play = Play(MIXED)
    first = play.run()
    outcome = play.run("retry", **option)
    assert (outcome.exit_code, outcome.requests.total(), outcome.files) == (2, 0, first.files)
    assert next(iter(option)) in outcome.stderr


def test_what_arrives_later_goes_through_the_steps_of_the_dataset() -> None:
    rows = {"0.jpg": "ok", "1.jpg": ["http_503", "ok"]}
    play = Play(rows, file_size=16, resize_mode="border", encode_format="png", compute_hash="sha256")
    play.run()
    outcome = play.run("retry")
    assert outcome.codes == {"success": 2}
    assert [(row["width"], row["height"]) for row in outcome.metadata] == [(16, 16)] * 2
    assert all(sample.files["png"].startswith(b"\x89PNG") for sample in outcome.samples)
    assert all(len(row["sha256"]) == 64 for row in outcome.metadata)


def test_captions_and_columns_of_the_list_stay_with_their_rows() -> None:
    rows = {name: Row(answers, columns={"text": f"about {name}"}) for name, answers in MIXED.items()}
    play = Play(rows, caption_col="text", number_sample_per_shard=4)
    play.run()
    outcome = play.run("retry", codes="all")
    assert [sample.files["txt"].decode() for sample in outcome.samples] == [f"about {name}" for name in MIXED]


def test_shards_of_one_split_are_retried_into_shards_of_one_split() -> None:
    answers = {"0.jpg": "ok", "1.jpg": ["http_503", "ok"], "2.jpg": "ok", "3.jpg": ["http_503", "ok"]}
    split_of = {"0.jpg": "train", "1.jpg": "train", "2.jpg": "test", "3.jpg": "test"}
    rows = {name: Row(given, columns={"split": split_of[name]}) for name, given in answers.items()}
    play = Play(rows, number_sample_per_shard=2, save_additional_columns="split", output_format="tfrecord")
    play.run()
    outcome = play.run("retry")
    assert {name: each["splits"] for name, each in stored.stats(outcome.files).items()} == {
        "00000": {"train": 1},
        "00001": {"test": 1},
        "00002": {"train": 1},
        "00003": {"test": 1},
    }
    info = json.loads(outcome.files["dataset_info.json"])
    assert {split["name"]: split["shardLengths"] for split in info["splits"]} == {
        "train": ["1", "0", "1", "0"],
        "test": ["0", "1", "0", "1"],
    }
    assert play.run("verify").exit_code == 0


def test_the_list_is_not_needed() -> None:
    play = Play(MIXED)
    play.run()
    (play.folder / "list.jsonl").unlink()
    assert play.run("retry", codes="all").codes == {"success": 6}


def test_shards_that_were_never_made_are_left_to_the_first_command() -> None:
    play = Play(MIXED, number_sample_per_shard=2)
    play.run()
    for file in (play.folder / "out").glob("00000*"):
        file.unlink()
    outcome = play.run("retry", codes="all")
    assert outcome.shards == ["00001", "00002", "00003", "00004"]
    assert set(outcome.requests) == {"2.jpg", "4.jpg", "5.jpg"}


def test_a_retry_that_is_killed_goes_on_with_the_same_rows() -> None:
    rows = {"0.jpg": ["http_503", "ok"], "1.jpg": ["http_503", "ok"], "2.jpg": ["http_503", "hold"], "3.jpg": "ok"}
    play = Play(rows, number_sample_per_shard=1)
    play.run()
    running = play.start("retry", timeout=0)
    running.until("request 2.jpg")
    running.kill_at("request 2.jpg")
    killed = running.wait()
    assert killed.codes["success"] + killed.codes.get("http_503", 0) == 4
    play.web.release()
    outcome = play.run("retry")
    assert outcome.codes == {"success": 4}
    assert list(outcome.data.values()) == [body_of(name) for name in rows]
    assert play.run("verify").exit_code == 0


def test_an_interrupted_retry_has_its_exit_code_and_goes_on() -> None:
    play = Play({"0.jpg": "ok", "1.jpg": ["http_503", "hold"]}, number_sample_per_shard=1)
    play.run()
    running = play.start("retry", timeout=0, grace=0)
    running.until("request 1.jpg")
    running.signal(signal.SIGTERM)
    assert running.wait().exit_code == 143
    play.web.release()
    assert play.run("retry").codes == {"success": 2}


def test_a_retry_in_a_bucket() -> None:
    play = Play({"0.jpg": "ok", "1.jpg": ["http_503", "ok"]}, store="s3")
    play.run()
    outcome = play.run("retry")
    assert outcome.codes == {"success": 2}
    assert list(outcome.data.values()) == [body_of("0.jpg"), body_of("1.jpg")]


def test_the_python_function_returns_what_the_retry_did() -> None:
    play = Play(MIXED, way="python", number_sample_per_shard=3)
    first = play.run().result
    assert (first.count, first.successes, first.status_dict) == (6, 2, FIRST)
    report = play.run("retry", codes=["http_404", "http_5xx"]).result
    assert (report.count, report.successes, report.status_dict) == (2, 2, {"success": 2})
    assert play.run("retry", codes=["http_404"]).result.count == 0


@pytest.mark.parametrize("content", [None, {"a.txt": b"x"}], ids=["no folder", "a folder without dataset"])
def test_a_folder_without_dataset_is_refused(content: dict[str, bytes] | None) -> None:
    play = Play()
    for name, text in (content or {}).items():
        Path(play.path).mkdir()
        Path(play.path, name).write_bytes(text)
    outcome = play.run("retry")
    assert (outcome.exit_code, outcome.files) == (2, content or {})


def test_duplicates_of_a_row_that_is_recovered_stay_duplicates() -> None:
    play = Play(
        {"a.jpg": ["http_503", "ok"]},
        lists={"list.txt": "{web}a.jpg\n{web}a.jpg\n"},
        dedupe="run",
    )
    assert play.run().codes == {"http_503": 1, "duplicate": 1}
    outcome = play.run("retry")
    assert (outcome.codes, outcome.requests.total()) == ({"success": 1, "duplicate": 1}, 1)
