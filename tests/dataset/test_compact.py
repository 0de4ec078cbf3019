"""Compacted metadata: the rows of all shards in few files, of the state that the shards are in, or none at all."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

import any2ds
from any2ds.core import layout
from any2ds.core.errors import OutputError
from any2ds.testing.server import Server, serve

ROWS, SHARD = 60, 5


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "media"
    folder.mkdir()
    for n in range(ROWS):
        if n % 7:
            (folder / f"{n}.bin").write_bytes(b"file %d" % n)
    with serve(folder) as server:
        yield server


def make(server: Server, output: Any, rows: int = ROWS, **options: Any) -> None:
    urls = [server.url(f"{n}.bin") for n in range(rows)]
    how = {"number_sample_per_shard": SHARD, "output_format": "webdataset", "distributor": "inline", "quiet": True}
    any2ds.download(urls, output, **{**how, "report": False, **options})


def rows_of(found: Any, **options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in found.files:
        with s3fs.S3FileSystem(**options).open(name) if name.startswith("s3:") else open(name, "rb") as file:
            rows += pq.read_table(file).to_pylist()
    return rows


def rows_of_shards(folder: Path) -> list[dict[str, Any]]:
    return [
        {**row, "shard_id": int(path.stem)}
        for path in sorted(folder.glob("*.parquet"))
        for row in pq.read_table(path).to_pylist()
    ]


@pytest.mark.parametrize("rows_per_file", [1, 12, 1000])
def test_all_rows_are_in_few_files_in_their_order(server: Server, tmp_path: Path, rows_per_file: int) -> None:
    make(server, tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").glob("*") if path.is_file()}
    found = any2ds.compact(tmp_path / "out", rows_per_file=rows_per_file)
    assert (found.rows, found.shards, found.is_new) == (ROWS, ROWS // SHARD, True)
    assert len(found.files) == {1: 12, 12: 4, 1000: 1}[rows_per_file]
    assert rows_of(found) == rows_of_shards(tmp_path / "out")
    assert before == {path: path.read_bytes() for path in before}
    assert any2ds.verify(tmp_path / "out").ok
    assert len(any2ds.inspect(tmp_path / "out").compacted) == len(found.files)


def test_a_second_call_changes_nothing_and_another_size_makes_other_files(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path / "out")
    first = any2ds.compact(tmp_path / "out", rows_per_file=20)
    second = any2ds.compact(tmp_path / "out", rows_per_file=20)
    assert not second.is_new
    assert second.files == first.files
    third = any2ds.compact(tmp_path / "out", rows_per_file=50)
    assert third.is_new
    folders = [path.name for path in (tmp_path / "out" / layout.COMPACT_FOLDER).iterdir() if path.is_dir()]
    assert [Path(name).parent.name for name in third.files] == folders * len(third.files)


def test_a_run_that_changes_shards_removes_them_and_one_that_does_not_leaves_them(
    server: Server, tmp_path: Path
) -> None:
    make(server, tmp_path / "out")
    found = any2ds.compact(tmp_path / "out")
    make(server, tmp_path / "out")
    assert any2ds.compact(tmp_path / "out").files == found.files
    (server.folder / "0.bin").write_bytes(b"it is there now")
    any2ds.retry(tmp_path / "out", codes="http_404", distributor="inline", quiet=True, report=False)
    assert not (tmp_path / "out" / layout.COMPACT_FOLDER).exists()
    assert any2ds.verify(tmp_path / "out").ok
    assert any2ds.inspect(tmp_path / "out").compacted == ()
    again = any2ds.compact(tmp_path / "out")
    assert again.is_new
    assert [row["status"] for row in rows_of(again)][:2] == ["success", "success"]


def test_ranks_that_join_remove_them_too(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path / "out", rank=0, world_size=2)
    assert any2ds.compact(tmp_path / "out").shards == 6
    make(server, tmp_path / "out", rank=1, world_size=2)
    assert not (tmp_path / "out" / layout.COMPACT_FOLDER).exists()
    assert any2ds.compact(tmp_path / "out").shards == 12


def test_an_overwritten_dataset_has_none(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path / "out")
    any2ds.compact(tmp_path / "out")
    make(server, tmp_path / "out", 10, incremental_mode="overwrite")
    assert not (tmp_path / "out" / layout.COMPACT_FOLDER).exists()


KILLED = """
import os, sys
import any2ds
from any2ds.storage.folders import OutputFolder
publish, left = OutputFolder.publish, [int(sys.argv[2])]
def publish_some(self, staged, name):
    if not left[0]:
        os.kill(os.getpid(), 9)
    left[0] -= 1
    publish(self, staged, name)
OutputFolder.publish = publish_some
if sys.argv[2] == "3":
    OutputFolder.write = lambda *_: os.kill(os.getpid(), 9)
any2ds.compact(sys.argv[1], rows_per_file=20)
"""


@pytest.mark.parametrize("published", [0, 2, 3])
@pytest.mark.slow
def test_a_call_that_is_killed_leaves_what_was_there_and_the_next_one_cleans_up(
    server: Server, tmp_path: Path, published: int
) -> None:
    """The last one is killed between the last file and the index."""
    make(server, tmp_path / "out")
    before = any2ds.compact(tmp_path / "out", rows_per_file=50)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out"), str(published)], check=False)
    assert killed.returncode == -9
    assert any2ds.inspect(tmp_path / "out").compacted == tuple(
        str(Path(name).relative_to(tmp_path / "out")) for name in before.files
    )
    assert rows_of(before) == rows_of_shards(tmp_path / "out")
    after = any2ds.compact(tmp_path / "out", rows_per_file=20)
    assert rows_of(after) == rows_of_shards(tmp_path / "out")
    kept = sorted(path.name for path in (tmp_path / "out" / layout.COMPACT_FOLDER).iterdir())
    assert kept == sorted([Path(after.files[0]).parent.name, "index"])
    assert any2ds.verify(tmp_path / "out").ok


def test_damage_is_found_and_mended(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path / "out")
    found = any2ds.compact(tmp_path / "out")
    index = tmp_path / "out" / layout.COMPACT_INDEX
    damages = {
        "missing": lambda: Path(found.files[0]).unlink(),
        "cannot be read": lambda: index.write_text("garbage"),
        "another state": lambda: index.write_text(json.dumps({**json.loads(index.read_text()), "state": "x"})),
        "left by a compaction": index.unlink,
    }
    for message, damage in damages.items():
        damage()
        report = any2ds.verify(tmp_path / "out")
        assert [message in finding.message for finding in report.findings] == [True], (message, report.findings)
        assert any2ds.inspect(tmp_path / "out").compacted == ()
        found = any2ds.compact(tmp_path / "out")
        assert found.is_new
        assert any2ds.verify(tmp_path / "out").ok


def test_shards_with_other_columns_make_a_file_that_has_them_all(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path / "out", 20)
    path = tmp_path / "out" / "00002.parquet"
    table = pq.read_table(path)
    pq.write_table(table.append_column("further", pa.array([1] * table.num_rows)), path)
    found = any2ds.compact(tmp_path / "out")
    assert len(found.files) == 2
    rows = rows_of(found)
    assert [row["shard_id"] for row in rows] == [n // SHARD for n in range(20)]
    assert [row.get("further") for row in rows] == [None] * 10 + [1] * 5 + [None] * 5


def test_metadata_that_cannot_be_read_are_named_and_nothing_is_published(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path / "out", 20)
    (tmp_path / "out" / "00003.parquet").write_bytes(b"PAR1garbage")
    with pytest.raises(OutputError, match=r"00003\.parquet cannot be read"):
        any2ds.compact(tmp_path / "out")
    assert any2ds.inspect(tmp_path / "out").compacted == ()


@pytest.mark.parametrize("output_format", ["parquet", "files", "tfrecord", "dummy"])
def test_bodies_stay_where_they_are(server: Server, tmp_path: Path, output_format: str) -> None:
    make(server, tmp_path / "out", 20, output_format=output_format)
    (found,) = any2ds.compact(tmp_path / "out").files
    names = pq.read_schema(found).names
    assert {"key", "url", "status", "shard_id"} <= set(names)
    assert "data" not in names
    assert pq.read_metadata(found).num_rows == 20


def test_duckdb_reads_them(server: Server, tmp_path: Path) -> None:
    make(server, tmp_path / "out")
    any2ds.compact(tmp_path / "out", rows_per_file=20)
    query = f"select status, count(*) from read_parquet('{tmp_path}/out/.any2ds/compact/*/*.metadata') group by 1"
    assert dict(duckdb.sql(query).fetchall()) == {"success": 51, "failed_to_download": 9}


def test_folders_without_a_dataset_stay_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no such folder"):
        any2ds.compact(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(OutputError, match="holds no dataset"):
        any2ds.compact(tmp_path / "empty")
    assert list(tmp_path.rglob("*")) == [tmp_path / "empty"]


@pytest.mark.slow
def test_on_an_object_store(s3_server: None, server: Server, tmp_path: Path) -> None:
    s3fs.S3FileSystem().mkdir("compact")
    make(server, "s3://compact/out")
    found = any2ds.compact("s3://compact/out", rows_per_file=20)
    assert len(found.files) == 3
    assert len(rows_of(found)) == ROWS
    assert not any2ds.compact("s3://compact/out", rows_per_file=20).is_new
    assert any2ds.compact("s3://compact/out", rows_per_file=50).is_new
    kept = s3fs.S3FileSystem().find("s3://compact/out/.any2ds/compact")
    assert len(kept) == 3
    (server.folder / "0.bin").write_bytes(b"it is there now")
    any2ds.retry("s3://compact/out", codes="http_404", distributor="inline", quiet=True, report=False)
    s3fs.S3FileSystem.clear_instance_cache()
    assert not s3fs.S3FileSystem().exists("s3://compact/out/.any2ds/compact")
    assert any2ds.verify("s3://compact/out").ok
