"""Where the files lie in a parquet file: they are read there without Arrow, byte for byte."""

import random
from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from any2ds.writers.formats import _pages

PLAIN = {"compression": "none", "use_dictionary": False, "write_statistics": False, "row_group_size": 40}
IN_STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def files(seed: int, count: int = 150) -> list[bytes | None]:
    chance = random.Random(seed)
    sizes = (chance.choice([0, 1, 300, 5_000, 70_000]) for _ in range(count))
    return [None if chance.random() < 0.2 else chance.randbytes(size) for size in sizes]


def found_in(path: Path, column: str = "data") -> list[bytes] | None:
    places = array("Q", _pages.places_of(path, column))
    content = path.read_bytes()
    return [content[start : start + size] for start, size in zip(places[::2], places[1::2], strict=True)]


@pytest.mark.parametrize("size_of_page", [1 << 10, 1 << 16, 1 << 20])
@pytest.mark.parametrize("options", [{}, {"write_page_index": True}, {"write_statistics": ["key"]}])
def test_values_are_where_it_says(size_of_page: int, options: dict[str, Any], tmp_path: Path) -> None:
    wanted = files(size_of_page)
    keys = pa.array(map(str, range(len(wanted))))
    pq.write_table(
        pa.table({"key": keys, "data": pa.array(wanted, pa.binary())}),
        tmp_path / "a.parquet",
        **{**PLAIN, "data_page_size": size_of_page, "write_batch_size": 1, **options},
    )
    assert found_in(tmp_path / "a.parquet") == [file for file in wanted if file is not None]


def test_values_in_a_struct_and_values_that_are_never_null(tmp_path: Path) -> None:
    wanted = files(1)
    rows = [None if file is None else {"bytes": file, "path": "a.jpg"} for file in wanted]
    pq.write_table(pa.table({"image": pa.array(rows, IN_STRUCT)}), tmp_path / "a.parquet", **PLAIN)
    stored = [file for file in wanted if file is not None]
    assert found_in(tmp_path / "a.parquet", "image") == stored
    schema = pa.schema([pa.field("data", pa.binary(), nullable=False)])
    pq.write_table(pa.table({"data": stored}, schema), tmp_path / "b.parquet", **PLAIN)
    assert found_in(tmp_path / "b.parquet") == stored
    pq.write_table(pa.table({"data": pa.array([None] * 9, pa.binary())}), tmp_path / "c.parquet", **PLAIN)
    assert found_in(tmp_path / "c.parquet") == []


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "snappy"},
        {"use_dictionary": True},
        {"write_page_checksum": True},
        {"data_page_version": "2.0"},
        {"column_encoding": {"data": "DELTA_BYTE_ARRAY"}},
    ],
)
def test_values_that_do_not_lie_there_as_they_are(options: dict[str, Any], tmp_path: Path) -> None:
    pq.write_table(pa.table({"data": pa.array(files(2), pa.binary())}), tmp_path / "a.parquet", **{**PLAIN, **options})
    assert _pages.places_of(tmp_path / "a.parquet", "data") == b""


@pytest.mark.parametrize("type", [pa.list_(pa.binary()), pa.int64(), pa.binary(3)])
def test_columns_of_other_types(type: pa.DataType, tmp_path: Path) -> None:
    pq.write_table(pa.table({"data": pa.nulls(3, type)}), tmp_path / "a.parquet", **PLAIN)
    assert _pages.places_of(tmp_path / "a.parquet", "data") == b""
    assert _pages.places_of(tmp_path / "a.parquet", "other") == b""


def test_garbled_files_never_give_a_place_outside(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"data": pa.array(files(3, 60), pa.binary())}), path, **{**PLAIN, "data_page_size": 1024})
    good = path.read_bytes()
    group = pq.ParquetFile(path).metadata.row_group(0).column(0)
    chance = random.Random(4)
    for _ in range(2000):
        bad = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            place = (
                chance.randrange(len(bad)) if chance.random() < 0.3 else group.data_page_offset + chance.randrange(64)
            )
            bad[place] = chance.randrange(256)
        path.write_bytes(bad)
        try:
            places = array("Q", _pages.places_of(path, "data"))
        except (pa.ArrowException, OSError):
            continue
        assert all(start + size <= len(bad) for start, size in zip(places[::2], places[1::2], strict=True))
