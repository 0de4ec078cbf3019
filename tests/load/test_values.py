"""The value that is read is the value that was stored: every type, in every format, by every way of reading.

What needs other libraries is in tests/reading: `test_datasets.py` and `with_tensorflow/test_load.py`.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

import any2ds
from any2ds.testing.server import Server
from tests.support.play import Play
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12:00:00,5", 1),
        ("12:00:00.5", 1),
        ("12:00:00.123456789", 2),
        ("12:00:00.1234567", 0),
        ("12:00:00.123456", 3),
        ("12:00:00.1234560001", 3),  # Python reads six digits
        ("12:00:00.-5", None),
        ("12:00:00.1_5", None),
        ("12:00:00.", None),
    ],
)
def test_a_condition_compares_with_the_time_that_it_says(text: str, found: int | None, tmp_path: Path) -> None:
    play = Play({f"{n}.jpg": "ok" for n in range(4)})
    moments = [0, 43200_500_000_000, 43200_123_456_789, 43200_123_456_000]
    rows = {"url": [play.web.url(f"{n}.jpg") for n in range(4)], "hour": pa.array(moments, pa.time64("ns"))}
    any2ds.download(pa.table(rows), tmp_path / "out", save_additional_columns="hour", quiet=True, distributor="inline")
    if found is None:
        with pytest.raises(any2ds.UsageError):
            any2ds.load(tmp_path / "out", where=f"hour = '{text}'")
    else:
        keys = [sample["key"] for sample in any2ds.load(tmp_path / "out", where=f"hour = '{text}'")]
        assert [int(key[-1]) for key in keys] == ([found] if found else [])
