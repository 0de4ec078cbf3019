"""Spark takes `any2ds.load`, and reads parquet without it; in local mode, with a JVM of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import any2ds
from tests.support.programs import program


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """What is of no interest to a reader: addresses of this machine, and a JVM that starts quickly."""
    program("java")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        patch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[1] --conf spark.ui.enabled=false pyspark-shell")
        yield
        SparkSession.builder.getOrCreate().stop()


FORMATS = ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"]


@pytest.mark.parametrize("output_format", FORMATS)
def test_samples_of_every_format(output_format: str, dataset: Any, readme: Any) -> None:
    made = dataset(output_format)
    shown = readme("Spark")
    samples = shown["samples"]
    assert samples.rdd.getNumPartitions() == 3
    rows = {row.key: row for row in samples.collect()}
    assert {key: bytes(row.data) for key, row in rows.items()} == made.files
    assert {key: (row.caption, row.label) for key, row in rows.items()} == {
        key: (made.captions[key], made.labels[key]) for key in made.files
    }


def test_parts_and_columns(dataset: Any) -> None:
    made = dataset("webdataset")
    ds = any2ds.load("dataset", where="label = 1", columns=["label", "key"])
    samples = ds.to_spark(SparkSession.builder.getOrCreate())
    assert samples.columns == ["label", "key"]
    wanted = [(1, key) for key in made.files if made.labels[key] == 1]
    assert sorted(map(tuple, samples.collect())) == wanted


@pytest.mark.parametrize("output_format", ["webdataset", "parquet", "tfrecord"])
def test_values_of_every_type(output_format: str, rich: Any) -> None:
    rich(output_format)
    samples = any2ds.load("dataset").to_spark(SparkSession.builder.getOrCreate())
    first, second, third = samples.orderBy("key").collect()
    assert (first.tags, first.box, first.score, first.safe) == (["grün", "tree"], [0.5, 1.5], 0.25, True)
    assert (first.place.lat, first.place.of) == (1.5, ["x"])
    assert (bytes(first.raw), first.when.isoformat()) == (b"\x00\xff", "2026-01-02T03:04:05")
    assert (second.place, second.when, third.score) == (None, None, 2.0)


class Boxes(any2ds.Recipe):
    """Files with boxes."""

    def info(self) -> any2ds.Info:
        box = {"corner": any2ds.Tensor((2,), "float32"), "name": any2ds.Text()}
        return any2ds.Info({"file": any2ds.Bytes(), "mask": any2ds.Bytes(), "boxes": any2ds.Sequence(box)})

    def splits(self, dl: Any) -> Any:
        def samples() -> Iterator[tuple[int, dict[str, Any]]]:
            for n in range(5):
                yield (
                    n,
                    {"file": b"file%d" % n, "mask": b"mask%d" % n, "boxes": [{"corner": [n, 0.5], "name": "ü"}] * n},
                )

        return {"train": samples()}


def test_the_dataset_of_a_recipe_has_its_features_and_all_files(tmp_path: Path) -> None:
    any2ds.build(Boxes(), data_dir=tmp_path, number_sample_per_shard=2, quiet=True, report=False)
    ds = any2ds.load("boxes", data_dir=tmp_path, columns=["file", "mask", "boxes"])
    rows = sorted(ds.to_spark(SparkSession.builder.getOrCreate()).collect())
    assert [(bytes(row.file), bytes(row.mask)) for row in rows] == [(b"file%d" % n, b"mask%d" % n) for n in range(5)]
    assert (rows[2].boxes.corner, rows[2].boxes.name) == ([[2.0, 0.5]] * 2, ["ü"] * 2)


def test_parquet_without_any2ds(dataset: Any) -> None:
    made = dataset("parquet")
    spark = SparkSession.builder.getOrCreate()
    stored = spark.read.parquet(f"{Path.cwd()}/dataset/*.parquet").where("status = 'success'")
    assert {row.key: bytes(row.data) for row in stored.collect()} == made.files
    made = dataset("parquet", "audio", parquet_data="audio")
    stored = spark.read.parquet(f"{Path.cwd()}/dataset/*.parquet").where("status = 'success'")
    assert {row.key: bytes(row.data.bytes) for row in stored.collect()} == made.files
