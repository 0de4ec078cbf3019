"""tf.data reads records, and a network learns from them."""

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import tensorflow as tf

from any2ds.testing.processes import LONG

ROOT = Path(__file__).parents[3]
SIDE = 32  # pixels, of the pictures in a list of images
EXAMPLE = ROOT / "examples" / "tfrecord_cifar.py"
Made = Callable[..., Any]

IMAGE_AND_LABEL = {"data": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def test_records_are_parsed_as_the_page_says(dataset: Made, readme: Made) -> None:
    made = dataset("tfrecord")
    samples = list(readme("Without any2ds", name="tensorflow.md")["samples"].as_numpy_iterator())
    found = {sample["data"]: sample["caption"].decode() for sample in samples}
    assert found == {content: made.captions[key] for key, content in made.files.items()}


def test_every_feature_is_in_every_record_with_its_type(dataset: Made) -> None:
    made = dataset("tfrecord")
    features = {
        "key": tf.io.FixedLenFeature([], tf.string),
        "url": tf.io.FixedLenFeature([], tf.string),
        "caption": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "error_message": tf.io.FixedLenFeature([], tf.string),  # null in all of them
        "http_status": tf.io.FixedLenFeature([], tf.int64),
        "ext": tf.io.FixedLenFeature([], tf.string),
        "bytes": tf.io.FixedLenFeature([], tf.int64),
        "md5": tf.io.FixedLenFeature([], tf.string),
        "data": tf.io.FixedLenFeature([], tf.string),
    }
    records = tf.data.TFRecordDataset(sorted(tf.io.gfile.glob("dataset/*.tfrecord")))
    batch = next(iter(records.batch(100).map(lambda batch: tf.io.parse_example(batch, features))))
    assert [key.decode() for key in batch["key"].numpy()] == list(made.files)
    assert batch["label"].numpy().tolist() == [made.labels[key] for key in made.files]
    assert batch["bytes"].numpy().tolist() == [len(content) for content in made.files.values()]
    assert set(batch["http_status"].numpy().tolist()) == {200}
    assert set(batch["error_message"].numpy().tolist()) == {b""}


def test_lists_nulls_and_nested_columns_are_read(rich: Made) -> None:
    rich("tfrecord")
    features = {
        "tags": tf.io.VarLenFeature(tf.string),
        "box": tf.io.VarLenFeature(tf.float32),
        "score": tf.io.FixedLenFeature([], tf.float32),
        "safe": tf.io.FixedLenFeature([], tf.int64),
        "place": tf.io.FixedLenFeature([], tf.string),
        "when": tf.io.FixedLenFeature([], tf.string),
    }
    records = tf.data.TFRecordDataset("dataset/00000.tfrecord")
    first, second, third = [tf.io.parse_single_example(record, features) for record in records]
    assert tf.sparse.to_dense(first["tags"]).numpy().tolist() == [b"gr\xc3\xbcn", b"tree"]
    assert tf.sparse.to_dense(first["box"]).numpy().tolist() == [0.5, 1.5]
    assert first["score"] == 0.25
    assert first["place"] == b'{"lat":1.5,"of":["x"]}'
    assert first["when"] == b"2026-01-02T03:04:05"
    assert [int(row["safe"]) for row in (first, second, third)] == [1, 0, 0]
    assert tf.math.is_nan(second["score"])
    assert second["place"] == b""
    assert second["tags"].shape == third["tags"].shape == (0,)


def augmented(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    example = tf.io.parse_single_example(record, IMAGE_AND_LABEL)
    image = tf.image.decode_image(example["data"], channels=3, expand_animations=False)
    image = tf.image.convert_image_dtype(tf.ensure_shape(image, [SIDE, SIDE, 3]), tf.float32)
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_crop(image, [24, 24, 3])
    image = tf.image.random_brightness(image, max_delta=0.3)
    return tf.image.per_image_standardization(image), example["label"]


def test_images_are_decoded_augmented_shuffled_repeated_and_batched(dataset: Made) -> None:
    made = dataset("tfrecord")
    samples = (
        tf.data.Dataset.list_files("dataset/*.tfrecord")
        .interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        .map(augmented, num_parallel_calls=tf.data.AUTOTUNE)
        .shuffle(100)
        .repeat(3)
        .batch(8)
        .prefetch(tf.data.AUTOTUNE)
    )
    batches = list(samples.as_numpy_iterator())
    assert [images.shape for images, _ in batches] == [(8, 24, 24, 3)] * (3 * len(made.files) // 8)
    labels = [int(label) for _, batch in batches for label in batch]
    assert sorted(labels) == sorted(3 * [made.labels[key] for key in made.files])
    epochs = [labels[start : start + len(made.files)] for start in range(0, len(labels), len(made.files))]
    assert [sorted(epoch) for epoch in epochs] == [sorted(epochs[0])] * 3
    assert len({tuple(epoch) for epoch in epochs}) > 1


@pytest.mark.parametrize("options", [[], ["--without_any2ds"]], ids=str)
def test_the_example_goes_from_urls_to_a_network_that_learns(options: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    command = [sys.executable, str(EXAMPLE), "--steps=20", *options]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=LONG
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "cifar_output" / "00001.tfrecord").exists()
    assert "600 pictures" in done.stdout
    assert went_down(done.stdout)
    assert "WARNING" not in done.stderr  # TensorFlow has been asked to be quiet
    assert "oneDNN" not in done.stderr


def test_the_example_takes_a_list_of_ones_own(
    listed: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    pq.write_table(listed().rows, "cifar.parquet")
    monkeypatch.setattr(sys, "argv", ["", "--url_list=cifar.parquet", "--output_folder=with a space", "--steps=10"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = capsys.readouterr().out
    assert f"{len(listed().files)} pictures were fetched into with a space" in shown
    assert went_down(shown)


def went_down(shown: str) -> bool:
    found = re.search(r"loss: ([\d.]+) at first, ([\d.]+) in the end", shown)
    assert found, shown
    return float(found[2]) < float(found[1])
