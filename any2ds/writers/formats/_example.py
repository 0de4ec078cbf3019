"""`tf.train.Example` on the wire: which feature a column becomes, records made by columns, and records read back.

Records are encoded here, column by column, in a third of the time that protobuf's library takes, which reads them back
(tensorflow/core/example/{example,feature}.proto).

    Example   { 1: Features }
    Features  { 1: map entry { 1: name, 2: Feature } … }
    Feature   { 1: BytesList | 2: FloatList | 3: Int64List }       each { 1: values }, numbers packed
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

from any2ds.core.tables import to_json, values

Kind = Literal["bytes", "int64", "float"]

DATA = "data"
"""The feature of the file; it is the last one, so that nothing of a record stands behind the file. Where a sample has
several files, their features are the last ones, called as its members."""

_LIST_OF_KIND: dict[Kind, int] = {"bytes": 1, "float": 2, "int64": 3}  # number of the field in Feature
_LENGTH = 2  # the wire type of what has its length before it
_MOST_OF_64_BITS = (1 << 64) - 1
_NAN = float("nan")
_HEADS_KEPT = 4096  # of values of one column, by their length


@dataclass(frozen=True, slots=True)
class FeatureKind:
    """What a column becomes in each record."""

    kind: Kind
    is_list: bool = False  # any number of values, for VarLenFeature; else exactly one, for FixedLenFeature([], …)


def feature_kind(type: pa.DataType) -> FeatureKind:
    """What a column of this type becomes.

    Text and bytes as they are; integers and bools are int64; floats are float32, the only ones that there are. What has
    no place in those (dates, times, decimals, uint64) is the text that JSON has for it, and what is nested JSON, but
    for lists of texts, of bytes and of numbers: these are lists. A null is b"", 0 or NaN; as a list it has no values.
    """
    if is_list(type) and (plain := plain_kind(type.value_type)) is not None:
        return FeatureKind(plain, is_list=True)
    return FeatureKind(plain_kind(type) or "bytes")


def is_list(type: pa.DataType) -> bool:
    of = pa.types
    return bool(of.is_list(type) or of.is_large_list(type) or of.is_fixed_size_list(type))


def plain_kind(type: pa.DataType) -> Kind | None:
    """None for what is written as its JSON or text."""
    of = pa.types
    if of.is_dictionary(type):
        return plain_kind(type.value_type)
    if of.is_boolean(type) or (of.is_integer(type) and not of.is_uint64(type)):
        return "int64"
    if of.is_floating(type):
        return "float"
    return "bytes" if _is_text(type) or _is_bytes(type) else None


def _is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _is_bytes(type: pa.DataType) -> bool:
    of = pa.types
    return bool(
        of.is_binary(type) or of.is_large_binary(type) or of.is_fixed_size_binary(type) or of.is_binary_view(type)
    )


ColumnEncoder = Callable[[pa.ChunkedArray], "list[bytes]"]
"""For each row of a column what stands for it in the record."""


class Encoder:
    """Makes records of tables with `schema`: a feature for each column, in its order, and that of the file, `data`,
    behind them. Columns that `encoders` names are encoded by these."""

    def __init__(
        self, schema: pa.Schema, data: str = DATA, encoders: Mapping[str, ColumnEncoder] = MappingProxyType({})
    ) -> None:
        own = ((encoders.get(field.name) or _column_encoder(field.name, field.type), field.type) for field in schema)
        self._columns = [(encode, encode(pa.nulls(1, type))[0]) for encode, type in own]
        self._data = Feature(data, "bytes")

    def heads(self, table: pa.Table, sizes: Iterable[int], firsts: Sequence[int] | None = None) -> list[bytes]:
        """For each row what stands in its record before the file, which has `size` bytes: nothing follows that.

        If further features follow, the file has as many bytes as `firsts` say, and with these features `size`.
        """
        columns = [
            [null] * table.num_rows if column.null_count == table.num_rows else encode(column)
            for (encode, null), column in zip(self._columns, table.columns, strict=True)
        ]
        heads, whole = [], list(sizes)
        for size, first, *entries in zip(whole, whole if firsts is None else firsts, *columns, strict=True):
            entries.append(self._data.head_of_bytes(first))
            features = b"".join(entries)
            heads.append(b"\x0a" + varint(len(features) + size) + features)
        return heads


class Feature:
    """What stands in a record before the values of one column."""

    def __init__(self, name: str, kind: Kind) -> None:
        self._name = _delimited(1, name.encode())
        self._tag = bytes([_LIST_OF_KIND[kind] << 3 | _LENGTH])
        self.head_of_list = lru_cache(_HEADS_KEPT)(self._head_of_list)
        self.head_of_one = lru_cache(_HEADS_KEPT)(self.head_of_bytes)

    def _head_of_list(self, size: int) -> bytes:
        """Of a list that takes `size` bytes, with the tags of its values."""
        of_list = self._tag + varint(size)
        feature = b"\x12" + varint(len(of_list) + size) + of_list
        return b"\x0a" + varint(len(self._name) + len(feature) + size) + self._name + feature

    def head_of_bytes(self, size: int) -> bytes:
        """Of a list of one value of `size` bytes."""
        value = b"\x0a" + varint(size)
        return self._head_of_list(len(value) + size) + value


def _column_encoder(name: str, type: pa.DataType) -> ColumnEncoder:
    wanted = feature_kind(type)
    feature = Feature(name, wanted.kind)
    if wanted.is_list:
        of_values = LIST_VALUES[wanted.kind]

        def lists(column: pa.ChunkedArray) -> list[bytes]:
            encoded = [of_values(value or ()) for value in column.to_pylist()]
            return [feature.head_of_list(len(each)) + each for each in encoded]

        return lists
    if wanted.kind == "bytes":
        to_bytes = bytes_of(type)
        head = feature.head_of_one

        def texts(column: pa.ChunkedArray) -> list[bytes]:
            found = [b"" if value is None else to_bytes(value) for value in values(column)]
            return [head(len(value)) + value for value in found]

        return texts
    if wanted.kind == "int64":

        @lru_cache(_HEADS_KEPT)
        def number(value: int | None) -> bytes:
            packed = _int_values((value,))
            return feature.head_of_list(len(packed)) + packed

        return lambda column: [number(value) for value in column.to_pylist()]
    head_of_float = feature.head_of_list(len(_float_values((0.0,))))
    return lambda column: [head_of_float + _float_values((value,)) for value in column.to_pylist()]


def bytes_of(type: pa.DataType) -> Callable[[Any], bytes]:
    """How a value of this type becomes bytes."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    if _is_text(type):
        return str.encode
    if _is_bytes(type):
        return bytes
    return _json if pa.types.is_nested(type) else _text


def _json(value: Any) -> bytes:
    return to_json(value)


def _text(value: Any) -> bytes:
    """As JSON has it, without the quotes; nothing that is written so has a character that JSON would escape."""
    return value.encode() if isinstance(value, str) else to_json(value).strip(b'"')


def _byte_values(found: Iterable[Any]) -> bytes:
    encoded = [(value.encode() if isinstance(value, str) else value) or b"" for value in found]
    return b"".join(_delimited(1, value) for value in encoded)


def _int_values(found: Iterable[int | None]) -> bytes:
    packed = b"".join([varint((value or 0) & _MOST_OF_64_BITS) for value in found])
    return _delimited(1, packed) if packed else b""


def _float_values(found: Iterable[float | None]) -> bytes:
    numbers = [_NAN if value is None else value for value in found]
    if not numbers:
        return b""
    try:
        packed = struct.pack(f"<{len(numbers)}f", *numbers)
    except OverflowError:  # more than float32 can hold, which is infinity to it
        packed = b"".join(map(_float32, numbers))
    return _delimited(1, packed)


LIST_VALUES: Mapping[Kind, Callable[[Iterable[Any]], bytes]] = {
    "bytes": _byte_values,
    "int64": _int_values,
    "float": _float_values,
}
"""What stands in a list of values of each kind."""


def _float32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def varint(value: int) -> bytes:
    """7 bits in each byte, the lowest first; the high bit says that there is more."""
    if value < 0x80:
        return bytes((value,))
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _delimited(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | _LENGTH]) + varint(len(value)) + value


# --- reading back ---

# Name, number and type of the fields of each message; a type with a star is repeated. The map of features is a list of
# its entries, which is the same on the wire and keeps their order.
_MESSAGES = {
    "BytesList": (("value", 1, "bytes*"),),
    "FloatList": (("value", 1, "float*"),),
    "Int64List": (("value", 1, "int64*"),),
    "Feature": (("bytes_list", 1, "BytesList"), ("float_list", 2, "FloatList"), ("int64_list", 3, "Int64List")),
    "Entry": (("key", 1, "string"), ("value", 2, "Feature")),
    "Features": (("feature", 1, "Entry*"),),
    "Example": (("features", 1, "Features"),),
}


@cache
def _example_class() -> Any:
    """`tf.train.Example`, in a pool of its own: TensorFlow, in the same process, may have another."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("any2ds.Example"))


def parse(record: bytes, columns: Collection[str] | None = None) -> dict[str, list[Any]]:
    """The values of the features of a record, in its order: bytes, int or float; only those of `columns`, if given.

    Raises ValueError for what is no record.
    """
    from google.protobuf.message import DecodeError

    try:
        example = _example_class().FromString(record)
    except DecodeError as error:
        raise ValueError(f"no tf.train.Example: {error}") from error
    found: dict[str, list[Any]] = {}
    for entry in example.features.feature:
        if columns is None or entry.key in columns:
            kind = entry.value.WhichOneof("kind")
            found[entry.key] = list(getattr(entry.value, kind).value) if kind else []
    return found
