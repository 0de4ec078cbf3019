"""TensorFlow Datasets opens what a recipe has made: splits, names of classes, nested features, tensors."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.core import dataset_metadata

import any2ds
from tests.support.flowers import NESTED, SAMPLES, Flowers, build, one_split


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    build(Flowers(), place, output_format="tfrecord", number_sample_per_shard=10)
    return place


def test_tfds_reads_all_features_of_all_splits(folder: Path) -> None:
    builder = tfds.builder("flowers/small:1.1.0", data_dir=folder)
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        "train": 22,
        "test": 6,
        "empty": 0,
    }
    info = builder.info
    assert info.features["label"].names == ["rose", "tulip"]
    assert info.supervised_keys == ("image", "label")
    assert (info.homepage, info.redistribution_info.license) == ("https://example.org/flowers", "CC-BY-4.0")
    assert "title = {Flowers}" in info.citation
    ours = {sample["caption"]: sample for sample in any2ds.load(folder / "flowers/small/1.1.0", split="train")}
    samples = list(tfds.as_numpy(builder.as_dataset(split="train")))
    assert len(samples) == 22
    for sample in samples:
        own = ours[sample["caption"].decode()]
        assert sample["label"] == own["label"]
        with Image.open(io.BytesIO(own["image"])) as image:
            assert np.abs(sample["image"].astype(int) - np.asarray(image)).max() <= 4
        assert sample["mask"].shape == (4, 4, 1)
        np.testing.assert_array_equal(sample["box"], own["box"])
        assert list(sample["parts"]["size"]) == own["parts"]["size"]
        assert [name.decode() for name in sample["parts"]["name"]] == own["parts"]["name"]
        assert dict(sample["about"]) == own["about"]
    pairs: Any = builder.as_dataset(split="train[:50%]+test", as_supervised=True)
    assert len(list(pairs)) == 11 + 6


def test_tfds_reads_array_records_as_a_data_source(tmp_path: Path) -> None:
    build(Flowers(), tmp_path, output_format="arrayrecord")
    source = tfds.data_source("flowers/small", data_dir=tmp_path, split="test")
    assert len(source) == 6
    ours = {sample["caption"]: sample for sample in any2ds.load(tmp_path / "flowers/small/1.1.0", split="test")}
    for sample in source:
        caption = sample["caption"].decode() if isinstance(sample["caption"], bytes) else str(sample["caption"])
        own = ours[caption]
        assert sample["label"] == own["label"]
        np.testing.assert_array_equal(sample["box"], own["box"])


def test_tfds_finds_the_first_config_by_the_name_alone(folder: Path, tmp_path: Path) -> None:
    """The lines of docs/tfds.md; the other config may be there as well, or be the one that was built last."""
    for name in ("flowers", "flowers:1.1.0", "flowers:1.*.*", "flowers/small", "flowers/small:1.1.0"):
        samples: Any = tfds.load(name, data_dir=folder, split="test")
        assert len(list(samples)) == 6, name
    build(Flowers(), tmp_path, output_format="arrayrecord")
    build(Flowers("full"), tmp_path, output_format="arrayrecord")
    for name, count in (("flowers", 22), ("flowers:1.1.0", 22), ("flowers/full", 54)):
        assert len(tfds.data_source(name, data_dir=tmp_path, split="train")) == count
    assert len(any2ds.load("flowers", data_dir=tmp_path)) == 28
    (tmp_path / "flowers" / ".config" / "metadata.json").unlink()  # as a build that was killed leaves it
    build(Flowers(), tmp_path, output_format="arrayrecord")
    assert len(tfds.data_source("flowers", data_dir=tmp_path, split="test")) == 6


def test_tf_data_reads_the_columns_of_a_recipe(folder: Path) -> None:
    found = list(any2ds.load(folder / "flowers/small/1.1.0", split="test", columns=["image", "label"]).to_tf())
    assert len(found) == 6
    assert {"data", "label"} <= found[0].keys()


@pytest.mark.parametrize("output_format", ["tfrecord", "arrayrecord"])
def test_tfds_reads_nested_sequences_and_tensors_of_any_shape(output_format: str, tmp_path: Path) -> None:
    # The data source of TFDS cannot read an empty tensor of any shape, not even one that TFDS has written.
    wanted = ("full", "empty") if output_format == "tfrecord" else ("full",)
    build(one_split([(name, SAMPLES[name]) for name in wanted], **NESTED), tmp_path, output_format=output_format)
    builder = tfds.builder("small", data_dir=tmp_path)
    assert builder.info.features["words"].doc.desc == "The words of each line."
    assert builder.info.features["grid"].shape == (None, 3, 2)
    assert isinstance(builder.info.features["steps"], tfds.features.Dataset)
    is_native = output_format == "tfrecord"
    samples: Any = builder.as_dataset(split="train") if is_native else builder.as_data_source(split="train")
    by_size = {bool(sample["words"]): sample for sample in map(as_lists, samples)}
    assert len(by_size) == len(wanted)
    for name in wanted:
        found, own = by_size[name == "full"], SAMPLES[name]
        assert found["words"] == [[word.encode() for word in line] for line in own["words"]]
        assert found["frames"]["time"] == [frame["time"] for frame in own["frames"]]
        names = [[each["name"].encode() for each in frame["objects"]] for frame in own["frames"]]
        assert found["frames"]["objects"]["name"] == names
        assert found["grid"] == own["grid"].tolist()
        assert found["maybe"] == (own["maybe"] or [])
        for plain in ("deep", "boxes", "pairs", "large", "many", "steps"):
            assert found[plain] == own[plain], plain


def as_lists(value: Any) -> Any:
    """What TensorFlow reads as lists, numbers and bytes."""
    if isinstance(value, dict):
        return {name: as_lists(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, tf.data.Dataset)) or type(value).__name__ == "PythonDataSource":
        return [as_lists(each) for each in value]
    found = value.to_list() if isinstance(value, tf.RaggedTensor) else value
    found = found.numpy() if hasattr(found, "numpy") else found
    return as_lists(found.tolist()) if hasattr(found, "tolist") else found


def test_every_tag_of_tfds_is_one_of_a_recipe() -> None:
    tags = dataset_metadata.valid_tags()
    assert len(tags) > 200
    assert any2ds.Info({"text": any2ds.Text()}, tags=sorted(tags)).tags == tuple(sorted(tags))
