"""Bad rows: rows of a list that cannot be read.

A batch with bad rows has the additional column `COLUMN`: null in good rows, else the place and the reason. All other
columns of a bad row are null, the URL included, so that it is neither fetched nor a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from any2ds.core.errors import NoGoodRow, ReadError, printable, redacted
from any2ds.core.rows import BAD_ROW_COLUMN

COLUMN = BAD_ROW_COLUMN
MOST_LEADING = 1000  # bad rows before the first good one: with more, the list is in another format
_SHOWN = 200  # characters of a line


@dataclass(frozen=True, slots=True)
class BadRow:
    """`where` is the place in the list, such as `row 7`; `reason` may hold text of the list, but no credentials."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"

    @property
    def error(self) -> ReadError:
        return ReadError(self.where, self.reason)

    @classmethod
    def parse(cls, text: str) -> BadRow:
        """The inverse of `str`."""
        where, _, reason = text.partition(": ")
        return cls(where, reason)


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


def altered(column: str, type: pa.DataType, value: str) -> str:
    """Why a value of a list of texts does not fit the type of its column, though it can be converted."""
    return (
        f"column {column!r}: {shown(value)} would not be kept as it is written in {type}, the type of the"
        f" first rows; --column_types={column}:string keeps it"
    )


def with_bad_rows(
    batch: pa.RecordBatch, bad: Mapping[int, BadRow], misfits: Mapping[int, BadRow] | None = None
) -> pa.RecordBatch:
    """`batch` with `bad` rows inserted, by their position in the result; `misfits` are further bad rows, by their
    position in `batch`."""
    misfits = misfits or {}
    if not bad and not misfits:
        return batch
    total, numbers = batch.num_rows + len(bad), iter(range(batch.num_rows))
    picked: list[int | None] = []
    reasons: list[str | None] = []
    for position in range(total):
        number = None if position in bad else next(numbers)
        reason = bad[position] if number is None else misfits.get(number)
        picked.append(None if reason is not None else number)
        reasons.append(None if reason is None else str(reason))
    rows = pa.array(picked, pa.int64())
    arrays = [column.take(rows) if len(column) else pa.nulls(total, column.type) for column in batch.columns]
    return pa.record_batch([*arrays, pa.array(reasons, pa.string())], names=[*batch.schema.names, COLUMN])


def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, BadRow]]:
    """The batch without `COLUMN`, and its bad rows by position."""
    if COLUMN not in batch.schema.names:
        return batch, {}
    reasons = enumerate(batch.column(COLUMN).to_pylist())
    names = [name for name in batch.schema.names if name != COLUMN]
    return batch.select(names), {row: BadRow.parse(reason) for row, reason in reasons if reason is not None}


def until_bad_row(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches up to the first bad row. Raises ReadError there."""
    for batch in batches:
        rows, bad = split(batch)
        if not bad:
            yield rows
            continue
        first = min(bad)
        yield rows.slice(0, first)
        raise bad[first].error


class Leading:
    """The bad rows before the first good one. They are held until it gives the types of the columns.

    Raises NoGoodRow if there are too many, or if no good row follows.
    """

    def __init__(self) -> None:
        self._waiting: list[BadRow] = []

    def hold(self, bad: Iterable[BadRow]) -> None:
        self._waiting += bad
        if len(self._waiting) > MOST_LEADING:
            self.end()

    def before(self, bad: Mapping[int, BadRow]) -> dict[int, BadRow]:
        """The bad rows of the first batch with a good row, with those held before them."""
        waited, self._waiting = self._waiting, []
        return {**dict(enumerate(waited)), **{len(waited) + position: row for position, row in bad.items()}}

    def end(self) -> None:
        if self._waiting:
            first = self._waiting[0]
            raise NoGoodRow(first.where, first.reason, rows=len(self._waiting))
