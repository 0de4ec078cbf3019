"""Recipes on clusters: shards that Spark and Beam make."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import any2ds
from tests.support.killed_builds import HELD, ROWS, KilledBuild


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
    options: dict[str, Any] = {"number_sample_per_shard": 10, "quiet": True, "report": False}
    any2ds.build(Pictures, data_dir=tmp_path / "a", distributor=distributor, **options, **more)
    any2ds.build(Pictures, data_dir=tmp_path / "b", **options)
    shards = [sorted((tmp_path / name / "pictures" / "1.0.0").glob("*.tar")) for name in ("a", "b")]
    assert [path.read_bytes() for path in shards[0]] == [path.read_bytes() for path in shards[1]]
    assert len(shards[0]) == 6


def test_a_build_by_beam_that_was_killed_goes_on(listed: Any, tmp_path: Path) -> None:
    """Of rows with two URLs each."""
    runner = "--runner=PortableRunner,--job_endpoint=embed,--environment_type=LOOPBACK"
    flags = [f"--beam_options={runner}", "--distributor=beam"]
    build = KilledBuild(listed(HELD).server, tmp_path, f"{tmp_path}/data", ROWS, flags)
    before = build.kill_in_the_middle(4)
    build.finish(before)
    assert build.counts_of([*before]) == {1}
