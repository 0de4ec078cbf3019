"""Daft reads metadata, and decodes images."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image


def expect_images(found: dict[str, Any], made: Any) -> None:
    for key, image in found.items():
        expected = np.asarray(Image.open(io.BytesIO(made.files[key])))
        assert image.shape == expected.shape
        assert np.abs(np.asarray(image).astype(int) - expected).max() <= 3  # another decoder of JPEG


def test_parquet_with_plain_bytes(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("parquet")
    images = readme("Daft")["images"].sort("key").to_pydict()
    assert images["key"] == list(made.files)
    assert images["caption"] == [made.captions[key] for key in made.files]
    expect_images(dict(zip(images["key"], images["image"], strict=True)), made)


def test_parquet_for_hugging_face(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("parquet", parquet_data="image")
    replace = {'daft.col("data")': 'daft.col("data")["bytes"]'}
    images = readme("Daft", replace=replace)["images"].sort("key").to_pydict()
    assert images["key"] == list(made.files)
    expect_images(dict(zip(images["key"], images["image"], strict=True)), made)


def test_folders_of_images(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("files", file_ext="jpg")
    images = readme("Daft", 1)["images"].sort("path").to_pydict()
    keys = [path.rpartition("/")[2].partition(".")[0] for path in images["path"]]
    assert keys == list(made.files)
    expect_images(dict(zip(keys, images["image"], strict=True)), made)


def test_metadata_beside_tar_files(dataset: Callable[..., Any]) -> None:
    import daft

    made = dataset("webdataset")
    rows = daft.read_parquet("dataset/*.parquet").where(daft.col("status") == "success").sort("key").to_pydict()
    assert rows["key"] == list(made.files)
    assert rows["label"] == [made.labels[key] for key in made.files]
