"""Rows of a list that cannot be read: what a run records of them, and what goes on behind them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds.core.errors import OutputError
from any2ds.core.reports import IncompleteRun
from any2ds.testing.server import Server, serve

Download = Callable[..., Any]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "media"
    folder.mkdir()
    for n in range(9):
        (folder / str(n)).write_bytes(b"\x01file %d" % n)
    with serve(folder) as server:
        yield server


def rows(out: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(out.glob("0*.parquet")) for row in pq.read_table(path).to_pylist()]


def csv(server: Server, numbers: range) -> str:
    return "".join(f"{server.url(str(n))},{n}\n" for n in numbers)


@pytest.fixture
def broken(server: Server, tmp_path: Path) -> str:
    """A list of six good rows and three bad ones, in shards of four."""
    secret = server.url("3").replace("://", "://me:secret@")
    bad = f'{secret},3,4\n{server.url("4")},"open\n'
    (tmp_path / "list.csv").write_text(
        "url,n\n" + csv(server, range(3)) + "bad line\n" + bad + csv(server, range(5, 8))
    )
    return str(tmp_path / "list.csv")


@pytest.mark.parametrize("dedupe", ["shard", "run"])
def test_a_malformed_row_is_a_failed_row_and_the_list_goes_on(
    broken: str, tmp_path: Path, fetched: Download, dedupe: str
) -> None:
    options = {"save_additional_columns": "n", "number_sample_per_shard": 4, "dedupe": dedupe}
    report = fetched(broken, **options)
    assert (report.count, report.successes, report.status_dict) == (9, 6, {"success": 6, "bad_row": 3})
    found = rows(tmp_path / "out")
    assert [row["n"] for row in found] == [0, 1, 2, None, None, None, 5, 6, 7]
    bad = found[3:6]
    assert all(row["url"] is None and row["status"] == "failed_to_download" for row in bad)
    assert [row["error_code"] for row in bad] == ["bad_row"] * 3
    assert [row["error_message"].partition(": ")[0] for row in bad] == ["row 5", "row 6", "row 7"]
    assert "'bad line'" in bad[0]["error_message"]
    assert not any("secret" in row["error_message"] for row in bad)
    assert "open" in bad[2]["error_message"]
    assert json.loads((tmp_path / "out" / "00001_stats.json").read_text())["failed_to_download"] == 2

    assert not any2ds.verify(str(tmp_path / "out"), quiet=True).findings
    assert fetched(broken, **options).skipped_shards == 3
    assert any2ds.retry(str(tmp_path / "out"), codes="all", quiet=True, distributor="inline").count == 0


def test_a_list_that_grows_keeps_its_bad_rows(broken: str, server: Server, tmp_path: Path, fetched: Download) -> None:
    fetched(broken, number_sample_per_shard=4)
    with open(broken, "a") as file:
        file.write("1,2,3\n" + csv(server, range(8, 9)))
    assert fetched(broken, number_sample_per_shard=4).status_dict == {"bad_row": 1, "success": 1}
    assert [row["error_code"] for row in rows(tmp_path / "out")].count("bad_row") == 4
    assert not any2ds.verify(str(tmp_path / "out"), quiet=True).findings


@pytest.mark.parametrize("other", [{"on_bad_row": "stop"}, {"column_types": {"n": "string"}}])
def test_going_on_with_another_reading_of_the_list_is_refused(
    broken: str, fetched: Download, other: dict[str, Any]
) -> None:
    fetched(broken, save_additional_columns="n", number_sample_per_shard=4)
    with pytest.raises(OutputError, match=next(iter(other))):
        fetched(broken, save_additional_columns="n", number_sample_per_shard=4, **other)


def test_a_later_value_of_another_type_fails_its_row(server: Server, tmp_path: Path, fetched: Download) -> None:
    lists = [tmp_path / "a.csv", tmp_path / "b.csv"]
    lists[0].write_text("url,n\n" + csv(server, range(2)))
    lists[1].write_text(f"url,n\n{server.url('2')},A12\n" + csv(server, range(3, 4)))
    given = [str(path) for path in lists]
    assert fetched(given, save_additional_columns="n").status_dict == {"success": 3, "bad_row": 1}
    (bad,) = (row for row in rows(tmp_path / "out") if row["error_code"] == "bad_row")
    assert bad["error_message"] == (
        "b.csv, row 2: column 'n': 'A12' is not int64, the type of the first rows; "
        "--column_types=n:string declares another"
    )
    out = str(tmp_path / "typed")
    report = fetched(given, save_additional_columns="n", column_types="n:string", output_folder=out)
    assert report.successes == 4
    assert [row["n"] for row in rows(tmp_path / "typed")] == ["0", "1", "A12", "3"]


@pytest.mark.parametrize("on_bad_row", ["fail_row", "stop"])
def test_a_stray_quote_fails_one_row(server: Server, tmp_path: Path, fetched: Download, on_bad_row: str) -> None:
    captions = ['"a 5 inch disk', "x", "y", '"hello"', "end"]
    lines = [f"{server.url(str(n))},{caption}\n" for n, caption in enumerate(captions)]
    (tmp_path / "list.csv").write_text("url,caption\n" + "".join(lines))
    options = {"caption_col": "caption", "on_bad_row": on_bad_row}
    if on_bad_row == "stop":
        with pytest.raises(
            IncompleteRun, match=r"list\.csv: could be read only up to row 2: a quote is opened and not"
        ):
            fetched(str(tmp_path / "list.csv"), **options)
        return
    assert fetched(str(tmp_path / "list.csv"), **options).status_dict == {"success": 4, "bad_row": 1}
    assert [row["caption"] for row in rows(tmp_path / "out")] == [None, "x", "y", "hello", "end"]
