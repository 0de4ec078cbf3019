"""Rows that become several samples, or none, and files that are changed on the way: in every format, from outside."""

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset

from any2ds import RunReport, download, inspect, retry, verify
from any2ds.core.errors import OptionError
from any2ds.testing.server import Server, serve
from tests.support.params import sampled
from tests.support.records import examples

# webdataset leaves the shards that it reads open.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed file .*\.tar:ResourceWarning")

FORMATS = ["webdataset", "parquet", "files", "tfrecord", "arrayrecord"]
RECORDS = ("parquet", "tfrecord", "arrayrecord")

# What becomes of a file is what it says itself.
STEP = '''
import any2ds

@any2ds.transform(columns={"place": float}, members=("note.txt", "txt"))
def follow(sample):
    """Does what the file says."""
    order, _, number = sample.data.decode().partition(" ")
    if order == "parts":
        parts = [sample.with_data(b"part %d" % n, "dat").with_fields(place=n / 2) for n in range(1, int(number))]
        return [sample.with_fields(place=0.0), *parts]
    if order == "mixed":
        return [sample.failed("too_small", "4 x 4"), sample.with_data(b"good"), sample.filtered("dull")]
    if order == "spoilt":
        return [sample.filtered("dull"), sample.failed("too_small", "4 x 4")]
    if order == "one":
        return [sample.with_data(b"the only one")]
    if order == "nothing":
        return []
    if order == "change":
        return sample.with_data(b"changed").with_member("note.txt", b"a remark").with_member("txt", b"a text")
    if order == "unwanted":
        return None
    if order == "broken":
        raise ValueError("it cannot be done")
    return sample
'''

ORDERS = [
    *("keep 0", "parts 3", "change", "mixed", "unwanted"),
    *("broken", "one", "nothing", "spoilt", "parts 12"),
    *("late", "parts 2"),
]
PER_SHARD = 5


class Kitchen:
    """A list whose files say what is to become of them, a server for it, and a step that does it."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.out = folder / "out"

    def serves(self, number: int, order: str) -> None:
        (self.folder / "media" / f"{number}.bin").write_text(order)

    def rows(self, count: int = len(ORDERS)) -> pa.Table:
        numbers = range(count)
        urls = [self.server.url(f"{n}.bin") for n in numbers]
        return pa.table({"url": urls, "caption": [f"größe {n}" for n in numbers], "number": list(numbers)})

    def download(self, rows: pa.Table | None = None, **options: Any) -> RunReport:
        how = {
            "caption_col": "caption",
            "save_additional_columns": "number",
            "output_format": "webdataset",
            "number_sample_per_shard": PER_SHARD,
            "transform": f"{self.folder / 'step.py'}:follow",
            "distributor": "inline",
            "quiet": True,
        }
        return download(self.rows() if rows is None else rows, output_folder=self.out, **{**how, **options})

    def retry(self, **options: Any) -> RunReport:
        return retry(self.out, **{"distributor": "inline", "quiet": True, **options})

    def metadata(self) -> list[dict[str, Any]]:
        tables = [pq.read_table(path) for path in sorted(self.out.glob("0*.parquet"))]
        return [{name: row[name] for name in row if name != "data"} for table in tables for row in table.to_pylist()]

    def stats(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_bytes()) for path in sorted(self.out.glob("*_stats.json"))]

    def data(self) -> dict[str, dict[str, bytes]]:
        """Key -> members, as the readers of each format find them, in their order."""
        found: dict[str, dict[str, bytes]] = {}
        for path in sorted(self.out.glob("0*")):
            if path.suffix == ".tar":
                dataset = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)
                found |= {s["__key__"]: {e: s[e] for e in s if not e.startswith("__")} for s in dataset}
            elif path.is_dir():
                for file in sorted(path.iterdir()):
                    key, _, ext = file.name.partition(".")
                    found.setdefault(key, {})[ext] = file.read_bytes()
            elif path.suffix in (".tfrecord", ".arrayrecord"):
                found |= {e["key"][0].decode(): {e["ext"][0].decode(): e["data"][0]} for e in examples(path)}
            elif path.suffix == ".parquet" and "data" in pq.read_schema(path).names:
                rows = pq.read_table(path, columns=["key", "ext", "data"]).to_pylist()
                found |= {row["key"]: {row["ext"]: row["data"]} for row in rows if row["data"] is not None}
        return found

    def files(self) -> dict[str, bytes]:
        """Those that are stored."""
        return {
            key: next(content for ext, content in members.items() if ext in ("flat", "dat"))
            for key, members in self.data().items()
        }

    def expect_right(self) -> None:
        """Each sample of the metadata is stored, others are not, and all figures are those of rows, or of samples."""
        rows = self.metadata()
        stored = [row for row in rows if row["status"] == "success"]
        files = self.files()
        assert list(files) == [row["key"] for row in stored]
        for row in stored:
            expected = row["bytes"] if row["stored_bytes"] is None else row["stored_bytes"]
            assert len(files[row["key"]]) == expected
        report = verify(self.out, quiet=True)
        assert [str(found) for found in report.findings] == []
        assert (report.rows, report.samples) == (len({row["number"] for row in rows}), len(stored))
        listed = json.loads((self.out / ".any2ds/shards").read_bytes())
        assert (listed["count"], listed["nsamples"]) == (report.rows, report.samples)
        assert sum(stats["bytes"] for stats in self.stats()) == listed["bytes"] == sum(map(len, files.values()))


@pytest.fixture
def kitchen(tmp_path: Path) -> Iterator[Kitchen]:
    """Row 10 fails at first, and is `parts 3` then."""
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "media").mkdir()
    with serve(tmp_path / "media", {"10.bin": ["503", "ok"]}) as server:
        kitchen = Kitchen(tmp_path, server)
        for number, order in enumerate(ORDERS):
            kitchen.serves(number, "parts 3" if order == "late" else order)
        yield kitchen


def key(number: int) -> str:
    return f"{number // PER_SHARD:05d}{number % PER_SHARD}"


def parts(number: int, count: int) -> list[str]:
    return [f"{key(number)}_{part:04d}" for part in range(count)]


KEYS = [
    *([key(0)], parts(1, 3), [key(2)], parts(3, 3), [key(4)]),
    *([key(5)], parts(6, 1), [key(7)], parts(8, 2), parts(9, 12)),
    *([key(10)], parts(11, 2)),
]


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_row_becomes_several_samples_or_none(kitchen: Kitchen, output_format: str) -> None:
    report = kitchen.download(output_format=output_format, metadata_format="csv,jsonl")
    assert (report.count, report.successes, report.samples) == (12, 7, 21)
    assert (report.failed_to_download, report.failed_to_subsample, report.filtered) == (1, 1, 3)
    assert report.status_dict == {"success": 7, "filtered": 3, "transform_error": 1, "http_503": 1}
    rows = kitchen.metadata()
    assert [row["key"] for row in rows] == [key for keys in KEYS for key in keys]
    for row in rows:
        number = row["number"]
        assert row["caption"] == f"größe {number}"
        assert row["key"] in KEYS[number]
        if number != 10:  # hash and size are those of what arrived, whatever has become of it
            order = ORDERS[number].encode()
            assert (row["bytes"], row["md5"]) == (len(order), hashlib.md5(order).hexdigest())
    reported = {row["key"]: row for row in rows}
    outcomes = [
        (reported[key]["status"], reported[key]["error_code"], reported[key]["error_message"]) for key in parts(3, 3)
    ]
    assert outcomes == [
        ("failed_to_subsample", "too_small", "4 x 4"),
        ("success", None, None),
        ("filtered", None, "dull"),
    ]
    assert reported[key(5)]["error_message"] == "ValueError: it cannot be done"
    assert [reported[key]["stored_bytes"] for key in [key(0), *parts(1, 3)]] == [None, None, 6, 6]
    assert [reported[key]["ext"] for key in parts(1, 3)] == ["flat", "dat", "dat"]
    assert [reported[key]["place"] for key in parts(9, 3)] == [0.0, 0.5, 1.0]
    files = kitchen.files()
    assert [files[key] for key in parts(1, 3)] == [b"parts 3", b"part 1", b"part 2"]
    assert (files[key(0)], files[key(2)], files[f"{key(6)}_0000"]) == (b"keep 0", b"changed", b"the only one")
    kitchen.expect_right()
    for shard in ("00000", "00001", "00002"):
        names = [row["key"] for row in rows if row["key"].startswith(shard)]
        lines = [json.loads(line) for line in (kitchen.out / f"{shard}.jsonl").read_text("utf-8").splitlines()]
        assert [line["key"] for line in lines] == names
        with (kitchen.out / f"{shard}.csv").open(encoding="utf-8", newline="") as file:
            assert [line["key"] for line in csv.DictReader(file)] == names


@pytest.mark.parametrize("output_format", FORMATS)
def test_further_files_of_a_sample_lie_beside_it_or_are_columns(kitchen: Kitchen, output_format: str) -> None:
    kitchen.download(output_format=output_format)
    row = next(row for row in kitchen.metadata() if row["key"] == key(2))
    if output_format in RECORDS:
        assert (row["note_txt"], row["txt"]) == ("a remark", "a text")
        return
    members = dict(kitchen.data()[key(2)])
    assert json.loads(members.pop("json")) == row
    assert members == {
        "flat": b"changed",
        "note.txt": b"a remark",
        "text.txt": b"a text",  # because the caption has the name
        "txt": "größe 2".encode(),
    }


def test_text_of_a_sample_without_caption_is_its_txt(kitchen: Kitchen) -> None:
    kitchen.download(kitchen.rows().select(["url", "number"]), caption_col=None)
    members = kitchen.data()[key(2)]
    assert members["txt"] == b"a text"
    assert "text.txt" not in members
    kitchen.expect_right()


@pytest.mark.parametrize("output_format", FORMATS)
def test_a_row_that_is_retried_becomes_several_samples(kitchen: Kitchen, output_format: str) -> None:
    kitchen.download(output_format=output_format)
    before = kitchen.files()
    report = kitchen.retry()
    assert (report.count, report.successes, report.samples) == (1, 1, 3)
    after = kitchen.files()
    assert [key for key in after if key not in before] == parts(10, 3)
    assert [after[key] for key in parts(10, 3)] == [b"parts 3", b"part 1", b"part 2"]
    assert {key: after[key] for key in before} == before
    reported = [row for row in kitchen.metadata() if row["number"] == 10][-3:]
    assert [(row["key"], row["attempts"], row["place"]) for row in reported] == [
        (key, 1, place) for key, place in zip(parts(10, 3), (0.0, 0.5, 1.0), strict=True)
    ]
    kitchen.expect_right()
    assert kitchen.retry().count == 0


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "files"])
def test_a_list_that_grows_goes_on_behind_rows_with_several_samples(kitchen: Kitchen, output_format: str) -> None:
    kitchen.download(kitchen.rows(9), output_format=output_format)
    before = kitchen.files()
    report = kitchen.download(output_format=output_format)
    assert (report.shards, report.count) == (1, 3)
    after = kitchen.files()
    assert {key: after[key] for key in before} == before
    assert [key for key in after if key not in before] == [*parts(10, 12), *parts(12, 2)]
    kitchen.expect_right()
    assert kitchen.download(output_format=output_format).shards == 0
    (kitchen.out / "00001_stats.json").unlink()
    assert kitchen.download(output_format=output_format).shards == 1
    kitchen.expect_right()


@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_each_row_with_the_same_url_gets_all_samples(kitchen: Kitchen, output_format: str) -> None:
    rows = pa.concat_tables([kitchen.rows(2), kitchen.rows(2).slice(1), kitchen.rows(2)])
    report = kitchen.download(rows, output_format=output_format)
    assert (report.count, report.successes, report.samples) == (5, 5, 2 + 3 * 3)
    assert kitchen.server.counts == {"0.bin": 1, "1.bin": 1}
    files = kitchen.files()
    for number in (1, 2, 4):
        assert [files[key] for key in parts(number, 3)] == [b"parts 3", b"part 1", b"part 2"]
    assert verify(kitchen.out, quiet=True).ok


def test_a_duplicate_names_the_row_that_has_the_samples(kitchen: Kitchen) -> None:
    rows = pa.concat_tables([kitchen.rows(2), kitchen.rows(2)])
    report = kitchen.download(rows, dedupe="run")
    assert (report.successes, report.samples, report.duplicates) == (2, 4, 2)
    assert [row["duplicate_of"] for row in kitchen.metadata()] == [None] * 4 + [key(0), key(1)]
    assert verify(kitchen.out, quiet=True).ok


@pytest.mark.parametrize("output_format", sampled(["webdataset", "files"]))
def test_more_than_ten_thousand_samples_of_a_row_are_in_order(kitchen: Kitchen, output_format: str) -> None:
    kitchen.serves(0, "parts 10001")
    kitchen.download(kitchen.rows(2), output_format=output_format, fsync=False)
    keys = [row["key"] for row in kitchen.metadata()]
    assert keys[:2] == ["000000_00000", "000000_00001"]
    assert keys[10_000:] == ["000000_10000", *parts(1, 3)]
    assert keys == sorted(keys)
    assert verify(kitchen.out, quiet=True).ok


def test_tfds_is_told_the_number_of_samples(kitchen: Kitchen) -> None:
    kitchen.download(output_format="tfrecord")
    info = json.loads((kitchen.out / "dataset_info.json").read_bytes())
    assert info["splits"][0]["shardLengths"] == ["6", "13", "2"]


def test_rows_and_samples_are_told_apart(kitchen: Kitchen, capsys: pytest.CaptureFixture[str]) -> None:
    kitchen.download(quiet=False)
    said = " ".join(capsys.readouterr().err.split())
    assert "12 rows, 7 stored as 21 samples, 2 failed" in said
    shown = inspect(kitchen.out)
    assert (shown.rows, shown.successes, shown.samples, shown.failed, shown.filtered) == (12, 7, 21, 2, 3)
    assert shown.measured == 21
    assert sum(each.files for each in shown.types.values()) == 21


# --- what verify finds ---


def edited(path: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """The table with other rows."""
    table = pq.read_table(path)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def found(kitchen: Kitchen, **options: Any) -> Mapping[str, str]:
    """Kind -> words, of all findings."""
    report = verify(kitchen.out, quiet=True, **options)
    words: dict[str, str] = {}
    for one in report.findings:
        words[one.kind] = f"{words.get(one.kind, '')}{one.message}\n"
    return words


def test_verify_compares_stored_bytes_with_sizes(kitchen: Kitchen) -> None:
    kitchen.download()

    def change(rows: list[dict[str, Any]]) -> None:
        rows[2]["stored_bytes"] += 1

    edited(kitchen.out / "00000.parquet", change)
    assert f"its file has not the size that is in the metadata: {key(1)}_0001" in found(kitchen)["samples"]


def test_a_column_of_the_list_cannot_be_called_as_one_of_a_step(kitchen: Kitchen) -> None:
    rows = kitchen.rows().append_column("place", pa.array(["here"] * len(ORDERS)))
    with pytest.raises(OptionError, match="place"):
        kitchen.download(rows, save_additional_columns="number,place")
    assert not kitchen.out.exists()


ROW_STEP = """
import any2ds


def clean(sample):
    return sample.with_data(f"{sample.caption} {(sample.row.extra or {}).get('n')}".encode(), "data.txt")
"""


@pytest.mark.parametrize("dedupe", ["shard", "run"])
def test_rows_with_one_url_share_what_steps_make_of_it_only_if_steps_see_the_same(tmp_path: Path, dedupe: str) -> None:
    (tmp_path / "step.py").write_text(ROW_STEP)
    rows = [("a", 1), ("b", 1), ("a", 1), ("a", 2)]
    report = download(
        [{"url": "data:,x", "text": text, "n": n} for text, n in rows],
        output_folder=tmp_path / "out",
        caption_col="text",
        save_additional_columns="n",
        transform=f"{tmp_path}/step.py:clean",
        dedupe=dedupe,
        distributor="inline",
        quiet=True,
    )
    assert (report.successes, report.duplicates) == ((4, 0) if dedupe == "shard" else (3, 1))
    stored = {path.name[:9]: path.read_text() for path in (tmp_path / "out" / "00000").glob("*.data.txt")}
    expected = {f"{n:09d}": f"{text} {number}" for n, (text, number) in enumerate(rows)}
    assert stored == {key: value for key, value in expected.items() if dedupe == "shard" or key != "000000002"}
