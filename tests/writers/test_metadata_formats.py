"""Metadata in further formats: what others read in them, through a retry and an overwrite."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import download, retry, verify
from any2ds.core.errors import OptionError
from any2ds.run.download import download as run
from any2ds.testing.server import serve


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """A dataset of odd columns, of which one row fails at first; gives its folder and the server."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_bytes(b"a text")
    with serve(tmp_path / "files", {"late": ["503", "200"]}) as server:
        rows = pa.table(
            {
                "url": [server.url("a.txt"), server.url("late"), server.url("a.txt?3")],
                "caption": ['with "quotes", and\na new line', None, "größe"],
                "tags": pa.array([["x", "y"], None, []]),
                "raw": pa.array([b"\x00\xff", None, b""]),
                "score": pa.array([0.5, None, float("nan")]),
                "when": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5)] * 3),
            }
        )

        def make(folder: str, **options: Any) -> Path:
            names = ["tags", "raw", "score", "when"]
            options = {"caption_col": "caption", "save_additional_columns": names, **options}
            run(rows, output_folder=str(tmp_path / folder), quiet=True, number_sample_per_shard=2, **options)
            return tmp_path / folder

        yield make


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "files", "tfrecord", "arrayrecord"])
@pytest.mark.slow
def test_csv_and_jsonl_say_what_the_parquet_says(made: Any, output_format: str) -> None:
    out = made("out", output_format=output_format, metadata_format="jsonl,csv")
    for number in ("00000", "00001"):
        table = pq.read_table(out / f"{number}.parquet")
        rows = [row for row in table.to_pylist() if row.pop("data", 0) or True]
        lines = [json.loads(line) for line in (out / f"{number}.jsonl").read_text("utf-8").splitlines()]
        frame = pd.read_csv(out / f"{number}.csv", dtype=str, keep_default_na=False)
        assert len(lines) == len(frame) == len(rows) > 0
        for row, line, cells in zip(rows, lines, frame.to_dict("records"), strict=True):
            assert set(row) == set(line) == set(cells)
            for name in ("key", "url", "caption", "status", "error_code", "sha256", "bytes", "tags"):
                assert line.get(name) == row.get(name)
            assert cells["caption"] == (row["caption"] or "")
            assert (json.loads(cells["tags"]) if cells["tags"] else None) == row["tags"]
        assert lines[0]["raw"] == frame["raw"][0] == {"00000": "AP8=", "00001": ""}[number]
    assert verify(str(out)).findings == ()


@pytest.mark.slow
def test_a_retry_writes_them_too_and_an_overwrite_removes_them(made: Any) -> None:
    out = made("out", output_format="webdataset", metadata_format=["csv", "jsonl"])
    assert "http_503" in (out / "00000.csv").read_text("utf-8")
    retry(str(out), quiet=True)
    assert "http_503" not in (out / "00002.csv").read_text("utf-8")
    lines = (out / "00002.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["success"]
    made("out", output_format="webdataset", incremental_mode="overwrite")
    assert sorted({path.suffix for path in out.glob("[!.]*")}) == [".idx", ".json", ".parquet", ".tar"]
    assert verify(str(out)).findings == ()


def test_one_that_is_gone_is_told(made: Any) -> None:
    out = made("out", output_format="webdataset", metadata_format="csv")
    (out / "00001.csv").unlink()
    (finding,) = verify(str(out)).findings
    assert (finding.kind, finding.shard_id) == ("beside", 1)
    assert ".csv" in finding.message


@pytest.mark.parametrize("given", ["xml", "csv,xml"])
def test_other_formats_are_refused_in_words(given: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"metadata_format.*parquet or csv or jsonl"):
        download(["http://127.0.0.1/"], output_folder=str(tmp_path / "out"), metadata_format=given)
