"""Types of columns in lists whose format has none: inferred from the first rows, then kept.

A format parses its lines into `Block`s, and says how it infers a type and how it converts values (`Values`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from any2ds.core.errors import NoGoodRow, ReadError
from any2ds.readers.bad_rows import COLUMN, MOST_LEADING, excerpt, misfit, with_reasons
from any2ds.readers.contract import Columns

Reasons = dict[int, str]
"""Position of a row -> why it is bad."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows, as they were parsed; those of `bad` have None in each column."""

    values: Mapping[str, Any]  # column -> values: texts in Arrow, or a list of Python values
    rows: int
    bad: Reasons
    place: Callable[[int], str]  # position of a row in the block -> its place in the list, such as `line 7`

    @property
    def is_bad(self) -> bool:
        """Whether no row of it could be parsed."""
        return len(self.bad) == self.rows


class Values(Protocol):
    """What a format knows about the values in its lists."""

    def infer(self, values: Any) -> pa.DataType:
        """The type of a column, from its first values."""
        ...

    def convert(self, column: str, values: Any, type: pa.DataType, is_declared: bool) -> tuple[pa.Array, Iterable[int]]:
        """The values in `type`, and the positions of those that do not fit, which are null.

        Raises ArrowNotImplementedError for a type that no value can have.
        """
        ...


def typed(
    blocks: Iterable[Block], columns: Columns, schema: pa.Schema | None, values: Values
) -> Iterator[pa.RecordBatch]:
    """The rows of `blocks` in the types of `schema`, else of `columns`, else as their first rows are.

    Raises NoGoodRow if no row is good among the first ones, and ReadError for a type that the values cannot have.
    """
    types: dict[str, pa.DataType] = dict.fromkeys(columns.texts, pa.string()) | dict(columns.types)
    types |= {} if schema is None else {field.name: field.type for field in schema}
    is_first, leading = schema is None, list[Block]()
    for block in blocks:
        if is_first and block.is_bad:  # held until a row tells the types
            leading.append(block)
            if sum(each.rows for each in leading) > MOST_LEADING:
                break
            continue
        for name in block.values.keys() - types.keys():
            types[name] = values.infer(block.values[name])
        for each in (*leading, block):
            batch = _converted(each, columns, types, values)
            if is_first and each is block and not batch.column(COLUMN).null_count:
                where, _, reason = batch[COLUMN][0].as_py().partition(": ")
                raise NoGoodRow(where, reason, rows=block.rows)
            yield batch
        is_first, leading = False, []
    if leading:
        first = min(leading[0].bad)
        rows = sum(each.rows for each in leading)
        raise NoGoodRow(leading[0].place(first), leading[0].bad[first], rows=rows)


def _converted(block: Block, columns: Columns, types: Mapping[str, pa.DataType], values: Values) -> pa.RecordBatch:
    reasons, arrays = dict(block.bad), []
    for name in block.values:
        is_declared = name in columns.types
        try:
            array, misfits = values.convert(name, block.values[name], types[name], is_declared)
        except pa.ArrowNotImplementedError as error:
            raise ReadError(block.place(0), excerpt(str(error))) from error
        arrays.append(array)
        for row in misfits:
            value = block.values[name][row]
            value = value.as_py() if isinstance(value, pa.Scalar) else value
            reasons.setdefault(row, misfit(name, types[name], value, is_declared))
    batch = pa.record_batch(arrays, names=list(block.values))
    return with_reasons(batch, {row: f"{block.place(row)}: {reason}" for row, reason in reasons.items()})
