"""Metadata tables as files: parquet always, csv and jsonl for those who ask for them."""

from __future__ import annotations

import base64
import contextlib
import datetime
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

_ROWS_AT_ONCE = 1000


def plain(value: Any) -> Any:
    """A plain value in place of one that JSON has no notation for: bytes as base64, all else as its text."""
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return str(value)


def is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def is_bytes(type: pa.DataType) -> bool:
    of = pa.types
    return bool(
        of.is_binary(type) or of.is_large_binary(type) or of.is_fixed_size_binary(type) or of.is_binary_view(type)
    )


def is_list(type: pa.DataType) -> bool:
    of = pa.types
    return bool(of.is_list(type) or of.is_large_list(type) or of.is_fixed_size_list(type))


# orjson 3.13 writes the time 0:00:00.01 as 00:00:00.10000: a tenth of a second.
_JSON = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME


def to_json(value: Any) -> bytes:
    return orjson.dumps(value, default=plain, option=_JSON)


def value_of_text(text: Any, type: pa.DataType) -> Any:
    """The value of this type for which JSON has a text; the text itself where Arrow does not read it (durations)."""
    try:
        return _value(scalar_of_text(text, type))
    except (pa.ArrowException, ValueError, TypeError):
        return text


# A time that neither Arrow reads, which reads none, nor Python, which cuts it after six digits.
_NANOSECONDS = re.compile(r"(?P<clock>\d\d:\d\d:\d\d)\.(?P<fraction>\d{7,9})", re.ASCII)


def scalar_of_text(text: str, type: pa.DataType) -> pa.Scalar:
    """The date, time or number that a text says. Raises ValueError, TypeError or what Arrow raises for another text."""
    if not pa.types.is_time(type):
        return pa.scalar(text, pa.string()).cast(type)
    if (match := _NANOSECONDS.fullmatch(text)) is None:
        return pa.scalar(datetime.time.fromisoformat(text), type)
    time = datetime.time.fromisoformat(match["clock"])
    nanoseconds = (3600 * time.hour + 60 * time.minute + time.second) * 10**9 + int(match["fraction"].ljust(9, "0"))
    return pa.scalar(nanoseconds, pa.time64("ns")).cast(type)


def scalar_of(value: Any, type: pa.DataType) -> pa.Scalar:
    """The scalar of a date or time, which is a text where Python has no value for it. Raises as `scalar_of_text`."""
    return scalar_of_text(value, type) if isinstance(value, str) else pa.scalar(value, type)


_NOT_OF_PYTHON = (ValueError, OverflowError, ArithmeticError, pa.ArrowException)


def values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as Python has them; as text where Python has none (the year 10000, nanoseconds)."""
    exact = _exact(column.type, "us")
    try:
        if exact != column.type:
            if pa.types.is_nested(column.type):  # Arrow aborts where it casts a part of a struct with a null field
                column = column.take(pa.array(range(len(column)), pa.int64()))
            column = column.cast(exact)
        return list(column.to_pylist())
    except _NOT_OF_PYTHON:
        return [_value(value) for value in column]


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Its rows, with values as `values` has them."""
    names = batch.schema.names
    if all(_exact(type, "us") == type for type in batch.schema.types):
        with contextlib.suppress(*_NOT_OF_PYTHON):
            return list(batch.to_pylist())
    return [dict(zip(names, row, strict=True)) for row in zip(*map(values, batch.columns), strict=True)]


def array_of(values: Sequence[Any], type: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The values as Arrow has them, in chunks if their texts have more than 2 GiB.

    A value that the type cannot hold, such as a side of 2^31 pixels in an int32, is null: it costs no other row.
    """
    try:
        return pa.array(values, type)
    except (*_NOT_OF_PYTHON, TypeError):
        return pa.array([_fitting(value, type) for value in values], type)


def _fitting(value: Any, type: pa.DataType) -> Any:
    if isinstance(value, str):
        value = value.encode("utf-8", "replace").decode()  # a lone surrogate is no character
    try:
        return pa.scalar(value, type).as_py()
    except (*_NOT_OF_PYTHON, TypeError):
        return None


_Rows = TypeVar("_Rows", pa.Table, pa.ChunkedArray)


def take(rows: _Rows, numbers: Sequence[int | None]) -> _Rows:
    """The rows with these numbers, null for None.

    Arrow's own `take` refuses to make, or to read, one array with more than 2 GiB of text: such rows are taken in
    several pieces.
    """
    present = [number for number in numbers if number is not None]
    first, stop = (min(present), max(present) + 1) if present else (0, 0)
    near = rows.slice(first, stop - first)
    wanted = [None if number is None else number - first for number in numbers]
    try:
        return near.take(pa.array(wanted, pa.int64()))
    except pa.ArrowInvalid:
        if len(numbers) <= 1:
            raise
    half = len(numbers) // 2
    pieces = [take(rows, numbers[:half]), take(rows, numbers[half:])]
    if isinstance(rows, pa.Table):
        return pa.concat_tables(pieces)
    return pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], rows.type)


def _value(value: pa.Scalar) -> Any:
    try:
        return value.cast(_exact(value.type, "us")).as_py()
    except _NOT_OF_PYTHON:
        for text in (_exact(value.type, None), pa.string()):
            with contextlib.suppress(*_NOT_OF_PYTHON):
                return value.cast(text).as_py()
        return None


def with_leaves(type: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """The type with `leaf` of each part that has no parts itself."""
    if pa.types.is_struct(type):
        return pa.struct([field.with_type(with_leaves(field.type, leaf)) for field in type])
    if pa.types.is_map(type):
        return pa.map_(with_leaves(type.key_type, leaf), with_leaves(type.item_type, leaf))
    if not is_list(type):
        return leaf(type)
    values = type.value_field.with_type(with_leaves(type.value_type, leaf))
    if pa.types.is_fixed_size_list(type):
        return pa.list_(values, type.list_size)
    return pa.large_list(values) if pa.types.is_large_list(type) else pa.list_(values)


def _exact(type: pa.DataType, unit: str | None) -> pa.DataType:
    """With times in `unit`, or as text, instead of in nanoseconds: of these pyarrow makes values of pandas if that is
    installed, whose text differs, and cuts those of the day off."""

    def leaf(type: pa.DataType) -> pa.DataType:
        if pa.types.is_timestamp(type) and type.unit == "ns":
            return pa.timestamp(unit, type.tz) if unit else pa.string()
        if pa.types.is_duration(type) and type.unit == "ns":
            return pa.duration(unit) if unit else pa.string()
        if type == pa.time64("ns"):
            return pa.time64(unit) if unit else pa.string()
        if pa.types.is_dictionary(type) and (values := with_leaves(type.value_type, leaf)) != type.value_type:
            return values
        return type

    return with_leaves(type, leaf)


def _parquet(schema: pa.Schema, pieces: Iterable[pa.Table], path: Path) -> None:
    with pq.ParquetWriter(path, schema, write_page_checksum=True, write_page_index=True) as file:
        for table in pieces:
            file.write_table(table)


def _csv(schema: pa.Schema, pieces: Iterable[pa.Table], path: Path) -> None:
    """With a header; nulls are empty, texts in quotes, and what csv cannot hold (lists, structs, bytes) is JSON."""
    written = pa.schema([pa.field(field.name, _of_csv(field.type)) for field in schema])
    with pyarrow.csv.CSVWriter(path, written) as file:
        for table in pieces:
            for index, field in enumerate(table.schema):
                if field.type != written.field(index).type:
                    texts = [None if value is None else _text(value) for value in values(table.column(index))]
                    table = table.set_column(index, field.name, pa.array(texts, pa.string()))
            file.write_table(table)


def _of_csv(type: pa.DataType) -> pa.DataType:
    is_json = pa.types.is_nested(type) or pa.types.is_binary(type) or pa.types.is_large_binary(type)
    return pa.string() if is_json else type


def _text(value: Any) -> str:
    return str(plain(value)) if isinstance(value, bytes) else to_json(value).decode()


def _jsonl(schema: pa.Schema, pieces: Iterable[pa.Table], path: Path) -> None:
    """An object for each row, as that beside a file in webdataset."""
    with path.open("wb") as file:
        for table in pieces:
            for rows in table.to_batches(_ROWS_AT_ONCE):
                file.writelines(to_json(row) + b"\n" for row in rows_of(rows))


WRITERS: Mapping[str, Callable[[pa.Schema, Iterable[pa.Table], Path], None]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _jsonl,
}
"""By the name of the format, which is its extension."""
