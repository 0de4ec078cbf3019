"""Ray Data takes `any2ds.load`, shard by shard, on a cluster of two nodes."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import any2ds
from any2ds.describe.loaders import snippets
from tests.cluster.conftest import ROWS, SHARDS, Listed
from tests.support.raycluster import HEAD, SECOND, ray_cluster

PAGE = Path(__file__).parents[2] / "docs" / "loading.md"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with ray_cluster(HEAD, SECOND) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        ray.init(running.address, log_to_driver=False, logging_level="error")
        yield
        ray.shutdown()


@pytest.fixture(params=["webdataset", "parquet"])
def made(
    request: pytest.FixtureRequest, listed: Callable[..., Listed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, bytes]:
    """A dataset in `dataset/` of the working directory; key -> content."""
    monkeypatch.chdir(tmp_path)
    options = {**listed().options, "output_format": request.param, "distributor": "inline", "robots": "ignore"}
    any2ds.download(**options, output_folder="dataset")
    return {f"{n // ROWS:05d}{n % ROWS}": b"the content of file %d" % n for n in range(ROWS * SHARDS)}


def ran(code: str) -> Any:
    variables: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "snippet", "exec"), variables)
    return variables["samples"]


def test_the_snippet_of_a_dataset(made: dict[str, bytes]) -> None:
    (code,) = (each.code for each in snippets("dataset") if each.loader == "Ray Data")
    assert {row["key"]: row["data"] for row in ran(code).take_all()} == made


def test_what_the_page_shows(made: dict[str, bytes]) -> None:
    (code,) = re.findall(r"^```python\n([^`]*import ray\n[^`]*)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    samples = ran(code.replace(', "caption"', ""))  # which the list lacks
    sizes = samples.map(lambda row: {"key": row["key"], "size": len(row["data"])})
    assert {row["key"]: row["size"] for row in sizes.take_all()} == {key: len(data) for key, data in made.items()}


def test_a_part_of_it(made: dict[str, bytes]) -> None:
    ds = any2ds.load("dataset", split="train[:10]", columns=["key"])
    samples = ray.data.range(len(ds.shards)).flat_map(lambda row: ds.shards[row["id"]])
    assert sorted(row["key"] for row in samples.take_all()) == sorted(made)[:10]
