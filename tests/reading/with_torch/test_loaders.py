"""What any2ds says of how to load a dataset with PyTorch: each snippet runs as it stands, and gives what is stored."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("form", ["webdataset", "parquet", "files"])
@pytest.mark.parametrize("rows", [1, 10])  # in a shard: the shard of the row that failed is empty
def test_samples(form: str, rows: int, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset(form, number_sample_per_shard=rows)
    assert loaded("PyTorch") == len(made.files)
