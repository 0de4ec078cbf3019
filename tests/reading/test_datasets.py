"""Hugging Face's datasets reads tar files, parquet and folders."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from any2ds import download, verify


def pixels(image: Any) -> bytes:
    return bytes(image.convert("RGB").tobytes())


def expect_images(rows: Any, made: Any, column: str = "data") -> None:
    found = {row["key"]: row for row in rows}
    assert list(found) == list(made.files)
    for key, content in made.files.items():
        assert pixels(found[key][column]) == pixels(Image.open(io.BytesIO(content)))
        assert found[key]["caption"] == made.captions[key]
        assert found[key]["label"] == made.labels[key]


def test_parquet_of_images_is_decoded(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("parquet", parquet_data="image")
    expect_images(readme("Hugging Face datasets")["images"], made)


def test_parquet_of_bytes_is_decoded_when_it_is_cast(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    import datasets

    made = dataset("parquet")
    images = readme("Hugging Face datasets", 1)["images"]
    assert [row["data"] for row in images] == list(made.files.values())
    expect_images(images.cast_column("data", datasets.Image()), made)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("kind", ["images", "audio", "mixed"])
def test_failed_rows_have_no_file_and_the_others_theirs(
    kind: str, streaming: bool, dataset: Callable[..., Any], dead: str
) -> None:
    import datasets

    feature = datasets.Audio(decode=False) if kind == "audio" else datasets.Image(decode=False)
    made = dataset("parquet", kind, parquet_data="audio" if kind == "audio" else "image")
    rows = datasets.load_dataset("parquet", data_files="dataset/*.parquet", split="train", streaming=streaming)
    assert type(rows.features["data"]) is type(feature)
    found = {row["key"]: row["data"] for row in rows.cast_column("data", feature)}
    assert found.pop(dead) is None
    assert {key: value["bytes"] for key, value in found.items()} == made.files
    assert all(value["path"].startswith(f"{key}.") for key, value in found.items())


def test_a_first_shard_of_failures_alone_has_the_features_of_the_others(
    listed: Callable[..., Any], dead: str, tmp_path: Path
) -> None:
    import datasets

    download(
        listed().rows.slice(int(dead), 4),
        output_folder=tmp_path,
        output_format="parquet",
        parquet_data="image",
        number_sample_per_shard=1,
        distributor="inline",
        quiet=True,
    )
    images = datasets.load_dataset("parquet", data_files=f"{tmp_path}/*.parquet", split="train")
    assert [row["data"] and row["data"].size for row in images] == [None, (32, 32), (32, 32), (32, 32)]


def test_what_is_no_image_is_left_out_by_its_extension(dataset: Callable[..., Any]) -> None:
    import datasets

    made = dataset("parquet", "mixed", parquet_data="image")
    images = datasets.load_dataset(
        "parquet", data_files="dataset/*.parquet", split="train", filters=[("ext", "in", ["jpg", "png"])]
    )
    found = {row["key"]: pixels(row["data"]) for row in images}
    assert found == {key: pixels(Image.open(io.BytesIO(made.files[key]))) for key in found}
    assert len(found) == 9


def test_sounds_can_be_opened(dataset: Callable[..., Any]) -> None:
    import datasets
    import soundfile

    dataset("parquet", "audio", parquet_data="audio")
    rows = datasets.load_dataset("parquet", data_files="dataset/*.parquet", split="train")
    assert rows.features["data"] == datasets.Audio()
    sounds = [row["data"] for row in rows.cast_column("data", datasets.Audio(decode=False)) if row["data"]]
    assert {soundfile.info(io.BytesIO(sound["bytes"])).frames for sound in sounds} == {800}


@pytest.mark.parametrize("streaming", [False, True])
def test_tar_files(streaming: bool, dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("webdataset", file_ext="jpg")
    samples = readme("Hugging Face datasets", 2, {"streaming=True": f"streaming={streaming}"})["samples"]
    found = {sample["__key__"]: sample for sample in samples}
    assert list(found) == list(made.files)
    for key, content in made.files.items():
        assert pixels(found[key]["jpg"]) == pixels(Image.open(io.BytesIO(content)))
        assert (found[key]["txt"], found[key]["json"]["label"]) == (made.captions[key], made.labels[key])


def test_folders_of_images(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("files")
    expect_images(readme("Hugging Face datasets", 3)["images"], made, "image")
    assert verify("dataset", quiet=True).ok
