"""Further files, and whatever else is large in the metadata, take no memory for as long as a shard is being made."""

import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from any2ds import download, retry, verify
from any2ds.core import wide_columns
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.metadata import MetadataTable
from any2ds.core.rows import Row
from any2ds.core.samples import Sample
from any2ds.testing.server import serve

STEP = """
import any2ds

@any2ds.transform(members=("npy", "txt"), columns={"words": str, "scores": list[float], "size": int})
def beside(sample):
    name = sample.data.decode()
    if name == "3":
        return None
    sample = sample.with_fields(words=name * 900, scores=[float(name)] * 100, size=len(name))
    return sample.with_member("npy", name.encode() * 1000).with_member("txt", f"text {name}".encode())
"""
ROWS = 23


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    rows = pa.table({"url": ["u"] * 100})
    metadata = MetadataTable(rows, (), {"npy": pa.binary()}, has_members=False, folder=tmp_path)
    tracemalloc.start()
    try:
        with closing(metadata):
            before = pa.total_allocated_bytes()
            for number in range(100):
                body = StoredBody.of(bytes([number]) * (1 << 20))
                sample = Sample(Row(0, number, f"{number:04d}", "u"), body, "txt", {"status": "success"})
                metadata.add(Sample(sample.row, body, "txt", sample.fields, extra_files={"npy": body}))
                assert metadata.added == 1 << 20
            sizes = [sum(map(len, piece["npy"].to_pylist())) for piece in metadata.pieces()]
            assert sum(sizes) == 100 << 20
            assert max(sizes) <= 64 << 20
            assert pa.total_allocated_bytes() - before < 90 << 20  # the last piece is there still
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 150 << 20  # a piece, and its values that this test has looked at


@pytest.mark.parametrize("output_format", ["parquet", "tfrecord", "dummy", "webdataset"])
def test_what_waits_in_a_file_makes_no_difference(
    tmp_path: Path, output_format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    media = tmp_path / "media"
    media.mkdir()
    for number in range(ROWS):
        (media / f"{number}.bin").write_bytes(str(number).encode())
    (tmp_path / "steps.py").write_text(STEP, encoding="utf-8")

    def made(name: str, url: Callable[[str], str]) -> dict[str, list[dict[str, Any]]]:
        download(
            [{"url": url(f"{number}.bin")} for number in range(ROWS)],
            output_folder=tmp_path / name,
            output_format=output_format,
            metadata_format="parquet,csv,jsonl",
            number_sample_per_shard=12,
            distributor="inline",
            transform=f"{tmp_path}/steps.py:beside",
            quiet=True,
        )
        assert verify(tmp_path / name, quiet=True).ok
        return reported(tmp_path / name, ROWS)

    with serve(media) as server:
        whole = made("whole", server.url)
        monkeypatch.setattr(wide_columns, "_HELD", 5000)
        monkeypatch.setattr(wide_columns, "_AT_ONCE", 9000)
        found = made("in-pieces", server.url)
        assert found == whole
        stored = {row["key"]: row for row in found["parquet"] if row["status"] == "success"}
        assert len(stored) == ROWS - 1
        assert [row["words"] for row in stored.values()] == [str(n) * 900 for n in range(ROWS) if n != 3]
        if output_format != "webdataset":
            assert [row["npy"] for row in stored.values()] == [str(n).encode() * 1000 for n in range(ROWS) if n != 3]
        # What is made again has the same columns, from the file of before and from what has come.
        (media / "5.bin").rename(media / "away.bin")
        download_again = made("retried", server.url)
        assert [row["status"] for row in download_again["parquet"]].count("failed_to_download") == 1
        (media / "away.bin").rename(media / "5.bin")
        retry(tmp_path / "retried", codes="all", distributor="inline", quiet=True)
        assert verify(tmp_path / "retried", quiet=True).ok
        again = reported(tmp_path / "retried", ROWS + 1)["parquet"]
        last = {row["key"]: bare(row) for row in again}
        assert [last[key] for key in sorted(last)] == [bare(row) for row in whole["parquet"]]


def reported(folder: Path, rows: int) -> dict[str, list[dict[str, Any]]]:
    """What the metadata say, by format."""
    parquet = [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    lines = [orjson.loads(line) for path in sorted(folder.glob("0*.jsonl")) for line in path.read_bytes().splitlines()]
    tables = [pyarrow.csv.read_csv(path).to_pylist() for path in sorted(folder.glob("0*.csv"))]
    assert len(parquet) == len(lines) == sum(map(len, tables)) == rows
    return {
        "parquet": [bare(row) for row in parquet],
        "jsonl": [bare(row) for row in lines],
        "csv": [bare(row) for table in tables for row in table],
    }


def bare(row: dict[str, Any]) -> dict[str, Any]:
    """Without what is another in each run."""
    return {name: value for name, value in row.items() if name not in ("last_modified", "etag", "attempts")}
