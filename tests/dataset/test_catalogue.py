"""`.any2ds/shards`, which tells of the finished shards."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from any2ds import download, retry
from any2ds.config.options import OutputOptions
from any2ds.core.layout import Layout
from any2ds.dataset.shards import ShardEntry, ShardList, ShardTable, gaps, opened, pattern, to_json
from any2ds.testing.server import Server, serve

_NAMES = Layout(10, 5)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    media = tmp_path / "media"
    media.mkdir()
    for number in range(12):
        (media / f"{number}.bin").write_bytes(os.urandom(1000 + number))
    with serve(media) as running:
        yield running


Go = Callable[..., Any]


@pytest.fixture
def go(server: Server, tmp_path: Path) -> Go:
    def run(*numbers: int, **options: Any) -> Any:
        urls = [server.url(f"{number}.bin") for number in numbers]
        given = {"output_format": "webdataset", "number_sample_per_shard": 2, "distributor": "inline", "quiet": True}
        return download(urls, **{"output_folder": tmp_path / "out", **given, **options})

    return run


def listed(out: Path) -> Any:
    return json.loads((out / ".any2ds/shards").read_bytes())


def expect_true(out: Path) -> None:
    """It says what the stats and the files say."""
    stats = [json.loads(path.read_bytes()) for path in sorted(out.glob("*_stats.json"))]
    said = listed(out)
    assert said["open"] is False
    assert (said["shards"], said["count"]) == (
        len(stats),
        sum(each["count"] - sum(each.get("replaces", {}).values()) for each in stats),
    )
    assert said["nsamples"] == sum(each["successes"] for each in stats)
    assert [entry["nsamples"] for entry in said["shardlist"]] == [each["successes"] for each in stats]
    for entry, own in zip(said["shardlist"], stats, strict=True):
        assert entry["filesize"] == (out / ".any2ds" / entry["url"]).stat().st_size
        assert (entry["shard_id"], entry["count"], entry["bytes"]) == (own["shard_id"], own["count"], own["bytes"])
        assert entry["exts"] == own["exts"]


class TestPattern:
    @pytest.mark.parametrize(
        ("numbers", "words", "missing"),
        [
            ([], None, []),
            ([0], "00000.tar", []),
            (range(42), "{00000..00041}.tar", []),
            ([0, 1, 3, 7, 8], "{{00000..00001},00003,{00007..00008}}.tar", [(2, 2), (4, 6)]),
            ([5, 6], "{00005..00006}.tar", [(0, 4)]),
            (range(99998, 100002), "{{99998..99999},{100000..100001}}.tar", [(0, 99997)]),
        ],
    )
    def test_of_shards(self, numbers: Any, words: str | None, missing: list[Any]) -> None:
        assert pattern(list(numbers), _NAMES, "tar") == words
        assert gaps(numbers) == missing

    def test_of_other_formats(self) -> None:
        assert pattern([0, 1], _NAMES, "") == "{00000..00001}"
        assert pattern([0, 1], _NAMES, None) == "{00000..00001}.parquet"

    @pytest.mark.parametrize("numbers", [[3], [0, 1, 5], [*range(7, 12), 40], [98, 99, 100, 1005]])
    def test_a_shell_and_webdataset_make_the_names_of_it(self, numbers: list[int]) -> None:
        from webdataset.shardlists import expand_urls

        names = Layout(10, 2)
        words = pattern(numbers, names, "tar")
        expected = [names.data_name(number, "tar") for number in numbers]
        assert expand_urls(words) == expected
        shown = subprocess.run(["bash", "-c", f"echo {words}"], capture_output=True, text=True, check=True).stdout
        assert shown.split() == expected


class TestRun:
    @pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
    def test_it_is_true_at_the_end(self, go: Go, tmp_path: Path, output_format: str) -> None:
        go(*range(5), 99, output_format=output_format)
        expect_true(tmp_path / "out")
        assert listed(tmp_path / "out")["nsamples"] == 5
        assert ("wids_version" in listed(tmp_path / "out")) == (output_format == "webdataset")

    def test_where_no_job_was_begun_it_is_not_written_again(self, go: Go, tmp_path: Path) -> None:
        go(*range(5))
        before = (tmp_path / "out" / ".any2ds/shards").stat().st_ino
        go(*range(5))
        assert (tmp_path / "out" / ".any2ds/shards").stat().st_ino == before

    @pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"open": false, "shardlist": [{}]}', b"\xff", None])
    def test_where_it_is_garbage_or_absent_it_is_made_of_the_stats(
        self, go: Go, tmp_path: Path, content: bytes | None
    ) -> None:
        go(*range(5))
        path = tmp_path / "out" / ".any2ds/shards"
        before = path.read_bytes()
        path.unlink() if content is None else path.write_bytes(content)
        go(*range(5))
        assert path.read_bytes() == before

    def test_further_shards_are_added_and_those_that_are_gone_are_left_out(self, go: Go, tmp_path: Path) -> None:
        out = tmp_path / "out"
        go(*range(6))
        (out / "00001_stats.json").unlink()
        go(*range(10), 99, 99)
        expect_true(out)
        assert listed(out)["pattern"] == "{00000..00005}.tar"
        (out / "00001_stats.json").unlink()
        retry(out, codes="all", distributor="inline", quiet=True)
        assert [entry["shard_id"] for entry in listed(out)["shardlist"]] == [0, 2, 3, 4, 5, 6]
        assert (listed(out)["gaps"], listed(out)["open"]) == ([[1, 1]], False)

    def test_what_a_retry_brings_is_in_it(self, go: Go, tmp_path: Path, server: Server) -> None:
        out = tmp_path / "out"
        go(0, 99, 2, 98)
        assert listed(out)["nsamples"] == 2
        (tmp_path / "media" / "99.bin").write_bytes(b"late" * 1000)
        retry(out, codes="all", distributor="inline", quiet=True)
        expect_true(out)
        assert [entry["nsamples"] for entry in listed(out)["shardlist"]] == [1, 1, 1]

    def test_a_folder_is_listed_by_its_name(self, go: Go, tmp_path: Path) -> None:
        go(*range(4), output_format="files")
        assert [entry["url"] for entry in listed(tmp_path / "out")["shardlist"]] == ["../00000", "../00001"]
        assert listed(tmp_path / "out")["pattern"] == "{00000..00001}"


class TestValues:
    def test_what_is_written_is_read_again(self) -> None:
        options = OutputOptions(output_format="webdataset")
        entries = [ShardEntry(0, 10, 9, 900, 10240, {"jpg": 9}), ShardEntry(2, 10, 0, 0, 10240)]
        table = ShardTable.of(entries)
        closed = to_json(table, options, is_open=False)
        found = ShardList.read(io.BytesIO(closed))
        assert opened(closed) == to_json(table, options, is_open=True)
        assert list(found.table.entries()) == entries
        assert not found.is_open
        assert ShardList.read(io.BytesIO(opened(closed))).is_open

    @pytest.mark.skipif(sys.platform != "linux", reason="the system tells there what a process has taken at most")
    def test_a_long_list_takes_the_memory_of_its_bytes(self) -> None:
        program = (
            "from any2ds.config.options import OutputOptions\n"
            "from any2ds.dataset.shards import ShardEntry, ShardTable, to_json\n"
            "def most():\n"
            "    lines = open('/proc/self/status').read().splitlines()\n"
            "    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith('VmHWM'))\n"
            "entries = [ShardEntry(n, 10000, 9000, 9 << 20, 9 << 20, {'jpg': 9000}) for n in range(40_000)]\n"
            "entries = ShardTable.of(entries)\n"
            "options = OutputOptions()\n"
            "to_json(entries.only(range(100)), options, False)\n"
            "before = most()\n"
            "size = len(to_json(entries, options, False))\n"
            "print(most() - before, size)\n"
        )
        said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        taken, size = map(int, said.split())
        assert size > 4 << 20
        assert taken < 6 * size
