"""Samples that a column of the list names (`key_col`), through all that has to do with keys."""

from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from tests.support.play import WEB, Outcome, Play, Row, body_of

FORMATS = ("files", "webdataset", "parquet", "tfrecord", "arrayrecord")
# File, what the web answers, text of the list's column and the name that it becomes.
NAMED: list[tuple[str, Any, str, str]] = [
    ("0.jpg", "ok", "z-last", "z-last"),
    ("1.jpg", ["http_503", "http_503", "ok"], "a/b.c d", "a%2Fb%2Ec%20d"),
    ("2.jpg", "http_404", "COCO_val_000000000009", "COCO_val%5F000000000009"),
    ("3.jpg", "ok", "a", "a"),
    ("4.jpg", "ok", "a-b", "a-b"),
    ("5.jpg", "ok", "東京", "%E6%9D%B1%E4%BA%AC"),
    ("6.jpg", "ok", "NUL", "%4EUL"),
    ("7.jpg", "ok", "../x~y\\" + "w" * 300, ""),
]
ROWS = {file: Row(answers, columns={"uid": uid}) for file, answers, uid, _ in NAMED}
OPTIONS: dict[str, Any] = {"key_col": "uid", "number_sample_per_shard": 3, "retries": 1}


def names_of(outcome: Outcome) -> dict[str, str]:
    """Last part of a row's URL -> key of the row."""
    return {row["url"].rpartition("/")[2]: row["key"] for row in outcome.metadata if row["url"]}


@pytest.mark.parametrize("output_format", FORMATS)
def test_names_hold_over_load_retry_growth_verify_and_overwrite(output_format: str) -> None:
    play = Play(ROWS, output_format=output_format, **OPTIONS)
    assert play.run().codes == {"success": 6, "http_503": 1, "http_404": 1}
    outcome = play.run("retry")
    assert outcome.codes == {"success": 7, "http_404": 1}
    names = names_of(outcome)
    long = names.pop("7.jpg")
    assert names == {file: name for file, _, _, name in NAMED if name}
    assert all(unquote(name) == uid for _, _, uid, name in NAMED if name)
    assert (len(long), long[:21]) == (128, "%2E%2E%2Fx%7Ey%5Cwwww")
    stored = {name: body_of(file) for file, name in names_of(outcome).items() if file != "2.jpg"}
    assert outcome.data == stored
    samples = any2ds.load(play.path)
    assert {sample["key"]: (sample["data"], sample["url"].rpartition("/")[2]) for sample in samples} == {
        name: (body_of(file), file) for file, name in names_of(outcome).items() if file != "2.jpg"
    }
    assert sorted(samples.keys) == sorted(stored)
    (play.folder / "scores.csv").write_text("uid,score\n東京,1\na/b.c d,2\n")
    added = play.run("add-columns", "scores.csv", on="key:uid")
    assert added.stdout.startswith("score: added to 3 of 9 rows"), added.screen
    assert play.run("verify").exit_code == 0, play.run("verify").screen
    with_more = Play({**ROWS, "8.jpg": Row(columns={"uid": "9"})}, output_format=output_format, **OPTIONS)
    assert with_more.run(limit=7).exit_code == 0
    assert with_more.run().codes == {"success": 7, "http_503": 1, "http_404": 1}
    assert with_more.run("verify").exit_code == 0
    assert with_more.run(incremental_mode="overwrite", key_col=None).codes["http_404"] == 1
    assert with_more.run("verify").exit_code == 0


def test_a_run_that_is_killed_goes_on_with_its_names_and_duplicates_are_named() -> None:
    rows = {file: Row("ok", columns={"uid": uid, "n": 1}) for file, _, uid, _ in NAMED}
    play = Play(rows, dedupe="run", output_format="files", **OPTIONS)
    path = play.folder / "twice.csv"
    listed = [("a", "0.jpg"), ("b", "1.jpg"), ("c", "0.jpg"), ("d", "2.jpg"), ("e", "1.jpg"), ("f", "0.jpg")]
    path.write_text("uid,url\n" + "".join(f"{uid},{play.web.base_url}{file}\n" for uid, file in listed))
    play.run("download", "twice.csv", kill_at="published 1")
    outcome = play.run("download", "twice.csv")
    assert {row["key"]: row["duplicate_of"] for row in outcome.metadata} == {
        "a": None, "b": None, "c": "a", "d": None, "e": "b", "f": "a",
    }  # fmt: skip
    assert set(outcome.data) == {"a", "b", "d"}
    assert play.run("verify").exit_code == 0


def test_a_row_that_cannot_be_read_needs_no_name(caplog: pytest.LogCaptureFixture) -> None:
    text = f"uid,url,n\nx,{WEB}0.jpg,1\nbäd\n000000001,{WEB}1.jpg,2\nx,{WEB}0.jpg,no number\n"
    play = Play({"0.jpg": "ok", "1.jpg": "ok"}, lists={"l.csv": text}, encoding="ascii")
    outcome = play.run(key_col="uid", output_format="files", save_additional_columns="n", column_types="n:int64")
    assert {row["key"]: row["status"] for row in outcome.metadata} == {
        "x": "success", "000000001": "success", "~000000002": "failed_to_download", "~000000003": "failed_to_download",
    }  # fmt: skip
    assert caplog.text.count("are not ascii") == 1
    assert play.run("verify").exit_code == 0


@pytest.mark.parametrize(
    ("ids", "name"),
    [
        (pa.array([UUID(int=1)], pa.uuid()), str(UUID(int=1))),
        (pa.array([b"abcd"], pa.binary(4)), "abcd"),
        (pa.array([b"ab\xff"]), ""),
    ],
)
def test_ids_that_are_uuids_or_bytes_are_texts(ids: pa.Array, name: str) -> None:
    play = Play({"0.jpg": "ok"})
    pq.write_table(pa.table({"uid": ids, "url": [play.web.base_url + "0.jpg"]}), play.folder / "l.parquet")
    outcome = play.run("download", "l.parquet", key_col="uid")
    assert [row["key"] for row in outcome.metadata] == ([name] if name else [])
    assert ("row 1 of the list has no text in 'uid'" in " ".join(outcome.stderr.split())) == (not name)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "twice": (
        "uid,url\nx,{web}0.jpg\ny,{web}0.jpg\nx,{web}1.jpg\n",
        {},
        "rows 1 and 3 of the list have the same in 'uid'",
    ),
    "behind the limit of a shuffled list": (
        "uid,url\nx,{web}0.jpg\ny,{web}0.jpg\nz,{web}0.jpg\nx,{web}1.jpg\n",
        {"limit": 2, "shuffle": 1},
        "rows 1 and 4 of the list have the same in 'uid'",
    ),
    "once without": ("uid,url\nx,{web}0.jpg\n ,{web}0.jpg\n", {}, "row 2 of the list has no text in 'uid'"),
    "case": (
        "uid,url\nX,{web}0.jpg\nx,{web}0.jpg\n",
        {"output_format": "files"},
        "the same but for the case of letters",
    ),
    "no column": ("id,url\nx,{web}0.jpg\n", {}, "no column 'uid'"),
    "preset": ("uid,url\nx,{web}0.jpg\n", {"preset": "img2dataset"}, "key_col: with preset=img2dataset"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_name_of_each_row_is_refused_before_anything_is_written(case: str) -> None:
    text, options, words = REFUSED[case]
    play = Play({"0.jpg": "ok", "1.jpg": "ok"}, lists={"l.csv": text})
    outcome = play.run(key_col="uid", **options)
    assert (outcome.exit_code, outcome.names, sum(outcome.requests.values())) == (2, set(), 0)
    assert words in " ".join(outcome.stderr.split())


def test_names_that_change_and_lists_that_join_are_refused() -> None:
    play = Play({"0.jpg": "ok"}, lists={"l.csv": f"uid,url\nx,{WEB}0.jpg\n"}, key_col="uid")
    assert play.run().exit_code == 0
    (play.folder / "m.csv").write_text(f"uid,url\nx,{play.web.base_url}1.jpg\n")
    for name, options in (("m.csv", {"incremental_mode": "extend"}), ("l.csv", {"key_col": None})):
        outcome = play.run("download", name, **options)
        assert outcome.exit_code == 2
        assert "key_col" in outcome.stderr
    (play.folder / "l.csv").write_text(f"uid,url\ny,{play.web.base_url}0.jpg\n")
    assert "other URLs or keys" in play.run("download", "l.csv").stderr
