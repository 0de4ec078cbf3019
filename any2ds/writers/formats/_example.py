"""`tf.train.Example`: what each column of a table becomes in a record, and how it is read back.

Messages are those of protobuf, in a pool of its own (tensorflow/core/example/{example,feature}.proto). Only the file,
which stands last in a record, is put behind them here, so that a large one need not be in memory.

    Example   { 1: Features }
    Features  { 1: map entry { 1: name, 2: Feature } … }
    Feature   { 1: BytesList | 2: FloatList | 3: Int64List }       each { 1: values }, numbers packed

Datasets of recipes have further forms, as TensorFlow Datasets writes and reads them; elsewhere what is nested is JSON:

    a list of lists         name/ragged_flat_values, and name/ragged_row_lengths_0 … of each level but the outermost
    uint64                  int64 with the same bits
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from itertools import chain, islice
from typing import Any, Literal

import orjson
import pyarrow as pa

from any2ds.core.metadata import RECIPE_KEY
from any2ds.core.tables import is_bytes, is_list, is_text, to_json, value_of_text, values

Kind = Literal["bytes", "int64", "float"]

DATA = "data"
"""The feature of the file; it is the last one, so that nothing of a record stands behind the file. Where a sample has
several files, their features are the last ones, called as its members."""

_HEADS_KEPT = 4096  # of values of one column
_NULLS: Mapping[Kind, Any] = {"bytes": b"", "int64": 0, "float": float("nan")}  # records know no null


@dataclass(frozen=True, slots=True)
class FeatureKind:
    """Kind of feature that a column becomes in each record."""

    kind: Kind
    is_list: bool = False  # any number of values, for VarLenFeature; else exactly one, for FixedLenFeature([], …)


def feature_kind(type: pa.DataType) -> FeatureKind:
    """Kind of feature of a column of this type.

    Text and bytes as they are; integers and bools are int64; floats are float32, the only ones that there are. What has
    no place in those (dates, times, decimals, uint64) is the text that JSON has for it, and what is nested JSON, but
    for lists of texts, of bytes and of numbers: these are lists. A null is b"", 0 or NaN; as a list it has no values.
    """
    if is_list(type) and (plain := _plain_kind(type.value_type)) is not None:
        return FeatureKind(plain, is_list=True)
    return FeatureKind(_plain_kind(type) or "bytes")


def _plain_kind(type: pa.DataType) -> Kind | None:
    """None for a type that is written as its JSON or text."""
    of = pa.types
    if of.is_dictionary(type):
        return _plain_kind(type.value_type)
    if of.is_boolean(type) or (of.is_integer(type) and not of.is_uint64(type)):
        return "int64"
    if of.is_floating(type):
        return "float"
    return "bytes" if is_text(type) or is_bytes(type) else None


def bytes_of(type: pa.DataType) -> Callable[[Any], bytes]:
    """The function that makes bytes of a value of this type."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    if is_text(type):
        return str.encode
    if is_bytes(type):
        return bytes
    return to_json if pa.types.is_nested(type) else _text


def _text(value: Any) -> bytes:
    """As JSON has it, without the quotes; nothing that is written so has a character that JSON would escape."""
    return value.encode() if isinstance(value, str) else to_json(value).strip(b'"')


# --- columns ---


def columns_of(schema: pa.Schema) -> dict[str, Column]:
    """The columns of a dataset whose metadata have this schema, by name."""
    is_of_recipe = RECIPE_KEY in schema.names
    return {field.name: Column(field.name, field.type, is_of_recipe) for field in schema}


class Column:
    """One value, or lists of values; in datasets of recipes also lists of lists, or of tensors of one shape."""

    def __init__(self, name: str, type: pa.DataType, is_of_recipe: bool) -> None:
        self.depth, self._tensor_size, kind = 0, 0, feature_kind(type)
        leaf = type
        if is_of_recipe:
            while is_list(leaf):
                if pa.types.is_fixed_size_list(leaf) and self.depth:
                    self._tensor_size = leaf.list_size
                else:
                    self.depth += 1
                leaf = leaf.value_type
            plain = "int64" if pa.types.is_uint64(leaf) else _plain_kind(leaf)
            kind = FeatureKind(plain, self.depth > 0) if plain is not None else FeatureKind("bytes")
            if plain is None:  # written as JSON
                self.depth, self._tensor_size, leaf = 0, 0, type
        elif kind.is_list:
            self.depth, leaf = 1, type.value_type
        self._kind, self._leaf = kind.kind, leaf.value_type if pa.types.is_dictionary(leaf) else leaf
        self._null, self._to_bytes = _NULLS[kind.kind], bytes_of(leaf)
        self._flat = name if self.depth < 2 else f"{name}/ragged_flat_values"
        self._lengths = [f"{name}/ragged_row_lengths_{level}" for level in range(self.depth - 1)]
        self.features: list[tuple[str, Kind]] = [*((name, "int64") for name in self._lengths), (self._flat, kind.kind)]

    def encode(self, value: Any) -> list[list[Any]]:
        if not self.depth:
            return [[self.encoded(value)]]
        level, found = value or (), []
        for _ in self._lengths:
            found.append([len(each) for each in level])
            level = list(chain.from_iterable(level))
        if self._tensor_size:
            level = chain.from_iterable(level)
        found.append([self.encoded(each) for each in level])
        return found

    def encoded(self, value: Any) -> Any:
        if value is None:
            return self._null
        if self._kind == "bytes":
            return self._to_bytes(value)
        if self._kind == "int64":
            return int(value) if value < 1 << 63 else value - (1 << 64)
        return value

    def decode(self, record: Mapping[str, list[Any]]) -> Any:
        values = record.get(self._flat) or []
        if not self.depth:
            return self._decoded(values[0]) if len(values) == 1 else values
        values = list(map(self._decoded, values))
        if self._tensor_size:
            values = _grouped(values, [self._tensor_size] * (len(values) // self._tensor_size))
        for name in reversed(self._lengths):
            values = _grouped(values, record.get(name) or [])
        return values

    def _decoded(self, value: Any) -> Any:
        of, leaf = pa.types, self._leaf
        if self._kind == "float":
            return value
        if self._kind == "int64":
            return bool(value) if of.is_boolean(leaf) else value & _MOST_OF_64_BITS if of.is_uint64(leaf) else value
        if is_text(leaf):
            return value.decode()
        if is_bytes(leaf):
            return value
        if not value:
            return None
        return orjson.loads(value) if of.is_nested(leaf) else value_of_text(value.decode(), leaf)


_MOST_OF_64_BITS = (1 << 64) - 1


def _grouped(values: Sequence[Any], lengths: Iterable[int]) -> list[Any]:
    """Raises ValueError if they are not as many as `lengths` say."""
    rest = iter(values)
    groups = [list(islice(rest, length)) for length in lengths]
    if sum(map(len, groups)) != len(values):
        raise ValueError("a list of lists whose lengths are wrong")
    return groups


# --- records ---

# Name, number and type of the fields of each message; a type with a star is repeated. The map of features is a list of
# its entries, which is the same on the wire and keeps their order.
_MESSAGES = {
    "BytesList": (("value", 1, "bytes*"),),
    "FloatList": (("value", 1, "float*"),),
    "Int64List": (("value", 1, "int64*"),),
    "Feature": (("bytes", 1, "BytesList"), ("float", 2, "FloatList"), ("int64", 3, "Int64List")),
    "Entry": (("key", 1, "string"), ("value", 2, "Feature")),
    "Features": (("feature", 1, "Entry*"),),
    "Example": (("features", 1, "Features"),),
}


@cache
def _message(name: str) -> Any:
    """A class of `_MESSAGES`, in a pool of its own: TensorFlow, in the same process, may have another."""
    from google.protobuf import message_factory  # of an extra

    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"any2ds.{name}"))


@cache
def _pool() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool

    file = descriptor_pb2.FileDescriptorProto(name="any2ds.proto", package="any2ds", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, type in fields:
            plain = type.removesuffix("*")
            added = message.field.add(name=field, number=number)
            added.label = added.LABEL_REPEATED if type != plain else added.LABEL_OPTIONAL
            if plain in _MESSAGES:
                added.type, added.type_name = added.TYPE_MESSAGE, f".any2ds.{plain}"
            else:
                added.type = getattr(added, f"TYPE_{plain.upper()}")
        if name == "Feature":
            message.oneof_decl.add(name="kind")
            for added in message.field:
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


class Encoder:
    """Makes records of tables with `schema`: the features of each column, in its order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._encoders = list(map(_encoder, columns_of(schema).values()))

    def encode(self, table: pa.Table) -> list[bytes]:
        """The features of each row, to which the file is to be added, see `with_file`."""
        columns = [map(encode, values(column)) for encode, column in zip(self._encoders, table.columns, strict=True)]
        return list(map(b"".join, zip(*columns, strict=True)))


def _encoder(column: Column) -> Callable[[Any], bytes]:
    """The function that makes the features of a column's value, as they stand in a record.

    A message of protobuf takes 5 microseconds for each feature, so texts do without, and numbers are made once.
    """
    if not column.depth:
        (name, kind), to_value = column.features[0], column.encoded
        if kind == "bytes":
            head = lru_cache(_HEADS_KEPT)(partial(file_head, name))
            return lambda value: head(len(encoded := to_value(value))) + encoded
        if kind == "int64":
            return lru_cache(_HEADS_KEPT)(partial(_message_of, column))
    return partial(_message_of, column)


def _message_of(column: Column, value: Any) -> bytes:
    features = _message("Features")()
    for (name, kind), own in zip(column.features, column.encode(value), strict=True):
        found = getattr(features.feature.add(key=name).value, kind)
        found.SetInParent()  # a list without values is a feature as well
        found.value.extend(own)
    return bytes(features.SerializeToString())


def with_file(features: bytes, head: bytes, size: int) -> bytes:
    """Bytes of a record before a file of `size` bytes, of which `head` is the feature. Nothing follows the file,
    or further files, which `size` counts with the heads of their features."""
    return b"\x0a" + varint(len(features) + len(head) + size) + features + head


def file_head(name: str, size: int) -> bytes:
    """Bytes of a record before a file of `size` bytes that is the only value of a feature."""
    head = b"\x0a" + varint(size)
    head = b"\x0a" + varint(len(head) + size) + head
    key = name.encode()
    head = b"\x0a" + varint(len(key)) + key + b"\x12" + varint(len(head) + size) + head
    return b"\x0a" + varint(len(head) + size) + head


def varint(value: int) -> bytes:
    """7 bits in each byte, the lowest first; the high bit says that there is more."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def parse(record: bytes, columns: Collection[str] | None = None) -> dict[str, list[Any]]:
    """The values of the features of a record, in its order: bytes, int or float; only those of `columns`, if given.

    Raises ValueError for what is no record.
    """
    from google.protobuf.message import DecodeError

    try:
        example = _message("Example").FromString(record)
    except DecodeError as error:
        raise ValueError(f"no tf.train.Example: {error}") from error
    found: dict[str, list[Any]] = {}
    for entry in example.features.feature:
        if columns is None or entry.key in columns:
            kind = entry.value.WhichOneof("kind")
            found[entry.key] = list(getattr(entry.value, kind).value) if kind else []
    return found
