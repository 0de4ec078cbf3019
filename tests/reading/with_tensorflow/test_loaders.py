"""What any2ds says of how to load a dataset with TensorFlow: each snippet runs, and gives what is stored."""

from collections.abc import Callable
from typing import Any

import pytest

from any2ds.dataset.loaders import snippets


@pytest.mark.parametrize("loader", ["tf.data", "TensorFlow Datasets"])
def test_samples(loader: str, dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset("tfrecord")
    assert loaded(loader) == len(made.files)


def test_compressed_records(dataset: Callable[..., Any], loaded: Callable[..., int]) -> None:
    made = dataset("tfrecord", tfrecord_compression="gzip")
    assert "TensorFlow Datasets" not in {snippet.loader for snippet in snippets("dataset")}
    assert loaded("tf.data") == len(made.files)
