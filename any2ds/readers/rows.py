"""Rows of one schema, made of the blocks that all inputs of a list consist of.

Each batch has the additional column BAD_ROW_COLUMN: null in good rows, else the place and the reason. All other columns
of a bad row are null, the URL included, so that it is neither fetched nor a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.config.command_line import flag
from any2ds.core.errors import InputError, NoGoodRow, ReadError
from any2ds.core.rows import BAD_ROW_COLUMN
from any2ds.readers.arrow import ARROW, storable
from any2ds.readers.bad_rows import misfit, one_line
from any2ds.readers.contract import Block, Field, Wanted
from any2ds.readers.formats._paths import path_to_text
from any2ds.readers.names import safe_names
from any2ds.readers.paths import EACH
from any2ds.readers.urls import UrlRules

_MOST_LEADING = 1000  # bad rows before the first good one: with more, the list is in another format


class TypedRows:
    """Makes batches of rows; the first good ones decide the types of columns that are neither text nor declared."""

    def __init__(self, fields: Sequence[Field], urls: UrlRules | None = None, stops_at_bad_row: bool = False) -> None:
        self._urls = urls or UrlRules()
        self._all = [*(field for field in fields if field.source), *self._urls.parts]
        self._fields, self._stops_at_bad_row = fields, stops_at_bad_row
        self._types: list[pa.DataType] = []  # of all, once they are known
        self.schema: pa.Schema | None = None

    def batches(self, blocks: Iterable[Block], file: str = "") -> Iterator[pa.RecordBatch]:
        """The rows of an input. `file` is written before the places of its bad rows.

        Raises NoGoodRow if no row is good among the first ones of the list, and ReadError for types that do not go
        together, or at the first bad row if the list stops there.
        """
        leading: list[Block] = []
        for block in (block for block in blocks if block.rows):
            if self.schema is None and len(block.bad) == block.rows:  # held until a row tells the types
                leading.append(block)
                if sum(held.rows for held in leading) > _MOST_LEADING:
                    break
                continue
            is_first = self.schema is None
            if is_first:
                self.schema = self._schema_of(block)
            for held in (*leading, block):
                batch = self._converted(held, file)
                reasons = batch[BAD_ROW_COLUMN]
                if is_first and held is block and not reasons.null_count:
                    where, _, reason = reasons[0].as_py().partition(": ")
                    raise NoGoodRow(where.removeprefix(file), reason, rows=block.rows)
                yield from self._until_bad_row(batch) if self._stops_at_bad_row else [batch]
            leading = []
        if leading:
            first = leading[0]
            row = min(first.bad)
            raise NoGoodRow(first.place(row), first.bad[row], rows=sum(held.rows for held in leading))

    def no_rows(self) -> pa.RecordBatch:
        assert self.schema is not None
        return pa.RecordBatch.from_pylist([], schema=self.schema.append(pa.field(BAD_ROW_COLUMN, pa.string())))

    def _schema_of(self, block: Block) -> pa.Schema:
        known: dict[str, pa.DataType] = {}
        for field in self._all:
            values = block.values.get(field.source)
            if field.kind and isinstance(values, pa.Array) and pa.types.is_nested(own := ARROW.infer(values)):
                raise InputError(f"the column {field.source!r} holds {own}, not text{_nested_advice(field, own)}")
            type = pa.string() if field.kind else field.type
            if type is None:
                is_text = values is None or field.source in block.of_folders
                type = pa.string() if is_text else block.converter.infer(values)
            known[field.name] = pa.string() if pa.types.is_null(type) else storable(type)
            _refuse_unwritable(field.source, known[field.name])
            self._types.append(known[field.name])
        return pa.schema([(field.name, known.get(field.name, pa.string())) for field in self._fields])

    def _converted(self, block: Block, file: str) -> pa.RecordBatch:
        arrays, reasons = dict[str, pa.Array](), dict(block.bad)
        for field, type in zip(self._all, self._types, strict=True):
            values = block.values.get(field.source)
            if values is None:  # a later file may lack it
                arrays[field.name] = pa.nulls(block.rows, type)
                continue
            try:
                arrays[field.name], misfits = block.converter.convert(values, type, field)
            except ReadError as error:
                raise ReadError(error.where or block.place(0), error.reason) from error
            for row in misfits:
                value = values[row].as_py() if isinstance(values, pa.Array) else values[row]
                reasons.setdefault(row, misfit(field.source, type, value, field.type is not None))
        if self._urls.template is not None:
            arrays["url"] = self._urls.made_of(arrays)
        for field in self._fields:
            if field.kind == "url":
                arrays[field.name] = self._urls.apply(arrays[field.name])
            elif field.kind == "name":
                arrays[field.name] = safe_names(arrays[field.name])
        batch = pa.RecordBatch.from_arrays([arrays[field.name] for field in self._fields], schema=self.schema)
        return with_reasons(batch, {row: f"{file}{block.place(row)}: {why}" for row, why in reasons.items()})

    def _until_bad_row(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        reasons = batch[BAD_ROW_COLUMN]
        if reasons.null_count == len(reasons):
            yield batch
            return
        first = pc.index(reasons.is_valid(), True).as_py()
        yield batch.slice(0, first)
        where, _, reason = reasons[first].as_py().partition(": ")
        raise ReadError(where, reason)


def rows_as_listed(
    blocks: Callable[[Wanted], Iterable[Block]], columns: Sequence[str]
) -> Generator[pa.RecordBatch, None, None]:
    """The rows of an input with `columns`, that of the URLs first, under the names that they have there."""
    url, *others = columns
    yield from TypedRows([Field(url, url, "url"), *(Field(name, name) for name in others)]).batches(
        blocks(Wanted.only(*columns))
    )


def with_reasons(batch: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
    """`batch` with BAD_ROW_COLUMN, where the rows at the positions of `reasons` are bad."""
    if not reasons:
        return batch.append_column(BAD_ROW_COLUMN, pa.nulls(batch.num_rows, pa.string()))
    texts = pa.array([reasons.get(row) for row in range(batch.num_rows)], pa.string())
    good = pc.if_else(texts.is_valid(), None, pa.array(range(batch.num_rows), pa.int64()))
    return batch.take(good).append_column(BAD_ROW_COLUMN, texts)


def _nested_advice(field: Field, type: pa.DataType) -> str:
    """The option that reads the texts in a nested column, for the end of a message."""
    path = path_to_text(field.source, type)
    if field.kind == "caption":
        path = path.replace(EACH, "[0]")
        also = f"; --save_additional_columns={field.source} keeps all" if "[0]" in path else ""
        return f": {flag('caption_col', path)} takes the first{also}" if path else ""
    return f": {flag('url_col', path)} reads those in it" if path and field.name == "url" else ""


def _refuse_unwritable(source: str, type: pa.DataType) -> None:
    """Raises InputError if a shard could not be written with values of this type."""
    try:
        rows: Any = pa.schema([("column", type)]).empty_table()
        pq.write_table(rows.take(pa.array([], pa.int64())), pa.BufferOutputStream())
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"the column {source!r} holds {type}, which cannot be written to Parquet: give it another type, or "
            f"leave it out of save_additional_columns ({one_line(error, 100)})"
        ) from error
