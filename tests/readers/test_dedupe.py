"""Rows with the same URL: how often a server is asked, and what each row gets."""

import errno
import hashlib
import json
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from any2ds.config.options import Config, OutputOptions
from any2ds.core.bodies.buffer import Body, Buffer
from any2ds.core.errors import DiskFull, OptionError, OutputError, ReadError
from any2ds.core.failures import DUPLICATE
from any2ds.core.layout import Layout
from any2ds.core.reports import Progress, ShardReport
from any2ds.core.rows import BAD_ROW_COLUMN
from any2ds.core.samples import Sample, release
from any2ds.fetch.urls import normalize
from any2ds.readers.dedupe import comparable, mark_duplicates, repeated
from any2ds.readers.plan import cuts
from any2ds.readers.seen_texts import SeenTexts
from any2ds.testing.server import serve
from any2ds.worker.context import ShardContext
from any2ds.worker.shard import OpenShard
from any2ds.worker.worker import ShardWorker
from any2ds.writers.formats.webdataset import WebdatasetWriter
from tests.support.jobs import plan

Download = Callable[..., Any]


@pytest.fixture
def media(tmp_path: Path) -> Path:
    folder = tmp_path / "media"
    folder.mkdir()
    for n in range(10):
        (folder / str(n)).write_bytes(b"\x01file %d" % n)
    return folder


def metadata(out: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(out.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def stats(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.glob("*_stats.json"))]


def stored(out: Path, output_format: str) -> dict[str, bytes]:
    """Key -> file, of all shards."""
    found: dict[str, bytes] = {}
    if output_format == "parquet":
        return {row["key"]: row["data"] for row in metadata(out) if row["data"] is not None}
    for path in sorted(out.iterdir()):
        if path.suffix == ".tar":
            with tarfile.open(path) as tar:
                found.update({m.name: tar.extractfile(m).read() for m in tar})  # type: ignore[union-attr]
        elif path.is_dir():
            found.update({file.name: file.read_bytes() for file in path.iterdir() if file.is_file()})
    return {name.partition(".")[0]: data for name, data in found.items() if name.endswith(".flat")}


# --- within a shard ---


@pytest.mark.parametrize("output_format", ["webdataset", "files", "parquet"])
def test_a_url_is_fetched_once_in_a_shard_and_stored_for_each_row(
    media: Path, tmp_path: Path, fetched: Download, output_format: str
) -> None:
    picks = [3, 1, 3, 3, 2, 1, 3, 0, 0, 3]  # shards of four rows
    with serve(media) as server:
        rows = pa.table(
            {
                "url": [server.url(str(pick)) for pick in picks],
                "caption": [f"caption {n}" for n in range(10)],
                "number": list(range(10)),
            }
        )
        report = fetched(
            rows,
            output_format=output_format,
            number_sample_per_shard=4,
            caption_col="caption",
            save_additional_columns="number",
            compute_hash="sha256",
        )
    assert server.counts == {"3": 3, "1": 2, "2": 1, "0": 2}
    assert (report.successes, report.count, report.duplicates) == (10, 10, 0)
    out = tmp_path / "out"
    keys = [f"{n // 4:05d}{n % 4}" for n in range(10)]
    contents = [(media / str(pick)).read_bytes() for pick in picks]
    assert stored(out, output_format) == dict(zip(keys, contents, strict=True))
    found = metadata(out)
    assert [row["key"] for row in found] == keys
    assert [row["caption"] for row in found] == [f"caption {n}" for n in range(10)]
    assert [row["number"] for row in found] == list(range(10))
    assert [row["sha256"] for row in found] == [hashlib.sha256(content).hexdigest() for content in contents]
    assert "duplicate_of" not in found[0]
    assert [s["bytes"] for s in stats(out)] == [sum(map(len, contents[at : at + 4])) for at in (0, 4, 8)]
    if output_format == "files":
        described = json.loads((out / "00000" / "000003.json").read_text())
        assert (described["key"], described["caption"], described["number"]) == ("000003", "caption 3", 3)


def test_an_unknown_way_is_refused(fetched: Download) -> None:
    with pytest.raises(OptionError, match="one of shard, run, none"):
        fetched(["http://a/b"], dedupe="runs")


def test_copies_wait_for_their_turn_and_a_slow_row_for_its_copies(
    media: Path, tmp_path: Path, fetched: Download
) -> None:
    """The first of each is fetched while an earlier row hangs, and copied when that is done."""
    with serve(media, {"9": ["hold"]}) as server:

        def release_when_the_others_are_there() -> None:
            for name in ("1", "2"):
                server.wait_for(name)
            server.release()

        waiting = threading.Thread(target=release_when_the_others_are_there)
        waiting.start()
        picks = [9, 1, 2, 1, 9, 2, 9]
        fetched([server.url(str(pick)) for pick in picks])
        waiting.join()
    assert server.counts == {"9": 1, "1": 1, "2": 1}
    assert list(stored(tmp_path / "out", "parquet").values()) == [(media / str(p)).read_bytes() for p in picks]


@pytest.mark.slow
@pytest.mark.parametrize("output_format", ["webdataset", "files", "parquet"])
def test_many_copies_of_a_big_file_take_the_memory_of_few(tmp_path: Path, output_format: str) -> None:
    (tmp_path / "media").mkdir()
    (tmp_path / "media" / "big").write_bytes(b"\1" * 1_000_000)
    with serve(tmp_path / "media") as server:
        table = pa.table({"url": [server.url("big")] * 300})
        tracemalloc.start()
        events = worked(table, tmp_path / "out", output_format=output_format, max_buffered_bytes="4MB")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert server.counts["big"] == 1
    assert [e.successes for e in events if isinstance(e, ShardReport)] == [300]
    assert sum(e.bytes for e in events if isinstance(e, Progress)) == 300_000_000
    assert peak < 30_000_000
    assert {len(data) for data in stored(tmp_path / "out", output_format).values()} == {1_000_000}


def worked(table: pa.Table, output: Path, **options: Any) -> list[Any]:
    output.mkdir(exist_ok=True)
    config = Config.from_options({"url_list": "-", "output_folder": output, **options})
    jobs = plan(cuts(table.to_batches(), config.output.number_sample_per_shard), table.schema)
    return list(ShardWorker(config.output, config.fetch)(jobs))


class FailingWriter(WebdatasetWriter):
    """A disk that is full after so many samples."""

    room = 0

    def write(self, sample: Sample) -> None:
        if not self.room:
            raise OSError("no space left")
        self.room -= 1
        super().write(sample)


@pytest.mark.parametrize("limit", [1 << 10, 1 << 30])
@pytest.mark.parametrize(
    ("room", "parts"), [*((room, 1) for room in range(7)), *((room, 3) for room in (0, 1, 2, 4, 8, 11, 17, 18))]
)
def test_a_shard_that_is_given_up_gives_everything_back(tmp_path: Path, room: int, parts: int, limit: int) -> None:
    """Whatever was written when it broke: bodies that wait, that are shared, and that are being written."""
    buffer = Buffer(limit, 1)
    shard, samples = shard_of(["a", "b", "a", "c", "b", "a"], tmp_path, buffer, room)
    assert [sample.row.position for sample in samples] == [0, 1, 3]
    failed = 0
    for sample in [samples[2], samples[0], samples[1]]:
        further = [replace(sample, body=buffer.hold(bytes(2000))) for _ in range(1, parts)]
        of_row = [one.as_part(part, parts) for part, one in enumerate([sample, *further])] if parts > 1 else [sample]
        if failed:
            release(of_row)
            continue
        try:
            shard.add(of_row)
        except OSError:
            failed += 1
            shard.discard()
    assert failed == (room < 6 * parts)
    assert shard.complete == (room >= 6 * parts)
    if shard.complete:  # as if publishing it failed
        shard.discard()
    assert buffer.used == 0
    assert not any(segment.live for segment in buffer.spool._segments)
    buffer.close()


def test_much_that_was_waiting_is_written_in_several_turns(tmp_path: Path) -> None:
    buffer = Buffer(1 << 20, 1)
    shard, samples = shard_of(["a"] * 200 + ["b"], tmp_path, buffer, room=1000, size=1_000_000)
    assert shard.add([samples[0]]) is False
    assert shard.add([samples[1]]) is True  # it waits
    turns = 0
    while not shard.write_pending():
        turns += 1
        assert not shard.complete
    assert shard.complete
    assert 1 <= turns <= 4
    shard.discard()
    assert buffer.used == 0
    buffer.close()


def shard_of(
    urls: list[str], folder: Path, buffer: Buffer, room: int, size: int = 2000
) -> tuple[OpenShard, list[Sample]]:
    """A shard, and the samples of the rows that it wants to be fetched, each of `size` bytes."""
    table = pa.table({"url": urls})
    (job,) = plan(cuts(table.to_batches(), len(urls)), table.schema)
    writer = type("Writer", (FailingWriter,), {"room": room})
    options = OutputOptions(number_sample_per_shard=len(urls), oom_shard_count=5, compute_md5=False, compute_hash=None)
    shard = OpenShard(job, ShardContext(options, writer, folder), buffer, fetch_once=True)
    samples = []
    for row in shard.rows():
        body = Body(buffer)
        body.write(b"x" * size)
        samples.append(Sample(row, body, "bin", {"status": "success"}))
    return shard, samples


def test_a_shared_body_is_accounted_for_once_until_its_last_owner_is_done() -> None:
    buffer = Buffer(1 << 20, 1)
    body = Body(buffer)
    body.write(b"x" * 1000)
    body.share(2)
    for _ in range(2):
        body.release()
        assert buffer.used == 1000
        assert body.read() == b"x" * 1000
    body.release()
    assert buffer.used == 0
    with pytest.raises(ValueError, match="released"):
        body.read()


# --- what is the same ---

CHARACTERS = "ab#/ \té\u00a0\x1f\n"


@given(st.lists(st.none() | st.text(CHARACTERS, max_size=4), max_size=30), st.integers(1, 10))
@example([None, None, "", " ", "#a", "#b"], 1)
def test_what_is_found_is_what_a_dict_finds(urls: list[str | None], size: int) -> None:
    firsts: dict[str, int] = {}
    expected = {}
    for n, url in enumerate(urls):
        sent = (url or "").strip(" \t\n\r\v\f").partition("#")[0]
        if sent and firsts.setdefault(sent, n) != n:
            expected[n] = firsts[sent]
    assert repeated(pa.chunked_array([pa.array(urls, pa.string())])) == expected
    texts = comparable(pa.array(urls, pa.string()))
    assert found_by_looking_up(texts.slice(start, size) for start in range(0, len(urls), size)) == expected


def found_by_looking_up(parts: Iterable[pa.Array]) -> dict[int, int]:
    row = 0
    with closing(SeenTexts()) as seen:
        for part in parts:
            seen.add(part, row)
            row += len(part)
        return dict(seen.duplicates())


expectations = st.sampled_from([None, "", " ", "aa", " AA", "b"])


@given(
    st.lists(st.tuples(st.none() | st.text(CHARACTERS, max_size=3), expectations), max_size=30),
    st.integers(1, 10),
)
@example([("a", "b"), ("a#b", None), ("ab", ""), ("a", "B")], 2)
@example([(None, "b"), ("", "b"), (" #x", "b")], 2)
def test_rows_that_expect_other_files_are_not_the_same(rows: list[tuple[str | None, str | None]], size: int) -> None:
    firsts: dict[tuple[str, str], int] = {}
    expected = {}
    for n, (url, digest) in enumerate(rows):
        sent = (url or "").strip(" \t\n\r\v\f").partition("#")[0]
        same = sent, (digest or "").strip().lower()
        if sent and firsts.setdefault(same, n) != n:
            expected[n] = firsts[same]
    urls = pa.array([url for url, _ in rows], pa.string())
    hashes = pa.array([digest for _, digest in rows], pa.string())
    assert repeated(pa.chunked_array([urls]), pa.chunked_array([hashes])) == expected
    texts = comparable(urls, hashes)
    assert found_by_looking_up(texts.slice(start, size) for start in range(0, len(rows), size)) == expected


@given(st.text("ab/ \u00a0\x1f\x85é%", max_size=6), st.text(" \t\r\n", max_size=2), st.text("ab#é ", max_size=3))
def test_urls_that_count_as_the_same_are_sent_alike(path: str, blanks: str, fragment: str) -> None:
    url = f"http://host/a{path}b"
    urls = [url, f"{blanks}{url}#{fragment}", f"{url}#"]
    assert repeated(pa.array(urls)) == {1: 0, 2: 0}
    sent = [normalize(url) for url in urls]
    assert all(isinstance(url, str) for url in sent) or len({type(url) for url in sent}) == 1
    assert len({str(url).partition("#")[0] for url in sent if isinstance(url, str)}) <= 1


def test_many_urls_are_told_apart() -> None:
    count, part = 400_000, 70_000  # more than are sorted at once
    urls = [f"http://host/{n}" for n in range(count)]
    again = list(range(0, count, 1001))
    parts = [urls[start : start + part] for start in range(0, count, part)]
    last = [urls[n] for n in again] + ["http://other"] + [urls[n] for n in again]
    rows = [*range(count, count + len(again)), *range(count + len(again) + 1, count + 2 * len(again) + 1)]
    assert found_by_looking_up(map(pa.array, [*parts, last])) == dict(zip(rows, 2 * again, strict=True))


def marked(batches: Iterable[pa.RecordBatch], rows_per_shard: int = 3) -> list[pa.RecordBatch]:
    return list(mark_duplicates(batches, pa.schema([("url", pa.string())]), Layout(rows_per_shard, 5))[0])


@given(st.lists(st.lists(st.none() | st.sampled_from("abcdef"), max_size=6), max_size=8))
def test_rows_are_marked_with_the_key_of_the_first_row_with_their_url(parts: list[list[str | None]]) -> None:
    batches = [pa.record_batch({"url": pa.array(part, pa.string())}) for part in parts]
    firsts: dict[str, str] = {}
    expected, row = [], 0
    for part in parts:
        row += 0 if part else -row % 3  # the end of a file ends a shard
        keys = []
        for url in part:
            key = f"{row // 3:05d}{row % 3}"
            keys.append(None if url is None or firsts.setdefault(url, key) == key else firsts[url])
            row += 1
        expected.append(keys)
    found = marked(batches)
    assert [batch.column("url") for batch in found] == [batch.column("url") for batch in batches]
    assert [batch.column("duplicate_of").to_pylist() for batch in found] == expected


def test_rows_that_cannot_be_read_come_with_their_reasons_and_a_broken_list_breaks_off_after_its_rows() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"url": ["a", "b"]})
        yield pa.record_batch({"url": pa.array([None, "a"]), BAD_ROW_COLUMN: pa.array(["row 3: no", None])})
        raise ReadError("row 4", "the disk is gone")

    found = []
    rows, _ = mark_duplicates(batches(), pa.schema([("url", pa.string())]), Layout(3, 5))
    with pytest.raises(ReadError, match="the disk is gone"):
        found.extend(rows)
    assert [batch.to_pydict() for batch in found] == [
        {"url": ["a", "b"], "duplicate_of": [None, None]},
        {"url": [None, "a"], BAD_ROW_COLUMN: ["row 3: no", None], "duplicate_of": [None, "000000"]},
    ]


def test_a_full_temporary_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("any2ds.readers.dedupe.SeenTexts._write", write)
    with pytest.raises(DiskFull, match="TMPDIR"):
        marked([pa.record_batch({"url": ["a"]})])


# --- within a run ---


@pytest.mark.parametrize(
    ("output_format", "distributor"),
    [*((made, "inline") for made in ("webdataset", "files", "parquet", "dummy")), ("webdataset", "multiprocessing")],
)
@pytest.mark.slow
def test_shards_of_nothing_but_duplicates_are_made(
    media: Path,
    tmp_path: Path,
    fetched: Download,
    output_format: str,
    distributor: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More of them than may be open at once."""
    monkeypatch.setattr("any2ds.worker.open_shards._MOST_OPEN_SHARDS", 20)
    with serve(media) as server:
        urls = [server.url("1")] * 100
        report = fetched(
            urls,
            number_sample_per_shard=2,
            dedupe="run",
            output_format=output_format,
            distributor=distributor,
            processes_count=2,
        )
    assert server.counts["1"] == 1
    assert (report.shards, report.successes, report.duplicates) == (50, 1, 99)
    assert {row["duplicate_of"] for row in metadata(tmp_path / "out")} == {None, "000000"}


def test_progress_counts_duplicates_once(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        schema = pa.schema([("url", pa.string())])
        table = pa.table({"url": [server.url(str(n % 2)) for n in range(9)]}, schema)
        config = Config.from_options(
            {"url_list": "-", "output_folder": tmp_path, "number_sample_per_shard": 3, "dedupe": "run"}
        )
        rows, schema = mark_duplicates(table.to_batches(), schema, Layout(3, 5))
        events = list(ShardWorker(config.output, config.fetch)(plan(cuts(rows, 3), schema)))
    progress = [event for event in events if isinstance(event, Progress)]
    assert sum(event.outcomes.get(DUPLICATE, 0) for event in progress) == 7
    assert sum(event.outcomes.get("success", 0) for event in progress) == 2
    assert sum(event.duplicates for event in events if isinstance(event, ShardReport)) == 7


def test_rows_without_a_url_and_duplicates_of_what_failed(media: Path, tmp_path: Path, fetched: Download) -> None:
    with serve(media) as server:
        gone = server.url("gone")
        report = fetched(pa.table({"url": [gone, None, "", gone, None]}))
        assert report.status_dict == {"http_404": 2, "bad_url": 3}
        report = fetched(pa.table({"url": [gone, None, "", gone, None]}), dedupe="run", output_folder=tmp_path / "run")
    assert report.status_dict == {"http_404": 1, "bad_url": 3, "duplicate": 1}
    assert report.failed_to_download == 4
    assert metadata(tmp_path / "run")[3]["duplicate_of"] == "000000000"


def test_a_list_that_grew_points_at_its_finished_shards(media: Path, tmp_path: Path, fetched: Download) -> None:
    with serve(media) as server:
        urls = [server.url(str(n)) for n in (0, 1, 2, 3)]
        fetched(urls, number_sample_per_shard=2, dedupe="run")
        fetched([*urls, urls[3], urls[0]], number_sample_per_shard=2, dedupe="run")
    assert [row["duplicate_of"] for row in metadata(tmp_path / "out")] == [None] * 4 + ["000011", "000000"]


@pytest.mark.parametrize("before", ["shard", "run", "none"])
@pytest.mark.parametrize("now", ["shard", "run", "none"])
def test_datasets_with_and_without_duplicates_are_not_mixed(
    media: Path, tmp_path: Path, fetched: Download, before: str, now: str
) -> None:
    with serve(media) as server:
        urls = [server.url(str(n % 2)) for n in range(4)]
        fetched(urls, dedupe=before, number_sample_per_shard=2)
        (tmp_path / "out" / "00001_stats.json").unlink()
        if "run" in (before, now) and before != now:
            with pytest.raises(OutputError, match=f"dedupe was '{before}', now '{now}'"):
                fetched(urls, dedupe=now, number_sample_per_shard=2)
        else:
            assert fetched(urls, dedupe=now, number_sample_per_shard=2).shards == 1
