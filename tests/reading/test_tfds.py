"""TensorFlow Datasets opens a folder of arrayrecord, where TensorFlow is not installed."""

import io
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

import any2ds
from any2ds.core.errors import UsageError
from any2ds.load import splits

SIDE = 32  # pixels, of the pictures in a list of images
Made = Callable[..., Any]


@pytest.fixture(autouse=True)
def without_tensorflow() -> None:
    """`make test-reading` runs this where TensorFlow is not installed; anywhere else it would prove nothing."""
    with pytest.raises(ModuleNotFoundError):
        import tensorflow  # noqa: F401
    assert "tensorflow" not in sys.modules


def rows(split: str = "train", **options: Any) -> list[dict[str, Any]]:
    return list(tfds.builder_from_directory("dataset").as_data_source(split=split, **options))


def test_images_are_decoded_and_captions_are_texts(dataset: Made, readme: Made) -> None:
    made = dataset("arrayrecord")
    tail = {'as_dataset(split="train[:80%]")': 'as_data_source(split="train")'}
    samples = readme("TensorFlow Datasets", replace=tail, name="tensorflow.md")["samples"]
    assert len(samples) == len(made.files)
    for (key, content), sample in zip(made.files.items(), samples, strict=True):
        with Image.open(io.BytesIO(content)) as image:
            assert np.array_equal(sample["data"], np.asarray(image))
        assert sample["data"].shape == (SIDE, SIDE, 3)
        assert (sample["key"].decode(), sample["caption"].decode()) == (key, made.captions[key])
        assert sample["label"] == made.labels[key]


def test_samples_are_had_in_any_order_and_in_slices(dataset: Made) -> None:
    made = dataset("arrayrecord")
    source = tfds.builder_from_directory("dataset").as_data_source(split="train")
    keys = [key.encode() for key in made.files]
    assert [source[place]["key"] for place in (23, 0, 11)] == [keys[23], keys[0], keys[11]]
    assert [sample["key"] for sample in source.__getitems__([9, 8, 22])] == [keys[9], keys[8], keys[22]]
    assert pickle.loads(pickle.dumps(source))[5]["key"] == keys[5]  # as loaders with processes do
    assert [row["key"] for row in rows("train[:10%]")] == keys[:2]
    assert [row["key"] for row in rows("train[8:11]")] == keys[8:11]  # over the end of a shard


def test_mixed_media_are_bytes(dataset: Made) -> None:
    made = dataset("arrayrecord", "mixed")
    assert {row["key"].decode(): row["data"] for row in rows()} == dict(made.files)


def test_additional_columns_have_their_types(rich: Made) -> None:
    rich("arrayrecord")
    first, second, third = rows()
    assert list(first["tags"]) == ["grün".encode(), b"tree"]
    assert list(first["box"]) == [0.5, 1.5]
    assert (first["score"], first["safe"], first["raw"]) == (0.25, True, b"\x00\xff")
    assert (first["place"], first["when"]) == (b'{"lat":1.5,"of":["x"]}', b"2026-01-02T03:04:05")
    assert np.isnan(second["score"])
    assert (len(second["tags"]), second["place"], second["raw"], third["safe"]) == (0, b"", b"", False)


def test_a_column_names_the_splits(of_splits: Made) -> None:
    keys = of_splits("arrayrecord")
    builder = tfds.builder_from_directory("data/birds/1.0.0")
    for name, own in keys.items():
        for source in (builder.as_data_source(split=name), tfds.data_source("birds", data_dir="data", split=name)):
            assert [sample["key"].decode() for sample in source] == own
        assert any2ds.load("data/birds/1.0.0", split=name).keys == own
    both = tfds.data_source("birds:1.0.0", data_dir="data", split="test[1:]+train")
    assert [sample["key"].decode() for sample in both] == [*keys["test"][1:], *keys["train"]]
    for name in ("test[1:]+train", "train[:3]+train[:3]", "test[2:]+test[:1]", "train[1:4]+validation[:2]+train[2:]"):
        theirs = [sample["key"].decode() for sample in builder.as_data_source(split=name)]
        assert any2ds.load("data/birds/1.0.0", split=name).keys == theirs, name
    assert {name: len(source) for name, source in tfds.data_source("birds", data_dir="data").items()} == {
        name: len(own) for name, own in keys.items()
    }


def test_retried_resumed_and_extended_datasets_are_read_whole(eventful: Made) -> None:
    expected = eventful("arrayrecord")
    found = rows(decoders={"data": tfds.decode.SkipDecoding()})
    assert {row["key"].decode(): row["data"] for row in found} == expected


@pytest.mark.parametrize("digits", [1, 7])
def test_numbers_of_shards_have_any_length(dataset: Made, digits: int) -> None:
    made = dataset("arrayrecord", oom_shard_count=digits)
    assert [row["key"].decode().lstrip("0") for row in rows()] == [key.lstrip("0") for key in made.files]


def test_percentages_and_numbers_of_splits_are_those_of_any2ds() -> None:
    for count in (1, 7, 99, 100, 1234):
        info = tfds.core.splits.SplitInfo(name="train", shard_lengths=[count], num_bytes=0)
        bounds = [*(f"{percent}%" for percent in range(0, 101, 3)), "", "0", "1", f"{count}"]
        for bound in bounds:
            for spec in (f"train[:{bound}]", f"train[{bound}:]") if bound else ("train",):
                (theirs,) = tfds.core.ReadInstruction.from_spec(spec).to_absolute({"train": info})
                (ours,) = splits.parse(spec)
                stop = count if theirs.to is None else theirs.to
                assert ours.span(count) == range(theirs.from_ or 0, stop), spec


def test_all_forms_of_splits_are_those_of_any2ds() -> None:
    """But for bounds of two units, which are refused, and for an end before shard 0, which is the end of all there."""
    shards, starts = [40, 30, 30], [0, 40, 70, 100]
    info = {"train": tfds.core.splits.SplitInfo(name="train", shard_lengths=shards, num_bytes=0)}
    bounds = ["", "0", "1", "-1", "10", "1_0", "100", "-100", "101", "-101", "10%", "-10%", "33.5%", "100%", "101%"]
    bounds += ["0%", "1shard", "-1shard", "2shard", "9shard", "-9shard", "x", "1.5", "%"]
    specs = [f"train[{start}:{stop}]" for start in bounds for stop in bounds if start or stop]
    specs += [*(f"train[{bound}]" for bound in bounds), "train", "train[0shard]"]
    differ, refused = set(), 0
    for spec in specs:
        found: Any = None
        try:
            (part,) = splits.parse(spec)
            found = part.span(100, starts)
        except UsageError as error:
            if "are not of one kind" in str(error):
                continue
        try:
            (theirs,) = tfds.core.ReadInstruction.from_spec(spec).to_absolute(info)
        except (ValueError, AssertionError):
            refused += 1
            assert found is None, spec
            continue
        if found is None or list(found) != list(range(100)[theirs.from_ : theirs.to]):
            differ.add(spec)
    assert differ == {"train[1shard:0]", "train[-1shard:0]", "train[2shard:0]", "train[-9shard:0]"}
    assert refused > 200


def test_each_file_of_a_sample_is_a_feature(pairs: Callable[[str], Any]) -> None:
    made = pairs("arrayrecord")
    builder = tfds.builder_from_directory("dataset")
    assert {name: type(builder.info.features[name]).__name__ for name in ("image", "mask")} == dict.fromkeys(
        ("image", "mask"), "Image"
    )
    for (image, mask), sample in zip(made, rows(), strict=True):
        assert np.array_equal(sample["image"], np.asarray(Image.open(io.BytesIO(image))))
        assert np.array_equal(sample["mask"], np.asarray(Image.open(io.BytesIO(mask))))
