"""Datasets in GCS, as an emulator has it, from lists and files in GCS."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import gcsfs
import numpy as np
import pytest

import any2ds
from any2ds import download
from any2ds.core.errors import DamagedShard
from any2ds.testing.server import serve
from tests.support.gcs import GcsPlace, GcsServer, serve_gcs
from tests.support.storing import StoreContract


@pytest.fixture(scope="module")
def gcs() -> Iterator[GcsServer]:
    with serve_gcs() as server:
        yield server


@pytest.fixture
def bucket(gcs: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsPlace:
    place = gcs.new_place()
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    # gcsfs waits for a second and more before each of its own tries, which adds up.
    monkeypatch.setattr("gcsfs.retry.random", SimpleNamespace(random=lambda: -0.95))
    gcsfs.GCSFileSystem.clear_instance_cache()
    return place


def test_samples_are_read_by_ranges(
    bucket: GcsPlace, gcs: GcsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libcurl reads them, and what the store refuses is one error that names shard and store."""
    monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "media").mkdir()
    files = [b"file %d " % n * 200 for n in range(12)]
    for n, content in enumerate(files):
        (tmp_path / "media" / f"{n}.bin").write_bytes(content)
    options = {"number_sample_per_shard": 5, "output_format": "webdataset", "distributor": "inline", "quiet": True}
    with serve(tmp_path / "media") as server:
        download([server.url(f"{n}.bin") for n in range(12)], output_folder=tmp_path / "out", **options)
    bucket.connect().put(str(tmp_path / "out"), bucket.url, recursive=True)
    ds, asked, ask = any2ds.load(bucket.url, retry_seconds=0), [], gcs.door.ask

    def recorded(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Any:
        asked.append((method, target.partition("?")[0].rpartition("%2F")[2], headers.get("range")))
        return ask(method, target, headers, body)

    monkeypatch.setattr(gcs.door, "ask", recorded)
    assert ds[6]["data"] == files[6]
    first, second = (int(offset) for offset in np.fromfile(tmp_path / "out" / "00001.tar.idx", "<u8")[1:3])
    assert asked == [
        ("GET", "00001.tar.idx", None),
        ("GET", "00001.tar", f"bytes={first}-{second - 1}"),
    ]
    assert [sample["data"] for sample in ds] == files == [sample["data"] for sample in any2ds.load(tmp_path / "out")]
    for status, text in (("403", "told to fail|access denied|Forbidden"), ("404", "no such file"), ("500", "500")):
        gcs.door.fails = lambda method, target, status=status: status if "00001.tar" in target else ""
        try:
            for number in (6, [5, 11]):
                with pytest.raises(DamagedShard, match=rf"(?s)shard 00001\.tar of '{bucket.url}': .*({text})"):
                    ds[number]
            with pytest.raises(DamagedShard, match=rf"(?s)shard 00001\.tar of '{bucket.url}': .*({text})"):
                any2ds.load(bucket.url, retry_seconds=0)[6]
        finally:
            gcs.door.fails = lambda method, target: ""
    assert ds[6]["data"] == files[6]


class TestGcs(StoreContract):
    @pytest.fixture
    def place(self, bucket: GcsPlace) -> GcsPlace:
        return bucket
