"""What a host sees of several processes and ranks of one run: real processes, real sockets, and its own count."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds.testing.server import Server, serve
from tests.support.forked import commands

ROWS = 240


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "media"
    folder.mkdir()
    with serve(folder, {str(n): ["slow:0.02"] for n in range(ROWS)}) as server:
        for n in range(ROWS):
            (folder / str(n)).write_bytes(b"file %d" % n)
        yield server


def run(server: Server, output: Path, rows: int = ROWS, **options: Any) -> Any:
    urls = [server.url(str(n)) for n in range(rows)]
    how = {"number_sample_per_shard": 10, "output_format": "files", "report": False, "quiet": True, "timeout": 0}
    return any2ds.download(urls, output, **{**how, "processes_count": 4, **options})


@pytest.mark.parametrize("most", [9, 4, 2])
def test_processes_together_make_no_more_transfers_at_once_than_max_per_host(
    server: Server, tmp_path: Path, most: int
) -> None:
    report = run(server, tmp_path / "out", max_per_host=most)
    assert report.status_dict == {"success": ROWS}
    assert server.max_concurrent <= most


def test_processes_together_leave_host_delay_between_two_starts(server: Server, tmp_path: Path) -> None:
    report = run(server, tmp_path / "out", 60, number_sample_per_shard=5, host_delay=0.05)
    assert report.status_dict == {"success": 60}
    times = sorted(request.at for request in server.requests)
    assert times[-1] - times[0] >= 59 * 0.05  # alone each would take a quarter of that


def test_delay_of_robots_txt_holds_for_processes_together(server: Server, tmp_path: Path) -> None:
    (server.folder / "robots.txt").write_text("User-agent: *\nCrawl-delay: 0.1")
    report = run(server, tmp_path / "out", 24, number_sample_per_shard=2, robots="respect")
    assert report.status_dict == {"success": 24}
    files = sorted(request.at for request in server.requests if request.path != "robots.txt")
    assert files[-1] - files[0] >= 23 * 0.1


@pytest.mark.parametrize("options", [("--max_per_host=5",), ("--max_per_host=2",)])
def test_ranks_together_keep_the_limit_too(server: Server, tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "urls.txt").write_text("".join(server.url(str(n)) + "\n" for n in range(120)))
    with commands(tmp_path) as start:
        ranks = [
            start(
                "--url_list=urls.txt", "--output_folder=out", "--number_sample_per_shard=5",
                "--timeout=0", "--report=false", "--distributor=inline", f"--rank={rank}", "--world_size=4", *options,
            )
            for rank in range(4)
        ]  # fmt: skip
        assert [rank.ended() for rank in ranks] == [0] * 4, [rank.said for rank in ranks]
    assert any2ds.inspect(tmp_path / "out").successes == 120
    assert server.max_concurrent <= int(options[0].partition("=")[2])


def test_limit_of_one_process_is_all_of_it(server: Server, tmp_path: Path) -> None:
    """Processes that there are no shards for take nothing of it."""
    report = run(server, tmp_path / "out", number_sample_per_shard=ROWS, max_per_host=12)
    assert report.status_dict == {"success": ROWS}
    assert server.max_concurrent == 12


def test_number_of_processes_changes_no_file_of_a_dataset_made_politely(server: Server, tmp_path: Path) -> None:
    for processes in (1, 3):
        run(server, tmp_path / f"out{processes}", 60, processes_count=processes, max_per_host=2)

    def is_alike(path: Path) -> bool:
        return (
            path.is_file() and path.suffix not in (".json", ".html") and path.name != "run"
        )  # which says what was typed

    first, other = (
        {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if is_alike(path)}
        for folder in (tmp_path / "out1", tmp_path / "out3")
    )
    assert len(first) >= 60
    assert first == other


def test_transfers_that_outlast_a_turn_count_in_the_next_ones_and_who_waits_is_not_stuck(
    server: Server, tmp_path: Path
) -> None:
    with serve(server.folder, {str(n): ["slow:6"] for n in (3, 13)}) as slow:
        report = run(slow, tmp_path / "out", 40, max_per_host=1, processes_count=3, watchdog_timeout=8)
    assert report.status_dict == {"success": 40}
    assert slow.max_concurrent == 1
    assert len(slow.requests) == 40  # nothing was cancelled
    assert not (tmp_path / "out/.any2ds/work").exists()
