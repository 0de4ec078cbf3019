"""What any2ds says of how to load a dataset with TensorFlow: each snippet runs, and gives what is stored."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize("form", ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"])
def test_with_any2ds(form: str, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset(form)
    assert loaded("tf.data") == len(made.files)


def test_records_without_any2ds(dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset("tfrecord")
    assert loaded("tf.data, without any2ds") == len(made.files)
