"""From a list of URLs to training with TensorFlow, on the way that the CIFAR-10 tutorials take:

    python examples/tfrecord_cifar.py                             # small pictures from a server on this machine
    python examples/tfrecord_cifar.py --without_any2ds            # the same, but TensorFlow alone reads the records
    python examples/tfrecord_cifar.py --url_list=cifar10.parquet --output_folder=cifar10 --steps=20000

The last takes CIFAR-10 itself, or what is like it: a list (parquet, tsv, csv …) with a column `url` of pictures of
32 by 32 pixels, and a column `label` of numbers from 0 to 9. What is in the folder already is not fetched again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path

# TensorFlow tells a lot about itself before it does anything.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

import tensorflow as tf
from cifar_like import CLASSES, SIDE, cifar_like_urls

import any2ds

ROUNDS = 5  # of the training, each with a line of output
WINDOW = 10_000  # samples that are shuffled at a time


def samples(folder: str | Path) -> tf.data.Dataset:
    """Shuffled samples, in another order each time: the file as it was fetched, and its label."""
    return any2ds.load(folder, columns=["data", "label"]).to_tf(shuffle=True, window=WINDOW)


def samples_without_any2ds(folder: str | Path) -> tf.data.Dataset:
    """The same."""
    features = {"data": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    shards = tf.data.Dataset.list_files(f"{folder}/*.tfrecord")
    records = shards.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE).shuffle(WINDOW)
    return records.map(lambda record: tf.io.parse_single_example(record, features), tf.data.AUTOTUNE)


def parse(sample: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """The picture, with values from 0 to 1, and its label."""
    image = tf.io.decode_image(sample["data"], channels=3, expand_animations=False)
    return tf.image.convert_image_dtype(tf.ensure_shape(image, [SIDE, SIDE, 3]), tf.float32), sample["label"]


def augment(image: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Another view of the same thing, each time that it is asked for."""
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_crop(tf.image.resize_with_crop_or_pad(image, SIDE + 4, SIDE + 4), [SIDE, SIDE, 3])
    image = tf.image.random_brightness(image, max_delta=0.1)
    return tf.clip_by_value(image, 0, 1), label


def batches(shuffled: tf.data.Dataset, size: int = 64) -> tf.data.Dataset:
    """Without end."""
    return (
        shuffled.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
        .repeat()
        .map(augment, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(size)
        .prefetch(tf.data.AUTOTUNE)
    )


def small_network() -> tf.keras.Model:
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((SIDE, SIDE, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
    return model


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--url_list", help="a list of your own; without it, pictures are made on this machine")
    options.add_argument("--output_folder", default="cifar_output")
    options.add_argument("--steps", type=int, default=100, help="batches of 64 to train with")
    options.add_argument("--without_any2ds", action="store_true", help="TensorFlow alone reads the records")
    given = options.parse_args()

    with contextlib.nullcontext(given.url_list) if given.url_list else cifar_like_urls() as url_list:
        report = any2ds.download(
            url_list=url_list,
            save_additional_columns=["label"],
            output_folder=given.output_folder,
            output_format="tfrecord",
            number_sample_per_shard=500,
            # Those of this machine have other URLs each time.
            incremental_mode="incremental" if given.url_list else "overwrite",
        )
    print(f"{report.successes} pictures were fetched into {given.output_folder}")

    read = samples_without_any2ds if given.without_any2ds else samples
    pictures = batches(read(given.output_folder))
    steps = max(1, given.steps // ROUNDS)
    history = small_network().fit(pictures, epochs=ROUNDS, steps_per_epoch=steps, shuffle=False, verbose=2)
    loss = history.history["loss"]
    print(f"loss: {loss[0]:.2f} at first, {loss[-1]:.2f} in the end")


if __name__ == "__main__":
    main()
