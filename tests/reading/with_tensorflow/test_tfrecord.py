"""TensorFlow reads every column of a tfrecord with its type, and its own `Example` agrees."""

import datetime
import decimal
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf

import any2ds
from any2ds import download
from any2ds.testing.server import Server
from any2ds.testing.writing import read
from any2ds.writers.formats._example import feature_kind

DTYPES = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}
HUGE = "ü" * 1_000_000

COLUMNS = {
    "words": pa.array(["größe", None, HUGE]),
    "raw": pa.array([b"\x00\xff", None, b""]),
    "few": pa.array(["a", "b", None]).dictionary_encode(),
    "is": pa.array([True, False, None]),
    "small": pa.array([-128, 127, None], pa.int8()),
    "big": pa.array([-(2**63), 2**63 - 1, None]),
    "bigger": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "half": pa.array([0.5, -2.0, None], pa.float16()),
    "real": pa.array([math.nan, math.inf, None], pa.float32()),
    "double": pa.array([1e300, 0.1, None]),
    "day": pa.array([datetime.date(2026, 1, 2), None, None]),
    "when": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5, 6), None, None]),
    "price": pa.array([decimal.Decimal("1.50"), None, None]),
    "tags": pa.array([["a", None], [], None]),
    "box": pa.array([[0.5, 1.5, math.nan], [], None], pa.list_(pa.float64())),
    "ids": pa.array([[1, -1], [], None]),
    "nested": pa.array([{"a": [1], "b": "ü"}, None, {"a": [], "b": None}]),
}
TEXTS = {
    "bigger": [b"18446744073709551615", b"0", b""],
    "day": [b"2026-01-02", b"", b""],
    "when": [b"2026-01-02T03:04:05.000006", b"", b""],
    "price": [b"1.50", b"", b""],
    "nested": ['{"a":[1],"b":"ü"}'.encode(), b"", b'{"a":[],"b":null}'],
}


NAMES = ["00.jpg", "04.png", "01.jpg"]


@pytest.fixture
def made(server: Server, tmp_path: Path) -> Path:
    """A dataset of one shard."""
    rows = pa.table({"url": [server.url(name) for name in NAMES], **COLUMNS})
    out = tmp_path / "dataset"
    how = {"output_format": "tfrecord", "quiet": True, "robots": "ignore"}
    how |= {"save_additional_columns": ",".join(COLUMNS)}
    assert download(rows, output_folder=out, **how).successes == len(NAMES)
    return out


def records_of(out: Path) -> Any:
    return tf.data.TFRecordDataset(str(out / "00000.tfrecord"))


def test_every_column_is_read_with_its_type(made: Path, server: Server) -> None:
    schema = pq.read_schema(made / "00000.parquet")
    features: dict[str, Any] = {"data": tf.io.FixedLenFeature([], tf.string)}
    for field in schema:
        kind = feature_kind(field.type)
        dtype = DTYPES[kind.kind]
        features[field.name] = tf.io.VarLenFeature(dtype) if kind.is_list else tf.io.FixedLenFeature([], dtype)
    assert {name for name in features if isinstance(features[name], tf.io.VarLenFeature)} == {"tags", "box", "ids"}
    found = list(records_of(made).map(lambda record: tf.io.parse_single_example(record, features)))
    values = {
        name: [
            tf.sparse.to_dense(row[name]).numpy().tolist() if name in ("tags", "box", "ids") else row[name].numpy()
            for row in found
        ]
        for name in features
    }
    assert values["data"] == [(server.folder / name).read_bytes() for name in NAMES]
    assert values["key"] == [b"000000000", b"000000001", b"000000002"]
    assert values["words"] == ["größe".encode(), b"", HUGE.encode()]
    assert values["raw"] == [b"\x00\xff", b"", b""]
    assert values["few"] == [b"a", b"b", b""]
    assert [list(map(int, values[name])) for name in ("is", "small", "big")] == [
        [1, 0, 0],
        [-128, 127, 0],
        [-(2**63), 2**63 - 1, 0],
    ]
    assert repr([float(value) for value in values["half"]]) == "[0.5, -2.0, nan]"
    assert repr([float(value) for value in values["real"]]) == "[nan, inf, nan]"
    assert repr([round(float(value), 6) for value in values["double"]]) == "[inf, 0.1, nan]"
    for name, wanted in TEXTS.items():
        assert values[name] == wanted, name
    assert values["tags"] == [[b"a", b""], [], []]
    assert repr(values["box"]) == "[[0.5, 1.5, nan], [], []]"
    assert values["ids"] == [[1, -1], [], []]
    assert [int(value) for value in values["bytes"]] == [len(data) for data in values["data"]]
    assert (values["status"], values["error_code"]) == ([b"success"] * 3, [b""] * 3)


def test_its_own_example_says_what_ours_says(made: Path) -> None:
    for record in records_of(made).as_numpy_iterator():
        theirs = tf.train.Example.FromString(record).features.feature
        ours = any2ds.parse_example(record)
        assert set(ours) == set(theirs)
        for name, values in ours.items():
            kind = theirs[name].WhichOneof("kind")
            assert repr(list(getattr(theirs[name], kind).value)) == repr(values), name


def test_what_tensorflow_has_written_is_read(tmp_path: Path) -> None:
    """Its maps have another order, and each list of numbers is packed as ours."""
    from any2ds.writers.formats.tfrecord import TfrecordWriter

    def feature(value: bytes) -> Any:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    path = tmp_path / "0.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for n in range(300):
            texts = {"key": b"%09d" % n, "ext": b"jpg", "data": b"x" * (n * 100)}
            features = {name: feature(value) for name, value in texts.items()}
            features["n"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[n, -n]))
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    found = [(key, ext, len(data)) for key, ext, data in read(TfrecordWriter, path)]
    assert found == [(f"{n:09d}", "jpg", n * 100) for n in range(300)]
