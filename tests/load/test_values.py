"""The value that is read is the value that was stored: every type, in every format, by every way of reading.

What needs other libraries is in tests/reading: `test_datasets.py` and `with_tensorflow/test_load.py`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

import any2ds
from any2ds.testing.server import Server
from tests.support.values import COLUMNS, FEW, FORMATS, TABLES, dataset_of, is_same, rows_of, web_of_rows

WAYS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "by number": lambda ds: [ds[n] for n in range(len(ds))],
    "by a list": lambda ds: ds[[3, 2, 1, 0]][::-1],
    "iteration": list,
    "stream": lambda ds: list(ds.stream()),
    "to_arrow": lambda ds: rows_of(pa.table(ds)),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with web_of_rows() as server:
        yield server


@pytest.mark.parametrize("output_format", FORMATS)
@FEW
@given(columns=TABLES)
def test_every_value_comes_back(output_format: str, columns: dict[str, list[Any]], server: Server) -> None:
    with dataset_of(columns, output_format, server) as (folder, table):
        ds, stored = any2ds.load(folder), rows_of(table)
        assert {name: ds.features[name] for name in COLUMNS} == {name: type for name, (type, _) in COLUMNS.items()}
        for way, read in WAYS.items():
            found = read(ds)
            for name in COLUMNS:
                assert is_same([row[name] for row in found], [row[name] for row in stored]), (way, name)
        some = next((row["hour"] for row in stored if row["hour"] is not None), None)
        at_hour = any2ds.load(folder, where=f"hour = '{some or '00:00:00'}'", columns=["hour"])
        assert [row["hour"] for row in at_hour] == [row["hour"] for row in stored if row["hour"] == some and some]
        few = any2ds.load(folder, columns=["text", "float64"])
        assert is_same(list(few), [{"text": row["text"], "float64": row["float64"]} for row in stored])
