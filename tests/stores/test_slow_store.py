"""A store that is slower than the network: uploads and fetching overlap, and what waits for it is bounded."""

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from any2ds import download
from any2ds.testing.server import Server, serve

_SOON = 60.0  # seconds


class Gate(MemoryFileSystem):
    """Uploads of data wait until they may."""

    wait: Callable[[str], None] = staticmethod(lambda name: None)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if path.endswith(".tar"):
            Gate.wait(path.rsplit("/", 1)[-1])
        super().pipe_file(path, value, mode, **options)


@pytest.fixture
def url() -> Iterator[str]:
    fsspec.register_implementation("memory", Gate, clobber=True)
    yield f"memory://{uuid.uuid4().hex}"
    fsspec.register_implementation("memory", MemoryFileSystem, clobber=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "a").write_bytes(b"x" * 50_000)
    with serve(tmp_path / "media") as server:
        yield server


def rows(server: Server, count: int) -> list[str]:
    return [f"{server.url('a')}?{number}" for number in range(count)]


OPTIONS: dict[str, Any] = {
    "output_format": "webdataset",
    "number_sample_per_shard": 4,
    "distributor": "inline",
    "thread_count": 2,
    "retries": 0,
    "quiet": True,
}


def test_while_a_shard_is_uploaded_the_next_ones_are_fetched(
    url: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(name: str) -> None:
        if name == "00000.tar":  # which would wait for ever if nothing was fetched meanwhile
            server.wait_for("a", 12, _SOON)

    monkeypatch.setattr(Gate, "wait", staticmethod(wait))
    report = download(rows(server, 16), output_folder=url, staging_dir=tmp_path / "staging", **OPTIONS)
    assert (report.successes, report.shards) == (16, 4)


def test_a_store_that_stalls_holds_back_the_fetching_before_the_disk_is_full(
    url: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    staging, count = tmp_path / "staging", 200
    locks = threading.Event()
    most: list[int] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "fetching waits" in record.getMessage():
                locks.set()

    def wait(name: str) -> None:
        assert name != "00000.tar" or locks.wait(_SOON)
        most.append(sum(file.stat().st_size for file in staging.rglob("*") if file.is_file()))

    monkeypatch.setattr(Gate, "wait", staticmethod(wait))
    ear, log = Ear(), logging.getLogger("any2ds")
    log.addHandler(ear)
    try:
        options = {**OPTIONS, "staging_dir": staging, "log_level": "info"}
        report = download(rows(server, count), output_folder=url, **options)
    finally:
        log.removeHandler(ear)
    assert (report.successes, report.shards) == (count, count // 4)
    assert len(most) == count // 4
    # Beside the four shards that may wait: one shard, and what the feeder had given out before it was held back.
    assert max(most) < (5 * 4 + 64) * 52_000 < count * 50_000 / 2
