"""What any2ds says of how to load a dataset with PyTorch: the snippet runs as it stands, and gives what is stored."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("form", ["webdataset", "parquet", "tfrecord", "files"])
@pytest.mark.parametrize("kind", ["images", "mixed"])
def test_samples(form: str, kind: str, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset(form, kind, **({"data_column": "a file"} if form == "parquet" else {}))
    assert loaded("PyTorch") == len(made.files)


def test_shards_of_one_row(dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    """That of the row that failed is empty."""
    made = dataset("webdataset", number_sample_per_shard=1)
    assert loaded("PyTorch") == len(made.files)
