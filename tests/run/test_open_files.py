"""Runs with few open files (`ulimit -n`), over more hosts than may be connected to: no row and no shard fails."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from any2ds.testing.server import Server, serve

pytest.importorskip("resource")

# In a process of its own, for good: what it starts inherits both limits.
LIMITED = """
import os, resource, sys
files, held = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(held)]
from any2ds.cli import main
sys.exit(main(sys.argv[3:]))
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Server]:
    """A server that has every address of 127.0.0.0/8."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"some bytes" * 200)
    with serve(folder, host="0.0.0.0") as server:
        yield server


def run(tmp_path: Path, urls: list[str], files: int, *options: str, held: int = 0) -> tuple[dict[str, int], str]:
    """The outcomes of all rows, and what stood on the screen."""
    (tmp_path / "list.txt").write_text("\n".join(urls))
    command = [str(tmp_path / "list.txt"), str(tmp_path / "out"), "--retries=0", *options]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(files), str(held), *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    outcomes: dict[str, int] = {}
    for stats in (tmp_path / "out").glob("*_stats.json"):
        for code, count in json.loads(stats.read_text())["status_dict"].items():
            outcomes[code] = outcomes.get(code, 0) + count
    return outcomes, done.stderr


def many_hosts(server: Server, rows: int) -> list[str]:
    return [f"http://127.1.{row // 250}.{row % 250 + 1}:{server.port}/a.bin?{row}" for row in range(rows)]


@pytest.mark.parametrize(
    ("files", "options"),
    [
        (64, ["--thread_count=256"]),
        (64, ["--output_format=parquet", "--number_sample_per_shard=40"]),
        (256, ["--thread_count=400", "--processes_count=2", "--number_sample_per_shard=50"]),
        (512, ["--preset=img2dataset", "--disable_all_reencoding", "--disallowed_header_directives=[]"]),
        (1024, ["--thread_count=1000", "--output_format=files"]),
    ],
)
def test_no_row_fails_for_want_of_open_files(tmp_path: Path, site: Server, files: int, options: list[str]) -> None:
    urls = many_hosts(site, max(300, files * 3 // 2))
    outcomes, screen = run(tmp_path, urls, files, *options)
    assert outcomes == {"success": len(urls)}, screen
    assert "waiting for the network" not in screen


def test_fewer_transfers_than_were_asked_for_are_told_on_one_line(tmp_path: Path, site: Server) -> None:
    _, screen = run(tmp_path, many_hosts(site, 10), 64, "--thread_count=256", "--processes_count=1")
    told = [line for line in screen.splitlines() if "only 64 files may be open (ulimit -n)" in line]
    assert len(told) == 1, screen


def test_files_that_the_process_has_open_already_are_counted(tmp_path: Path, site: Server) -> None:
    urls = many_hosts(site, 400)
    outcomes, screen = run(tmp_path, urls, 200, "--thread_count=60", "--distributor=inline", held=110)
    assert outcomes == {"success": len(urls)}, screen
    assert "waiting for the network" not in screen


def test_files_of_this_machine_are_read_with_few_open_files(tmp_path: Path) -> None:
    rows = []
    for number in range(300):
        (tmp_path / f"{number}.bin").write_bytes(b"%d" % number * 50)
        rows.append(f"file://{tmp_path}/{number}.bin")
    outcomes, screen = run(tmp_path, rows, 64, "--allow_schemes=file", "--thread_count=256")
    assert outcomes == {"success": len(rows)}, screen
