"""Output folders in odd places: full disks, deleted working directories, paths that are too long, links."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.play import Play

YEAR_2100 = 4102444800.0
QUIET = ("--quiet", "--distributor=inline")


def any2ds_in(folder: Path, *words: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command in `folder`, after a command of the shell there."""
    shell = ["sh", "-c", f'{before or ":"}; exec "$@"', "sh", sys.executable, "-m", "any2ds", *words]
    return subprocess.run(shell, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    (tmp_path / "rows.txt").write_text("data:,a\n")
    return str(tmp_path / "rows.txt")


@pytest.mark.parametrize("command", ["download", "verify", "retry", "inspect", "report", "card"])
def test_in_a_deleted_working_directory_a_relative_path_is_refused_by_its_name(
    command: str, rows: str, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    words = [rows, "made", *QUIET] if command == "download" else [command, "made"]
    ended = any2ds_in(tmp_path / "gone", *words, before="rmdir ../gone")
    assert ended.returncode == 2
    assert "'made' is a path in the working directory, which has been deleted" in ended.stderr


def test_a_path_that_is_too_long_leaves_no_folder_behind(rows: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    names = [f"{n:0100}" for n in range(45)]
    ended = any2ds_in(tmp_path / "there", rows, "/".join(names), *QUIET)
    assert ended.returncode == 2
    assert "cannot be written" in ended.stderr
    assert list((tmp_path / "there").iterdir()) == []


def test_a_clock_that_was_set_ahead_in_a_run_does_not_keep_the_report_away() -> None:
    play = Play(lists={"urls.txt": "".join(f"data:,{n}\n" for n in range(60))}, number_sample_per_shard=10)
    assert play.run().exit_code == 0
    stats = Path(play.path) / "00001_stats.json"
    stats.write_text(json.dumps({**json.loads(stats.read_bytes()), "end_time": YEAR_2100, "duration": YEAR_2100}))
    outcome = play.run("report")
    assert outcome.exit_code == 0, outcome.stderr
    assert "report.html" in outcome.names


@pytest.mark.parametrize("name", [".any2ds", ".any2ds/progress", ".any2ds/lock"])
def test_nothing_is_written_through_a_link_in_a_dataset(name: str, rows: str, tmp_path: Path) -> None:
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "made" / name
    link.parent.mkdir(parents=True)
    if name.endswith("lock"):
        elsewhere.write_bytes(b"")
    else:
        elsewhere.mkdir()
    link.symlink_to(elsewhere)
    ended = any2ds_in(tmp_path, rows, "made", "--reporters=jsonl", *QUIET)
    assert "is a link, and nothing is written or removed through a link" in " ".join(ended.stderr.split())
    assert (elsewhere.read_bytes() == b"") if elsewhere.is_file() else not list(elsewhere.iterdir())
