"""Daft takes `any2ds.load`, and reads parquet without it."""

import io
from collections.abc import Callable
from typing import Any

import daft
import numpy as np
import pytest
from PIL import Image


def expect_images(found: dict[str, Any], made: Any) -> None:
    for key, image in found.items():
        expected = np.asarray(Image.open(io.BytesIO(made.files[key])))
        assert image.shape == expected.shape
        assert np.abs(np.asarray(image).astype(int) - expected).max() <= 3  # another decoder of JPEG


@pytest.mark.parametrize("output_format", ["webdataset", "arrayrecord"])
def test_samples_are_decoded(output_format: str, dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset(output_format)
    samples = readme("Daft")["samples"].sort("key").to_pydict()
    assert samples["key"] == list(made.files)
    assert samples["caption"] == [made.captions[key] for key in made.files]
    assert samples["data"] == list(made.files.values())
    expect_images(dict(zip(samples["key"], samples["image"], strict=True)), made)


@pytest.mark.parametrize("parquet_data", ["binary", "image"])
def test_parquet_without_any2ds(parquet_data: str, dataset: Callable[..., Any]) -> None:
    made = dataset("parquet", parquet_data=parquet_data)
    stored = daft.read_parquet("dataset/*.parquet").where(daft.col("status") == "success")
    data = daft.col("data")["bytes"] if parquet_data == "image" else daft.col("data")
    images = stored.with_column("image", daft.functions.decode_image(data)).sort("key").to_pydict()
    assert images["key"] == list(made.files)
    expect_images(dict(zip(images["key"], images["image"], strict=True)), made)


def test_metadata_beside_tar_files(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    rows = daft.read_parquet("dataset/*.parquet").where(daft.col("status") == "success").sort("key").to_pydict()
    assert rows["key"] == list(made.files)
    assert rows["label"] == [made.labels[key] for key in made.files]
