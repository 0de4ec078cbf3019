"""Hugging Face's datasets, webdataset, pandas, Polars and DuckDB take `any2ds.load` as it is."""

import io
from collections.abc import Callable
from typing import Any

import datasets
import duckdb
import polars
import pytest
from PIL import Image

import any2ds

FORMATS = ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"]


class TestDatasets:
    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
    def test_images_are_decoded(self, output_format: str, streaming: bool, dataset: Callable[..., Any]) -> None:
        made = dataset(output_format)
        found = any2ds.load("dataset", columns=["key", "data", "ext", "caption", "label"]).to_hf(streaming=streaming)
        assert isinstance(found.features["data"], datasets.Image)
        rows = {row["key"]: row for row in found}
        assert rows.keys() == made.files.keys()
        for key, row in rows.items():
            assert row["data"].size == (32, 32)
            assert (row["caption"], row["label"]) == (made.captions[key], made.labels[key])

    def test_other_files_are_bytes(self, dataset: Callable[..., Any]) -> None:
        made = dataset("webdataset", "mixed")
        found = any2ds.load("dataset").to_hf()
        assert {row["key"]: row["data"] for row in found} == made.files


class TestWebdataset:
    @pytest.mark.parametrize("output_format", FORMATS)
    def test_its_stages_follow(self, output_format: str, dataset: Callable[..., Any]) -> None:
        made = dataset(output_format)
        pipeline = any2ds.load("dataset").to_webdataset(shuffle=True).decode("pil").to_tuple("jpg;png", "txt", "json")
        found = list(pipeline)
        assert len(found) == len(made.files)
        for image, caption, described in found:
            key = described["key"]
            assert caption == made.captions[key]
            assert image.tobytes() == Image.open(io.BytesIO(made.files[key])).convert("RGB").tobytes()


class TestMetadata:
    def test_duckdb_polars_and_pandas_take_them(self, dataset: Callable[..., Any]) -> None:
        made = dataset("webdataset")
        metadata = any2ds.load("dataset", where="label = 1").metadata
        wanted = sorted(key for key in made.files if made.labels[key] == 1)
        assert [key for (key,) in duckdb.sql("select key from metadata order by key").fetchall()] == wanted
        assert polars.scan_pyarrow_dataset(metadata).select("key").collect()["key"].to_list() == wanted
        assert metadata.to_table(columns=["key"]).to_pandas()["key"].tolist() == wanted


def test_what_the_page_shows(dataset: Callable[..., Any], page: Callable[[str], list[str]]) -> None:
    dataset("webdataset")
    for code in page("Loading"):
        exec(compile(code, "Loading", "exec"), {"__name__": "page"})
