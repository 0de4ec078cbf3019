"""The worker from outside: jobs in, events and files out, against a server that behaves as it is told."""

import datetime
import hashlib
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
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.readers.plan import cuts
from any2ds.testing.server import serve
from any2ds.worker.worker import ShardWorker
from tests.support.folder import names_in
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


def test_a_shard_is_data_metadata_and_stats_in_the_order_of_the_list(tmp_path: Path, media: Path) -> None:
    with serve(media) as server:
        table = pa.table({"url": [server.url(f"{n}.jpg") for n in range(10)]})
        happened = work(table, tmp_path / "out", number_sample_per_shard=5)
    assert sorted(e.shard_id for e in happened if isinstance(e, ShardReport)) == [0, 1]
    out = tmp_path / "out"
    ends = [".parquet", ".tar", ".tar.idx", "_stats.json"]
    assert sorted(os.listdir(out)) == [f"{shard}{end}" for shard in ("00000", "00001") for end in ends]
    found = members(out / "00001.tar")
    assert list(found) == [
        f"{key}.{ext}" for key in ("000010", "000011", "000012", "000013", "000014") for ext in ("jpg", "json")
    ]
    assert found["000012.jpg"] == (media / "7.jpg").read_bytes()
    stats = json.loads((out / "00001_stats.json").read_text())
    assert {name: stats[name] for name in ("count", "successes", "failed_to_download", "failed_to_subsample")} == {
        "count": 5,
        "successes": 5,
        "failed_to_download": 0,
        "failed_to_subsample": 0,
    }
    assert stats["bytes"] == sum((media / f"{n}.jpg").stat().st_size for n in range(5, 10))
    assert stats["status_dict"] == {"success": 5}
    assert stats["duration"] == pytest.approx(stats["end_time"] - stats["start_time"])


def test_metadata_says_of_every_row_what_became_of_it(tmp_path: Path, media: Path) -> None:
    day = datetime.datetime(2024, 2, 29, 12, 30)
    with serve(media, {"r": ["redirect:1.jpg"], "x": ["500"]}) as server:
        end = server.url("1.jpg")
        table = pa.table(
            {
                "url": [server.url("0.jpg"), server.url("r"), server.url("x"), "no url", None],
                "caption": ["zéro", "one", "two", None, "four"],
                "tags": [["a", "b"], [], None, ["c"], ["d"]],
                "seen": pa.array([day] * 5, pa.timestamp("ms")),
                "score": pa.array([0.5, None, 2.5, 3.5, 4.5], pa.float32()),
            }
        )
        work(table, tmp_path / "out", compute_hash="sha256")
    found = pq.read_table(tmp_path / "out" / "00000.parquet")
    for name in table.schema.names:
        assert found[name].combine_chunks().equals(table[name].combine_chunks())
    assert found["key"].to_pylist() == [f"00000000{n}" for n in range(5)]
    assert found["status"].to_pylist() == ["success", "success", *["failed_to_download"] * 3]
    assert found["error_code"].to_pylist() == [None, None, "http_500", "bad_url", "bad_url"]
    assert found["http_status"].to_pylist() == [200, 200, 500, None, None]
    assert found["mime_type"].to_pylist() == ["image/jpeg", "image/jpeg", None, None, None]
    assert found["final_url"].to_pylist() == [None, end, None, None, None]
    first = (media / "0.jpg").read_bytes()
    assert found["md5"][0].as_py() == hashlib.md5(first).hexdigest()
    assert found["sha256"][0].as_py() == hashlib.sha256(first).hexdigest()
    assert found["bytes"][0].as_py() == len(first)
    assert found["md5"].to_pylist()[2:] == [None] * 3
    in_tar = members(tmp_path / "out" / "00000.tar")
    assert sorted(in_tar) == [f"00000000{n}.{ext}" for n in (0, 1) for ext in ("jpg", "json", "txt")]
    assert in_tar["000000000.txt"] == "zéro".encode()
    described = json.loads(in_tar["000000000.json"])
    row = found.to_pylist()[0]
    assert described.pop("seen").startswith("2024-02-29T12:30")
    assert {name: row[name] for name in described} == described
    assert set(row) - set(described) == {"seen"}


def test_a_slow_row_keeps_its_place_and_holds_up_no_other_shard(tmp_path: Path, media: Path) -> None:
    with serve(media, {"0.jpg": ["hold"]}) as server:
        table = pa.table({"url": [server.url(f"{n}.jpg") for n in range(10)]})
        finished = []
        for event in events(table, tmp_path / "out", number_sample_per_shard=2):
            if isinstance(event, ShardReport):
                finished.append(event.shard_id)
                if len(finished) == 4:
                    server.release()
    assert (sorted(finished[:4]), finished[4:]) == ([1, 2, 3, 4], [0])  # those four in whatever order answers came
    assert list(members(tmp_path / "out" / "00000.tar")) == ["000000.jpg", "000000.json", "000001.jpg", "000001.json"]


def test_what_waits_for_a_slow_row_waits_on_disk_when_memory_is_short(tmp_path: Path) -> None:
    media = tmp_path / "media"
    media.mkdir()
    contents = [bytes([n]) * 300_000 for n in range(20)]
    for n, content in enumerate(contents):
        (media / str(n)).write_bytes(content)
    with serve(media, {"0": ["hold"]}) as server:

        def release_when_all_else_is_fetched() -> None:
            for n in range(1, 20):
                server.wait_for(str(n))
            server.release()

        waiting = threading.Thread(target=release_when_all_else_is_fetched)
        waiting.start()
        table = pa.table({"url": [server.url(str(n)) for n in range(20)]})
        happened = work(table, tmp_path / "out", max_buffered_bytes="1MB", thread_count=4)
        waiting.join()
    assert [e.successes for e in happened if isinstance(e, ShardReport)] == [20]
    found = members(tmp_path / "out" / "00000.tar")
    assert [found[name] for name in sorted(found) if not name.endswith("json")] == contents


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


def test_a_shard_that_cannot_be_published_is_an_error_and_the_others_are_made(tmp_path: Path, media: Path) -> None:
    out = tmp_path / "out"
    (out / "00001.tar").mkdir(parents=True)
    with serve(media) as server:
        table = pa.table({"url": [server.url(f"{n}.jpg") for n in range(10)]})
        happened = work(table, out, number_sample_per_shard=2)
    assert [e.shard_id for e in happened if isinstance(e, ShardError)] == [1]
    assert sorted(e.shard_id for e in happened if isinstance(e, ShardReport)) == [0, 2, 3, 4]
    assert not (out / "00001_stats.json").exists()
    assert not (out / ".any2ds/tmp").exists()


def test_progress_counts_every_row_once(tmp_path: Path, media: Path) -> None:
    with serve(media) as server:
        table = pa.table({"url": [server.url("0.jpg")] * 7 + [server.url("missing")] * 3})
        progress = [event for event in work(table, tmp_path / "out") if isinstance(event, Progress)]
    assert sum(p.outcomes.get("success", 0) for p in progress) == 7
    assert sum(p.outcomes.get("http_404", 0) for p in progress) == 3
    assert sum(p.bytes for p in progress) == 7 * (media / "0.jpg").stat().st_size


def test_a_shard_without_any_success_is_there_all_the_same(tmp_path: Path) -> None:
    for output_format, data in (("webdataset", "00000.tar"), ("files", "00000"), ("parquet", "00000.parquet")):
        out = tmp_path / output_format
        happened = work(pa.table({"url": ["x", "y"]}), out, output_format=output_format)
        assert [(e.count, e.successes) for e in happened if isinstance(e, ShardReport)] == [(2, 0)]
        assert (out / data).exists()
        assert pq.read_table(out / "00000.parquet")["error_code"].to_pylist() == ["bad_url", "bad_url"]
    assert members(tmp_path / "webdataset" / "00000.tar") == {}
    assert os.listdir(tmp_path / "files" / "00000") == []


def test_the_same_rows_give_the_same_bytes(tmp_path: Path, media: Path) -> None:
    with serve(media) as server:
        table = pa.table({"url": [server.url(f"{n}.jpg") for n in range(10)]})
        for folder in ("one", "two"):
            work(table, tmp_path / folder)
    for name in ("00000.tar", "00000.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_abandoning_a_run_in_the_middle_leaves_no_half_shard(tmp_path: Path, media: Path) -> None:
    with serve(media, {"5.jpg": ["hold"]}) as server:
        table = pa.table({"url": [server.url(f"{n}.jpg") for n in range(10)]})
        running = events(table, tmp_path / "out", number_sample_per_shard=4)
        first = next(event for event in running if isinstance(event, ShardReport))
        running.close()  # type: ignore[attr-defined]
    finished = sorted(names_in(tmp_path / "out"))
    assert first.shard_id in (0, 2)
    assert "00001.tar" not in finished
    assert ".any2ds/tmp" not in finished
    for name in finished:
        if name.endswith("_stats.json"):
            assert members(tmp_path / "out" / name.replace("_stats.json", ".tar"))


def test_file_types_are_told_by_their_bytes_then_by_the_server(tmp_path: Path, media: Path) -> None:
    (media / "page.html").write_text("<p>hello</p>")
    (media / "notes.txt").write_text("hello")
    (media / "data.json").write_text("{}")
    (media / "mystery").write_bytes(b"\x01\x02\x03\x04")
    script = {"0.jpg": ["wrong-type:text/html"], "1.jpg": ["no-type"]}
    with serve(media, script) as server:
        names = ["0.jpg", "1.jpg", "page.html", "notes.txt", "data.json", "mystery"]
        table = pa.table({"url": [server.url(name) for name in names], "caption": names})
        work(table, tmp_path / "auto")
        work(table, tmp_path / "flat", file_ext="flat")
    told = pq.read_table(tmp_path / "auto" / "00000.parquet").to_pylist()
    assert [row["ext"] for row in told] == ["jpg", "jpg", "html", "data.txt", "data.json", "flat"]
    assert [row["mime_type"] for row in told][:4] == ["image/jpeg", "image/jpeg", "text/html", "text/plain"]
    in_tar = members(tmp_path / "auto" / "00000.tar")
    assert in_tar["000000003.data.txt"] == b"hello"
    assert in_tar["000000003.txt"] == b"notes.txt"
    assert in_tar["000000004.data.json"] == b"{}"
    assert json.loads(in_tar["000000004.json"])["key"] == "000000004"
    flat = members(tmp_path / "flat" / "00000.tar")
    assert [name for name in flat if name.endswith("flat")] == [f"00000000{n}.flat" for n in range(6)]


def test_jobs_may_come_one_at_a_time(tmp_path: Path, media: Path) -> None:
    with serve(media) as server:
        table = pa.table({"url": [server.url(f"{n}.jpg") for n in range(3)]})
        reported = threading.Semaphore(1)

        def jobs() -> Iterator[ShardJob]:
            for job in plan(cuts(table.to_batches(), 1), table.schema):
                assert reported.acquire(timeout=100)  # not before the shard before it is done
                yield job

        (tmp_path / "out").mkdir()
        config = Config.from_options({"url_list": "-", "output_folder": tmp_path / "out", "number_sample_per_shard": 1})
        done = 0
        for event in ShardWorker(config.output, config.fetch)(jobs()):
            if isinstance(event, ShardReport):
                done += 1
                reported.release()
    assert done == 3


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
