"""Additional columns of csv and tsv: a column is text unless each of its values comes back as it was typed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from any2ds.config.options import InputOptions
from any2ds.core.rows import BAD_ROW_COLUMN
from any2ds.readers.sources import Source

NAMES = [
    ["0108775015", "0108775044"],
    ["7", "007"],
    ["12e4", "0e5"],
    ["1e22"],
    ["10000000000000000000000"],
    ["0.00001e1"],
    ["+5"],
    ["1_000"],
    ["0x10"],
    ["1.0", "1.50"],
    [".5"],
    ["-0", "1"],
    ["12345678901234567890"],
    ["0.10000000000000000001"],
    ["TRUE", "true"],
    ["1", "true"],
    ["12:30"],
    ["12:30:05"],
    ["2020-01-02T03:04:05+02:00"],
    ["2020-01-02 03:04"],
    ["2020-01-02 03:04:05", "2020-01-02T03:04:06"],
]
NUMBERS: list[tuple[list[str], pa.DataType]] = [
    (["0", "-7", "9007199254740993", "", "NA", " 5"], pa.int64()),
    (["0.1", "0.25", "1", "2.0", "-1e-05", "0.00001", "1e+22", "0.1234567890123456", "NaN", "inf"], pa.float64()),
    (["true", "false"], pa.bool_()),
    (["TRUE", "FALSE", ""], pa.bool_()),
    (["2020-01-02"], pa.date32()),
    (["2020-01-02 03:04:05", "2020-01-02 03:04:06"], pa.timestamp("s")),
]


def read(
    folder: Path, *files: list[str], separator: str = ",", **options: Any
) -> tuple[pa.DataType, list[Any], list[str]]:
    """The type and the values of the column `id` in files with these values, and the reasons of bad rows."""
    paths = []
    for number, values in enumerate(files):
        paths.append(folder / f"{number}.{'csv' if separator == ',' else 'tsv'}")
        lines = [f"http://a/{row}{separator}{value}\n" for row, value in enumerate(values)]
        paths[-1].write_text(f"url{separator}id\n" + "".join(lines))
    source = Source(InputOptions(url_list=paths, save_additional_columns=("id",), **options))
    rows = [row for batch in source.batches() for row in batch.to_pylist()]
    reasons = [row[BAD_ROW_COLUMN] for row in rows if row.get(BAD_ROW_COLUMN)]
    return source.schema.field("id").type, [row["id"] for row in rows], reasons


@pytest.mark.parametrize("separator", [",", "\t"])
def test_a_column_with_a_value_that_would_be_altered_is_text(separator: str, tmp_path: Path) -> None:
    for values in NAMES:
        assert read(tmp_path, values, separator=separator) == (pa.string(), values, [])


def test_a_column_of_values_that_come_back_as_they_were_typed_has_their_type(tmp_path: Path) -> None:
    for values, type in NUMBERS:
        assert read(tmp_path, values)[0] == type, values


def test_a_declared_type_holds_whatever_is_typed(tmp_path: Path) -> None:
    assert read(tmp_path, ["007", "-0", "1"], column_types={"id": "int32"}) == (pa.int32(), [7, 0, 1], [])
    assert read(tmp_path, ["1.50", "12e4"], column_types={"id": "float"}) == (pa.float64(), [1.5, 120000.0], [])
    assert read(tmp_path, ["1", "2"], column_types={"id": "string"}) == (pa.string(), ["1", "2"], [])


def test_a_later_integer_that_would_be_altered_is_null(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In a later block of a file, and in a later file: what was written already has the type of the first rows."""
    many = [f"{n}" for n in range(1, 200_000)]
    for files, nulls in (([[*many, "007"]], [-1]), ([["1", "2"], ["007"], ["3", "008"]], [2, 4])):
        caplog.clear()
        type, values, reasons = read(tmp_path, *files)
        expected: list[int | None] = [int(value) for file in files for value in file]
        for row in nulls:
            expected[row] = None
        assert (type, values, reasons) == (pa.int64(), expected, [])
        (warning,) = caplog.messages
        assert "column 'id': '007' would not be kept as it is written in int64, the type of the first rows" in warning
        assert "--column_types=id:string keeps it" in warning


def test_a_later_float_in_another_notation_keeps_its_value(tmp_path: Path) -> None:
    many = [f"{n}.5" for n in range(300_000)]
    for files in ([[*many, "0.50", "1E-5", ".5"]], [["0.1"], ["0.50", "1E-5", ".5"]]):
        type, values, reasons = read(tmp_path, *files)
        assert (type, values[-3:], reasons) == (pa.float64(), [0.5, 1e-5, 0.5], [])


def test_a_later_date_or_boolean_in_another_notation_keeps_its_value(tmp_path: Path) -> None:
    assert read(tmp_path, ["true"], ["TRUE", "false"]) == (pa.bool_(), [True, True, False], [])
    type, values, (reason,) = read(tmp_path, ["2024-01-02"], ["2024-01-03", "soon"])
    assert (type, len(values)) == (pa.date32(), 3)
    assert "'soon' is not date32[day], the type of the first rows" in reason
