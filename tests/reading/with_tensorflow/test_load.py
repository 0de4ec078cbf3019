"""tf.data takes `any2ds.load`, with the same samples from every format."""

import io
import json
import math
from collections import Counter
from collections.abc import Callable
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from hypothesis import given
from PIL import Image

import any2ds
from any2ds.core.errors import UsageError
from tests.support.values import COLUMNS, FEW, FORMATS, ROWS, TABLES, dataset_of, is_same, rows_of, web_of_rows

Made = Callable[..., Any]


def keys(samples: Any) -> list[str]:
    return [sample["key"].decode() for sample in samples.as_numpy_iterator()]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("output_format", FORMATS)
def test_a_dataset_of_columns(output_format: str, shuffle: bool, dataset: Made) -> None:
    made = dataset(output_format)
    found = any2ds.load("dataset").to_tf(shuffle=shuffle)
    rows = {row["key"].decode(): row for row in found.as_numpy_iterator()}
    assert {key: row["data"] for key, row in rows.items()} == made.files
    assert {key: row["label"] for key, row in rows.items()} == {key: made.labels[key] for key in made.files}
    captions = {key: row["caption"].decode() for key, row in rows.items()}
    assert captions == {key: made.captions[key] for key in made.files}
    assert (list(rows) == list(made.files)) != shuffle


NUMBERS = {"float16": tf.float32, "float32": tf.float32, "float64": tf.float64, "uint64": tf.uint64, "bool": tf.bool}
DTYPES = NUMBERS | dict.fromkeys(("int8", "int64"), tf.int64)
NULLS = {tf.bool: False, tf.int64: -1, tf.uint64: 2**64 - 1, tf.string: b""}


def as_tensor(value: Any, dtype: Any) -> Any:
    """A value as it is in a tensor, in Python's types."""
    if value is None:
        return NULLS.get(dtype, math.nan)
    if dtype != tf.string or isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        value = {name: each if each is None or math.isfinite(each) else None for name, each in value.items()}
    if isinstance(value, (list, dict)):
        return orjson.dumps(value)
    return (value.isoformat() if isinstance(value, date) else str(value)).encode()


@pytest.mark.parametrize("output_format", FORMATS)
@FEW
@given(columns=TABLES)
def test_every_value_comes_back(output_format: str, columns: dict[str, list[Any]]) -> None:
    with web_of_rows() as server, dataset_of(columns, output_format, server) as (folder, table):
        found = any2ds.load(folder, columns=list(COLUMNS)).to_tf()
        rows = list(found.as_numpy_iterator())
        for name in COLUMNS:
            is_list = name.startswith("list_")
            dtype = DTYPES.get(name.removeprefix("list_"), tf.string)
            assert (found.element_spec[name].dtype, found.element_spec[name].shape.rank) == (dtype, int(is_list)), name
            for row, value in zip(rows, [row[name] for row in rows_of(table)], strict=True):
                read = row[name] if isinstance(row[name], bytes) else row[name].tolist()
                stored = [as_tensor(each, dtype) for each in value or ()] if is_list else as_tensor(value, dtype)
                assert is_same(read, stored), name
        batch = next(iter(found.ragged_batch(ROWS)))
        assert batch["list_text"].to_list() == [row["list_text"].tolist() for row in rows]


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
@pytest.mark.parametrize(
    "chosen",
    [
        {"split": "train[3:12]"},
        {"split": "train[80%:]+train[:30%]"},
        {"split": "train[-1:]"},
        {"where": "label = 1"},
        {"where": "label = 0 and bytes < 0"},
        {"split": "hash[:50%]", "where": "label != 2"},
        {"where": "key = '000021'"},
    ],
    ids=str,
)
def test_parts_of_a_dataset(output_format: str, chosen: dict[str, str], dataset: Made) -> None:
    dataset(output_format)
    ds = any2ds.load("dataset", columns=["key", "data"], **chosen)
    found = ds.to_tf()
    assert found.element_spec.keys() == {"key", "data"}
    samples = [(sample["key"].decode(), sample["data"]) for sample in found.as_numpy_iterator()]
    assert samples == [(sample["key"], sample["data"]) for sample in ds]
    assert sorted(keys(ds.to_tf(shuffle=True))) == sorted(ds.keys)


def test_the_layout_of_img2dataset(dataset: Made) -> None:
    """The feature of the file is called as its extension."""
    made = dataset("tfrecord", preset="img2dataset", disable_all_reencoding=True)
    found = any2ds.load("dataset").to_tf()
    wanted = [sample["data"] for sample in any2ds.load("dataset")]
    assert [sample["data"] for sample in found.as_numpy_iterator()] == wanted
    assert len(wanted) == len(made.files)


@pytest.mark.parametrize(("tool", "ext"), [("img2dataset", "jpg"), ("img2dataset", "webp"), ("any2dataset", "flac")])
def test_tfrecords_that_other_tools_have_written(tool: str, ext: str, tmp_path: Path) -> None:
    """By TensorFlow's writer: features in any order, the caption twice, and "" for each null."""

    def feature(value: Any) -> Any:
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        if isinstance(value, float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
        content = value if isinstance(value, bytes) else (value or "").encode()
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))

    texts = ("url", "caption", "key", "status", "error_message")
    schema = pa.schema({**dict.fromkeys(texts, pa.string()), "width": pa.int32(), "score": pa.float64()})
    files, widths, scores = {}, {}, {}
    for shard in (0, 1):
        rows = []
        with tf.io.TFRecordWriter(str(tmp_path / f"{shard:05d}.tfrecord")) as writer:
            for n in (1, 3, 2, 0):  # as they arrived
                key, is_stored = f"{10 * shard + n:06d}", n != 2
                row = {"url": f"http://host/{key}", "caption": f"a {key}", "key": key, "error_message": None}
                row |= {"status": "success" if is_stored else "failed_to_download"}
                row |= {"width": 10 * n if n else None, "score": n / 4 if n < 3 else None}
                rows.append(row)
                if is_stored:
                    files[key], widths[key], scores[key] = bytes([n]) * (3000 * n), row["width"], row["score"]
                    own = {"key": key, ext: files[key], "txt": row["caption"], **row}
                    features = tf.train.Features(feature={name: feature(value) for name, value in own.items()})
                    writer.write(tf.train.Example(features=features).SerializeToString())
        pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / f"{shard:05d}.parquet")
        failed = "failed_to_resize" if tool == "img2dataset" else "failed_to_subsample"
        stats = {"count": 4, "successes": 3, "failed_to_download": 1, failed: 0, "duration": 1.0}
        stats["status_dict"] = {"success": 3, "HTTP Error 404: Not Found": 1}
        (tmp_path / f"{shard:05d}_stats.json").write_text(json.dumps(stats))
    ds = any2ds.load(tmp_path)
    assert ds.keys == [sample["key"] for sample in ds] == list(files)
    assert {sample["key"]: sample["data"] for sample in ds} == files
    assert {sample["key"]: sample["width"] for sample in ds} == widths
    assert {sample["key"]: sample["score"] for sample in ds} == scores
    assert {(sample["ext"], sample["caption"]) for sample in ds} == {(ext, f"a {key}") for key in files}
    assert all(sample.keys() == {*schema.names, "data", "ext"} for sample in ds)
    (found,) = any2ds.load(tmp_path, where="caption = 'a 000013'", columns=["key", "data", "width"])
    assert found == {"key": "000013", "data": files["000013"], "width": 30}
    rows_of_tf = {row["key"].decode(): row for row in ds.to_tf().as_numpy_iterator()}
    assert {key: row["data"] for key, row in rows_of_tf.items()} == files
    assert {key: int(row["width"]) for key, row in rows_of_tf.items()} == {
        key: -1 if n is None else n for key, n in widths.items()
    }
    checked = any2ds.verify(tmp_path)
    assert (checked.ok, checked.bytes_read) == (True, sum(map(len, files.values())))


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
def test_each_epoch_has_an_order_of_its_own_which_the_seed_decides(output_format: str, dataset: Made) -> None:
    made = dataset(output_format)

    def epochs(seed: int) -> list[list[str]]:
        found = any2ds.load("dataset").to_tf(shuffle=True, seed=seed, window=8)
        twice = keys(found.repeat(2))
        return [keys(found), twice[: len(made.files)], twice[len(made.files) :]]

    found = epochs(1)
    assert [sorted(each) for each in found] == [list(made.files)] * 3
    assert len(set(map(tuple, found))) == 3
    assert epochs(1) == found
    assert epochs(2) != found


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
def test_ranks_share_the_samples(output_format: str, dataset: Made) -> None:
    made = dataset(output_format)
    ds = any2ds.load("dataset")
    ranks = [ds.to_tf(shuffle=True, rank=rank, world_size=3) for rank in range(3)]
    assert [len(keys(each)) for each in ranks] == [8, 8, 8]
    assert sorted(key for each in ranks for key in keys(each)) == list(made.files)


@pytest.mark.parametrize("even", ["drop", "pad"])
@pytest.mark.parametrize("output_format", FORMATS)
def test_as_many_batches_for_each_rank(output_format: str, even: str, dataset: Made) -> None:
    dataset(output_format)
    for split, options in (("train[:13]", {}), ("train[2:15]", {"shuffle": True}), ("train", {"world_size": 3})):
        ds = any2ds.load("dataset", split=split, columns=["key"])
        for rank in range(options.get("world_size", 1)):
            asked = {"rank": rank, "world_size": 1, "batch_size": 5, "even": even, **options}
            found = ds.to_tf(**asked)
            wanted = [sample["key"] for sample in ds.stream(**asked)]
            assert keys(found) == wanted
            assert not len(wanted) % 5


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
def test_images_are_arrays_when_they_are_decoded(output_format: str, dataset: Made) -> None:
    made = dataset(output_format)
    found = any2ds.load("dataset", columns=["data", "key"], decode=True).to_tf()
    assert found.element_spec["data"] == tf.TensorSpec((None, None, 3), tf.uint8)
    for sample in found.as_numpy_iterator():
        with Image.open(io.BytesIO(made.files[sample["key"].decode()])) as image:
            assert np.abs(sample["data"].astype(int) - np.asarray(image.convert("RGB"))).max() <= 3


def test_files_of_several_kinds_are_not_decoded_together(dataset: Made) -> None:
    dataset("webdataset", "mixed")
    with pytest.raises(UsageError, match="decode=True takes datasets of images, of sound or of text"):
        any2ds.load("dataset", decode=True).to_tf()
    texts = any2ds.load("dataset", where="ext = 'data.txt'", decode=True).to_tf()
    assert {sample["data"].decode().split(":")[0] for sample in texts.as_numpy_iterator()} == {
        f"Text {n}" for n in range(6)
    }


def test_a_shard_that_is_gone_is_named(dataset: Made) -> None:
    dataset("tfrecord")
    found = any2ds.load("dataset").to_tf()
    Path("dataset/00001.tfrecord").unlink()
    with pytest.raises(
        tf.errors.UnknownError, match=r"(?s)DamagedShard: shard 00001\.tfrecord of '.*': .*No such file"
    ):
        list(found)


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
def test_damaged_samples_are_passed_over_and_it_ends(output_format: str, dataset: Made) -> None:
    made = dataset(output_format)
    ds = any2ds.load("dataset", columns=["key", "data"])
    (damaged,) = Path("dataset").glob("00001.t*[rd]")
    content = damaged.read_bytes()
    at = content.index(made.files["000011"])
    damaged.write_bytes(content[:at] + bytes(20) + content[at + 20 :])
    checked = any2ds.load("dataset", columns=["key", "data"], check=True)
    assert len(keys(checked.to_tf().ignore_errors())) == len(ds) - 1
    with pytest.raises(tf.errors.UnknownError, match=r"000011|garbled"):
        list(checked.to_tf())
    left_out = any2ds.load("dataset", columns=["key", "data"], check=True, on_error="skip")
    assert len(keys(left_out.to_tf())) == len(ds) - 1


def test_a_dataset_whose_shards_have_one_sample_or_none(dataset: Made) -> None:
    made = dataset("tfrecord", number_sample_per_shard=1)
    ds = any2ds.load("dataset")
    assert keys(ds.to_tf()) == list(ds.keys)
    assert len(set(keys(ds.to_tf(shuffle=True)))) == len(made.files)


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
def test_a_network_is_trained_on_it(output_format: str, dataset: Made) -> None:
    made = dataset(output_format)
    ds = any2ds.load("dataset", columns=["data", "label"])

    def parse(row: Any) -> Any:
        image = tf.io.decode_image(row["data"], channels=3, expand_animations=False)
        return tf.ensure_shape(tf.cast(image, tf.float32) / 255, (32, 32, 3)), row["label"]

    batches = ds.to_tf(shuffle=True).map(parse).repeat(2).batch(8).prefetch(1)
    labels = Counter(int(label) for _, batch in batches for label in batch)
    assert labels == Counter(2 * [made.labels[key] for key in made.files])
    model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)])
    model.compile("sgd", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(batches, epochs=1, verbose=0)
    assert history.history["loss"][0] > 0


@pytest.mark.parametrize("section", ["tf.data", "TensorFlow Datasets", "Without any2ds"])
def test_what_the_page_shows(section: str, dataset: Made, page: Callable[..., list[str]]) -> None:
    dataset("tfrecord")
    for code in page(section, "tensorflow.md"):
        variables: dict[str, Any] = {"__name__": "page"}
        exec(compile(code, section, "exec"), variables)
        for found in ("samples", "batches"):
            if found in variables:
                assert len(list(islice(variables[found], 2))) == 2
