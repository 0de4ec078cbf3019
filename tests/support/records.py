"""Reads shards of `tf.train.Example` by protobuf and array_record, with nothing of any2ds's own."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import google_crc32c
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_Field = descriptor_pb2.FieldDescriptorProto


def examples(path: Path) -> list[dict[str, list[Any]]]:
    """The features of each record of a shard, by name. Raises ValueError or RuntimeError where something is wrong."""
    records = _arrayrecord(path) if path.suffix == ".arrayrecord" else _tfrecord(path)
    return [_features(record) for record in records]


def _features(record: bytes) -> dict[str, list[Any]]:
    try:
        example = messages().Example.FromString(record)
    except DecodeError as error:
        raise ValueError("a record is no tf.train.Example") from error
    features = example.features.feature
    return {name: list(getattr(feature, feature.WhichOneof("kind")).value) for name, feature in features.items()}


@cache
def messages() -> Any:
    """`Example`, `Features`, `Feature` and the three lists, as tensorflow/core/example/{example,feature}.proto define
    them; in a pool of their own, beside TensorFlow's."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="any2ds.testing", syntax="proto3")
    for name, kind in (
        ("BytesList", _Field.TYPE_BYTES),
        ("FloatList", _Field.TYPE_FLOAT),
        ("Int64List", _Field.TYPE_INT64),
    ):
        file.message_type.add(name=name).field.add(name="value", number=1, type=kind, label=_Field.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, of in enumerate(("Bytes", "Float", "Int64"), 1):
        one = feature.field.add(name=f"{of.lower()}_list", number=number, type=_Field.TYPE_MESSAGE, oneof_index=0)
        one.type_name = f".any2ds.testing.{of}List"
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_Field.TYPE_STRING)
    entry.field.add(name="value", number=2, type=_Field.TYPE_MESSAGE, type_name=".any2ds.testing.Feature")
    repeated = features.field.add(name="feature", number=1, type=_Field.TYPE_MESSAGE, label=_Field.LABEL_REPEATED)
    repeated.type_name = ".any2ds.testing.Features.FeatureEntry"
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, type=_Field.TYPE_MESSAGE, type_name=".any2ds.testing.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = (message.name for message in file.message_type)
    found = {name: pool.FindMessageTypeByName(f"any2ds.testing.{name}") for name in names}
    return SimpleNamespace(**{name: message_factory.GetMessageClass(kind) for name, kind in found.items()})


def _arrayrecord(path: Path) -> list[bytes]:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(path), "readahead_buffer_size:0,max_parallelism:0")
    try:
        return list(reader.read(range(reader.num_records())))
    finally:
        reader.close()  # raises if it could not be opened


def _tfrecord(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    place = 0
    while place < len(content):
        length, of_length = struct.unpack_from("<QI", content, place)
        record = content[place + 12 : place + 12 + length]
        (of_record,) = struct.unpack_from("<I", content, place + 12 + length)
        if (of_length, of_record) != (_masked(content[place : place + 8]), _masked(record)):
            raise ValueError(f"wrong checksums at byte {place}")
        place += 12 + length + 4
        yield record


def _masked(data: bytes) -> int:
    crc = int(google_crc32c.value(data))
    rotated = (crc >> 15) | (crc << 17) & 0xFFFFFFFF
    return int((rotated + 0xA282EAD8) % 2**32)
