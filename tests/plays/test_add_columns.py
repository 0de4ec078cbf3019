"""add-columns joins columns of a list to the metadata of a dataset, without fetching anything."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import any2ds
from tests.support.play import WEB, Play

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")
ROWS = {"a.txt": "ok", "b.txt": "http_404", "c.txt": "ok", "d.txt": "ok", "e.txt": "ok"}
SCORES = {"a.txt": 0.5, "b.txt": 1.5, "c.txt": 2.5, "d.txt": 3.5}
SCORE_LIST = (
    "url,score,letter\n"
    + "".join(f"{WEB}{name},{score},{name[0]}\n" for name, score in SCORES.items())
    + f"{WEB}a.txt,99,x\n{WEB}unknown.txt,7,y\n"
)
STORED = [0.5, 2.5, 3.5, None]


def made(**options: Any) -> Play:
    play = Play(ROWS, **{"number_sample_per_shard": 2, "output_format": "webdataset", **options})
    assert play.run().codes == {"success": 4, "http_404": 1}
    return play


def write(play: Play, text: str, name: str = "more.csv") -> None:
    (play.folder / name).write_text(text.replace(WEB, play.web.base_url))


@pytest.mark.parametrize("output_format", FORMATS)
def test_columns_are_seen_by_load_inspect_and_card(output_format: str) -> None:
    play = made(output_format=output_format)
    write(play, SCORE_LIST)
    requests = play.web.counts.copy()
    outcome = play.run("add-columns", "more.csv")
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.stdout.startswith("score, letter: added to 4 of 5 rows in 3 shards; 1 row not in the list")
    assert "1 row of the list with a key that stands there before" in outcome.stdout
    assert play.web.counts == requests
    samples = any2ds.load(play.path)
    assert [sample["score"] for sample in samples] == STORED
    assert samples[1]["letter"] == "c"
    assert samples[-1]["data"]
    assert [sample["score"] for sample in samples[[2, 0]]] == [3.5, 0.5]
    assert [sample["score"] for sample in any2ds.load(play.path, columns=["score"])] == STORED
    assert [sample["letter"] for sample in any2ds.load(play.path, where="score > 1")] == ["c", "d"]
    assert pa.table(samples)["score"].to_pylist() == STORED
    assert samples.metadata.to_table(columns=["score"])["score"].to_pylist() == STORED
    assert samples.features["score"] == pa.float64()
    assert json.loads(play.run("inspect", json="-").stdout)["columns"]["letter"] == "string"
    assert "| `score` | `double` |" in play.run("card", output="-").stdout
    assert play.run("verify").exit_code == 0


def test_further_columns_by_key_come_beside_the_first_ones_from_python_too() -> None:
    play = made()
    write(play, SCORE_LIST)
    play.run("add-columns", "more.csv", add="score")
    keys = any2ds.load(play.path).keys
    labels = pa.table({"id": keys[::-1], "label": [3, 2, 1, 0]})
    added = any2ds.add_columns(play.path, labels, on="key:id")
    assert (added.columns, added.rows, added.matched, added.repeated) == (("label",), 5, 4, 0)
    samples = any2ds.load(play.path)
    assert [(sample["score"], sample["label"]) for sample in samples] == list(zip(STORED, range(4), strict=True))
    assert "letter" not in samples.features
    write(play, f"url,score\n{WEB}e.txt,9\n", "better.csv")  # the same column from another list
    assert play.run("add-columns", "better.csv").exit_code == 0
    assert [(sample["score"], sample["label"]) for sample in any2ds.load(play.path)][-1] == (9, 3)
    assert any2ds.load(play.path, where=pc.field("score").is_valid())[0]["label"] == 3


def test_a_bucket_has_the_columns() -> None:
    play = made(store="s3", output_format="parquet")
    write(play, SCORE_LIST, "more.csv")
    assert play.run("add-columns", "more.csv").exit_code == 0
    assert json.loads(play.run("inspect", json="-").stdout)["columns"]["score"] == "double"
    assert ".any2ds/columns/0000" in play.files()
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize(("keep", "words"), [(None, "is missing"), (100, "to its end"), (-1, "other rows")])
def test_a_damaged_table_is_found_and_written_again(keep: int | None, words: str) -> None:
    play = made()
    write(play, SCORE_LIST)
    play.run("add-columns", "more.csv")
    tables = sorted(Path(play.path, ".any2ds/columns").glob("*/*.parquet"))
    content = tables[1].read_bytes() if keep == -1 else tables[0].read_bytes()[:keep]
    tables[0].write_bytes(content) if keep is not None else tables[0].unlink()
    outcome = play.run("verify", json="-")
    (finding,) = json.loads(outcome.stdout)["findings"]
    assert (outcome.exit_code, finding["kind"], finding["shard"], words in finding["words"]) == (1, "columns", 0, True)
    assert "add-columns" in play.run("verify", "--repair").stdout
    assert play.run("add-columns", "more.csv").exit_code == play.run("verify").exit_code == 0
    assert [sample["score"] for sample in any2ds.load(play.path)] == STORED


def test_the_same_command_does_nothing_and_goes_on_where_one_was_killed() -> None:
    play = made()
    write(play, SCORE_LIST)
    first = play.run("add-columns", "more.csv")
    files = play.files()
    again = play.run("add-columns", "more.csv")
    assert (again.stdout, again.files) == (first.stdout, files)
    columns = Path(play.path, ".any2ds/columns")
    tables = {path: path.stat().st_mtime_ns for path in columns.glob("*/*.parquet")}
    assert len(tables) == 3
    (columns / "0000").unlink()  # as if it had been killed before the last of three shards
    lost = max(tables)
    lost.unlink()
    assert "score" not in any2ds.load(play.path).features
    assert play.run("add-columns", "more.csv").stdout == first.stdout
    assert {path for path, time in tables.items() if path.stat().st_mtime_ns == time} == tables.keys() - {lost}
    assert [sample["score"] for sample in any2ds.load(play.path)] == STORED


def test_shards_that_come_later_have_nulls_until_it_is_run_again() -> None:
    play = made()
    write(play, SCORE_LIST + f"{WEB}e.txt,4.5,e\n")
    assert play.run("add-columns", "more.csv").exit_code == 0
    play.run("retry", codes="all")  # a shard of its own
    assert [sample["score"] for sample in any2ds.load(play.path)] == [0.5, 2.5, 3.5, 4.5]
    assert play.run("add-columns", "more.csv").stdout.startswith("score, letter: added to 6 of 6 rows in 4 shards")
    assert play.run("download", incremental_mode="overwrite", number_sample_per_shard=3).exit_code == 0
    assert "score" not in any2ds.load(play.path).features


def test_a_name_that_the_dataset_has_is_changed_in_words() -> None:
    play = made()
    write(play, f"url,status,bytes\n{WEB}a.txt,fine,1\n")
    outcome = play.run("add-columns", "more.csv", add="status")
    assert outcome.stdout.startswith("list_status: added to 1 of 5 rows")
    assert "'list_status'" in outcome.stderr
    assert (any2ds.load(play.path)[0]["list_status"], any2ds.load(play.path)[0]["status"]) == ("fine", "success")


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("url,score\n", {}, "no rows"),
        ("link,score\nx,1\n", {}, "url"),
        ("url,score\nx,1\n", {"add": "colour"}, "colour"),
        ("url,score\nx,1\n", {"on": "uid:url"}, "uid"),
        ("url\nx\n", {}, "no column"),
        ("<!DOCTYPE html><html></html>", {}, "more.csv"),
    ],
)
def test_lists_that_cannot_be_joined_are_refused(text: str, arguments: dict[str, str], words: str) -> None:
    play = made()
    write(play, text)
    before = play.files()
    outcome = play.run("add-columns", "more.csv", **arguments)
    assert (outcome.exit_code, words in outcome.stderr, outcome.files) == (2, True, before), outcome.stderr
    assert play.run("add-columns", "nothing.csv").exit_code == 2
    assert Play().run("add-columns", "more.csv").exit_code == 2
