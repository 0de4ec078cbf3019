"""Rows with the same URL: how often a server is asked, and what each row gets."""

import errno
import hashlib
import json
import tarfile
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from any2ds.core.errors import DiskFull, OutputError, ReadError
from any2ds.core.layout import Layout
from any2ds.core.rows import BAD_ROW_COLUMN
from any2ds.fetch.urls import normalize
from any2ds.readers.dedupe import comparable, mark_duplicates, repeated
from any2ds.readers.seen_texts import SeenTexts
from any2ds.testing.server import serve
from tests.support.folder import files_in

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
def test_many_copies_of_a_big_file_take_the_memory_of_few(
    media: Path, tmp_path: Path, fetched: Download, output_format: str
) -> None:
    (media / "big").write_bytes(b"\1" * 1_000_000)
    with serve(media) as server:
        tracemalloc.start()
        report = fetched([server.url("big")] * 300, output_format=output_format, max_buffered_bytes="4MB")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert server.counts["big"] == 1
    assert report.successes == 300
    assert peak < 30_000_000
    assert {len(data) for data in stored(tmp_path / "out", output_format).values()} == {1_000_000}


# --- what is the same ---

CHARACTERS = "ab#/ \té\u00a0\x1f\n"


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


def test_a_url_is_fetched_once_in_a_run_and_later_rows_point_at_the_first(
    media: Path, tmp_path: Path, fetched: Download
) -> None:
    picks = [0, 1, 0, 2, 1, 0, 2, 0, 3, 3, 1, 4]  # shards of three rows; the third has duplicates only at its start
    with serve(media) as server:
        urls: list[str | None] = [server.url(str(pick)) for pick in picks]
        urls[5] = f" {urls[5]}#part"
        report = fetched(urls, number_sample_per_shard=3, dedupe="run", distributor="multiprocessing")
    assert server.counts == {str(n): 1 for n in range(5)}
    assert (report.count, report.successes, report.duplicates) == (12, 5, 7)
    assert report.status_dict == {"success": 5, "duplicate": 7}
    out = tmp_path / "out"
    keys = [f"{n // 3:05d}{n % 3}" for n in range(12)]
    firsts = [picks.index(pick) for pick in picks]
    found = metadata(out)
    assert [row["key"] for row in found] == keys
    assert [row["url"] for row in found] == [url and url.strip() for url in urls]
    assert [row["duplicate_of"] for row in found] == [
        None if first == n else keys[first] for n, first in enumerate(firsts)
    ]
    assert [row["status"] for row in found] == [
        "success" if first == n else "duplicate" for n, first in enumerate(firsts)
    ]
    assert {row["error_code"] for row in found} == {None}
    assert [row["attempts"] for row in found] == [int(first == n) for n, first in enumerate(firsts)]
    assert stored(out, "parquet") == {
        keys[n]: (media / str(picks[n])).read_bytes() for n in range(12) if firsts[n] == n
    }
    for shard in stats(out):
        parts = ("successes", "failed_to_download", "failed_to_subsample", "duplicates")
        assert shard["count"] == sum(shard[part] for part in parts) == sum(shard["status_dict"].values())
    assert [shard["duplicates"] for shard in stats(out)] == [1, 2, 2, 2]


def test_rows_without_a_url_and_duplicates_of_what_failed(media: Path, tmp_path: Path, fetched: Download) -> None:
    with serve(media) as server:
        gone = server.url("gone")
        report = fetched(pa.table({"url": [gone, None, "", gone, None]}))
        assert report.status_dict == {"http_404": 2, "bad_url": 3}
        report = fetched(pa.table({"url": [gone, None, "", gone, None]}), dedupe="run", output_folder=tmp_path / "run")
    assert report.status_dict == {"http_404": 1, "bad_url": 3, "duplicate": 1}
    assert report.failed_to_download == 4
    assert metadata(tmp_path / "run")[3]["duplicate_of"] == "000000000"


def test_going_on_gives_what_a_run_without_a_break_gives(media: Path, tmp_path: Path, fetched: Download) -> None:
    options = {"number_sample_per_shard": 3, "dedupe": "run", "output_format": "webdataset"}
    with serve(media) as server:
        urls = [server.url(str(n * n % 7)) for n in range(20)]
        fetched(urls, **options)
        out = tmp_path / "out"
        before = {name: data for name, data in files_in(out).items() if "stats" not in name}
        for name in ("00000_stats.json", "00003_stats.json"):
            (out / name).unlink()
        server.counts.clear()
        report = fetched(urls, **options)
    assert (report.shards, report.skipped_shards) == (2, 5)
    assert server.counts == {str(n): 1 for n in {0, 1, 4}}  # the first three rows; in shard 3 all are duplicates
    assert {name: data for name, data in files_in(out).items() if "stats" not in name} == before


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
