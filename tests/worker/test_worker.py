"""What a worker keeps in memory and lets wait, and odd values: whole runs against a server that does as it is told."""

import io
import json
import os
import tarfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import any2ds
from any2ds.testing.processes import wait_until
from any2ds.testing.server import serve
from tests.support.play import Play


def image(color: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), color).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for n in range(10):
        (folder / f"{n}.jpg").write_bytes(image(f"#{n}{n}0000"))
    return folder


def run(url_list: Any, output: Path, **options: Any) -> any2ds.RunReport:
    how = {"output_format": "webdataset", "distributor": "inline", "quiet": True, **options}
    return any2ds.download(url_list, output, **how)


def members(tar: Path) -> dict[str, bytes]:
    with tarfile.open(tar) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def test_values_that_python_has_no_type_for_are_text_in_the_json_and_as_they_were_in_the_metadata(
    tmp_path: Path, media: Path
) -> None:
    with serve(media) as server:
        table = pa.table(
            {
                "url": [server.url(f"{n}.jpg") for n in range(4)],
                "far": pa.array([0, 10**12, None, 5], pa.timestamp("s")),
                "fine": pa.array([1, None, 10**9 + 1, 7], pa.time64("ns")),
                "day": pa.array([0, 10**7, None, 1], pa.date32()),
            }
        )
        columns = ["far", "fine", "day"]
        assert run(table, tmp_path / "out", number_sample_per_shard=2, save_additional_columns=columns).successes == 4
    found = pq.read_table(tmp_path / "out" / "00000.parquet")
    assert found["far"].equals(table["far"].slice(0, 2).cast(pa.timestamp("ms")))  # parquet has no seconds
    described = json.loads(members(tmp_path / "out" / "00000.tar")["000001.json"])
    assert "1000000000000" in described["far"]


def test_parquet_shards_that_wait_do_not_pile_up_in_memory(tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    (media / "big").write_bytes(b"\1" * 2_000_000)
    (media / "last").write_bytes(b"\2")
    with serve(media, {"last": ["hold"]}) as server:
        # Each shard but its last row is fetched and written, and then waits.
        urls = [server.url("last" if n % 6 == 5 else "big") for n in range(120)]

        def release_when_all_wait() -> None:
            server.wait_for("last", 20)
            server.release()

        waiting = threading.Thread(target=release_when_all_wait)
        waiting.start()
        tracemalloc.start()
        report = run(
            urls,
            tmp_path / "out",
            output_format="parquet",
            number_sample_per_shard=6,
            max_buffered_bytes="16MB",
            thread_count=20,
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        waiting.join()
    assert (report.shards, report.successes) == (20, 120)
    assert peak < 100_000_000  # of 200 MB that were fetched, and the server's own
    for path in (tmp_path / "out").glob("*.parquet"):
        assert [len(data) for data in pq.read_table(path)["data"].to_pylist()] == [2_000_000] * 5 + [1]


def test_a_writer_that_holds_most_of_a_small_buffer_does_not_stop_the_run(tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    (media / "big").write_bytes(os.urandom(300_000))
    with serve(media) as server:
        urls = [f"{server.url('big')}?{number}" for number in range(8)]
        small = {"max_buffered_bytes": "1MB", "thread_count": 1, "watchdog_timeout": 5}
        report = run(urls, tmp_path / "out", output_format="parquet", **small)
    assert report.status_dict == {"success": 8}


def test_hosts_are_asked_side_by_side_where_the_list_is_sorted_by_them_and_files_pass_a_step(
    tmp_path: Path, media: Path
) -> None:
    """The rows of a host that wait for it keep no step busy: they must not keep the next host waiting."""
    with serve(media, host="127.0.0.2") as other:
        play = Play({"1.jpg": "ok"}, decode_check=True, transform_threads=1, host_delay=0.5)
        urls = [f"{url}?{n}" for url in (play.web.url("1.jpg"), other.url("1.jpg")) for n in range(300)]
        (play.folder / "urls.txt").write_text("\n".join(urls))
        running = play.start("download", "urls.txt")
        wait_until(lambda: other.requests and play.web.counts["1.jpg"])
        assert play.web.counts["1.jpg"] < 20  # it was more than 45
        running.kill()
        running.wait()
