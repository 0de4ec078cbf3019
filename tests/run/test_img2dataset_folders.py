"""Folders that img2dataset or any2dataset left half finished, made here as these tools write them."""

from __future__ import annotations

import io
import json
import logging
import math
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import download
from any2ds.core.errors import OutputError
from any2ds.core.reports import RunReport
from any2ds.testing.pixel import jpg
from any2ds.testing.server import serve

Go = Callable[..., RunReport]
PICTURE = jpg(b"a picture")


@dataclass(frozen=True)
class Theirs:
    """A folder in the making. What they keep of a row is in the order in which the answers came."""

    folder: Path
    rows_per_shard: int = 3
    format: str = "webdataset"
    digits: int = 5
    tool: str = "img2dataset"

    def key(self, shard: int, position: int) -> str:
        width = math.ceil(math.log10(self.rows_per_shard))
        return f"{10**width * shard + position:0{width + self.digits}d}"

    def shard(self, number: int, urls: Sequence[str | None], lost: Sequence[int] = ()) -> None:
        """`lost`: positions of rows that raised while they were written, and are in no file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{number:0{self.digits}d}"
        rows = [(self.key(number, n), url) for n, url in enumerate(urls) if n not in lost][::-1]
        table = pa.table(
            {
                "url": pa.array([url for _, url in rows], pa.string()),
                "key": [key for key, _ in rows],
                "status": ["success"] * len(rows),
                "error_message": pa.nulls(len(rows), pa.string()),
                "width": pa.array([256] * len(rows), pa.int32()),
                **({"jpg": [PICTURE] * len(rows)} if self.format == "parquet" else {}),
            }
        )
        if self.format != "dummy":
            pq.write_table(table, self.folder / f"{name}.parquet")
        if self.format == "webdataset":
            with tarfile.open(self.folder / f"{name}.tar", "w") as tar:
                for key, _ in rows:
                    member = tarfile.TarInfo(f"{key}.jpg")
                    member.size = len(PICTURE)
                    tar.addfile(member, io.BytesIO(PICTURE))
        elif self.format == "tfrecord":
            (self.folder / f"{name}.tfrecord").write_bytes(b"records")
        elif self.format == "files":
            (self.folder / name).mkdir()
            for key, _ in rows:
                (self.folder / name / f"{key}.jpg").write_bytes(PICTURE)
        failed = "failed_to_resize" if self.tool == "img2dataset" else "failed_to_subsample"
        stats = {
            "count": len(urls),
            "successes": len(rows),
            "failed_to_download": 0,
            failed: 0,
            "duration": 1.0,
            "start_time": 1.0,
            "end_time": 2.0,
            "status_dict": {"success": len(rows)},
        }
        (self.folder / f"{name}_stats.json").write_text(json.dumps(stats, indent=4))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def go(out: Path) -> Go:
    options = {"output_folder": out, "output_format": "webdataset", "number_sample_per_shard": 3}
    return lambda url_list, **given: download(url_list, **{**options, "distributor": "inline", "quiet": True, **given})


def url(n: int | str) -> str:
    return f"nope://host/{n}"


def urls(*numbers: int | str) -> list[str]:
    return [url(n) for n in numbers]


def put(path: Path, rows: Sequence[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(go: Go, out: Path, url_list: Any, **options: Any) -> str:
    before = content(out)
    with pytest.raises(OutputError) as caught:
        go(url_list, **options)
    assert content(out) == before
    return str(caught.value)


def urls_by_key(out: Path) -> list[str]:
    rows = [row for path in out.glob("*.parquet") for row in pq.read_table(path, columns=["key", "url"]).to_pylist()]
    return [row["url"] for row in sorted(rows, key=lambda row: row["key"])]


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "files"])
@pytest.mark.parametrize("tool", ["img2dataset", "any2dataset"])
def test_what_is_missing_is_made_and_their_shards_stay(
    output_format: str, tool: str, go: Go, out: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "media").mkdir()
    for n in range(8):
        (tmp_path / "media" / f"{n}.jpg").write_bytes(PICTURE)
    with serve(tmp_path / "media") as server:
        rows = [server.url(f"{n}.jpg") for n in range(8)]
        theirs = Theirs(out, format=output_format, tool=tool)
        theirs.shard(0, rows[:3])
        theirs.shard(2, rows[6:])
        (out / "_tmp").mkdir()
        (out / "_tmp" / "1.feather").write_bytes(b"rows of theirs")
        if output_format == "webdataset":
            (out / "00001.tar").write_bytes(b"half a sh")
        before = content(out)
        with caplog.at_level(logging.WARNING, "any2ds"):
            report = go(put(tmp_path / "urls.txt", rows), output_format=output_format)
        assert (report.shards, report.skipped_shards, report.successes) == (1, 2, 3)
        assert server.counts == {f"{n}.jpg": 1 for n in (3, 4, 5)}
        assert f"2 shards in {out} were made by {tool} and are kept as they are" in caplog.text
        after = content(out)
        assert {name for name in before if after[name] != before[name]} <= {"00001.tar"}
        assert urls_by_key(out) == rows
        # From now on it is a dataset of any2ds.
        assert go(tmp_path / "urls.txt", output_format=output_format).skipped_shards == 3
        put(tmp_path / "urls.txt", [*rows[:7], server.url("x.jpg")])
        assert "row 8 of the list (shard 00002)" in refused(go, out, tmp_path / "urls.txt", output_format=output_format)


def test_files_of_a_list_are_cut_each_by_itself(go: Go, out: Path, tmp_path: Path) -> None:
    """As img2dataset does it."""
    a, b = urls(*range(4)), urls(*range(10, 15))
    put(tmp_path / "lists" / "a.txt", a)
    put(tmp_path / "lists" / "b.txt", b)
    theirs = Theirs(out)
    theirs.shard(1, a[3:])
    theirs.shard(2, b[:3])
    report = go(tmp_path / "lists")
    assert (report.shards, report.skipped_shards, report.count) == (2, 2, 5)
    assert urls_by_key(out) == a + b
    (segment,) = json.loads((out / ".any2ds/run").read_text())["lists"]
    assert (segment["cut"], segment["rows"], segment["shards"]) == ("file", 9, 4)
    put(tmp_path / "lists" / "c.txt", urls("c"))
    (out / "00000_stats.json").unlink()
    assert go(tmp_path / "lists").count == 4
    assert urls_by_key(out) == [*a, *b, url("c")]
    put(tmp_path / "more.txt", urls("more"))
    go(tmp_path / "more.txt", incremental_mode="extend")
    assert urls_by_key(out) == [*a, *b, url("c"), url("more")]
    put(tmp_path / "lists" / "b.txt", [*b, url("new")])
    assert "it had 10 rows and has more now" in refused(go, out, tmp_path / "lists")


def test_a_list_that_was_one_file_then(go: Go, out: Path, tmp_path: Path) -> None:
    rows = urls(*range(8))
    theirs = Theirs(out)
    theirs.shard(1, rows[3:6])
    put(tmp_path / "lists" / "a.txt", rows[:4])
    put(tmp_path / "lists" / "b.txt", rows[4:])
    assert go(tmp_path / "lists").count == 5
    assert json.loads((out / ".any2ds/run").read_text())["lists"][0]["cut"] == "list"
    assert urls_by_key(out) == rows


def test_it_is_not_completed_in_another_order(go: Go, out: Path, tmp_path: Path) -> None:
    Theirs(out).shard(0, urls(0, 1, 2))
    words = refused(go, out, put(tmp_path / "urls.txt", urls(*range(9))), shuffle=7)
    assert "in the order of the list: complete it without shuffle" in words


def test_rows_that_they_lost_count_as_theirs(go: Go, out: Path) -> None:
    Theirs(out).shard(0, urls(0, 1, 2), lost=[1])
    assert go(urls(*range(4))).count == 1


def test_stats_that_they_have_not_written_to_the_end(go: Go, out: Path) -> None:
    theirs = Theirs(out)
    theirs.shard(0, urls(0, 1, 2))
    theirs.shard(1, urls(3, 4, 5))
    (out / "00001_stats.json").write_text('{"count": 3, ')
    assert go(urls(*range(6))).shards == 1
    assert urls_by_key(out) == urls(*range(6))


@pytest.mark.parametrize(
    ("theirs", "options", "words"),
    [
        ({"rows_per_shard": 1000}, {}, "its shards have 1,000 rows: number_sample_per_shard=1000"),
        ({"digits": 6}, {}, "its shard numbers have 6 digits: oom_shard_count=6"),
        ({"format": "parquet"}, {}, 'its shards are parquet: output_format="parquet"'),
        ({"format": "files"}, {}, 'its shards are files: output_format="files"'),
        ({}, {"output_format": "parquet"}, 'its shards are webdataset: output_format="webdataset"'),
        ({"format": "tfrecord"}, {}, "holds tfrecord shards of img2dataset, whose records are others"),
        ({"format": "dummy"}, {}, "holds shards of img2dataset without metadata"),
        (
            {"tool": "any2dataset"},
            {"encode_format": "webp"},
            "its files are stored as they arrived: leave out encode_format",
        ),
        (
            {"tool": "any2dataset"},
            {"preset": "img2dataset", "oom_shard_count": 5},
            '(preset="img2dataset")',
        ),
        ({}, {"dedupe": "run"}, 'its duplicates were fetched: dedupe="shard"'),
        (
            {},
            {"number_sample_per_shard": 100},
            "keys of another form: 000002 where it would be 0000000",
        ),
        ({}, {"number_sample_per_shard": 100}, "rows: it may want number_sample_per_shard=3"),
        ({}, {"number_sample_per_shard": 9}, "shard 00000 has 3 rows, and would have 9; it was made by img2dataset"),
        ({}, {"incremental_mode": "extend"}, "was begun by img2dataset: complete it first"),
        ({}, {"incremental_mode": "overwrite"}, "no .any2ds/run that says they are any2ds's own"),
    ],
)
def test_other_options_than_theirs(
    theirs: dict[str, Any], options: dict[str, Any], words: str, go: Go, out: Path
) -> None:
    made = Theirs(out, **theirs)
    rows = urls(*range(2 * made.rows_per_shard + 5))
    made.shard(0, rows[: made.rows_per_shard])
    assert words in refused(go, out, rows, **options)


def test_another_list_than_theirs(go: Go, out: Path) -> None:
    theirs = Theirs(out)
    theirs.shard(0, urls(0, 1, 2))
    theirs.shard(1, urls(3, 4))
    words = refused(go, out, urls(0, "x", 2, 3, 4))
    assert f"row 2 of the list (shard 00000) was {url(1)}, and is now {url('x')}" in words
    words = refused(go, out, urls(0, 1, 2, 3, 4, 5))
    assert "shard 00001 has 2 rows, and would have 3; it was made by img2dataset and stays as it is" in words
    assert "the list ends with row 3, and shard 00001" in refused(go, out, urls(0, 1, 2))
    (out / "00001.parquet").write_bytes(b"PAR1")
    assert "its metadata 00001.parquet cannot be read" in refused(go, out, urls(0, 1, 2, 3, 4))
    stream = pa.table({"url": urls(0, 1, 2, 3, 4)}).to_reader()
    assert "its list must be readable twice" in refused(go, out, stream)


def test_what_nobody_is_known_to_have_made(go: Go, out: Path) -> None:
    out.mkdir()
    (out / "00000_stats.json").write_text('{"rows": 3}')
    assert "neither by any2ds nor by img2dataset" in refused(go, out, urls(0))


def test_their_shards_are_not_overwritten(go: Go, out: Path) -> None:
    Theirs(out).shard(0, urls(0, 1, 2))
    go(urls(*range(5)))
    words = refused(go, out, urls(0), incremental_mode="overwrite")
    assert "holds 1 shard that was made by img2dataset, which any2ds does not remove" in words


def test_in_an_object_store(s3_server: None, go: Go, tmp_path: Path) -> None:
    theirs = Theirs(tmp_path / "theirs", format="files")
    rows = urls(*range(14))
    for number in range(4):
        theirs.shard(number, rows[3 * number : 3 * number + 3])
    fs = fsspec.filesystem("s3")
    fs.mkdir("theirs")
    fs.put(f"{theirs.folder}/", "theirs/out/", recursive=True)
    report = go(put(tmp_path / "urls.txt", rows), output_folder="s3://theirs/out", output_format="files")
    assert (report.shards, report.skipped_shards) == (1, 4)
