"""Spark reads metadata, files out of parquet, and files in folders; in local mode, with a JVM of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """What is of no interest to a reader: addresses of this machine, and a JVM that starts quickly."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        patch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[1] --conf spark.ui.enabled=false pyspark-shell")
        yield
        from pyspark.sql import SparkSession

        SparkSession.builder.getOrCreate().stop()


@pytest.fixture
def here(dataset: Callable[..., Any]) -> dict[str, str]:
    """What to replace in the README: to the JVM a relative path is one in the folder in which it was started."""
    return {'"dataset/': f'"{Path.cwd()}/dataset/'}


def test_parquet_with_plain_bytes(dataset: Any, readme: Any, here: dict[str, str]) -> None:
    made = dataset("parquet")
    assert dict(readme("Spark", 0, here)["sizes"]) == {key: len(content) for key, content in made.files.items()}


def test_parquet_for_hugging_face(dataset: Any, readme: Any, here: dict[str, str]) -> None:
    made = dataset("parquet", "audio", parquet_data="audio")
    sizes = readme("Spark", 0, {**here, "row.data": "row.data.bytes"})["sizes"]
    assert dict(sizes) == {key: len(content) for key, content in made.files.items()}


def test_folders_of_images(dataset: Any, readme: Any, here: dict[str, str], dead: str) -> None:
    made = dataset("files", file_ext="jpg")
    read = readme("Spark", 1, here)
    images = {row.path.rpartition("/")[2].partition(".")[0]: bytes(row.content) for row in read["images"].collect()}
    assert images == made.files
    failed = read["metadata"].where("status != 'success'").select("key", "error_code").collect()
    assert [tuple(row) for row in failed] == [(dead, "http_404")]


def test_metadata_beside_tar_files(dataset: Any, readme: Any, here: dict[str, str]) -> None:
    made = dataset("webdataset", "mixed")
    only_metadata = {'spark.read.format("binaryFile").load("dataset/*/*.jpg")': "None"}
    metadata = readme("Spark", 1, {**only_metadata, **here})["metadata"]
    rows = metadata.where("status = 'success'").select("key", "label").collect()
    assert {row.key: row.label for row in rows} == {key: made.labels[key] for key in made.files}
