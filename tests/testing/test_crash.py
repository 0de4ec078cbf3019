"""The crash test in short, and that its checker sees what it is for; `make crash` is the long form."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds import download
from tests.support.crash.check import Expected, problems_at_the_end, problems_now
from tests.support.crash.plan import Told
from tests.support.crash.source import Source, make_rows, served, write_list
from tests.support.crash.step import STEP, made_of
from tests.support.crash.story import Seen, play
from tests.support.params import sampled

# webdataset leaves the last shard that it reads open.
pytestmark = pytest.mark.filterwarnings(r"ignore:unclosed file .*\.tar:ResourceWarning")

ROWS_PER_SHARD = 8


def crash(*arguments: str, scratch: Path) -> list[dict[str, Any]]:
    """What was seen in each story; every one of them has ended well."""
    seen = scratch / "seen.json"
    command = [sys.executable, "-m", "tests.support.crash", *arguments, f"--scratch={scratch}", f"--json={seen}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    stories: list[dict[str, Any]] = json.loads(seen.read_text(encoding="utf-8"))
    for story in stories:
        assert story["commands"]["verify"] == 1
    return stories


def kills(stories: list[dict[str, Any]]) -> int:
    return sum(count for story in stories for *_, count in story["kills"])


def played(reported: Told, scratch: Path) -> Seen:
    """What was seen in a story that ended well."""
    seen = play(reported, scratch / "story")
    assert not seen.problems
    assert seen.commands["verify"] == 1
    assert seen.kills.total() >= 1
    assert seen.starts >= 2
    return seen


@pytest.mark.parametrize(("output_format", "seed"), sampled([("webdataset", 0), ("parquet", 1), ("files", 2)]))
def test_killed_commands_lose_nothing_and_double_nothing(output_format: str, seed: int, tmp_path: Path) -> None:
    played(Told(output_format, seed, shards=4, kills=9), tmp_path)


@pytest.mark.slow
def test_of_two_commands_on_one_folder_one_is_at_work_at_a_time(tmp_path: Path) -> None:
    seen = play(Told("webdataset", 0, kills=2, in_pairs=True), tmp_path / "story")
    assert not seen.problems
    assert seen.pairs.total() == 2


@pytest.mark.slow
def test_a_disk_that_fills_costs_nothing_but_time(tmp_path: Path) -> None:
    (story,) = crash("--seeds=1", "--on=disk", "--shards=16", "--formats=webdataset", scratch=tmp_path)
    assert kills([story]) >= 1


@pytest.mark.slow
def test_killed_commands_in_a_store_that_fails_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    (story,) = crash("--seeds=1", "--on=s3", "--shards=6", "--kills=4", "--formats=webdataset", scratch=tmp_path)
    assert story["failed_requests"] > 2
    assert kills([story]) >= 1


# --- the checker ---


@pytest.fixture(scope="module")
def source() -> Iterator[Source]:
    with served() as running:
        yield running


@pytest.fixture(params=["webdataset", "parquet", "files"])
def dataset(request: pytest.FixtureRequest, source: Source, tmp_path: Path) -> tuple[Path, Expected]:
    """Three shards, the last one short, and what is to be in them."""
    rows = make_rows(random.Random(7), 2 * ROWS_PER_SHARD + 3, source.base, 3000)
    write_list(rows, tmp_path / "list.parquet")
    download(
        tmp_path / "list.parquet",
        output_folder=tmp_path / "out",
        output_format=request.param,
        caption_col="caption",
        save_additional_columns="number",
        number_sample_per_shard=ROWS_PER_SHARD,
        disable_all_reencoding=True,
        transform=STEP,
        distributor="inline",
        quiet=True,
    )
    return tmp_path / "out", Expected([rows], ROWS_PER_SHARD, request.param, has_columns=True, has_steps=True)


def data_of(folder: Path, expected: Expected) -> Path:
    """A file with bytes of shard 1."""
    if expected.output_format == "files":
        return next((folder / "00001").glob("*.jpg"))
    return folder / ("00001.tar" if expected.output_format == "webdataset" else "00001.parquet")


def cut_short(folder: Path, expected: Expected) -> None:
    path = data_of(folder, expected)
    path.write_bytes(path.read_bytes()[:-600])


def change_a_byte(folder: Path, expected: Expected) -> None:
    path = data_of(folder, expected)
    content = bytearray(path.read_bytes())
    bodies = [row.body for row in expected.at(folder).of_shard(1) if row.outcome(healed=False) == "success"]
    body = next(body for body in bodies if body in content)
    content[content.index(body) + len(body) - 1] ^= 1
    path.write_bytes(content)


def repeat_a_row(folder: Path, expected: Expected) -> None:
    table = pq.read_table(folder / "00001.parquet")
    pq.write_table(pa.concat_tables([table.slice(0, 7), table.slice(6, 1)]), folder / "00001.parquet")


def swap_rows(folder: Path, expected: Expected) -> None:
    table = pq.read_table(folder / "00001.parquet")
    parts = [table.slice(1, 1), table.slice(0, 1), table.slice(2)]
    pq.write_table(pa.concat_tables(parts), folder / "00001.parquet")


def lose_a_row(folder: Path, expected: Expected) -> None:
    pq.write_table(pq.read_table(folder / "00001.parquet").slice(1), folder / "00001.parquet")


def lose_the_metadata(folder: Path, expected: Expected) -> None:
    (folder / "00001.parquet").unlink()


def count_wrongly(folder: Path, expected: Expected) -> None:
    stats = json.loads((folder / "00001_stats.json").read_text())
    (folder / "00001_stats.json").write_text(json.dumps({**stats, "successes": stats["successes"] + 1}))


def lose_a_sample(folder: Path, expected: Expected) -> None:
    table = pq.read_table(folder / "00001.parquet")
    last = next(n for n, key in enumerate(table["key"].to_pylist()) if key.endswith("_0001"))
    pq.write_table(pa.concat_tables([table.slice(0, last), table.slice(last + 1)]), folder / "00001.parquet")


def count_samples_wrongly(folder: Path, expected: Expected) -> None:
    stats = json.loads((folder / "00001_stats.json").read_text())
    (folder / "00001_stats.json").write_text(json.dumps({**stats, "samples": stats["samples"] - 1}))


DAMAGES = [
    *(cut_short, change_a_byte, repeat_a_row, swap_rows, lose_a_row, lose_the_metadata, count_wrongly),
    *(lose_a_sample, count_samples_wrongly),
]


def test_a_whole_dataset_is_found_whole(dataset: tuple[Path, Expected]) -> None:
    _, expected = dataset
    made = [made_of(row.body) for row in expected.lists[0] if row.outcome(healed=False) == "success"]
    assert {1, 2} < {len(files) for files in made}  # and more
    assert problems_now(*dataset) == []
    assert problems_at_the_end(*dataset) == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_seen(damage: Callable[[Path, Expected], None], dataset: tuple[Path, Expected]) -> None:
    damage(*dataset)
    (problem,) = problems_now(*dataset)
    assert "00001" in problem


def test_what_is_missing_or_left_over_is_seen_in_the_end(dataset: tuple[Path, Expected]) -> None:
    folder, expected = dataset
    (folder / "00001_stats.json").unlink()
    (folder / ".any2ds/tmp").mkdir()
    (folder / ".any2ds/lock").write_text("{}")
    assert problems_at_the_end(folder, expected) == [
        "missing: 00001_stats.json",
        "left over: .any2ds/lock, .any2ds/tmp",
    ]
