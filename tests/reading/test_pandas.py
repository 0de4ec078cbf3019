"""pandas reads the metadata, and files out of parquet."""

import io
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from PIL import Image


@pytest.mark.parametrize("output_format", ["parquet", "webdataset", "files"])
def test_metadata(output_format: str, dataset: Callable[..., Any], readme: Callable[..., Any], dead: str) -> None:
    made = dataset(output_format)
    metadata = readme("pandas")["metadata"].set_index("key")
    assert list(metadata[metadata.status == "success"].index) == list(made.files)
    assert metadata.loc[dead, "error_code"] == "http_404"
    assert metadata["bytes"].sum() == sum(map(len, made.files.values()))


def test_files(dataset: Callable[..., Any]) -> None:
    made = dataset("parquet")
    frame = pd.read_parquet("dataset/00001.parquet").set_index("key")
    assert frame.label.to_dict() == {key: label for key, label in made.labels.items() if key.startswith("00001")}
    assert Image.open(io.BytesIO(frame.data["000012"])).size == (32, 32)
    assert frame.data.to_dict() == {key: data for key, data in made.files.items() if key.startswith("00001")}
