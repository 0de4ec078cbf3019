"""Bad rows: rows of a list that cannot be read.

Each batch of rows has the additional column `COLUMN`: null in good rows, else the place and the reason, such as
`row 7: 2 values for 3 columns`. All other columns of a bad row are null, the URL included, so that it is neither
fetched nor a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.errors import ReadError, printable, redacted
from any2ds.core.rows import BAD_ROW_COLUMN

COLUMN = BAD_ROW_COLUMN
MOST_LEADING = 1000  # bad rows before the first good one: with more, the list is in another format
_SHOWN = 200  # characters of a line


def excerpt(line: str | bytes, at_most: int = _SHOWN) -> str:
    """A line of the list for a message: short, on one line, without credentials."""
    text = line.decode(errors="replace") if isinstance(line, bytes) else line
    text = redacted(" ".join(text[: 10 * at_most].split()))
    text = text if text.isprintable() else printable(text)
    return text if len(text) <= at_most else f"{text[:at_most]}…"


def shown(value: Any, at_most: int = 50) -> str:
    """The beginning of a value as Python writes it, for a message."""
    try:
        return excerpt(repr(value[: 2 * at_most] if isinstance(value, (str, bytes, list)) else value), at_most)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits, a nested value
        return f"a long {type(value).__name__}"


def misfit(column: str, type: pa.DataType, value: Any, is_declared: bool = False) -> str:
    """Why a value does not fit the type of its column, and what helps."""
    why = (
        "the type that --column_types declares"
        if is_declared
        else f"the type of the first rows; --column_types={column}:string declares another"
    )
    return f"column {column!r}: {shown(value)} is not {type}, {why}"


def with_reasons(batch: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    """`batch` with `COLUMN`, where the rows at the positions of `reasons` are bad."""
    if not reasons:
        return batch.append_column(COLUMN, pa.nulls(batch.num_rows, pa.string()))
    texts = pa.array([reasons.get(row) for row in range(batch.num_rows)], pa.string())
    good = pc.if_else(texts.is_valid(), None, pa.array(range(batch.num_rows), pa.int64()))
    return batch.take(good).append_column(COLUMN, texts)


def until_bad_row(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches up to the first bad row. Raises ReadError there."""
    for batch in batches:
        reasons = batch.column(COLUMN)
        if reasons.null_count == len(reasons):
            yield batch
            continue
        first = pc.index(reasons.is_valid(), True).as_py()
        yield batch.slice(0, first)
        where, _, reason = reasons[first].as_py().partition(": ")
        raise ReadError(where, reason)
