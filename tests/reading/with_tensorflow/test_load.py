"""tf.data takes `any2ds.load`: a small network is trained on it."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import any2ds


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord", "arrayrecord"])
def test_a_dataset_of_columns(output_format: str, dataset: Callable[..., Any]) -> None:
    made = dataset(output_format)
    found = any2ds.load("dataset").to_tf(shuffle=True, seed=1)
    assert len(found) == len(made.files)
    rows = {row["key"].decode(): row for row in found.as_numpy_iterator()}
    assert {key: row["data"] for key, row in rows.items()} == made.files
    assert Counter(int(row["label"]) for row in rows.values()) == Counter(made.labels[key] for key in made.files)
    assert {key: row["caption"].decode() for key, row in rows.items()} == {
        key: made.captions[key] for key in made.files
    }
    assert all(row["final_url"] == b"" for row in rows.values())


def test_a_network_is_trained_on_it(dataset: Callable[..., Any]) -> None:
    dataset("webdataset")
    ds = any2ds.load("dataset", columns=["data", "label"])

    def parse(row: Any) -> Any:
        image = tf.io.decode_image(row["data"], channels=3, expand_animations=False)
        return tf.ensure_shape(tf.cast(image, tf.float32) / 255, (32, 32, 3)), row["label"]

    batches = ds.to_tf(shuffle=True).map(parse).repeat(2).batch(8).prefetch(1)
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(batches, epochs=1, verbose=0)
    assert history.history["loss"][0] > 0
