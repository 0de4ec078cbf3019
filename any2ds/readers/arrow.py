"""Values that are Arrow's already: casts of columns, value by value where some do not fit, and blocks of them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.digests import as_text
from any2ds.core.errors import ReadError
from any2ds.core.tables import with_leaves
from any2ds.readers.contract import Block, Field

BATCH_ROWS = 65536
BATCH_BYTES = 2**24  # of the values of a batch
NO_UTF8_IN_URL = "any2ds.percent"  # an error handler for `bytes.decode`: the byte E9 becomes %E9


def _percent(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(f"%{byte:02X}" for byte in error.object[error.start : error.end]), error.end


codecs.register_error(NO_UTF8_IN_URL, _percent)


def is_text_or_binary(type: pa.DataType) -> bool:
    kinds = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary(), pa.string_view(), pa.binary_view())
    return type in kinds


def to_text(array: pa.Array, errors: str = "replace") -> pa.Array:
    """A binary or string array as valid strings. `errors` is that of `bytes.decode`."""
    binary = array.cast(pa.binary())
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if v is None else v.decode("utf-8", errors) for v in binary.to_pylist()], pa.string())


def id_text(value: Any) -> Any:
    """A UUID as it is written, and bytes that are UTF-8 as text; None for other bytes. Other values stay."""
    if isinstance(value, UUID):
        return str(value)
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return None


def cast_each(array: pa.Array, type: pa.DataType) -> tuple[pa.Array, list[int]]:
    """`array` in `type`, and the positions of values that do not fit, which are null.

    Raises ArrowNotImplementedError or ArrowTypeError if no value of the one type can be cast to the other.
    """
    try:
        return array.cast(type), []
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        raise
    except pa.ArrowException:
        pass
    done, misfits, parts = list[pa.Array](), list[int](), [(0, len(array))]
    while parts:
        start, end = parts.pop()
        try:
            done.append(array.slice(start, end - start).cast(type))
        except pa.ArrowException:
            middle = (start + end) // 2
            if middle == start:
                misfits.append(start)
                done.append(pa.nulls(1, type))
            else:
                parts += [(middle, end), (start, middle)]
    return pa.concat_arrays(done), misfits


def decoded(array: pa.Array, keeps_dictionary: bool = False) -> pa.Array:
    """The values without runs, and without a dictionary, unless one is wanted."""
    if pa.types.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if pa.types.is_dictionary(array.type) and _is_view(array.type.value_type):
        array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary.cast(storable(array.type.value_type)))
    return array if keeps_dictionary or not pa.types.is_dictionary(array.type) else array.dictionary_decode()


def storable(type: pa.DataType) -> pa.DataType:
    """`type` without views, from which Arrow cannot take rows."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return with_leaves(type, lambda part: plain.get(part, part))


def _is_view(type: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(type) or pa.types.is_binary_view(type))


class ArrowValues:
    """Values that have types."""

    def infer(self, values: pa.Array) -> pa.DataType:
        type = values.type
        has_views = pa.types.is_dictionary(type) and _is_view(type.value_type)
        return type.value_type if has_views or pa.types.is_run_end_encoded(type) else type

    def convert(self, values: pa.Array, type: pa.DataType, field: Field) -> tuple[pa.Array, list[int]]:
        array = decoded(values, keeps_dictionary=pa.types.is_dictionary(type))
        if field.kind == "hash" and _is_binary(array.type):
            array = as_text(array)
        elif field.kind == "name" and (_is_binary(array.type) or array.type == pa.uuid()):
            array = pa.array(map(id_text, array.to_pylist()), pa.string())
        if pa.types.is_string(type):
            if pa.types.is_float32(array.type) or pa.types.is_float64(array.type):
                array = pc.if_else(pc.is_finite(array), array, None)  # pandas has NaN for what is missing
            elif is_text_or_binary(array.type):
                array = to_text(array, NO_UTF8_IN_URL if field.kind == "url" else "replace")
        try:
            return cast_each(array, type)
        except pa.ArrowException as error:
            raise ReadError("", f"column {field.source!r}: {array.type} does not fit {type}") from error


ARROW = ArrowValues()


def _is_binary(type: pa.DataType) -> bool:
    return pa.types.is_fixed_size_binary(type) or type in (pa.binary(), pa.large_binary(), pa.binary_view())


def arrow_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[Block]:
    """The rows of `batches`, each of which is cut where its values would take much memory."""
    used = 0
    for large in batches:
        for batch in _sliced(large):
            values = dict(zip(batch.schema.names, batch.columns, strict=True))
            yield Block(values, batch.num_rows, ARROW, lambda row, used=used: f"row {used + row + 1}", {})  # type: ignore[misc]
            used += batch.num_rows


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch` in parts of at most BATCH_ROWS rows, and of about BATCH_BYTES where a value that the columns refer to
    several times counts each time."""
    size = sum(map(_row_size, batch.columns))
    rows = max(1, min(BATCH_ROWS, int(BATCH_BYTES / size))) if size else BATCH_ROWS
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _row_size(column: pa.Array) -> float:
    """Bytes that a row takes: the mean, or the largest value of a dictionary or of runs."""
    is_dictionary = pa.types.is_dictionary(column.type)
    if is_dictionary or pa.types.is_run_end_encoded(column.type):
        values = column.dictionary if is_dictionary else column.values
        try:
            return float(pc.max(pc.binary_length(values)).as_py() or 0)
        except pa.ArrowNotImplementedError:  # views, numbers, nested values
            return float(values.nbytes)
    return column.nbytes / len(column) if len(column) else 0.0
