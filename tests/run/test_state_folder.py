"""What any2ds keeps for itself lies in `.any2ds/`, which the globs of users and of other tools do not find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from any2ds import download, inspect, retry, verify
from any2ds.core.errors import OutputError
from any2ds.testing.server import Server, serve
from tests.support.folder import names_in

FILES = 3
DATA = {
    "webdataset": {"00000.tar", "00000.tar.idx", "00000.parquet"},
    "files": {"00000", "00000.parquet"},
    "parquet": {"00000.parquet"},
    "tfrecord": {"00000.tfrecord", "00000.tfrecord.idx", "00000.parquet", "features.json", "dataset_info.json"},
    "arrayrecord": {"00000.arrayrecord", "00000.parquet", "features.json", "dataset_info.json"},
    "dummy": {"00000.parquet"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    for n in range(FILES):
        (media / f"{n}.bin").write_bytes(b"%d" % n)
    with serve(media) as running:
        yield running


def make(server: Server, out: Any, **options: Any) -> Any:
    urls = [server.url(f"{n}.bin") for n in range(FILES)]
    return download(urls, output_folder=out, distributor="inline", quiet=True, **options)


@pytest.mark.parametrize("output_format", DATA)
def test_globs_find_data_metadata_and_stats_alone(output_format: str, server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make(server, out, output_format=output_format, reporters="jsonl")
    shown = {"00000_stats.json", *DATA[output_format]}
    assert {path.name for path in out.glob("[!.]*")} == shown
    documents = {name for name in shown if name.endswith(".json")}
    assert {path.name for path in out.glob("*.json")} == documents
    for pattern in (
        "*.json",
        "*.jsonl",
        "*.parquet",
        "*.tar",
        "*.csv",
        "*record",
    ):  # which hidden folders are no bar to
        found = {path for path in out.rglob(pattern) if path.parent.name != "00000"}
        assert {path.name for path in found} == {name for name in shown if Path(name).match(pattern)}
    assert verify(out).ok


def test_on_a_store_it_has_the_same_prefix(server: Server, s3_server: None) -> None:
    fs = fsspec.filesystem("s3", skip_instance_cache=True)
    fs.makedirs("state", exist_ok=True)
    make(server, "s3://state/out", output_format="parquet")
    assert fs.find("state/out") == [
        "state/out/.any2ds/run",
        "state/out/.any2ds/segments/0000",
        "state/out/.any2ds/segments/0000.end",
        "state/out/.any2ds/shards",
        "state/out/00000.parquet",
        "state/out/00000_stats.json",
    ]
    assert inspect("s3://state/out").rows == FILES


def test_nothing_stays_of_a_run_that_was_refused(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "00000_stats.json").write_text("{}")
    with pytest.raises(OutputError, match=r"no \.any2ds/run that says"):
        make(server, out)
    assert names_in(out) == {"00000_stats.json"}
    with pytest.raises(OutputError, match=r"no \.any2ds/run"):
        retry(out, quiet=True)
    assert names_in(out) == {"00000_stats.json"}
