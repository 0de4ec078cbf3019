"""Columns of a recipe's dataset that are no plain feature of a record, as TensorFlow Datasets writes and reads them.

    a list of lists         name/ragged_flat_values, and name/ragged_row_lengths_0 … of each level but the outermost
    a tensor of any shape   name/shape, and name/value: its numbers, little-endian
    uint64                  int64 with the same bits

In other datasets, whose columns may be of any type, what is nested is JSON.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from any2ds.core.metadata import RECIPE_KEY
from any2ds.writers.formats._example import LIST_VALUES, ColumnEncoder, Feature, is_list, plain_kind

_UNSIGNED = (1 << 64) - 1


class Nested(ABC):
    """How one column stands in records, under several names."""

    names: tuple[str, ...]

    @abstractmethod
    def encode(self, column: pa.ChunkedArray) -> list[bytes]:
        """For each row its features."""

    @abstractmethod
    def decode(self, found: Mapping[str, list[Any]]) -> Any:
        """The value of the column, of the values of its features. Raises ValueError for what does not fit."""


def nested_columns(types: Mapping[str, pa.DataType]) -> dict[str, Nested]:
    """The columns of a dataset that are in such a form; none if no recipe has made it."""
    if RECIPE_KEY not in types:
        return {}
    found = {name: _form(name, type) for name, type in types.items()}
    return {name: form for name, form in found.items() if form is not None}


def encoders(types: Mapping[str, pa.DataType]) -> dict[str, ColumnEncoder]:
    """By the name of their column."""
    return {name: form.encode for name, form in nested_columns(types).items()}


def _form(name: str, type: pa.DataType) -> Nested | None:
    if pa.types.is_struct(type) and {field.name for field in type} == {"shape", "value"}:
        return _Tensor(name, type)
    if not (is_list(type) or pa.types.is_uint64(type)):
        return None
    found = _Lists(name, type)
    return found if found.is_needed else None


class _Lists(Nested):
    """Lists, in which there may be lists or tensors of one shape; or a number of uint64."""

    def __init__(self, name: str, type: pa.DataType) -> None:
        self._depth = 0
        while is_list(type) and not pa.types.is_fixed_size_list(type):
            self._depth, type = self._depth + 1, type.value_type
        self._size: int | None = None  # of a tensor
        if pa.types.is_fixed_size_list(type):
            self._size, type = type.list_size, type.value_type
        self._type, kind = type, "int64" if pa.types.is_uint64(type) else plain_kind(type)
        self.is_needed = kind is not None and (self._depth > 1 or self._size is not None or pa.types.is_uint64(type))
        self._flat = name if self._depth < 2 else f"{name}/ragged_flat_values"
        self._lengths = [f"{name}/ragged_row_lengths_{level}" for level in range(self._depth - 1)]
        self.names = (*self._lengths, self._flat)
        self._values = LIST_VALUES[kind or "bytes"]
        self._features = [*(Feature(each, "int64") for each in self._lengths), Feature(self._flat, kind or "bytes")]

    def encode(self, column: pa.ChunkedArray) -> list[bytes]:
        return [self._encoded(value) for value in column.to_pylist()]

    def _encoded(self, value: Any) -> bytes:
        level: list[Any] = [value or 0] if not self._depth else value or []
        lists: list[bytes] = []
        for _ in self._lengths:
            lists.append(LIST_VALUES["int64"]([len(each) for each in level]))
            level = list(chain.from_iterable(level))
        if self._size is not None:
            level = list(chain.from_iterable(level))
        lists.append(self._values(level))
        parts = zip(self._features, lists, strict=True)
        return b"".join(feature.head_of_list(len(content)) + content for feature, content in parts)

    def decode(self, found: Mapping[str, list[Any]]) -> Any:
        of, values = pa.types, found.get(self._flat) or []
        if of.is_string(self._type):
            values = [value.decode() for value in values]
        elif of.is_boolean(self._type):
            values = [bool(value) for value in values]
        elif of.is_uint64(self._type):
            values = [value & _UNSIGNED for value in values]
        if not self._depth:
            return values[0]
        if self._size is not None:
            values = _grouped(values, [self._size] * (len(values) // self._size))
        for name in reversed(self._lengths):
            values = _grouped(values, found.get(name) or [])
        return values


def _grouped(values: Sequence[Any], lengths: Iterable[int]) -> list[Any]:
    """Raises ValueError if they are not as many as `lengths` say."""
    rest = iter(values)
    groups = [list(islice(rest, length)) for length in lengths]
    if sum(map(len, groups)) != len(values):
        raise ValueError("a list of lists whose lengths are wrong")
    return groups


class _Tensor(Nested):
    """A tensor with its shape."""

    def __init__(self, name: str, type: pa.DataType) -> None:
        self.names = (f"{name}/shape", f"{name}/value")
        self._shape, self._value = Feature(self.names[0], "int64"), Feature(self.names[1], "bytes")
        self._rank = type.field("shape").type.list_size
        self._letter = _LETTERS[str(type.field("value").type.value_type)]

    def encode(self, column: pa.ChunkedArray) -> list[bytes]:
        return [self._encoded(value or {"shape": [0] * self._rank, "value": ()}) for value in column.to_pylist()]

    def _encoded(self, value: Mapping[str, Any]) -> bytes:
        shape = LIST_VALUES["int64"](value["shape"])
        content = struct.pack(f"<{len(value['value'])}{self._letter}", *value["value"])
        return self._shape.head_of_list(len(shape)) + shape + self._value.head_of_bytes(len(content)) + content

    def decode(self, found: Mapping[str, list[Any]]) -> Any:
        (content,) = found[self.names[1]]
        values = struct.unpack(f"<{len(content) // struct.calcsize(self._letter)}{self._letter}", content)
        return {"shape": list(found[self.names[0]]), "value": list(values)}


_LETTERS = {
    **{f"{sign}int{8 * 2**n}": letter for sign, row in (("", "bhiq"), ("u", "BHIQ")) for n, letter in enumerate(row)},
    "float": "f",
    "double": "d",
    "bool": "?",
}
"""Types of Arrow, as `struct` calls them."""
