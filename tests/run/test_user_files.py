"""A run writes over nothing that it has not made: neither over its own url lists, nor over other files of the user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import download
from any2ds.core.errors import OutputError
from any2ds.core.reports import RunReport
from tests.support.params import sampled


def urls(*numbers: int | str) -> list[str]:
    """Rows that fail at once, so that nobody has to serve them."""
    return [f"nope://host/{n}" for n in numbers]


def text_list(path: Path, *numbers: int | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(urls(*numbers)))
    return path


def parquet_list(path: Path, *numbers: int | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"url": urls(*numbers)}), path)
    return path


def run(url_list: Any, output_folder: Any, **options: Any) -> RunReport:
    options = {"output_format": "webdataset", "number_sample_per_shard": 2, **options}
    return download(url_list, output_folder, distributor="inline", quiet=True, **options)


def content(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(root: Path, url_list: Any, output_folder: Any, **options: Any) -> str:
    """The words with which a run is refused; nothing below `root` has changed."""
    before = content(root)
    with pytest.raises(OutputError) as caught:
        run(url_list, output_folder, **options)
    assert content(root) == before
    return str(caught.value)


def in_lists(root: Path) -> Path:
    return parquet_list(root / "lists/00000.parquet", *range(6)).parent


class TestLists:
    """What would be written lies at the place of a list."""

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("00003.parquet", {}),
            ("100000.parquet", {}),
            ("00000.csv", {"metadata_format": "parquet,csv"}),
            ("00000.PARQUET", {}),  # some file systems ignore case
            ("00000.tar.idx", {}),
            ("00000_stats.json", {}),
            ("00000/list.txt", {"output_format": "files"}),
            ("report.html", {}),
            ("features.json", {"output_format": "tfrecord"}),
            (".any2ds/list.txt", {}),
            ("0.parquet", {"oom_shard_count": 1}),
        ],
    )
    def test_a_list_at_the_place_of_a_file_of_the_dataset(
        self, tmp_path: Path, name: str, options: dict[str, Any]
    ) -> None:
        out = tmp_path / "out"
        path = text_list(out / name, *range(6))
        words = refused(tmp_path, path, out, input_format="txt", **options)
        assert f"the url list {path} lies where any2ds writes {name.split('/')[0]} of" in words

    def test_links_to_the_place(self, tmp_path: Path) -> None:
        out = in_lists(tmp_path)
        (tmp_path / "link.parquet").symlink_to(out / "00000.parquet")
        (tmp_path / "folder").symlink_to(out)
        for path in (tmp_path / "link.parquet", tmp_path / "folder/00000.parquet"):
            assert "lies where any2ds writes 00000.parquet of" in refused(tmp_path, path, out)
        os.link(out / "00000.parquet", tmp_path / "hard.parquet")
        assert "holds 00000.parquet, which any2ds did not write" in refused(tmp_path, tmp_path / "hard.parquet", out)

    @pytest.mark.parametrize("written", ["lists", "lists/../lists", "link", "lists/"])
    def test_the_folder_of_the_lists_is_no_output_folder(self, tmp_path: Path, written: str) -> None:
        lists = parquet_list(tmp_path / "lists/part-0.parquet", *range(6)).parent
        (tmp_path / "link").symlink_to(lists)
        other = text_list(tmp_path / "other.txt", "a")
        words = refused(tmp_path, [other, lists], f"{tmp_path}/{written}")
        assert "is the folder of the url lists" in words
        assert f"choose another output_folder, such as '{lists}/dataset'" in words

    @pytest.mark.parametrize("pattern", ["lists/*.parquet", "lists/*", "lists/**/*.parquet", "*/*.parquet"])
    def test_a_glob_of_lists_that_takes_in_the_dataset(self, tmp_path: Path, pattern: str) -> None:
        lists = parquet_list(tmp_path / "lists/part-0.parquet", *range(6)).parent
        words = refused(tmp_path, f"{tmp_path}/{pattern}", lists if pattern.startswith("lists") else tmp_path / "out")
        assert "matches what any2ds writes to" in words
        assert "or a narrower pattern" in words

    def test_a_glob_beside_the_dataset(self, tmp_path: Path) -> None:
        out = parquet_list(tmp_path / "out/part-0.parquet", *range(6)).parent
        for expected in (3, 0):
            assert run(f"{out}/part-*.parquet", out).shards == expected

    def test_other_lists_in_the_output_folder(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        for name in ("urls.txt", "0.parquet", "lists/00000.parquet", "2026.csv"):
            path = text_list(out / name, *range(6))
            run(path, out, input_format="txt", incremental_mode="overwrite")
            assert path.read_text().split() == urls(*range(6))

    def test_lists_in_a_store(self) -> None:
        store = fsspec.filesystem("memory")
        for path in ("/bucket/lists/00000.txt", "/bucket/lists/00001.parquet", "/bucket/out/00007.parquet"):
            store.pipe_file(path, "\n".join(urls(*range(6))).encode())
        before = {path: store.cat_file(path) for path in store.find("/bucket")}
        for url_list, out, words in (
            ("memory://bucket/lists/00001.parquet", "memory://bucket/lists/", "lies where any2ds writes 00001.parquet"),
            ("memory://bucket/*/00000.txt", "memory://bucket/out", "holds 00007.parquet, which any2ds did not write"),
            ("memory://bucket/lists/", "memory://bucket/lists", "is the folder of the url lists"),
            ("memory://bucket/lists/0*", "memory://bucket/lists", "matches what any2ds writes"),
        ):
            with pytest.raises(OutputError, match=words):
                run(url_list, out, input_format="txt")
        assert {path: store.cat_file(path) for path in store.find("/bucket")} == before
        assert run("memory://bucket/lists/00000.txt", "memory://bucket/lists/out").shards == 3

    def test_an_output_folder_in_that_of_the_lists_can_be_resumed(self, tmp_path: Path) -> None:
        lists = parquet_list(tmp_path / "lists/a.parquet", *range(6)).parent
        run(lists, lists / "dataset")
        for path in lists.glob("dataset/*_stats.json"):  # as if it was killed before them
            path.unlink()
        assert run(lists, lists / "dataset").count == 6
        assert run(lists, lists / "dataset").skipped_shards == 3


class TestOtherFiles:
    """A file of the user has the name of a shard, in a folder that is no dataset."""

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("00003.tar", {}),
            ("00000.parquet", {}),
            ("00000.parquet", {"output_format": "parquet"}),
            ("00000.csv", {"metadata_format": "csv"}),
            ("00000.tar.idx", {}),
            ("00000/notes.txt", {"output_format": "files"}),
            ("00000.arrayrecord", {"output_format": "arrayrecord"}),
            ("000.tar", {"oom_shard_count": 3}),
        ],
    )
    def test_it_is_not_written_over(self, tmp_path: Path, name: str, options: dict[str, Any]) -> None:
        text_list(tmp_path / "out" / name, "mine")
        words = refused(tmp_path, urls(1), tmp_path / "out", **options)
        assert (
            f"holds {name.split('/')[0]}, which any2ds did not write and would write over: nothing was changed" in words
        )

    def test_files_that_only_the_new_options_would_write_over(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        run(urls(*range(4)), out)
        text_list(out / "00000.csv", "mine")
        words = refused(tmp_path, urls(1), out, incremental_mode="overwrite", metadata_format="csv")
        assert "holds 00000.csv, which any2ds did not write" in words
        run(urls(1), out, incremental_mode="overwrite")
        assert (out / "00000.csv").read_text() == urls("mine")[0]

    @pytest.mark.parametrize(
        ("name", "mode"),
        [
            ("00001.tar", "incremental"),
            ("00001.tar", "extend"),
            ("00001.parquet", "extend"),
            ("00005.parquet", "extend"),
            ("00005.parquet", "overwrite"),
        ],
    )
    def test_they_lie_behind_the_shards_of_a_dataset(self, tmp_path: Path, name: str, mode: str) -> None:
        out = tmp_path / "out"
        run(text_list(tmp_path / "a.txt", *range(2)), out)
        text_list(out / name, "mine")
        for grown in (tmp_path / "a.txt", tmp_path / "b.txt"):
            if grown.stem == "b" and mode == "incremental":
                continue
            text_list(grown, *range(6))
            words = refused(tmp_path, grown, out, incremental_mode=mode)
            assert f"holds {name}, which any2ds did not write and would write over: nothing was changed" in words

    @pytest.mark.parametrize("mode", sampled(["incremental", "extend", "overwrite"]))
    def test_a_run_of_more_rows_that_is_killed_at_any_step_goes_on(self, tmp_path: Path, mode: str) -> None:
        path = text_list(tmp_path / "a.txt", *range(2))
        for step in range(1, 26, 3):
            run(path, tmp_path / str(step))
        name, first = ("a.txt", 0) if mode == "incremental" else ("b.txt", 10)
        path = text_list(tmp_path / name, *range(first, first + 6))
        subprocess.run([sys.executable, "-c", DYING, str(path), str(tmp_path), mode], check=True)
        for step in range(1, 26, 3):
            out = tmp_path / str(step)
            run(path, out, incremental_mode=mode)
            assert len(list(out.glob("*_stats.json"))) == (4 if mode == "extend" else 3)


DYING = """
import os, sys
import any2ds

path, root, mode = sys.argv[1:]

def die_at(step):
    def look(event, arguments):
        nonlocal step
        if event in ("os.rename", "os.remove"):
            step -= 1
            if not step:
                os.kill(os.getpid(), 9)
    sys.addaudithook(look)

ends = []
for step in range(1, 26, 3):
    child = os.fork()
    if not child:
        die_at(step)
        any2ds.download(
            path, f"{root}/{step}", output_format="webdataset", number_sample_per_shard=2, incremental_mode=mode,
            distributor="inline", quiet=True,
        )
        os._exit(0)
    ends.append(os.waitpid(child, 0)[1])
assert {*ends} >= {9}, ends
"""
