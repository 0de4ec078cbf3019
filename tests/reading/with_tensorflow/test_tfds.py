"""TensorFlow Datasets opens a folder of tfrecord, and reads it with TensorFlow."""

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from PIL import Image

import any2ds
from any2ds import download, verify

SIDE, SHARD = 32, 10  # of a list of images: pixels, and rows in a shard
Made = Callable[..., Any]
README = "TensorFlow Datasets"
WHOLE = {"train[:80%]": "train"}
IN_ORDER = tfds.ReadConfig(interleave_cycle_length=1)  # else 16 shards at a time are mixed


def opened(folder: str = "dataset") -> Any:
    return tfds.builder_from_directory(folder)


def rows(split: str = "train", **options: Any) -> list[dict[str, Any]]:
    found = opened().as_dataset(split=split, read_config=IN_ORDER, **options)
    return list(tfds.as_numpy(found))


def test_images_are_decoded_and_captions_are_texts(dataset: Made, readme: Made) -> None:
    made = dataset("tfrecord")
    samples = {
        sample["key"].decode(): sample
        for sample in tfds.as_numpy(readme(README, replace=WHOLE, name="tensorflow.md")["samples"])
    }
    assert sorted(samples) == list(made.files)
    for key, sample in samples.items():
        with Image.open(io.BytesIO(made.files[key])) as image:
            expected = np.asarray(image)
        assert sample["data"].shape == (SIDE, SIDE, 3)
        assert np.abs(sample["data"].astype(int) - expected).max() <= (0 if sample["ext"] == b"png" else 4)
        assert sample["caption"].decode() == made.captions[key]
        assert sample["label"] == made.labels[key]


def test_the_builder_knows_what_is_there(dataset: Made) -> None:
    made = dataset("tfrecord")
    info = opened().info
    assert (info.full_name, info.splits["train"].num_examples) == ("dataset/1.0.0", len(made.files))
    assert info.dataset_size == sum(path.stat().st_size for path in Path("dataset").glob("*.tfrecord"))
    assert info.splits["train"].shard_lengths == [9, 10, 5]  # of ten rows each, one of them dead
    assert isinstance(info.features["data"], tfds.features.Image)
    assert isinstance(info.features["caption"], tfds.features.Text)
    assert info.features["label"].dtype == np.int64


def test_samples_are_batched_shuffled_and_sliced(dataset: Made) -> None:
    made = dataset("tfrecord")
    builder = opened()
    batches = list(builder.as_dataset(split="train", shuffle_files=True, batch_size=5).prefetch(1))
    assert [batch["data"].shape[0] for batch in batches] == [5, 5, 5, 5, 4]
    assert sorted(key.decode() for batch in batches for key in batch["key"].numpy()) == list(made.files)
    keys = [row["key"].decode() for row in rows()]
    assert keys == list(made.files)
    assert [row["key"].decode() for row in rows("train[:10%]")] == keys[:2]
    assert [row["key"].decode() for row in rows("train[50%:]")] == keys[12:]
    assert [row["key"].decode() for row in rows("train[8:11]")] == keys[8:11]  # over the end of a shard
    assert len(builder.as_dataset(split="train")) == len(made.files)


def test_bytes_are_had_without_decoding(dataset: Made) -> None:
    made = dataset("tfrecord")
    found = rows(decoders={"data": tfds.decode.SkipDecoding()})
    assert [row["data"] for row in found] == list(made.files.values())


def test_mixed_media_are_bytes(dataset: Made) -> None:
    made = dataset("tfrecord", "mixed")
    assert {row["key"].decode(): row["data"] for row in rows()} == dict(made.files)


def test_additional_columns_have_their_types(rich: Made) -> None:
    rich("tfrecord")
    first, second, third = rows()
    assert first["tags"].tolist() == ["grün".encode(), b"tree"]
    assert (first["score"], first["safe"], first["raw"]) == (0.25, True, b"\x00\xff")
    assert first["safe"].dtype == bool
    assert first["box"].tolist() == [0.5, 1.5]
    assert (first["place"], first["when"]) == (b'{"lat":1.5,"of":["x"]}', b"2026-01-02T03:04:05")
    assert np.isnan(second["score"])
    assert (second["tags"].size, second["place"], second["raw"], third["safe"]) == (0, b"", b"", False)
    assert len(list(opened().as_dataset(split="train").padded_batch(3))) == 1


def keys_of(samples: Any) -> list[str]:
    return [sample["key"].decode() for sample in tfds.as_numpy(samples)]


def test_a_column_names_the_splits(of_splits: Made) -> None:
    keys = of_splits("tfrecord")
    builder = opened("data/birds/1.0.0")
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == {
        name: len(own) for name, own in keys.items()
    }
    for name, own in keys.items():
        assert keys_of(builder.as_dataset(split=name, read_config=IN_ORDER)) == own
        assert keys_of(any2ds.load("data/birds/1.0.0", split=name).to_tf()) == own
    for name in ("test[1:]+train", "train[:3]+train[:3]", "test[2:]+test[:1]", "train[1:4]+validation[:2]+train[2:]"):
        theirs = keys_of(builder.as_dataset(split=name, read_config=IN_ORDER))
        assert keys_of(any2ds.load("data/birds/1.0.0", split=name).to_tf()) == theirs, name
    loaded = tfds.load("birds", data_dir="data", split=["train[:50%]+test", "all"], read_config=IN_ORDER)
    assert [keys_of(samples) for samples in loaded] == [
        keys["train"][:4] + keys["test"],
        [*keys["train"], *keys["validation"], *keys["test"]],
    ]
    shuffled = tfds.load("birds:1.0.0", data_dir="data", split="validation", shuffle_files=True)
    assert sorted(keys_of(shuffled)) == keys["validation"]
    assert sorted(keys_of(tfds.load("birds", data_dir="data")["test"])) == keys["test"]
    halves = tfds.even_splits("validation", 2)
    assert [len(keys_of(builder.as_dataset(split=half))) for half in halves] == [5, 5]


def test_retried_resumed_and_extended_datasets_are_read_whole(eventful: Made) -> None:
    expected = eventful("tfrecord")
    found = rows(decoders={"data": tfds.decode.SkipDecoding()})
    assert {row["key"].decode(): row["data"] for row in found} == expected
    assert opened().info.splits["train"].shard_lengths == [1, 2, 0, 1, 2, 1]
    assert opened().info.features["data"].shape == (None, None, 3)


@pytest.mark.parametrize("digits", [1, 3, 5, 7])
def test_numbers_have_any_length_and_may_have_gaps(dataset: Made, tmp_path: Path, digits: int) -> None:
    made = dataset("tfrecord", oom_shard_count=digits)
    for lost in Path("dataset").glob(f"{1:0{digits}d}*"):
        lost.unlink()
    assert not verify("dataset", repair=True, quiet=True).ok  # which writes the files of TFDS by what is there
    contents = list(made.files.values())
    moved = shutil.move("dataset", tmp_path / "with a space, größe {SPLIT}")
    found = tfds.as_numpy(tfds.builder_from_directory(str(moved)).as_dataset(split="train", read_config=IN_ORDER))
    assert [row["caption"].decode() for row in found] == [
        made.captions[key] for key, content in made.files.items() if content not in contents[9:19]
    ]


def test_numbers_that_outgrew_their_digits_are_explained(dataset: Made) -> None:
    dataset("tfrecord", oom_shard_count=1, number_sample_per_shard=2)
    builder = opened()
    assert not builder.info.splits
    assert "larger oom_shard_count" in builder.info.description


def test_a_dataset_of_failures_is_opened(listed: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    gone = [listed().rows["url"][7].as_py()] * 3
    download(gone, output_folder="dataset", output_format="tfrecord", quiet=True, robots="ignore")
    assert opened().info.splits["train"].num_examples == 0


def test_what_was_written_to_a_store_is_read_once_it_is_copied(listed: Made, tmp_path: Path) -> None:
    options = {"output_format": "tfrecord", "number_sample_per_shard": SHARD, "quiet": True, "distributor": "inline"}
    download(url_list=listed().rows, output_folder="memory://bucket/my-birds", robots="ignore", **options)
    fsspec.filesystem("memory").get("/bucket/my-birds/", f"{tmp_path}/copy/", recursive=True)
    builder = opened(str(tmp_path / "copy"))
    assert builder.info.name == "my_birds"
    assert len(list(builder.as_dataset(split="train"))) == len(listed().files)


def test_files_that_are_no_images_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from any2ds.testing.server import serve

    (tmp_path / "good.png").write_bytes(tf.io.encode_png(np.zeros((4, 5, 3), np.uint8)).numpy())
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n and then nothing of the kind")
    with serve(tmp_path) as server:
        urls = [server.url("bad.png"), server.url("good.png")]
        download(urls, output_folder="dataset", output_format="tfrecord", quiet=True)
    samples = opened().as_dataset(split="train").ignore_errors()
    assert [sample["data"].shape for sample in samples] == [(4, 5, 3)]


def test_each_file_of_a_sample_is_a_feature(pairs: Callable[[str], Any]) -> None:
    """Of TFDS, and of what `any2ds.load` gives tf.data."""
    made = pairs("tfrecord")
    assert isinstance(opened().info.features["mask"], tfds.features.Image)
    loaded = any2ds.load("dataset", columns=["image", "mask"], decode=True).to_tf()
    for (image, mask), sample, own in zip(made, rows(), tfds.as_numpy(loaded), strict=True):
        with Image.open(io.BytesIO(image)) as expected:
            assert np.abs(sample["image"].astype(int) - np.asarray(expected)).max() <= 4
            assert np.abs(own["image"].astype(int) - np.asarray(expected)).max() <= 4
        with Image.open(io.BytesIO(mask)) as expected:
            assert np.array_equal(sample["mask"], np.asarray(expected))
            assert np.array_equal(own["mask"], np.asarray(expected))
