"""What any2ds says of how to load a dataset: each snippet runs as it stands, and gives what is stored."""

from collections.abc import Callable
from typing import Any

import pytest

from any2ds import card
from any2ds.dataset.loaders import snippets

TABLES = ("pandas", "pyarrow", "DuckDB", "Polars", "Daft")
OF_FORMAT = {
    "webdataset": ("webdataset", "Hugging Face datasets"),
    "parquet": ("Hugging Face datasets",),
    "arrayrecord": ("any2ds and Grain", "Grain", "TensorFlow Datasets"),
    "files": ("plain files",),
}
ELSEWHERE = {"any2ds and PyTorch", "PyTorch", "tf.data"}  # with_torch, with_tensorflow


@pytest.mark.parametrize(("form", "loader"), [(form, name) for form, names in OF_FORMAT.items() for name in names])
def test_samples(form: str, loader: str, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset(form)
    card("dataset")
    assert loaded(loader) == len(made.files)


def test_samples_of_a_mixed_dataset(dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset("webdataset", "mixed")
    assert loaded("webdataset") == len(made.files)


@pytest.mark.parametrize("loader", TABLES)
@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_tables(form: str, loader: str, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset(form)
    assert loaded(loader) == len(made.files)


@pytest.mark.parametrize("kind", ["images", "audio", "mixed"])
def test_parquet_of_each_kind(kind: str, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset("parquet", kind, data_column="file")
    expected = {"images": "Image()", "audio": "Audio()", "mixed": "len("}[kind]
    (snippet,) = (each for each in snippets("dataset") if each.loader == "Hugging Face datasets")
    assert expected in snippet.code
    if kind != "audio":  # which wants torchcodec to be heard
        assert loaded("Hugging Face datasets") == len(made.files)


def test_every_loader_is_tried(dataset: Callable[..., Any]) -> None:
    for form in OF_FORMAT:
        dataset(form)
        assert {each.loader for each in snippets("dataset")} == {*OF_FORMAT[form], *TABLES} | (
            ELSEWHERE - {"tf.data"} if form != "arrayrecord" else set()
        )
