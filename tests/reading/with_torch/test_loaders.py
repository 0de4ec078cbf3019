"""What any2ds says of how to load a dataset with PyTorch: each snippet runs as it stands, and gives what is stored."""

from collections.abc import Callable
from typing import Any

import pytest

from any2ds.dataset.loaders import snippets


@pytest.mark.parametrize("form", ["webdataset", "parquet", "files"])
@pytest.mark.parametrize("rows", [1, 10])  # in a shard: the shard of the row that failed is empty
def test_samples(form: str, rows: int, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset(form, number_sample_per_shard=rows)
    assert loaded("PyTorch") == len(made.files)


@pytest.mark.parametrize("form", ["webdataset", "parquet", "tfrecord", "files"])
@pytest.mark.parametrize("kind", ["images", "mixed"])
def test_samples_through_any2ds(form: str, kind: str, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset(form, kind, **({"data_column": "a file"} if form == "parquet" else {}))
    assert loaded("any2ds and PyTorch") == len(made.files)


def test_encoded_images_are_decoded(dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset("webdataset", encode_format="jpg")
    (code,) = (each.code for each in snippets("dataset") if each.loader == "any2ds and PyTorch")
    assert "decode=True" in code
    assert loaded("any2ds and PyTorch") == len(made.files)


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_squares_of_one_size_are_tensors(form: str, dataset: Callable[..., Any]) -> None:
    made = dataset(form, file_size=16, resize_mode="border", resize_only_if_bigger=False)
    (snippet,) = (each for each in snippets("dataset") if each.loader == "any2ds and PyTorch")
    assert snippet.install == "'any2ds[image]' torch"
    variables: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(snippet.code, "snippet", "exec"), variables)
    shapes = [tuple(batch["data"].shape) for batch in variables["batches"]]
    assert [shape[1:] for shape in shapes] == [(16, 16, 3)] * len(shapes)
    assert sum(shape[0] for shape in shapes) == len(made.files)
