"""`datasets.load_dataset(folder)`, without another word, by the README.md that `any2ds card` writes."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from any2ds import card, retry, verify


def pixels(image: Any) -> bytes:
    return bytes(image.convert("RGB").tobytes())


def load(streaming: bool = False, name: str | None = None) -> Any:
    return datasets.load_dataset("dataset", name, split="train", streaming=streaming)


def image_of(row: dict[str, Any]) -> Any:
    (image,) = (row[name] for name in ("jpg", "png", "data") if row.get(name) is not None)
    return image


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("form", ["webdataset", "parquet"])
@pytest.mark.parametrize("rows", [1, 10])  # in a shard: the shard of the row that failed is empty
def test_images_of_two_types_are_decoded(form: str, rows: int, streaming: bool, dataset: Callable[..., Any]) -> None:
    made = dataset(form, number_sample_per_shard=rows, metadata_format=["csv", "jsonl", "parquet"])
    card("dataset")
    found = list(load(streaming))
    assert [pixels(image_of(row)) for row in found] == [
        pixels(Image.open(io.BytesIO(content))) for content in made.files.values()
    ]
    captions = [row["txt"] if form == "webdataset" else row["caption"] for row in found]
    assert captions == [f'file "{name}", größe {n}' for n, name in enumerate(made.names) if name != "dead"]


def test_the_columns_are_those_of_the_dataset(dataset: Callable[..., Any]) -> None:
    dataset("parquet")
    card("dataset")
    found = load()
    assert found.features["data"] == datasets.Image()
    assert found.features["label"] == datasets.Value("int64")
    assert found.column_names[:4] == ["key", "url", "caption", "label"]
    dataset("webdataset")
    card("dataset")
    assert load().column_names == ["jpg", "png", "txt", "json", "__key__", "__url__"]


def test_rows_that_failed_have_a_configuration(dataset: Callable[..., Any], dead: str) -> None:
    made = dataset("parquet")
    card("dataset")
    every = load(name="all_rows")
    assert len(every) == len(made.files) + 1
    assert [row["key"] for row in every if row["data"] is None] == [dead]


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_a_shard_that_is_missing(form: str, dataset: Callable[..., Any]) -> None:
    dataset(form)
    for lost in Path("dataset").glob("00001*"):
        lost.unlink()
    card("dataset")
    assert len(load()) == 14


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_mixed_files_are_bytes_where_they_cannot_be_decoded(form: str, dataset: Callable[..., Any]) -> None:
    made = dataset(form, "mixed")
    card("dataset")
    found = list(load())
    assert len(found) == len(made.files)
    if form == "parquet":
        assert [row["data"] for row in found] == list(made.files.values())
        return
    for row, content in zip(found, made.files.values(), strict=True):
        (file,) = (row[name] for name in ("jpg", "png", "wav", "data.txt") if row[name] is not None)
        if isinstance(file, Image.Image):
            assert pixels(file) == pixels(Image.open(io.BytesIO(content)))
        else:
            assert (file.encode() if isinstance(file, str) else file) == content


def test_sounds(dataset: Callable[..., Any]) -> None:
    made = dataset("parquet", "audio")
    card("dataset")
    found = load()
    assert found.features["data"] == datasets.Audio()
    heard = [row["data"]["bytes"] for row in found.cast_column("data", datasets.Audio(decode=False))]
    assert heard == list(made.files.values())
    dataset("webdataset", "audio")
    card("dataset")
    assert datasets.load_dataset_builder("dataset").info.features["wav"] == datasets.Audio()


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_several_samples_of_a_row(form: str, dataset: Callable[..., Any], tmp_path: Path) -> None:
    step = "def twice(sample):\n    return [sample, sample.with_fields(half=0.5)]\n"
    head = "import any2ds\nimport pyarrow as pa\n\n@any2ds.transform(columns={'half': 'float'})\n"
    (tmp_path / "step.py").write_text(head + step, encoding="utf-8")
    made = dataset(form, transform="step.py:twice")
    card("dataset")
    found = list(load())
    assert len(found) == 2 * len(made.files)
    reported = [row["json"] if form == "webdataset" else row for row in found]
    assert [row["half"] for row in reported] == [None, 0.5] * len(made.files)
    assert image_of(found[0]).size == (32, 32)


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_values_of_every_type(form: str, rich: Callable[..., None]) -> None:
    rich(form)
    card("dataset")
    first = next(iter(load()))
    row = first["json"] if form == "webdataset" else first
    assert (row["tags"], row["box"], row["score"], row["safe"]) == (["grün", "tree"], [0.5, 1.5], 0.25, True)
    assert row["place"] == {"lat": 1.5, "of": ["x"]}
    assert image_of(first).size == (32, 32)


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_a_dataset_of_many_runs(form: str, eventful: Callable[..., dict[str, bytes]]) -> None:
    contents = eventful(form)
    card("dataset")
    found = load()
    assert [pixels(image_of(row)) for row in found] == [
        pixels(Image.open(io.BytesIO(content))) for content in contents.values()
    ]
    retry("dataset", quiet=True, distributor="inline")
    assert verify("dataset", quiet=True).ok


@pytest.mark.parametrize("form", ["files", "tfrecord", "arrayrecord", "dummy"])
def test_of_other_formats_the_metadata(form: str, dataset: Callable[..., Any]) -> None:
    made = dataset(form)
    card("dataset")
    assert [row["key"] for row in load() if row["status"] == "success"] == list(made.files)


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_the_dataset_of_another_tool(form: str, dataset: Callable[..., Any]) -> None:
    """As img2dataset leaves it: no run file, no list, and less in the stats."""
    made = dataset(form, preset="img2dataset")
    shutil.rmtree("dataset/.any2ds")
    card("dataset")
    assert len(load()) == len(made.files)
