"""DuckDB takes `any2ds.load`, and reads metadata and bytes without it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from any2ds import download
from any2ds.testing.server import Server


@pytest.mark.parametrize("output_format", ["parquet", "webdataset", "files"])
@pytest.mark.parametrize("kind", ["images", "mixed"])
def test_outcomes_are_counted(
    kind: str, output_format: str, dataset: Callable[..., Any], readme: Callable[..., Any]
) -> None:
    made = dataset(output_format, kind)
    shown = readme("Without any2ds", -1)
    if output_format == "files":
        content = [Path(name).read_bytes() for (name,) in shown["names"].fetchall()]
        assert sorted(content) == sorted(made.files.values())
    assert shown["outcomes"].fetchall() == [
        ("success", None, len(made.files)),
        ("failed_to_download", "http_404", 1),
    ]


def test_rows_of_a_retry_count_by_their_last_outcome(eventful: Callable[..., Any], readme: Callable[..., Any]) -> None:
    kept = eventful("files")
    shown = readme("Without any2ds", -1)
    assert sorted(Path(name).read_bytes() for (name,) in shown["names"].fetchall()) == sorted(kept.values())
    assert shown["outcomes"].fetchall() == [("success", None, 7), ("failed_to_download", "http_404", 1)]


@pytest.mark.parametrize("kind", ["images", "mixed"])
def test_one_file_is_found_by_its_key(kind: str, dataset: Callable[..., Any]) -> None:
    """A key begins with the number of its shard."""
    made = dataset("parquet", kind)
    for key, content in made.files.items():
        [(data,)] = duckdb.execute(f"select data from 'dataset/{key[:5]}.parquet' where key = ?", [key]).fetchall()
        assert data == content


@pytest.mark.parametrize("parquet_data", ["binary", "image"])
def test_to_get_one_file_little_more_than_its_row_group_is_read(
    parquet_data: str, server: Server, tmp_path: Path
) -> None:
    size, rows = 100_000, 60
    (server.folder / "big").write_bytes(bytes(size))
    urls = [f"{server.url('big')}?{n}" for n in range(rows)]
    download(
        urls,
        output_folder=tmp_path,
        output_format="parquet",
        parquet_data=parquet_data,
        row_group_bytes=2 * size,
        distributor="inline",
        quiet=True,
    )
    column = "data" if parquet_data == "binary" else "data.bytes"
    query = f"select octet_length({column}) from '{tmp_path}/00000.parquet' where key = '000000033'"
    assert duckdb.sql(query).fetchall() == [(size,)]
    ((_, reported),) = duckdb.sql(f"explain (analyze, format json) {query}").fetchall()
    assert 2 * size < json.loads(reported)["io"]["total_bytes_read"] < 4 * size
