"""A file of a finished shard that is gone is noticed by the same command, and its shard is made again."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
import pytest

from any2ds import download, verify
from any2ds.core.reports import RunReport
from any2ds.testing.server import Server, serve

EXTENSIONS = {
    "webdataset": ".tar",
    "parquet": ".parquet",
    "files": "",
    "tfrecord": ".tfrecord",
    "arrayrecord": ".arrayrecord",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "web").mkdir()
    for number in range(12):
        (tmp_path / f"web/{number}.bin").write_bytes(b"x" * (number + 1))
    with serve(tmp_path / "web", {}) as found:
        yield found


def run(server: Server, output_folder: Any, rows: range = range(12), **options: Any) -> RunReport:
    urls = [server.url(f"{number}.bin") for number in rows]
    return download(urls, output_folder, distributor="inline", quiet=True, number_sample_per_shard=3, **options)


def urls_in(folder: Path) -> list[str]:
    return [url for path in sorted(folder.glob("*.parquet")) for url in pq.read_table(path)["url"].to_pylist()]


@pytest.mark.parametrize("output_format", EXTENSIONS)
def test_the_data_of_a_shard(
    server: Server, tmp_path: Path, output_format: str, caplog: pytest.LogCaptureFixture
) -> None:
    out, lost = tmp_path / "out", f"00001{EXTENSIONS[output_format]}"
    run(server, out, output_format=output_format)
    if (out / lost).is_dir():
        shutil.rmtree(out / lost)
    else:
        (out / lost).unlink()
    with caplog.at_level(logging.WARNING):
        report = run(server, out, output_format=output_format)
    assert f"shard 1 has lost {lost}: its shard is made again" in caplog.text
    assert (report.shards, report.skipped_shards, report.successes) == (1, 3, 3)
    assert Counter(urls_in(out)) == Counter(server.url(f"{number}.bin") for number in range(12))
    assert verify(out, quiet=True).ok
    assert run(server, out, output_format=output_format).shards == 0


@pytest.mark.parametrize("name", ["00003.parquet", "00000.csv", "00002.jsonl"])
def test_a_file_of_metadata(server: Server, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    options = {"output_format": "webdataset", "metadata_format": "parquet,csv,jsonl"}
    run(server, out, **options)
    (out / name).unlink()
    assert run(server, out, **options).shards == 1
    assert (out / name).exists()
    assert verify(out, quiet=True).ok


@pytest.mark.parametrize("output_format", EXTENSIONS)
def test_a_shard_without_a_stored_file_lacks_nothing(server: Server, tmp_path: Path, output_format: str) -> None:
    for expected in (1, 0):
        report = download(
            ["no url"], tmp_path / "out", distributor="inline", quiet=True, output_format=output_format, report=False
        )
        assert report.shards == expected


@pytest.mark.parametrize("output_format", ["webdataset", "files", "dummy"])
def test_the_preset_of_img2dataset(server: Server, tmp_path: Path, output_format: str) -> None:
    options = {"preset": "img2dataset", "output_format": output_format, "disable_all_reencoding": True}
    run(server, tmp_path / "out", **options)
    assert run(server, tmp_path / "out", **options).shards == 0


def test_shards_of_another_list_are_named(server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out, options = tmp_path / "out", {"output_format": "webdataset", "incremental_mode": "extend"}
    run(server, out, range(6), **options)
    run(server, out, range(6, 12), **options)
    (out / "00000.tar").unlink()
    (out / "00001.tar").unlink()
    with caplog.at_level(logging.WARNING):
        assert run(server, out, range(6, 12), **options).shards == 0
    assert caplog.text.count("2 shards are broken of other lists: the commands with these lists") == 1
    assert run(server, out, range(6), **options).shards == 2
    assert verify(out, quiet=True).ok


@pytest.mark.parametrize("output_format", EXTENSIONS)
def test_in_a_store(server: Server, output_format: str) -> None:
    folder = f"memory://lost-{output_format}"
    run(server, folder, output_format=output_format)
    store, lost = fsspec.filesystem("memory"), f"/lost-{output_format}/00001{EXTENSIONS[output_format]}"
    store.rm(lost, recursive=True)
    report = run(server, folder, output_format=output_format)
    assert (report.shards, report.skipped_shards) == (1, 3)
    assert store.exists(lost)
    assert run(server, folder, output_format=output_format).shards == 0
