"""pandas and Polars take `any2ds.load`, and read the metadata without it."""

import io
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars
import pytest
from PIL import Image

import any2ds


@pytest.mark.parametrize("output_format", ["parquet", "webdataset", "tfrecord", "files"])
def test_metadata(output_format: str, dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset(output_format)
    shown = readme("pandas, Polars, DuckDB")
    assert shown["table"]["key"].tolist() == shown["rows"]["key"].to_list() == list(made.files)
    assert shown["table"]["caption"].tolist() == [made.captions[key] for key in made.files]
    exts = {"png": sum(1 for data in made.files.values() if data[:2] == b"\x89P")}
    assert dict(shown["outcomes"].fetchall()) == {**exts, "jpg": len(made.files) - exts["png"]}


@pytest.mark.parametrize("output_format", ["parquet", "webdataset", "tfrecord", "arrayrecord", "files"])
def test_samples_with_their_files(output_format: str, dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset(output_format)
    shown = readme("pandas, Polars, DuckDB", 1)
    some = dict(list(made.files.items())[:20])
    assert shown["frame"].to_dict(as_series=False)["data"] == list(some.values())
    assert dict(zip(shown["table"]["key"], shown["table"]["data"], strict=True)) == some
    assert {ext for ext, _ in shown["sizes"].fetchall()} == {"jpg", "png"}
    assert any2ds.load("dataset").metadata.to_table().to_pandas()["key"].tolist() == list(made.files)
    frame = pd.DataFrame.from_arrow(any2ds.load("dataset"))
    assert frame["data"].tolist() == list(made.files.values())
    assert pd.DataFrame(any2ds.load("dataset")[:3])["key"].tolist() == list(made.files)[:3]
    assert polars.DataFrame(any2ds.load("dataset")[:3])["key"].to_list() == list(made.files)[:3]


def test_without_any2ds(dataset: Callable[..., Any], dead: str) -> None:
    made = dataset("parquet")
    frame = pd.read_parquet("dataset/00001.parquet").set_index("key")
    assert frame.label.to_dict() == {key: label for key, label in made.labels.items() if key.startswith("00001")}
    assert Image.open(io.BytesIO(frame.data["000012"])).size == (32, 32)
    assert frame.data.to_dict() == {key: data for key, data in made.files.items() if key.startswith("00001")}
    frame = pd.read_parquet("dataset/00000.parquet").set_index("key")
    assert frame.loc[dead, "error_code"] == "http_404"
