"""A disk that fills ends the run in words, with whole shards only; with more room the same command goes on."""

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import download
from any2ds.cli import run
from any2ds.core.errors import DiskFull, is_full
from any2ds.core.plugins import load
from any2ds.storage.disk.space import Room
from any2ds.testing.server import Server, serve
from any2ds.testing.writing import read
from tests.support.folder import names_in
from tests.support.smalldisk import SmallDisk, small_disk

_ROWS = 40
_SIZE = 100_000  # bytes of each file
_DISK = 2_200_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("media")
    for number in range(_ROWS):
        (folder / f"{number}.bin").write_bytes(os.urandom(_SIZE))
    with serve(folder) as server:
        yield server


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", _DISK) as disk:
        yield disk


def fetch(server: Server, output: Path, disk: SmallDisk, **options: Any) -> Any:
    urls = [server.url(f"{number}.bin") for number in range(_ROWS)]
    options = {"output_format": "webdataset", "number_sample_per_shard": 4, "distributor": "inline", **options}
    return download(urls, output_folder=output, min_free_bytes=disk.min_free_bytes, quiet=True, **options)


def stored(output: Path, output_format: str) -> dict[int, list[str]]:
    """The keys of each finished shard, as they are read back. Nothing else is in the folder."""
    writer = load("writers", output_format)
    found, expected = {}, {".any2ds/run"}
    of_all = {
        ".any2ds/segments",
        ".any2ds/shards",
        "features.json",
        "dataset_info.json",
        "report.html",
    }  # for which there may be no room
    expected |= of_all.intersection(names_in(output))
    for stats in output.glob("*_stats.json"):
        name = stats.name.removesuffix("_stats.json")
        data = output / f"{name}.{writer.extension}".rstrip(".")
        samples = read(writer, data)
        assert len(samples) == json.loads(stats.read_bytes())["count"]
        assert pq.read_metadata(output / f"{name}.parquet").num_rows == len(samples)
        found[int(name)] = [key for key, _, _ in samples]
        expected |= {stats.name, data.name, f"{name}.parquet", *(f"{name}{end}" for end in writer.sidecars)}
    assert names_in(output) == expected
    return found


def expect_all(output: Path, output_format: str = "webdataset") -> None:
    found = stored(output, output_format)
    assert [key for shard in sorted(found) for key in found[shard]] == [
        f"{row // 4:05d}{row % 4}" for row in range(_ROWS)
    ]


def test_processes_hand_on_that_the_disk_is_full(
    server: Server, disk: SmallDisk, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = disk.folder / "dataset"
    urls = tmp_path / "urls.txt"
    urls.write_text("\n".join(server.url(f"{number}.bin") for number in range(_ROWS)))
    command = [f"--url_list={urls}", f"--output_folder={output}", "--output_format=webdataset", "--quiet"]
    command += ["--number_sample_per_shard=4", "--processes_count=2"]
    assert run([*command, f"--min_free_bytes={disk.min_free_bytes}"]) == 1
    said = capfd.readouterr().err
    assert "the disk of" in said
    assert "Make room there" in said
    assert "shards could not be written" not in said
    assert not (output / ".any2ds/tmp").exists()
    disk.grow()
    assert run([*command, f"--min_free_bytes={disk.min_free_bytes}"]) == 0
    expect_all(output)


def test_a_staging_folder_that_fills_is_named_and_another_one_goes_on(
    server: Server, disk: SmallDisk, tmp_path: Path
) -> None:
    output, staging = tmp_path / "dataset", disk.folder / "staging"
    with pytest.raises(DiskFull, match="staging_dir") as caught:
        fetch(server, output, disk, staging_dir=staging, number_sample_per_shard=40)
    assert str(staging) in str(caught.value)
    assert not any(staging.glob("*"))
    assert names_in(output) <= {".any2ds/run", ".any2ds/segments"}
    disk.grow()
    fetch(server, output, disk, staging_dir=tmp_path, number_sample_per_shard=40)
    assert len(stored(output, "webdataset")[0]) == _ROWS


def test_a_spool_that_fills_ends_the_run(tmp_path: Path, disk: SmallDisk) -> None:
    media = tmp_path / "media"
    media.mkdir()
    for number in range(_ROWS):
        (media / f"{number}.bin").write_bytes(os.urandom(_SIZE))
    output = tmp_path / "dataset"
    staging = disk.folder / "staging"
    options = {"staging_dir": staging, "max_buffered_bytes": "1MB", "thread_count": 4, "timeout": 0}
    options["number_sample_per_shard"] = _ROWS
    with serve(media, {"0.bin": ["hold", "ok"]}) as server:  # all others wait for the first
        with pytest.raises(DiskFull) as caught:
            fetch(server, output, disk, **options)
        server.release()
        assert str(staging) in str(caught.value)
        assert names_in(output) <= {".any2ds/run", ".any2ds/segments"}
        disk.grow()
        fetch(server, output, disk, **options)
    assert len(stored(output, "webdataset")[0]) == _ROWS


def test_bodies_that_wait_have_no_names_in_the_staging_folder(tmp_path: Path) -> None:
    media, staging = tmp_path / "media", tmp_path / "staging"
    media.mkdir()
    for number in range(20):
        (media / str(number)).write_bytes(os.urandom(300_000))
    seen: list[str] = []
    with serve(media, {"0": ["hold"]}) as server:

        def look() -> None:
            for number in range(1, 20):
                server.wait_for(str(number))
            seen.extend(path.name for path in staging.rglob("*") if path.is_file())
            server.release()

        looking = threading.Thread(target=look)
        looking.start()
        download(
            [server.url(str(number)) for number in range(20)],
            output_folder=tmp_path / "out",
            staging_dir=staging,
            max_buffered_bytes="1MB",
            thread_count=4,
            distributor="inline",
            quiet=True,
        )
        looking.join()
    assert [name for name in seen if name.startswith("any2ds-")] == []
    assert not list(staging.iterdir())


def test_a_sensible_share_of_a_disk_stays_free_unless_told_otherwise(disk: SmallDisk, tmp_path: Path) -> None:
    folder = disk.folder / "not" / "there" / "yet"
    Room(folder, None, "").check()  # 2 % of a small disk
    Room(folder, 0, "").check()
    with pytest.raises(DiskFull):
        Room(tmp_path, 1 << 60, "").check()
    with pytest.raises(DiskFull):
        Room(tmp_path, 1, "").check(wanted=1 << 60)


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
