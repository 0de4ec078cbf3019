"""Columns of every type with values by chance, and datasets that have them: what is read must be what was stored."""

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from any2ds import download
from any2ds.testing.server import Server, serve

FORMATS = ("webdataset", "parquet", "tfrecord", "arrayrecord", "files")
ROWS = 4
FEW = settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

_FLOATS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
PLAIN: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    **{f"float{bits}": (type, st.floats(width=bits)) for bits, type in _FLOATS.items()},  # type: ignore[arg-type]
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), _TEXT),
    "blob": (pa.binary(), st.binary(max_size=5)),
    "moment": (pa.timestamp("us"), st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))),
    "day": (pa.date32(), st.dates(date(1, 1, 1), date(9999, 12, 31))),
    "hour": (pa.time64("ns"), st.integers(0, 86_400 * 10**9 - 1)),
    "amount": (pa.decimal128(9, 2), st.decimals(Decimal(-1000), Decimal(1000), places=2)),
}
LISTED = ("float32", "float64", "uint64", "int64", "bool", "text", "blob")
COLUMNS = {
    **PLAIN,
    **{f"list_{name}": (pa.list_(PLAIN[name][0]), st.lists(st.none() | PLAIN[name][1], max_size=3)) for name in LISTED},
    "lists": (pa.list_(pa.list_(pa.int32())), st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2)),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.float64())]),
        st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.none() | st.floats()}),
    ),
}
TABLES = st.fixed_dictionaries(
    {name: st.lists(st.none() | values, min_size=ROWS, max_size=ROWS) for name, (_, values) in COLUMNS.items()}
)


@contextmanager
def web_of_rows() -> Iterator[Server]:
    """A server with a file for each row."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROWS):
            Path(folder, f"{number}.bin").write_bytes(b"%d" % number)
        with serve(folder) as server:
            yield server


@contextmanager
def dataset_of(columns: dict[str, list[Any]], output_format: str, server: Server) -> Iterator[tuple[str, pa.Table]]:
    """The folder of a dataset with these columns, and the list that it was made of."""
    urls = [server.url(f"{number}.bin") for number in range(ROWS)]
    table = pa.table({"url": urls, **{name: pa.array(columns[name], type) for name, (type, _) in COLUMNS.items()}})
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, f"{folder}/list.parquet")
        download(
            f"{folder}/list.parquet",
            output_folder=f"{folder}/made",
            output_format=output_format,
            save_additional_columns=list(COLUMNS),
            file_ext="bin",
            distributor="inline",
            quiet=True,
        )
        yield f"{folder}/made", table


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows with exact values: times of the day with nanoseconds, which Python has not, are texts."""
    hours = table["hour"]
    whole = hours.cast(pa.time64("us"), safe=False)  # without pandas Arrow refuses nanoseconds
    rows: list[dict[str, Any]] = table.set_column(table.column_names.index("hour"), "hour", whole).to_pylist()
    for row, text in zip(rows, hours.cast(pa.string()).to_pylist(), strict=True):
        if text is not None and not text.endswith("000"):
            row["hour"] = text
    return rows


def is_same(value: Any, stored: Any) -> bool:
    if isinstance(stored, list):
        return isinstance(value, list) and len(value) == len(stored) and all(map(is_same, value, stored))
    if isinstance(stored, dict):
        return value.keys() == stored.keys() and all(is_same(value[name], stored[name]) for name in stored)
    if isinstance(stored, float) and math.isnan(stored):
        return isinstance(value, float) and math.isnan(value)
    return type(value) is type(stored) and bool(value == stored)
