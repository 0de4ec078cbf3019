"""Recipes on clusters: splits that Beam makes, and shards that Spark and Beam make."""

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from PIL import Image

import any2ds
from any2ds.core.errors import UsageError
from any2ds.recipes.registry import recipe_of
from tests.support.killed_builds import BEAM, HELD, ROWS, KilledBuild
from tests.support.s3 import enter, serve_buckets

RECIPE = """
import apache_beam as beam

import any2ds


def example(number):
    if number % 10 == 7:
        return number, Squares.skip_this(number)
    return number, {"number": number, "square": number * number, "text": f"n{number}"}


class Squares(any2ds.Recipe):
    '''Numbers and their squares, made by Beam.'''

    def info(self):
        return any2ds.Info({"number": int, "square": int, "text": any2ds.Text()})

    def splits(self, dl, pipeline):
        numbers = pipeline | beam.Create(range(200))  # a step that two splits share
        return {
            "even": numbers | "even" >> beam.Filter(lambda number: number % 2 == 0) | "e" >> beam.Map(example),
            "odd": numbers | "odd" >> beam.Filter(lambda number: number % 2 == 1) | "o" >> beam.Map(example),
            "more": beam.Create(range(1000, 1010)) | beam.Map(example),
            "plain": [(5000, {"number": 1, "square": 1, "text": ""})],
        }

    @staticmethod
    def skip_this(number):
        return Squares().skip(number, "sevens")
"""


RUNNERS = {
    "in_memory": "--direct_running_mode=in_memory",
    "multi_processing": "--direct_running_mode=multi_processing,--direct_num_workers=2",
    "portable": "--runner=PortableRunner,--job_endpoint=embed,--environment_type=LOOPBACK",
}


def squares(tmp_path: Path, data_dir: Any, beam_options: str) -> None:
    (tmp_path / "squares.py").write_text(RECIPE)
    any2ds.build(
        str(tmp_path / "squares.py"),
        data_dir=data_dir,
        output_format="parquet",
        beam_options=beam_options,
        number_sample_per_shard=40,
        quiet=True,
        report=False,
    )


@pytest.mark.parametrize("runner", RUNNERS)
def test_splits_of_beam_share_steps_and_become_one_dataset(runner: str, tmp_path: Path) -> None:
    squares(tmp_path, tmp_path / "data", RUNNERS[runner])
    folder = tmp_path / "data" / "squares" / "1.0.0"
    assert any2ds.verify(folder, quiet=True).ok
    found = any2ds.load(folder, split="odd")
    assert sorted(sample["number"] for sample in found) == [n for n in range(1, 200, 2) if n % 10 != 7]
    assert all(sample["square"] == sample["number"] ** 2 for sample in found)
    assert found.recipe is not None
    about = {split.name: (split.rows, dict(split.skipped)) for split in found.recipe.splits}
    assert about == {"even": (100, {}), "odd": (80, {"sevens": 20}), "more": (9, {"sevens": 1}), "plain": (1, {})}
    assert [path.name for path in (folder / ".any2ds").iterdir() if "spool" in path.name] == []


@pytest.mark.parametrize("runner", ["in_memory", "portable"])
def test_beam_builds_into_a_store(runner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_buckets() as new_bucket:
        bucket = new_bucket()
        enter(bucket, monkeypatch)
        squares(tmp_path, f"{bucket.url}/data", RUNNERS[runner])
        folder = f"{bucket.url}/data/squares/1.0.0"
        assert any2ds.verify(folder, quiet=True).ok
        assert len(any2ds.load("squares", data_dir=f"{bucket.url}/data", split="even+more")) == 109
        assert not [name for name in bucket.connect().find(folder) if "spool" in name]


def test_what_is_wrong_in_beam_is_named(tmp_path: Path) -> None:
    class Wrong(any2ds.Recipe):
        """One sample is wrong."""

        def info(self) -> any2ds.Info:
            return any2ds.Info({"text": any2ds.Text()})

        def splits(self, dl: Any) -> Any:
            return beam.Create([("a", {"text": 7})])

    with pytest.raises(UsageError, match="split train: sample 'a': feature 'text' cannot be 7: expected a text"):
        any2ds.build(Wrong, data_dir=tmp_path, quiet=True, report=False)
    assert not (tmp_path / "wrong" / "1.0.0").exists()


def test_the_shipped_recipe_of_beam_passes_its_test() -> None:
    folder = Path(__file__).parents[2] / "examples" / "recipes" / "numbers_beam"
    command = [sys.executable, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider"]
    done = subprocess.run([*command, "numbers_beam_test.py"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Pictures(any2ds.Recipe):
    """Small pictures."""

    def info(self) -> any2ds.Info:
        return any2ds.Info({"image": any2ds.Image(), "number": int})

    def splits(self, dl: Any) -> Iterator[Any]:
        for number in range(60):
            stream = io.BytesIO()
            Image.new("RGB", (4, 4), (number, 0, 0)).save(stream, "png")
            yield number, {"image": stream.getvalue(), "number": number}


@pytest.mark.parametrize("distributor", ["pyspark", "beam"])
def test_the_shards_of_a_recipe_are_made_by_a_cluster(
    distributor: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if distributor == "pyspark":
        request.getfixturevalue("java")
    more: dict[str, Any] = {"beam_options": "--direct_running_mode=in_memory"} if distributor == "beam" else {}
    options: dict[str, Any] = {"number_sample_per_shard": 10, "quiet": True, "report": False, **more}
    any2ds.build(recipe_of(Pictures), data_dir=tmp_path / "a", distributor=distributor, **options)
    any2ds.build(Pictures, data_dir=tmp_path / "b", **options)
    shards = [sorted((tmp_path / name / "pictures" / "1.0.0").glob("*.tar")) for name in ("a", "b")]
    assert [path.read_bytes() for path in shards[0]] == [path.read_bytes() for path in shards[1]]
    assert len(shards[0]) == 6


@pytest.mark.parametrize("runner", ["multi_processing", "portable"])
def test_a_recipe_of_beam_that_was_killed_begins_its_splits_anew(runner: str, listed: Any, tmp_path: Path) -> None:
    flags = [f"--beam_options={RUNNERS[runner]}", "--distributor=inline"]
    build = KilledBuild(listed(HELD).server, tmp_path, f"{tmp_path}/data", BEAM, flags)
    before = build.kill_in_the_middle(0)
    assert not before
    build.finish(before)


def test_a_build_by_beam_that_was_killed_goes_on(listed: Any, tmp_path: Path) -> None:
    """Of rows with two URLs each."""
    flags = [f"--beam_options={RUNNERS['portable']}", "--distributor=beam"]
    build = KilledBuild(listed(HELD).server, tmp_path, f"{tmp_path}/data", ROWS, flags)
    before = build.kill_in_the_middle(4)
    build.finish(before)
    assert build.counts_of([*before]) == {1}
