"""`datasets.load_dataset(folder)`, without another word, by the README.md that `any2ds card` writes."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

import any2ds
from any2ds import card, retry, verify
from any2ds.testing.server import Server
from tests.support.flowers import Flowers, build, one_split


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


@pytest.mark.parametrize("form", ["webdataset", "parquet", "arrayrecord"])
def test_the_splits_of_a_recipe(form: str, tmp_path: Path) -> None:
    """In shards of several patterns; a split without samples has no files."""
    build(Flowers("full"), tmp_path, output_format=form, number_sample_per_shard=3)
    folder = str(tmp_path / "flowers/full/1.1.0")
    card(folder)
    found = datasets.load_dataset(folder)
    assert {name: len(split) for name, split in found.items()} == {"train": 54, "test": 6}
    rows = {name: [row["json"] if form == "webdataset" else row for row in split] for name, split in found.items()}
    assert all({row["split"] for row in own} == {name} for name, own in rows.items())
    assert datasets.get_dataset_config_names(folder)[0] == "full"
    (streamed,) = datasets.load_dataset(folder, "full", split="test", streaming=True).take(1)
    assert (streamed["json"] if form == "webdataset" else streamed)["caption"] == rows["test"][0]["caption"]


def test_a_recipe_without_a_split_called_train(tmp_path: Path) -> None:
    samples = {name: [(f"{name}{n}", {"text": name}) for n in range(3)] for name in ("small", "large")}
    build(one_split(samples), tmp_path, output_format="parquet")
    found = datasets.load_dataset(str(tmp_path / "small/1.0.0"))
    assert "train" in found  # what `datasets` makes of the folder by itself
    text = card(tmp_path / "small/1.0.0").text
    assert 'split="small")' in text
    found = datasets.load_dataset(str(tmp_path / "small/1.0.0"))
    assert {name: set(split["text"]) for name, split in found.items()} == {"small": {"small"}, "large": {"large"}}


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_splits_that_a_column_names(form: str, of_splits: Callable[..., dict[str, list[str]]]) -> None:
    wanted = of_splits(form)
    folder = "data/birds/1.0.0"
    text = card(folder).text
    found = datasets.load_dataset(folder)
    key = "__key__" if form == "webdataset" else "key"
    keys = {name: [row[key].rpartition("/")[2] for row in split] for name, split in found.items()}
    assert keys == wanted
    assert 'split="train")' in text
    if form == "parquet":
        every = datasets.load_dataset(folder, "all_rows", split="train")
        assert len(every) == sum(map(len, wanted.values())) + 1


@pytest.mark.parametrize("form", ["webdataset", "parquet"])
def test_a_split_whose_rows_have_all_failed(form: str, server: Server, tmp_path: Path) -> None:
    """`datasets` cannot open a split without samples, and opens none then."""
    rows = {"train": ["00.jpg", "01.jpg", "gone"], "test": ["gone"]}
    samples = {name: [{"url": server.url(each)} for each in own] for name, own in rows.items()}
    build(one_split(samples, image=any2ds.Image()), tmp_path, output_format=form, number_sample_per_shard=1)
    card(folder := str(tmp_path / "small/1.0.0"))
    assert {name: len(split) for name, split in datasets.load_dataset(folder).items()} == {"train": 2}
    if form == "parquet":
        every = datasets.load_dataset(folder, "all_rows")
        assert {name: len(split) for name, split in every.items()} == {"train": 3, "test": 1}
