"""`limit`: the first rows of a list as a dataset of their own, with which later runs go on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from any2ds import download, inspect, verify
from any2ds.core.reports import IncompleteRun, RunReport
from any2ds.testing.server import Server, serve

ROWS = 11  # of the list
PER_SHARD = 4


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("media")
    for n in range(ROWS):
        (folder / f"{n:02d}.txt").write_bytes(b"file %d" % n)
    return folder


def run(path: Any, out: Path, limit: int | None = None, **options: Any) -> RunReport:
    options = {"distributor": "inline", "quiet": True, "report": False, "output_format": "webdataset", **options}
    return download(path, str(out), limit=limit, number_sample_per_shard=PER_SHARD, **options)


def written(path: Path, urls: list[str]) -> Path:
    path.write_text("".join(f"{url}\n" for url in urls))
    return path


def made_but_for_a_shard(server: Server, folder: Path) -> Path:
    """A list all of which was made in `out` but for its second shard, by a run that was killed at its end."""
    urls, out = written(folder / "urls.txt", [server.url(f"{n:02d}.txt") for n in range(ROWS)]), folder / "out"
    run(urls, out)
    for path in out.glob("00001*"):
        path.unlink()
    (out / ".any2ds" / "segments" / "0000.end").unlink()
    return urls


def tars(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.glob("*.tar"))}


@pytest.mark.parametrize("shuffle", [None, 3])
def test_it_is_a_dataset_and_without_it_the_same_command_goes_on(
    media: Path, tmp_path: Path, shuffle: int | None
) -> None:
    out = tmp_path / "out"
    with serve(media) as server:
        urls = written(tmp_path / "urls.txt", [server.url(f"{n:02d}.txt") for n in range(ROWS)])
        first = run(urls, out, 6, shuffle=shuffle)
        assert (first.count, first.shards) == (6, 2)
        assert verify(str(out)).ok
        found = inspect(str(out))
        assert (found.rows, found.lists[0]["rows"], found.lists[0]["limit"]) == (6, 6, 6)
        assert run(urls, out, 6, shuffle=shuffle).shards == 0
        assert run(urls, out, 2, shuffle=shuffle).shards == 0  # there are more already
        assert inspect(str(out)).lists[0]["rows"] == 6
        more = run(urls, out, 9, shuffle=shuffle)
        assert (more.count, more.shards, more.skipped_shards) == (3, 1, 2)
        rest = run(urls, out, shuffle=shuffle)
        assert (rest.count, rest.skipped_shards) == (ROWS - 9, 3)
        requests = len(server.requests)
        assert requests == ROWS  # what there was is not fetched again
    assert verify(str(out)).ok
    assert inspect(str(out)).lists[0]["limit"] is None
    assert inspect(str(out)).rows == ROWS


def test_a_limit_that_the_list_does_not_reach_changes_nothing(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        urls = written(tmp_path / "urls.txt", [server.url(f"{n:02d}.txt") for n in range(3)])
        assert run(urls, tmp_path / "out", 100).count == 3
    assert inspect(str(tmp_path / "out")).lists[0]["limit"] is None


def test_a_limit_within_a_shard_before_finished_ones_makes_no_part_of_it(media: Path, tmp_path: Path) -> None:
    """The whole list was begun, a limited run came in between, and then the whole list goes on."""
    out = tmp_path / "out"
    with serve(media) as server:
        urls = made_but_for_a_shard(server, tmp_path)
        assert run(urls, out, PER_SHARD + 1).count == 0
        assert run(urls, out).count == PER_SHARD
    assert verify(str(out)).ok
    assert inspect(str(out)).rows == ROWS


def test_without_one_a_list_that_ends_before_finished_shards_is_refused(media: Path, tmp_path: Path) -> None:
    """A file that was cut short, and keeps its size and its time, is not compared with the shards made from it."""
    out = tmp_path / "out"
    with serve(media) as server:
        urls = made_but_for_a_shard(server, tmp_path)
        was = urls.stat()
        lines = urls.read_text().splitlines(keepends=True)[: PER_SHARD + 1]
        more = was.st_size - len("".join(lines)) - 1
        urls.write_text("".join(lines)[:-1] + "?" + "x" * more + "\n")
        os.utime(urls, ns=(was.st_atime_ns, was.st_mtime_ns))
        with pytest.raises(IncompleteRun, match="ends with row 5, and there are shards of rows behind it"):
            run(urls, out)


def test_of_rows_from_a_pipe_it_reads_no_further(media: Path, tmp_path: Path) -> None:
    with serve(media) as server:
        read, write = os.pipe()
        os.write(write, "".join(f"{server.url(f'{n:02d}.txt')}\n" for n in range(ROWS)).encode())  # and it stays open
        try:
            with open(read, encoding="utf-8"):
                report = run(f"/dev/fd/{read}", tmp_path / "out", 3, input_format="txt")
        finally:
            os.close(write)
    assert report.count == 3


def test_behind_another_list_the_rest_goes_on(media: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with serve(media) as server:
        urls = written(tmp_path / "urls.txt", [server.url(f"{n:02d}.txt") for n in range(ROWS)])
        others = written(tmp_path / "others.txt", [server.url(f"{n:02d}.txt?2") for n in range(3)])
        run(urls, out, 6)
        run(others, out, incremental_mode="extend")
        assert run(urls, out, 6).shards == 0
        assert run(urls, out).count == ROWS - 6
    assert verify(str(out)).ok
