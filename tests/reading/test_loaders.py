"""What any2ds says of how to load a dataset: each snippet runs as it stands, and gives what is stored."""

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

from any2ds.describe.loaders import snippets

WITH_ANY2DS = ("Grain", "Hugging Face datasets", "webdataset", "Spark", "Daft", "DuckDB", "Polars", "pandas")
WITHOUT = {
    "webdataset": "webdataset, without any2ds",
    "parquet": "Hugging Face datasets, without any2ds",
    "arrayrecord": "TensorFlow Datasets, without any2ds",
    "files": "plain files, without any2ds",
}
ELSEWHERE = {"PyTorch", "tf.data", "Ray Data"}  # with_torch, with_tensorflow, tests/cluster


@pytest.mark.parametrize("loader", [name for name in WITH_ANY2DS if name != "Spark"])
@pytest.mark.parametrize("form", ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"])
def test_with_any2ds(form: str, loader: str, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset(form, **({"data_column": "a file"} if form == "parquet" else {}))
    assert loaded(loader) == len(made.files)


def test_with_any2ds_and_spark(
    dataset: Callable[..., Any], loaded: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[1] --conf spark.ui.enabled=false pyspark-shell")
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    made = dataset("webdataset")
    assert loaded("Spark") == len(made.files)


@pytest.mark.parametrize("loader", [*WITH_ANY2DS[:3], *WITH_ANY2DS[4:]])
def test_samples_of_a_mixed_dataset(loader: str, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset("webdataset", "mixed")
    assert loaded(loader) == len(made.files)


@pytest.mark.parametrize("form", WITHOUT)
def test_without_any2ds(form: str, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset(form, **({"data_column": "a file"} if form == "parquet" else {}))
    assert loaded(WITHOUT[form]) == len(made.files)


@pytest.mark.parametrize("form", WITHOUT)
def test_samples_of_a_dataset_of_many_runs(form: str, eventful: Callable[..., Any], loaded: Callable[..., int]) -> None:
    kept = eventful(form)
    assert loaded(WITHOUT[form]) == len(kept)


def test_every_loader_is_tried(dataset: Callable[..., Any]) -> None:
    for form, without in WITHOUT.items():
        dataset(form)
        assert {each.loader for each in snippets("dataset")} == {*WITH_ANY2DS, *ELSEWHERE, without}
