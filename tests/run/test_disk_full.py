"""A disk that fills ends the run in words, with whole shards only; with more room the same command goes on."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds.core.errors import DiskFull, is_full
from tests.support.play import Play, Row
from tests.support.smalldisk import SmallDisk, small_disk

ROWS = {f"{n}.bin": Row(body=os.urandom(100_000)) for n in range(40)}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 2_200_000) as disk:
        yield disk


@pytest.mark.parametrize("is_spool", [False, True], ids=["shards", "bodies that wait"])
def test_a_staging_folder_that_fills_is_named_and_the_same_command_goes_on(is_spool: bool, disk: SmallDisk) -> None:
    """As shards are made there, and as the bodies wait there while all wait for the first row."""
    staging = disk.folder / "staging"
    rows = {**ROWS, "0.bin": Row(["hold", "ok"] if is_spool else "ok", ROWS["0.bin"].body)}
    options = {"staging_dir": staging, "max_buffered_bytes": "1MB", "thread_count": 4, "timeout": 0}
    play = Play(rows, number_sample_per_shard=40, **options)
    full = play.run(min_free_bytes=disk.min_free_bytes)
    play.web.release()
    assert full.exit_code == 1
    assert f"'{staging}" in " ".join(full.screen.split())
    assert "staging_dir" in full.screen
    assert full.names == set()
    assert not any(staging.glob("*"))
    disk.grow()
    again = play.run(min_free_bytes=disk.min_free_bytes)
    assert [sample.data for sample in again.samples] == [row.body for row in ROWS.values()]


def test_bodies_that_wait_have_no_names_in_the_staging_folder() -> None:
    rows = {f"{n}.bin": Row("hold" if n == 0 else "ok", bytes([n]) * 300_000) for n in range(20)}
    play = Play(rows, staging_dir="staging", max_buffered_bytes="1MB", thread_count=4, timeout=0)
    running = play.start()
    for name in rows:
        running.until(f"request {name}")
    staging = play.folder / "staging"
    assert not [path for path in staging.rglob("any2ds-*") if path.is_file()]
    play.web.release()
    assert [sample.data for sample in running.wait().samples] == [row.body for row in rows.values()]
    assert not list(staging.iterdir())


def test_a_full_disk_is_told_from_other_trouble() -> None:
    errors: list[BaseException] = []
    for write in (
        lambda path: Path(path).write_bytes(b"x"),
        lambda path: pq.write_table(pa.table({"a": [1]}), pa.OSFile(path, "wb")),  # by its name it would be removed
    ):
        try:
            write("/dev/full")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # there is no such device here
        except (OSError, pa.ArrowException) as error:
            errors.append(error)
    assert all(is_full(error) for error in errors) or not os.path.exists("/dev/full")
    wrapped = RuntimeError("upload failed")
    wrapped.__cause__ = OSError(errno.EDQUOT, "quota")
    assert is_full(wrapped)
    assert not is_full(OSError(errno.EIO, "broken"))
    assert not is_full(PermissionError(errno.EACCES, "no"))


def test_the_message_tells_a_quota_and_a_lack_of_inodes() -> None:
    assert "is there a quota?" in str(DiskFull("/data", 10 << 30))
    assert "no inodes" in str(DiskFull("/data", 10 << 30, no_more_files=True))
    assert "the disk of '/data' is full (3.1 kB free)" in str(DiskFull("/data", 3 << 10))
