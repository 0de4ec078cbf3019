"""Going on with a dataset: what is finished stays, what changed is refused with the difference, lists go behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import IncompleteRun, download
from any2ds.core.errors import OutputError
from any2ds.core.reports import RunReport

Go = Callable[..., RunReport]


def url(n: int | str) -> str:
    """A row that fails at once, so that nobody has to serve it."""
    return f"nope://host/{n}"


def urls(*numbers: int | str) -> list[str]:
    return [url(n) for n in numbers]


def put(path: Path, rows: list[str], mtime: int | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{row}\n" for row in rows))
    if mtime is not None:
        os.utime(path, (mtime, mtime))
    return path


SEGMENT = {".any2ds/segments/0000", ".any2ds/segments/0000.end"}
ONE_SHARD = {"00000.parquet", "00000_stats.json", ".any2ds/run", ".any2ds/shards", *SEGMENT}
OPTIONS: dict[str, Any] = {
    "output_format": "dummy",
    "number_sample_per_shard": 3,
    "distributor": "inline",
    "quiet": True,
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def go(out: Path) -> Go:
    return lambda url_list, **options: download(url_list, **{"output_folder": out, **OPTIONS, **options})


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows_of(folder: Path) -> list[str]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path)["url"].to_pylist()]


def lists_of(folder: Path) -> list[dict[str, Any]]:
    """The segments, with their rows and shards: None as long as no run has read them to the end."""
    found = []
    for path in sorted(folder.glob(".any2ds/segments/????")):
        ending = path.with_name(f"{path.name}.end")
        known = json.loads(ending.read_text()) if ending.exists() else {"rows": None, "shards": None}
        found.append({**json.loads(path.read_text()), **known})
    return found


def refused(go: Go, out: Path, url_list: Any, **options: Any) -> str:
    """The words with which a run is refused, which changes nothing."""
    before = content(out)
    with pytest.raises(OutputError) as caught:
        go(url_list, **options)
    assert caught.value.exit_code == 2
    assert content(out) == before
    return str(caught.value)


class TestSameList:
    def test_rows_from_python_are_compared(self, go: Go, out: Path) -> None:
        frame = pd.DataFrame({"url": urls(*range(7))})
        for given in (frame, pa.Table.from_pandas(frame), urls(*range(7)), frame.to_dict("records"), frame["url"]):
            assert sum((report := go(given)).status_dict.values()) in (0, 7)
            assert report.shards + report.skipped_shards == 3
        words = refused(go, out, urls(0, 1, 2, 3, 4, "x", 6))
        assert f"row 6 of the list (shard 00001) was {url(5)}, and is now {url('x')}" in words

    def test_a_list_that_breaks_off_goes_on_from_there(self, go: Go, out: Path, tmp_path: Path) -> None:
        path = tmp_path / "urls.csv"
        path.write_text("url\n" + "\n".join(urls(*range(4))) + "\nx,y\n")
        with pytest.raises(IncompleteRun):
            go(path, on_bad_row="stop")
        assert (lists_of(out)[0]["rows"], lists_of(out)[0]["shards"]) == (4, 2)
        os.utime(path, (1, 1))
        with pytest.raises(IncompleteRun):  # what it has is compared, and that is all
            go(path, on_bad_row="stop")
        path.write_text("url\n" + "\n".join(urls(*range(8))) + "\n")
        assert (go(path, on_bad_row="stop").shards, rows_of(out)) == (2, urls(*range(8)))
        assert [each["rows"] for each in lists_of(out)] == [4, 4]

    def test_a_list_that_breaks_off_once_before_finished_shards_loses_no_row(
        self, go: Go, out: Path, tmp_path: Path
    ) -> None:
        path = tmp_path / "urls.csv"
        whole = "url\n" + "".join(f"{row}\n" for row in urls(*range(12)))
        path.write_text(whole)
        os.utime(path, (1000, 1000))
        go(path, on_bad_row="stop")
        for name in ("00001.parquet", "00001_stats.json"):  # of a run that was killed over this shard
            (out / name).unlink()
        path.write_text(whole.replace(url(4), url(4).replace("/", ",")))  # as by a network drive: it stays the same
        os.utime(path, (1000, 1000))
        with pytest.raises(IncompleteRun):
            go(path, on_bad_row="stop")
        path.write_text(whole)
        os.utime(path, (1000, 1000))
        go(path, on_bad_row="stop")
        assert rows_of(out) == urls(*range(12))


class TestChangedList:
    def test_the_order_of_files_counts(self, go: Go, out: Path, tmp_path: Path) -> None:
        put(tmp_path / "lists" / "b.txt", urls(*range(4)))
        go(tmp_path / "lists")
        put(tmp_path / "lists" / "c.txt", urls(4, 5, 6))
        report = go(tmp_path / "lists")
        assert (report.skipped_shards, rows_of(out)) == (2, urls(*range(7)))
        put(tmp_path / "lists" / "a.txt", urls("x"))
        words = refused(go, out, tmp_path / "lists")
        assert f"row 1 of the list (shard 00000) was {url(0)}, and is now {url('x')}" in words

    def test_user_names_and_passwords_are_not_shown(self, go: Go, out: Path) -> None:
        go(["nope://me:secret@host/1", url(2)])
        words = refused(go, out, ["nope://me:secret@host/x", url(2)])
        assert "was nope://host/1, and is now nope://host/x" in words
        words = refused(go, out, ["nope://me:hidden@host/1", url(2)])
        assert "shard 00000 (rows 1 to 2 of the list) was made from other URLs" in words
        assert "secret" not in words + (out / ".any2ds/run").read_text()

    def test_all_options_that_differ_are_told_at_once(self, go: Go, out: Path, tmp_path: Path) -> None:
        path = put(tmp_path / "urls.txt", urls(*range(4)))
        go(path)
        words = refused(go, out, path, number_sample_per_shard=4, compute_hash="sha256")
        assert "number_sample_per_shard was 3, now 4; compute_hash was None, now 'sha256'" in words

    def test_a_type_that_is_inferred_otherwise_after_growth(self, go: Go, out: Path, tmp_path: Path) -> None:
        path = tmp_path / "urls.csv"
        path.write_text(f"url,n\n{url(0)},1\n")
        go(path, save_additional_columns="n")
        path.write_text(f"url,n\n{url(0)},1\n{url(1)},2.5\n")
        assert "column 'n' was int64, now double" in refused(go, out, path, save_additional_columns="n")

    @pytest.mark.parametrize("written", ["", "{}", '{"any2ds": "9", "lists": []}'])
    def test_a_run_file_that_cannot_be_read(self, written: str, go: Go, out: Path, tmp_path: Path) -> None:
        path = put(tmp_path / "urls.txt", urls(*range(4)))
        go(path)
        (out / ".any2ds/run").write_text(written)
        for mode in ("incremental", "extend", "overwrite"):
            assert ".any2ds/run cannot be read" in refused(go, out, path, incremental_mode=mode)


class TestReadOnce:
    def test_standard_input(self, go: Go, out: Path) -> None:
        rows = urls(*range(2500))

        def again(rows: list[str]) -> RunReport:
            return go(pa.table({"url": rows}).to_reader(), number_sample_per_shard=600)

        again(rows)
        before = content(out)
        for name in ("00000_stats.json", "00002_stats.json", "00004_stats.json"):
            (out / name).unlink()
        # Nothing is made before the list was compared up to its last finished shard.
        given = {**OPTIONS, "number_sample_per_shard": 600, "output_folder": out}
        command = [
            sys.executable,
            "-m",
            "any2ds",
            "--url_list=-",
            *(f"--{name}={value}" for name, value in given.items()),
        ]
        changed = "".join(f"{row}\n" for row in [*rows[:1900], url("x"), *rows[1901:]])
        ran = subprocess.run(command, input=changed, capture_output=True, text=True)
        assert ran.returncode == 2
        said = " ".join(ran.stderr.split())
        assert f"row 1,901 of the list (shard 00003) was {url(1900)}, and is now {url('x')}" in said
        for name in ("00000_stats.json", "00002_stats.json", "00004_stats.json"):
            assert not (out / name).exists()
        assert again([*rows, url("new")]).shards == 4
        assert content(out).keys() >= before.keys()
        assert (rows_of(out), [each["rows"] for each in lists_of(out)]) == ([*rows, url("new")], [2500, 1])
        with pytest.raises(OutputError, match="row 1 of the list"):
            again(urls("x", *range(1, 2500)))

    @pytest.mark.parametrize(
        ("rows", "words"),
        [
            (2400, "the list ends with row 2,400, and shard 00004 was made from rows behind it"),
            (2300, "shard 00003 was made from 600 rows, and the list has 500 for it now"),
            (1800, "the list ends with row 1,800, and shard 00004 was made from rows behind it"),
        ],
    )
    def test_a_stream_that_is_shorter(self, rows: int, words: str, go: Go, out: Path) -> None:
        table = pa.table({"url": urls(*range(2500))})
        go(table.to_reader(), number_sample_per_shard=600)
        with pytest.raises(OutputError, match=words):
            go(table.slice(0, rows).to_reader(), number_sample_per_shard=600)

    def test_a_stream_from_python(self, go: Go, out: Path) -> None:
        table = pa.table({"url": urls(*range(7))})
        go(table.to_reader())
        assert go(table.to_reader(3)).skipped_shards == 3
        with pytest.raises(OutputError, match="row 5 of the list"):
            go(pa.table({"url": urls(0, 1, 2, 3, "x", 5, 6)}).to_reader())
        many = pa.table({"url": urls(*range(7), "x")}).to_reader(1)  # its first batch tells nothing
        assert go(many).count == 1

    def test_many_bytes_of_rows_before_the_last_finished_shard(self, go: Go, out: Path) -> None:
        table = pa.table({"url": urls(*range(80)), "note": [f"{n}".zfill(1 << 20) for n in range(80)]})
        options: dict[str, Any] = {"number_sample_per_shard": 20, "save_additional_columns": "note"}
        go(table.to_reader(5), **options)
        for name in ("00000_stats.json", "00001_stats.json", "00002_stats.json"):
            (out / name).unlink()
        assert go(table.to_reader(5), **options).shards == 3
        notes = [note for path in sorted(out.glob("*.parquet")) for note in pq.read_table(path)["note"].to_pylist()]
        assert (rows_of(out), [note[-2:] for note in notes]) == (urls(*range(80)), [f"{n:02d}" for n in range(80)])


class TestExtend:
    def test_a_list_grows_behind_another_one(self, go: Go, out: Path, tmp_path: Path) -> None:
        one, two = put(tmp_path / "1.txt", urls(*range(4))), put(tmp_path / "2.txt", urls(*range(10, 15)))
        go(one)
        go(two, incremental_mode="extend")
        put(one, urls(*range(6)))
        assert go(one).count == 2
        put(one, urls(0, 1, "x", 3))
        assert "row 3 of the list (shard 00000)" in refused(go, out, one)
        words = refused(go, out, put(tmp_path / "3.txt", urls("x", "y")))
        assert "holds shards of 2 url lists, and this one is none of them" in words

    def test_an_unfinished_list_comes_first(self, go: Go, out: Path, tmp_path: Path) -> None:
        one, two = put(tmp_path / "1.txt", urls(*range(9))), put(tmp_path / "2.txt", urls("x"))
        go(one)
        (out / ".any2ds/segments/0000.end").unlink()
        words = refused(go, out, two, incremental_mode="extend")
        assert f"no run has come to the end of its list ({one})" in words

    def test_columns_must_fit(self, go: Go, out: Path) -> None:
        go([{"url": url(1), "n": 1}], save_additional_columns="n")
        words = refused(go, out, [{"url": url(2), "n": "x"}], save_additional_columns="n", incremental_mode="extend")
        assert "column 'n' was int64, now string" in words

    def test_keys_of_duplicates(self, go: Go, out: Path) -> None:
        go(urls(0, 1, 2, 3), dedupe="run")
        go(urls(4, 5, 4, 5), dedupe="run", incremental_mode="extend")
        assert pq.read_table(out / "00003.parquet")["duplicate_of"].to_pylist() == ["000021"]
        assert pq.read_table(out / "00002.parquet")["duplicate_of"].to_pylist() == [None, None, "000020"]


class TestOverwrite:
    def test_folders_are_removed_if_they_hold_nothing_else(self, go: Go, out: Path, tmp_path: Path) -> None:
        file = put(tmp_path / "a.bin", ["content"])
        go([file.as_uri()] * 4, output_format="files", allow_schemes="file")
        put(out / "00001" / "notes.txt", ["mine"])
        words = refused(go, out, urls(1), incremental_mode="overwrite")
        assert "holds what any2ds did not write (00001/notes.txt)" in words
        (out / "00001" / "notes.txt").unlink()
        go(urls(1), incremental_mode="overwrite", output_format="parquet")
        assert content(out).keys() == ONE_SHARD
        assert not (out / "00001").exists()

    def test_shards_of_another_naming_are_in_the_way(self, go: Go, out: Path) -> None:
        go(urls(1))
        put(out / "000000_stats.json", ["{}"])
        assert "holds what any2ds did not write (000000_stats.json)" in refused(
            go, out, urls(1), incremental_mode="overwrite"
        )
