"""A source as a `tf.data.Dataset`, made by a Python generator.

A sample is a dict of tensors, the same for every format, whose types hold every value of their columns:

    text, bytes                     tf.string, a null is ""
    integers, bool                  tf.int64 and tf.bool, a null is -1 and False
    unsigned integers of 64 bits    tf.uint64, a null is 2**64 - 1
    floats                          tf.float32, of 64 bits tf.float64, a null is NaN
    lists of these                  tensors of one dimension, a null is empty
    dates, decimals, nested values  tf.string, as JSON has them
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from any2ds.core.errors import UsageError
from any2ds.load.errors import Failed
from any2ds.load.libraries import imported, kind_of_files

if TYPE_CHECKING:
    from any2ds.load.source import Source

_NULLS: dict[str, Any] = {
    "string": b"",
    "bool": False,
    "int64": -1,  # which is none of the classes
    "uint64": 2**64 - 1,
    "float32": float("nan"),
    "float64": float("nan"),
}


@dataclass(frozen=True, slots=True)
class _Column:
    """A column as a tensor."""

    dtype: str  # as TensorFlow calls it
    is_list: bool
    to_bytes: Callable[[Any], bytes] | None  # for tf.string: of a value of Python

    @classmethod
    def of(cls, type: pa.DataType) -> _Column:
        from any2ds.writers.formats._example import bytes_of, feature_kind  # which needs protobuf, as TensorFlow does

        is_list = feature_kind(type).is_list or (pa.types.is_list(type) and pa.types.is_uint64(type.value_type))
        inner = type.value_type if is_list or pa.types.is_dictionary(type) else type
        if pa.types.is_boolean(inner) or pa.types.is_uint64(inner):
            return cls(str(inner), is_list, None)
        kind = feature_kind(inner).kind
        if kind == "float":
            return cls("float64" if pa.types.is_float64(inner) else "float32", is_list, None)
        return cls("int64", is_list, None) if kind == "int64" else cls("string", is_list, bytes_of(inner))

    def spec(self, tf: Any) -> Any:
        return tf.TensorSpec((None,) if self.is_list else (), tf.as_dtype(self.dtype))

    def value(self, value: Any) -> Any:
        """The value of a sample as TensorFlow takes it: a default in place of null, an empty list for one of lists."""
        if not self.is_list:
            return self._one(value)
        found = list(map(self._one, value or ()))
        if self.dtype != "uint64":
            return found
        import numpy as np

        return np.array(found, np.uint64)  # which TensorFlow makes by way of floats

    def _one(self, value: Any) -> Any:
        if value is None:
            return _NULLS[self.dtype]
        return value if self.to_bytes is None else self.to_bytes(value)


def dataset(source: Source, options: Mapping[str, Any]) -> Any:
    """The samples of a source; `options` are those of its `stream`. Each iteration is the next epoch.

    Raises UsageError without TensorFlow.
    """
    tf = imported("tensorflow", "to_tf")
    columns = {name: _Column.of(type) for name, type in source.features.items()}
    decoded: dict[str, Any] = {}
    if source.is_decoded:
        if "data" in columns:
            decoded.update(_decoded_specs(tf, kind_of_files(source), channels=source.channels_of("data")))
        for member in source.members:
            if member in columns:
                kind, channels = kind_of_files(source, member), source.channels_of(member)
                decoded.update(_decoded_specs(tf, kind, member, f"{member}_rate", channels))
    specs = {name: column.spec(tf) for name, column in columns.items()}
    columns_of = {name: column.value for name, column in columns.items() if name not in decoded}
    stream = source.with_failures().stream(**options).advancing()

    def samples() -> Iterator[dict[str, Any]]:
        return _Rows(iter(stream), columns_of, decoded)

    # Without `assert_cardinality`: its error comes again and again, which `ignore_errors` would pass over for ever.
    return tf.data.Dataset.from_generator(samples, output_signature={**specs, **decoded})


class _Rows:
    """The samples of an epoch as TensorFlow takes them. It goes on after an error, which ends a generator of Python."""

    def __init__(
        self, samples: Iterator[Any], columns: Mapping[str, Callable[[Any], Any]], decoded: Mapping[str, Any]
    ) -> None:
        self._samples, self._columns, self._decoded = samples, columns, decoded

    def __iter__(self) -> _Rows:
        return self

    def __next__(self) -> dict[str, Any]:
        sample = next(self._samples)
        if isinstance(sample, Failed):
            raise sample.error
        row = {name: value(sample.get(name)) for name, value in self._columns.items()}
        for name, spec in self._decoded.items():
            found = sample.get(name)
            row[name] = _nothing(spec) if found is None else _fitting(found, spec)
        return row


def _fitting(value: Any, spec: Any) -> Any:
    """Images of 16 bits a channel have their upper 8 in tensors of uint8."""
    if spec.dtype.name == "uint8" and value.dtype.name == "uint16":
        return (value >> 8).astype("uint8")
    return value


def _nothing(spec: Any) -> Any:
    """Stands for a file that a sample does not have: no pixels, no sound, no text."""
    import numpy as np

    if not spec.shape.rank:
        return "" if spec.dtype.name == "string" else 0
    return np.zeros([size or 0 for size in spec.shape], spec.dtype.as_numpy_dtype)


def _decoded_specs(tf: Any, kind: str, name: str = "data", rate: str = "rate", channels: int = 3) -> dict[str, Any]:
    """Specs of what `decode` makes of files of one kind, in the column `name`. Raises UsageError."""
    if kind == "image":
        return {name: tf.TensorSpec((None, None, channels), tf.uint8)}
    if kind == "audio":
        return {name: tf.TensorSpec((None, None), tf.float32), rate: tf.TensorSpec((), tf.int64)}
    if kind == "text":
        return {name: tf.TensorSpec((), tf.string)}
    raise UsageError("to_tf: decode=True takes datasets of images, of sound or of text: load the others without it")
