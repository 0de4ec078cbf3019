"""Shards that are made again from their former version, at the level of the worker: jobs in, events and files out."""

import json
import tarfile
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds.config.options import Config
from any2ds.core.layout import Layout
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.readers.dedupe import mark_duplicates
from any2ds.readers.plan import cuts, plan
from any2ds.testing.pixel import png
from any2ds.testing.server import Server, serve
from any2ds.worker.worker import ShardWorker
from tests.support.folder import names_in
from tests.support.records import examples
from tests.support.stuck import StuckFetchers

ROWS = 10


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for n in range(ROWS):
        (folder / f"{n}.png").write_bytes(content(n))
    return folder


@pytest.fixture
def server(media: Path) -> Iterator[Server]:
    with serve(media, {"1.png": ["503", "ok"], "2.png": ["404", "ok"]}) as running:
        yield running


def content(n: int) -> bytes:
    return png(bytes([n]) * (100 + n))


def rows_of(server: Server, count: int = ROWS) -> pa.Table:
    return pa.table(
        {
            "url": [server.url(f"{n}.png") for n in range(count)],
            "caption": [f"number {n}" for n in range(count)],
            "seen": pa.array(range(count), pa.timestamp("s")),
        }
    )


def work(table: pa.Table, out: Path, redo: tuple[str, ...] | None = None, **options: Any) -> list[Event]:
    """One shard of the whole table; `stuck` and `hopeless` among the options are for the fetcher and the job."""
    stuck, record_as_failed = options.pop("stuck", None), options.pop("record_as_failed", False)
    out.mkdir(exist_ok=True)
    config = Config.from_options({"url_list": "-", "output_folder": out, "output_format": "webdataset", **options})
    worker = ShardWorker(config.output, config.fetch, *([stuck] if stuck else []))
    jobs = [
        replace(job, redo=redo, record_as_failed=record_as_failed)
        for job in plan(cuts(table.to_batches(), 10000), table.schema)
    ]
    return list(worker(iter(jobs)))


def report(events: list[Event]) -> ShardReport:
    (found,) = [event for event in events if isinstance(event, ShardReport)]
    return found


def error(events: list[Event]) -> str:
    (found,) = [event for event in events if isinstance(event, ShardError)]
    return found.reason


def members(tar: Path) -> dict[str, bytes]:
    with tarfile.open(tar) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def files_of(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def stats_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "00000_stats.json").read_text())
    return found


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "files", "tfrecord", "arrayrecord", "dummy"])
def test_a_shard_that_has_grown_keeps_what_it_has_and_gets_the_rest(
    output_format: str, server: Server, tmp_path: Path
) -> None:
    out, rows = tmp_path / "out", rows_of(server)
    work(rows.slice(0, 6), out, output_format=output_format)
    asked = len(server.requests)
    before = members(out / "00000.tar") if output_format == "webdataset" else {}
    happened = work(rows, out, (), output_format=output_format)
    assert (report(happened).count, report(happened).successes) == (4, 4)
    assert [request.path for request in server.requests[asked:]] == [f"{n}.png" for n in range(6, 10)]
    assert sum(p.outcomes.get("success", 0) for p in happened if isinstance(p, Progress)) == 4
    table = pq.read_table(out / "00000.parquet")
    assert table["key"].to_pylist() == [f"00000000{n}" for n in range(ROWS)]
    assert table["error_code"].to_pylist() == [None, "http_503", "http_404", *[None] * 7]
    assert table["seen"].equals(rows["seen"].cast(pa.timestamp("ms")))
    stats = stats_of(out)
    assert (stats["count"], stats["successes"], stats["failed_to_download"]) == (10, 8, 2)
    assert stats["status_dict"] == {"success": 8, "http_503": 1, "http_404": 1}
    good = [n for n in range(ROWS) if n not in (1, 2)]
    assert stats["bytes"] == sum(len(content(n)) for n in good)
    if output_format == "webdataset":
        after = members(out / "00000.tar")
        names = [f"00000000{n}.{ext}" for n in good for ext in ("png", "txt", "json")]
        assert (list(after), {name: after[name] for name in before}) == (names, before)
    elif output_format == "parquet":
        assert table["data"].to_pylist() == [content(n) if n in good else None for n in range(ROWS)]
    elif output_format in ("tfrecord", "arrayrecord"):
        found = examples(out / f"00000.{output_format}")
        assert [example["data"] for example in found] == [[content(n)] for n in good]
        assert [example["key"] for example in found] == [[b"00000000%d" % n] for n in good]
    elif output_format == "files":
        assert [path.read_bytes() for path in sorted((out / "00000").glob("*.png"))] == [content(n) for n in good]
    assert all(name[:1].isdigit() for name in names_in(out))


def test_what_it_was_made_of_at_once_is_what_it_is_after_growing(server: Server, media: Path, tmp_path: Path) -> None:
    with serve(media) as healthy:
        rows = rows_of(healthy)
        for output_format, names in (
            ("webdataset", ["00000.tar", "00000.parquet"]),
            ("parquet", ["00000.parquet"]),
            ("tfrecord", ["00000.tfrecord", "00000.parquet"]),
            ("arrayrecord", ["00000.arrayrecord"]),
        ):
            at_once, grown = tmp_path / f"{output_format}-once", tmp_path / f"{output_format}-grown"
            work(rows, at_once, output_format=output_format)
            work(rows.slice(0, 3), grown, output_format=output_format)
            work(rows, grown, (), output_format=output_format)
            for name in names:
                assert (grown / name).read_bytes() == (at_once / name).read_bytes()


def test_failures_with_the_codes_are_fetched_again_along_with_new_rows(server: Server, tmp_path: Path) -> None:
    out, rows = tmp_path / "out", rows_of(server)
    work(rows.slice(0, 9), out)
    happened = work(rows, out, ("http_4xx",))
    assert report(happened).status_dict == {"success": 2}
    table = pq.read_table(out / "00000.parquet")
    assert table["error_code"].to_pylist() == [None, "http_503", *[None] * 8]
    assert table["attempts"].to_pylist() == [1, 1, 2, *[1] * 7]


def test_nothing_is_written_if_there_is_nothing_to_do(server: Server, tmp_path: Path) -> None:
    out, rows = tmp_path / "out", rows_of(server)
    work(rows, out)
    before, asked = files_of(out), len(server.requests)
    happened = work(rows, out, ("tls", "dns"))
    assert (report(happened).count, len(server.requests) - asked) == (0, 0)
    assert files_of(out) == before


def test_new_rows_that_are_duplicates_need_no_fetching(server: Server, tmp_path: Path) -> None:
    out, layout = tmp_path / "out", Layout(10000, 5)
    rows = pa.table({"url": [server.url(f"{n}.png") for n in (0, 3, 0, 3)]})
    batches, schema = mark_duplicates(rows.to_batches(), rows.schema, layout)
    marked = pa.Table.from_batches(batches, schema)
    work(marked.slice(0, 2), out, dedupe="run")
    asked = len(server.requests)
    happened = work(marked, out, (), dedupe="run")
    assert (report(happened).duplicates, len(server.requests) - asked) == (2, 0)
    table = pq.read_table(out / "00000.parquet")
    assert table["status"].to_pylist() == ["success", "success", "duplicate", "duplicate"]
    assert (stats_of(out)["count"], stats_of(out)["duplicates"]) == (4, 2)


def test_what_the_stats_say_besides_is_kept_and_times_add_up(server: Server, tmp_path: Path) -> None:
    out, rows = tmp_path / "out", rows_of(server)
    work(rows.slice(0, 9), out)
    before = {**stats_of(out), "weather": "fine", "duration": 1000.0, "robots_files": 3}
    (out / "00000_stats.json").write_text(json.dumps(before))
    work(rows.slice(0, 9), out, ("transient",))
    stats = stats_of(out)
    assert (stats["weather"], stats["urls_sha256"], stats["robots_files"]) == ("fine", before["urls_sha256"], 3)
    assert stats["start_time"] == before["start_time"]
    assert stats["end_time"] > before["end_time"]
    assert 1000 < stats["duration"] < 1060
    work(rows, out, ())
    assert len({before["urls_sha256"], "", stats_of(out)["urls_sha256"]}) == 3  # they are others now


def test_rows_of_another_list_are_refused_and_nothing_is_touched(server: Server, tmp_path: Path) -> None:
    out, rows = tmp_path / "out", rows_of(server)
    work(rows, out)
    before = files_of(out)
    other = rows.set_column(0, "url", pa.array([server.url(f"{(n + 1) % ROWS}.png") for n in range(ROWS)]))
    assert "row 0 is one of another list" in error(work(other, out, ("all",)))
    assert "is not of this shard" in error(work(rows.slice(0, 5), out, ("all",)))
    assert files_of(out) == before


def test_credentials_in_the_urls_of_a_list_make_no_difference(server: Server, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = pa.table({"url": [server.url(f"{n}.png").replace("//", "//me:secret@") for n in range(3)]})
    work(rows, out)
    happened = work(rows, out, ("all",))
    assert report(happened).successes == 2
    assert "secret" not in (out / "00000.parquet").read_bytes().decode("latin-1")
    asked = [request for request in server.requests if request.path == "1.png"]
    assert len({request.headers["Authorization"] for request in asked}) == 1


@pytest.mark.parametrize("kind", ["hopeless", "stuck"])
def test_giving_rows_up_overwrites_no_outcome_that_is_kept(kind: str, server: Server, tmp_path: Path) -> None:
    out, rows = tmp_path / "out", rows_of(server)
    work(rows.slice(0, 8), out)
    before = members(out / "00000.tar")
    stuck = {"stuck": StuckFetchers(loses="9.png")}
    how: dict[str, Any] = {"hopeless": {"record_as_failed": True}, "stuck": stuck}[kind]
    happened = work(rows, out, ("http_503",), watchdog_timeout=1, **how)
    given_up = {"hopeless": [1, 8, 9], "stuck": [9]}[kind]
    assert report(happened).count == 3
    codes = pq.read_table(out / "00000.parquet")["error_code"].to_pylist()
    assert [n for n, code in enumerate(codes) if code == "watchdog"] == given_up
    assert codes[2] == "http_404"
    after = members(out / "00000.tar")
    assert {name: after[name] for name in before} == before


def test_a_worker_that_is_stopped_leaves_the_former_version(server: Server, media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serve(media, {"9.png": ["503", "hold"]}) as slow:
        rows = rows_of(slow)
        work(rows, out)
        before = files_of(out)
        config = Config.from_options({"url_list": "-", "output_folder": out, "output_format": "webdataset"})
        jobs: list[ShardJob] = [replace(j, redo=("all",)) for j in plan(cuts(rows.to_batches(), 10000), rows.schema)]
        running = ShardWorker(config.output, config.fetch)(iter(jobs))
        next(running)
        slow.wait_for("9.png", 2)
        running.close()  # type: ignore[attr-defined]
    assert files_of(out) == before
    assert sorted(path.name for path in out.iterdir()) == [
        "00000.parquet",
        "00000.tar",
        "00000.tar.idx",
        "00000_stats.json",
    ]


@pytest.mark.parametrize(
    ("output_format", "limit"), [("webdataset", 30_000_000), ("parquet", 140_000_000), ("tfrecord", 30_000_000)]
)
def test_a_big_shard_is_made_again_in_bounded_memory(output_format: str, limit: int, tmp_path: Path) -> None:
    media, out = tmp_path / "media", tmp_path / "out"
    media.mkdir()
    for n in range(4):
        (media / str(n)).write_bytes(bytes([n]) * 3_000_000)
    with serve(media, {"0": ["503", "ok"], "1": ["503", "ok"]}) as server:
        rows = pa.table({"url": [server.url(str(min(n, 2 + n % 2))) for n in range(50)]})
        work(rows, out, output_format=output_format, max_buffered_bytes="16MB")
        tracemalloc.start()
        happened = work(rows, out, ("all",), output_format=output_format, max_buffered_bytes="16MB")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert report(happened).successes == 2
    assert stats_of(out)["bytes"] == 150_000_000
    assert peak < limit  # parquet holds a row group of 64 MB, and its copy


def test_samples_that_come_out_of_order_wait_in_one_file(server: Server, tmp_path: Path) -> None:
    out, rows = tmp_path / "out", rows_of(server)
    work(rows, out)
    content_of = members(out / "00000.tar")
    with tarfile.open(out / "00000.tar", "w") as tar:
        for name in sorted(content_of, key=lambda name: (-int(name[:9]), name)):
            (tmp_path / name).write_bytes(content_of[name])
            tar.add(tmp_path / name, name)
    work(rows, out, ("http_503",))
    after = members(out / "00000.tar")
    assert list(dict.fromkeys(name[:9] for name in after)) == [f"00000000{n}" for n in range(ROWS) if n != 2]
    assert {name: after[name] for name in content_of} == content_of
