"""Metadata tables as files: parquet always, csv and jsonl for those who ask for them."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

_ROWS_AT_ONCE = 1000


def plain(value: Any) -> Any:
    """What JSON has no notation for: bytes as base64, all else as its text."""
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode("ascii")
    return str(value)


def to_json(value: Any) -> bytes:
    return orjson.dumps(value, default=plain, option=orjson.OPT_NON_STR_KEYS)


_NOT_OF_PYTHON = (ValueError, OverflowError, ArithmeticError, pa.ArrowException)


def values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Those of a column as Python has them, and as text those that it has none for (the year 10000, nanoseconds)."""
    try:
        return list(column.to_pylist())
    except _NOT_OF_PYTHON:
        return [_value(value) for value in column]


def _value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except _NOT_OF_PYTHON:
        with contextlib.suppress(pa.ArrowException):
            return value.cast(pa.string()).as_py()
        return None


def _parquet(schema: pa.Schema, pieces: Iterable[pa.Table], path: Path) -> None:
    with pq.ParquetWriter(path, schema, write_page_checksum=True, write_page_index=True) as file:
        for table in pieces:
            file.write_table(table)


def _csv(schema: pa.Schema, pieces: Iterable[pa.Table], path: Path) -> None:
    """With a header; nulls are empty, texts in quotes, and what csv cannot hold (lists, structs, bytes) is JSON."""
    told = pa.schema([pa.field(field.name, _of_csv(field.type)) for field in schema])
    with pyarrow.csv.CSVWriter(path, told) as file:
        for table in pieces:
            for index, field in enumerate(table.schema):
                if field.type != told.field(index).type:
                    texts = [None if value is None else _text(value) for value in table.column(index).to_pylist()]
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
                file.writelines(to_json(row) + b"\n" for row in rows.to_pylist())


WRITERS: Mapping[str, Callable[[pa.Schema, Iterable[pa.Table], Path], None]] = {
    "parquet": _parquet,
    "csv": _csv,
    "jsonl": _jsonl,
}
"""By the name of the format, which is its extension."""
