"""The examples run as a newcomer would run them."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(name: str, folder: Path) -> str:
    """What an example prints when it is run in an empty folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    command = [sys.executable, str(ROOT / "examples" / name)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_demo_makes_a_dataset_in_place_of_an_earlier_one(tmp_path: Path) -> None:
    earlier = tmp_path / "demo_output" / "00009.tar"
    earlier.parent.mkdir()
    earlier.touch()
    shown = run("demo.py", tmp_path)
    assert "00003_stats.json" in shown
    assert "http_404" in shown
    assert not earlier.exists()


def test_simple_example_makes_a_dataset_each_time_that_it_is_run(tmp_path: Path) -> None:
    for _ in range(2):
        shown = run("simple_example.py", tmp_path)
        assert "207 of 236 files are in simple_output" in shown
        assert (tmp_path / "simple_output" / "00002.tar").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo.py", "filter_shape.py", "dedupe_pictures.py", "score_batches.py"])
def test_a_second_run_in_the_same_folder_shows_the_same(name: str, tmp_path: Path) -> None:
    counts = [Counter(re.findall(r"\b\d+ of \d+\b|'success': \d+", run(name, tmp_path))) for _ in range(2)]
    assert counts[0] == counts[1]
    assert counts[0]


@pytest.mark.slow
def test_a_filter_says_why(tmp_path: Path) -> None:
    shown = run("filter_shape.py", tmp_path)
    assert "'filtered': 109, 'success': 98" in shown
    assert "58  too long for its height" in shown
    assert "51  no picture" in shown


def test_pictures_that_look_the_same_are_found(tmp_path: Path) -> None:
    shown = run("dedupe_pictures.py", tmp_path)
    assert "6 of 12 are kept" in shown
    assert (tmp_path / "dedupe_kept.txt").read_text().split() == [f"{2 * number:09d}" for number in range(6)]


@pytest.mark.slow
def test_a_model_scores_in_batches(tmp_path: Path) -> None:
    shown = run("score_batches.py", tmp_path)
    assert "of 156 pictures are in score_output" in shown
    assert "filtered  0" in shown
    assert (tmp_path / "score_output" / "00000.tar").exists()
