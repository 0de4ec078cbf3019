"""`tf.train.Example` on the wire: which feature a column becomes, records made by columns, and records read back.

The messages are small and will not change (tensorflow/core/example/{example,feature}.proto), so they are written here:
protobuf's library would have to be of the version that TensorFlow, in the same process, was built with.

    Example   { 1: Features }
    Features  { 1: map entry { 1: name, 2: Feature } … }
    Feature   { 1: BytesList | 2: FloatList | 3: Int64List }       each { 1: values }, numbers packed
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa

from any2ds.core.tables import to_json, values
from any2ds.writers.formats._wire import MOST_OF_64_BITS, Read, reader_of, varint, varint_at

Kind = Literal["bytes", "int64", "float"]

DATA = "data"
"""The feature of the file; it is the last one, so that nothing of a record stands behind the file. Where a sample has
several files, their features are the last ones, called as its members."""

_LIST_OF_KIND: dict[Kind, int] = {"bytes": 1, "float": 2, "int64": 3}  # number of the field in Feature
_KIND_OF_LIST: dict[int, Kind] = {number: kind for kind, number in _LIST_OF_KIND.items()}
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types
_NAN = float("nan")
_FLOAT = struct.Struct("<f")
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
    packed = b"".join([varint((value or 0) & MOST_OF_64_BITS) for value in found])
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


def _delimited(field: int, value: bytes) -> bytes:
    return bytes([field << 3 | _LENGTH]) + varint(len(value)) + value


# --- reading back ---


def parse(record: bytes, columns: Collection[str] | None = None) -> dict[str, list[Any]]:
    """The values of the features of a record, in its order: bytes, int or float; only those of `columns`, if given.

    Raises ValueError for what is no record.
    """
    read = reader_of(record)
    found: dict[str, list[Any]] = {}
    for name, start, stop in _places(record) or features(read, len(record)):
        if columns is None or name in columns:
            values = _one_value(record, start, stop)
            found[name] = _values(read, start, stop) if values is None else values
    return found


def _places(record: bytes) -> list[tuple[str, int, int]] | None:
    """What `features` yields, in a fifth of the time, for a record as every encoder writes it; None for any other."""
    found = []
    try:
        at, end = _length(record, 0, 0x0A)
        if end != len(record):
            return None
        while at < end:
            at, stop = _length(record, at, 0x0A)
            name, name_stop = _length(record, at, 0x0A)
            start, feature_stop = _length(record, name_stop, 0x12)
            if feature_stop != stop or stop > end:
                return None
            found.append((record[name:name_stop].decode(), start, stop))
            at = stop
    except (IndexError, ValueError):
        return None
    return found


def _length(record: bytes, at: int, tag: int) -> tuple[int, int]:
    """From where to where the value goes whose field begins at `at`. Raises ValueError if it has another tag."""
    if record[at] != tag:
        raise ValueError("another field")
    size = record[at + 1]
    at += 2
    if size >= 0x80:
        size &= 0x7F
        shift = 7
        while (byte := record[at]) >= 0x80:
            size |= (byte & 0x7F) << shift
            shift += 7
            at += 1
        size |= byte << shift
        at += 1
    return at, at + size


def _one_value(record: bytes, start: int, stop: int) -> list[Any] | None:
    """The value of a feature that has exactly one of bytes, one float or one small number; None for any other."""
    try:
        kind = record[start]
        at, end = _length(record, start, kind)
        at, last = _length(record, at, 0x0A)
    except (IndexError, ValueError):
        return None
    if end != stop or last != stop:
        return None
    if kind == 0x0A:
        return [record[at:stop]]
    if kind == 0x12 and stop - at == 4:
        return list(_FLOAT.unpack_from(record, at))
    if kind == 0x1A and stop - at == 1 and record[at] < 0x80:
        return [record[at]]
    return None


def features(read: Read, size: int) -> Iterator[tuple[str, int, int]]:
    """Name of each feature of a record of `size` bytes, and from where to where it goes. Reads nothing of their values.

    Raises ValueError for what is no record.
    """
    for number, wire, start, stop in _fields(read, 0, size):
        if (number, wire) != (1, _LENGTH):
            continue
        for inner, inner_wire, entry, entry_stop in _fields(read, start, stop):
            if (inner, inner_wire) != (1, _LENGTH):
                continue
            name, feature = "", (entry, entry)  # as protobuf takes a map entry that lacks one
            for part, part_wire, value, value_stop in _fields(read, entry, entry_stop):
                if (part, part_wire) == (1, _LENGTH):
                    name = read(value, value_stop - value).decode()
                elif (part, part_wire) == (2, _LENGTH):
                    feature = value, value_stop
            yield name, *feature


def bytes_value(read: Read, start: int, stop: int) -> tuple[int, int]:
    """From where to where the one value of a feature of bytes goes. Raises ValueError if it has not exactly one."""
    found = []
    for number, wire, inner, inner_stop in _fields(read, start, stop):
        if (number, wire) == (_LIST_OF_KIND["bytes"], _LENGTH):
            inside = _fields(read, inner, inner_stop)
            found += [(value, end) for field, kind, value, end in inside if (field, kind) == (1, _LENGTH)]
    if len(found) != 1:
        raise ValueError(f"a feature of {len(found)} values, where one was to be")
    return found[0]


def _values(read: Read, start: int, stop: int) -> list[Any]:
    found: list[Any] = []
    for number, wire, inner, inner_stop in _fields(read, start, stop):
        if wire == _LENGTH and (kind := _KIND_OF_LIST.get(number)) is not None:
            for field, how, value, end in _fields(read, inner, inner_stop):
                if field == 1:
                    found += _of_kind(kind, how, read(value, end - value))
    return found


def _of_kind(kind: Kind, wire: int, value: bytes) -> Sequence[Any]:
    """The values in a field of a list; numbers may be packed or stand alone."""
    if kind == "bytes" and wire == _LENGTH:
        return [value]
    if kind == "float" and (wire == _FIXED32 or (wire == _LENGTH and len(value) % 4 == 0)):
        return struct.unpack(f"<{len(value) // 4}f", value)
    if kind == "int64" and wire in (_VARINT, _LENGTH):
        read, place, numbers = reader_of(value), 0, []
        while place < len(value):
            number, place = varint_at(read, place, len(value))
            numbers.append(number - (1 << 64) if number >> 63 else number)
        return numbers
    raise ValueError(f"a value of wire type {wire} in a list of {kind}")


def _fields(read: Read, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Number and wire type of each field, and from where to where its value goes."""
    while start < stop:
        tag, start = varint_at(read, start, stop)
        wire, end = tag & 7, start
        if wire == _VARINT:
            _, end = varint_at(read, start, stop)
        elif wire == _LENGTH:
            size, start = varint_at(read, start, stop)
            end = start + size
        elif wire in (_FIXED32, _FIXED64):
            end = start + (4 if wire == _FIXED32 else 8)
        else:
            raise ValueError(f"wire type {wire} at byte {start}")
        if end > stop or tag >> 3 == 0:
            raise ValueError(f"no field of a record at byte {start}")
        yield tag >> 3, wire, start, end
        start = end
