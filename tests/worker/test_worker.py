"""The worker from outside: jobs in, events and files out, against a server that behaves as it is told."""

import io
import json
import os
import tarfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import any2ds
from any2ds.config.options import Config
from any2ds.core.reports import Event, Progress, ShardReport
from any2ds.readers.plan import cuts
from any2ds.testing.server import serve
from any2ds.worker.worker import ShardWorker
from tests.support.jobs import plan


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


def work(table: pa.Table, output: Path, **options: Any) -> list[Event]:
    return list(events(table, output, **options))


def events(table: pa.Table, output: Path, **options: Any) -> Iterator[Event]:
    output.mkdir(exist_ok=True)
    config = Config.from_options({"url_list": "-", "output_folder": output, "output_format": "webdataset", **options})
    worker = ShardWorker(config.output, config.fetch)
    return worker(plan(cuts(table.to_batches(), config.output.number_sample_per_shard), table.schema))


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
        happened = work(table, tmp_path / "out", number_sample_per_shard=2)
    assert [e.successes for e in happened if isinstance(e, ShardReport)] == [2, 2]
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
        happened = work(
            pa.table({"url": urls}),
            tmp_path / "out",
            output_format="parquet",
            number_sample_per_shard=6,
            max_buffered_bytes="16MB",
            thread_count=20,
        )
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        waiting.join()
    assert [e.successes for e in happened if isinstance(e, ShardReport)] == [6] * 20
    assert peak < 100_000_000  # of 200 MB that were fetched, and the server's own
    for path in (tmp_path / "out").glob("*.parquet"):
        assert [len(data) for data in pq.read_table(path)["data"].to_pylist()] == [2_000_000] * 5 + [1]


def test_a_writer_that_holds_most_of_a_small_buffer_does_not_stop_the_run(tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    (media / "big").write_bytes(os.urandom(300_000))
    with serve(media) as server:
        report = any2ds.download(
            [f"{server.url('big')}?{number}" for number in range(8)],
            output_folder=tmp_path / "out",
            output_format="parquet",
            max_buffered_bytes="1MB",
            thread_count=1,
            watchdog_timeout=5,
            distributor="inline",
            quiet=True,
        )
    assert report.status_dict == {"success": 8}


def test_hosts_are_asked_side_by_side_where_the_list_is_sorted_by_them_and_files_pass_a_step(
    tmp_path: Path, media: Path
) -> None:
    """The rows of a host that wait for it keep no step busy: they must not keep the next host waiting."""
    with serve(media) as slow, serve(media, host="127.0.0.2") as other:
        table = pa.table({"url": [server.url(f"1.jpg?{n}") for server in (slow, other) for n in range(300)]})
        config = Config.from_options(
            {
                "url_list": "-",
                "output_folder": tmp_path,
                "number_sample_per_shard": 300,
                "decode_check": True,
                "transform_threads": 1,
                "host_delay": 0.5,
            }
        )
        waits: Counter[str] = Counter()
        with closing(ShardWorker.of(config, ())(plan(cuts(table.to_batches(), 300), table.schema))) as happened:  # type: ignore[type-var]
            for event in happened:
                if isinstance(event, Progress) and event.metrics is not None:
                    waits.update(event.metrics.waits)
                if other.requests:
                    break
        assert 0 < len(slow.requests) < 20  # it was more than 45
    assert max(waits, key=waits.__getitem__) == "hosts", waits
    assert not waits["transforms"], waits
