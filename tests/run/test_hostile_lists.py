"""Lists whose values are absurd cost the rows that hold these values, and nothing else."""

import gzip
import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds.core.errors import OptionError, ReadError
from any2ds.core.reports import IncompleteRun

FIRST, LAST = b'{"url": "data:,first", "caption": "x", "n": 1}', b'{"url": "data:,last", "caption": "y", "n": 2}'


def rows_of(path: Path, **options: Any) -> list[dict[str, Any]]:
    """The metadata of a dataset that is made of a list."""
    out = path.parent / f"out{len(list(path.parent.iterdir()))}"
    any2ds.download(path, out, distributor="inline", quiet=True, **options)
    return pq.read_table(out / "00000.parquet").to_pylist()


def document(form: str, *middle: bytes) -> bytes:
    """A list of two good rows, with others between them."""
    rows = [FIRST, *middle, LAST]
    if form == "jsonl":
        return b"\n".join(rows)
    return b"[" + b", ".join(rows) + b"]"


@pytest.mark.parametrize("form", ["jsonl", "array.json"])
def test_a_nested_value_is_a_bad_row_at_most(form: str, tmp_path: Path) -> None:
    cases = [*itertools.product(["caption", "n", "other"], [60, 990, 100_000], ["[]", '{"a":}'])]
    nested = [brackets[:-1] * depth + "1" + brackets[-1:] * depth for _, depth, brackets in cases]
    middle = [
        f'{{"url": "data:,middle", "{case[0]}": {value}}}'.encode() for case, value in zip(cases, nested, strict=True)
    ]
    (tmp_path / f"list.{form}").write_bytes(document(form, *middle))
    first, *rows, last = rows_of(tmp_path / f"list.{form}", caption_col="caption", save_additional_columns=["n"])
    assert (first["url"], first["caption"], first["n"]) == ("data:,first", "x", 1)
    assert (last["url"], last["caption"], last["n"]) == ("data:,last", "y", 2)
    for place, ((name, _, _), row) in enumerate(zip(cases, rows, strict=True), 2):
        if row["url"] is None:
            assert row["error_code"] == "bad_row"
            assert row["error_message"].startswith((f"line {place}: ", f"item {place}: "))
            assert len(row["error_message"]) < 400
        else:
            assert name == "other"


def test_a_nested_value_of_a_python_object_is_a_bad_row(tmp_path: Path) -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    found = rows_from([{"url": "data:,a"}, {"url": "data:,b", "x": value}], tmp_path, caption_col="x")
    assert [row["error_code"] for row in found] == [None, "bad_row"]


def test_a_frame_may_have_integers_of_more_than_64_bits(tmp_path: Path) -> None:
    frame = pd.DataFrame({"url": ["data:,a", "data:,b"], "n": [1, 2**70]}, dtype=object)
    found = rows_from(frame, tmp_path, save_additional_columns=["n"], column_types={"n": "int"})
    assert [row["n"] for row in found] == [1, None]


NUMBERS = {
    "18446744073709551615": "18446744073709551615",
    "9" * 400: "9" * 400,
    "9" * 6000: "9" * 6000,
    "1e400": None,
    "-0.0": "-0.0",
    "NaN": None,
    "-Infinity": None,
    '"\\udfff"': "\ufffd",
    '"\\u0000"': "\0",
    '1, "h": "twice"': "twice",
}


@pytest.mark.parametrize("form", ["jsonl", "array.json"])
def test_a_value_that_does_not_fit_costs_its_row_or_nothing(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"list.{form}"
    path.write_bytes(document(form, *(f'{{"url": "data:,middle", "h": {number}}}'.encode() for number in NUMBERS)))
    urls = ["data:,first", *["data:,middle"] * len(NUMBERS), "data:,last"]
    assert [row["url"] for row in rows_of(path)] == urls
    rows = rows_of(path, save_additional_columns=["h"], column_types={"h": "string"})
    assert [row["h"] for row in rows] == [None, *NUMBERS.values(), None]
    rows = rows_of(path, save_additional_columns=["h"], column_types={"h": "int"})
    assert [rows[0]["url"], rows[-1]["url"], len(rows)] == ["data:,first", "data:,last", len(urls)]
    assert {row["h"] for row in rows} <= {None, 0}


def test_a_malformed_item_of_a_json_array_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_bytes(document("array.json", b'{"url": data:,middle}'))
    rows = rows_of(tmp_path / "list.json")
    assert [row["error_code"] for row in rows] == [None, "bad_row", None]
    assert rows[1]["error_message"].startswith("item 2: not JSON (")


@pytest.mark.parametrize("form", ["jsonl", "array.json"])
def test_a_row_of_many_megabytes_is_a_bad_row(form: str, tmp_path: Path) -> None:
    middle = b'{"url": "data:,middle", "unwanted": "' + b"x" * (20 << 20) + b'"}'
    (tmp_path / f"list.{form}.gz").write_bytes(gzip.compress(document(form, middle)))
    rows = rows_of(tmp_path / f"list.{form}.gz")
    assert [row["error_code"] for row in rows] == [None, "bad_row", None]
    assert "of over 16 MiB" in rows[1]["error_message"]


def test_a_header_of_a_million_columns_is_one_short_message(tmp_path: Path) -> None:
    columns = ",".join(f"column{number}" for number in range(1_000_000))
    (tmp_path / "list.csv").write_text(f"url,{columns}\ndata:,a{',' * 1_000_000}\n")
    with pytest.raises(ReadError, match="the header has more than 2 MiB") as caught:
        rows_of(tmp_path / "list.csv")
    assert len(str(caught.value)) < 200 + len(str(tmp_path))


def rows_from(url_list: Any, tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    """The metadata of a dataset that is made of Python values."""
    out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    any2ds.download(url_list, out, distributor="inline", quiet=True, report=False, **options)
    rows: list[dict[str, Any]] = pq.read_table(out / "00000.parquet").to_pylist()
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {"limit": 0},
        {"number_sample_per_shard": 1e30},
        {"number_sample_per_shard": 10**5000},
        {"save_additional_columns": 5},
        {"reporters": 5},
    ],
)
def test_absurd_options_are_refused_before_anything_is_written(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"invalid {next(iter(options))}=") as caught:
        any2ds.download(["data:,a"], tmp_path / "out", **options)
    assert len(str(caught.value)) < 600
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_block_of_which_each_row_is_bad_does_not_end_the_list(end: str, tmp_path: Path) -> None:
    """A row of megabytes is a block of its own, and so are those behind it."""
    deep = '{"q":' * 988 + "1" + "}" * 988
    junk = '[{"k":' * 300_000 + "1" + "}]" * 300_000
    rows = [
        '{"url": "data:,a", "caption": "x"}',
        f'{{"url": "data:,b", "junk": {junk}, "caption": "y"}}',
        f'{{"url": "data:,c", "caption": {deep}}}',
        '{"url": "data:,d", "caption": "last"}',
    ]
    (tmp_path / "list.jsonl").write_text("\n".join(rows) + end)
    found = rows_of(tmp_path / "list.jsonl", caption_col="caption")
    assert [row["error_code"] for row in found][::2] == [None, "bad_row"]
    assert found[-1]["url"] == "data:,d"
    assert len(found) == 4


def test_a_row_group_that_is_compressed_beyond_measure_is_not_decoded(tmp_path: Path) -> None:
    schema = pa.schema({"url": pa.string(), "c": pa.string()})
    with pq.ParquetWriter(tmp_path / "list.parquet", schema, compression="zstd", use_dictionary=False) as writer:
        for caption in ("x", "w" * 300_000_000, "y"):
            writer.write_table(pa.table({"url": ["data:,a"], "c": [caption]}, schema))
    with pytest.raises(IncompleteRun, match="row group 1, column 'c'"):
        rows_of(tmp_path / "list.parquet", caption_col="c")
    assert len(rows_of(tmp_path / "list.parquet")) == 3  # where nobody wants the column
