"""Columns of samples that are taken from the metadata table beside a shard: columns that were added later, which data
files do not have (see `dataset.added_columns`), and values that a format cannot hold.

Records of `tf.train.Example` have no nulls, no float64 and no bools in lists; JSON has no NaN and no infinity. The
metadata table has all of them, and its rows that have samples are in the order of the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.core.errors import DamagedShard
from any2ds.core.metadata import RECIPE_KEY, stored_rows
from any2ds.core.tables import is_list, take, values
from any2ds.writers.contract import Fields, Shard
from any2ds.writers.formats.parquet import THRIFTY

if TYPE_CHECKING:
    from any2ds.load.shards import ShardSet

_JSON, _RECORDS = ("webdataset", "files"), ("tfrecord", "arrayrecord")


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a dataset whose values come from its metadata tables, and what is left for its data files."""

    fields: Fields  # of a sample
    data_fields: Fields  # as far as data files hold them
    added: tuple[str, ...] = ()  # columns that data files do not have
    inexact: tuple[str, ...] = ()  # columns with values that are others in data files
    nullable: tuple[str, ...] = ()  # columns whose nulls are other values in data files
    is_json: bool = False  # whether a float in a data file is exact

    @classmethod
    def of(cls, shards: ShardSet, fields: Fields) -> TableColumns:
        """The columns among those of a sample."""
        schema, wanted = fields.schema, fields.columns
        if schema is None or not shards.is_own:
            return cls(fields, fields)
        every = shards.added.names if shards.added is not None else []
        added = tuple(name for name in every if wanted is None or name in wanted)
        schema = pa.schema([field for field in schema if field.name not in every])
        if every:
            own = None if wanted is None else tuple(name for name in wanted if name not in every) or ("key",)
            data_fields = replace(fields, columns=own, schema=schema)
        else:
            data_fields = fields
        if shards.output_format not in (*_JSON, *_RECORDS):
            return cls(fields, data_fields, added)
        is_json = shards.output_format in _JSON
        is_recipe = RECIPE_KEY in schema.names  # whose nested columns are no JSON in records
        is_inexact = _has_floats if is_json else pa.types.is_float64 if is_recipe else _is_inexact_in_records
        types = {field.name: field.type for field in schema if wanted is None or field.name in wanted}
        inexact = tuple(name for name, type in types.items() if is_inexact(type))
        nullable = () if is_json else tuple(name for name in types if name not in inexact)
        return cls(fields, data_fields, added, inexact, nullable, is_json)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that a table is read for."""
        return *self.added, *self.inexact, *self.nullable


class ShardWithTable:
    """A shard with the values of its metadata table, which is read for the first sample that needs it."""

    def __init__(self, shard: Shard, columns: TableColumns, shards: ShardSet, number: int) -> None:
        """`number` is the place of the shard among `shards`."""
        self._shard, self._of, self._shards, self._number = shard, columns, shards, number

    def __len__(self) -> int:
        return len(self._shard)

    def keys(self) -> list[str]:
        return self._shard.keys()

    def row(self, number: int) -> dict[str, Any]:
        return self._completed([self._shard.row(number)], [number])[0]

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return self._completed(self._shard.rows(numbers), numbers)

    def _completed(self, samples: list[dict[str, Any]], numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The samples with these numbers, as the data file has them, with the values of the table."""
        of = self._of
        in_json = of.inexact if of.is_json and not of.added else ("",)
        if any(type(sample.get(name)) is not float for name in in_json for sample in samples):
            self._table.complete(samples, numbers)
        if of.added and of.fields.columns is not None:
            return [{name: sample[name] for name in of.fields.columns} for sample in samples]
        return samples

    @cached_property
    def _table(self) -> _Table:
        name, of = self._shards.tables[self._number], self._of
        try:
            stream = self._shards.folder.open(name)
        except FileNotFoundError as error:
            raise DamagedShard(f"{name} is missing, which has the exact values of its columns") from error
        with stream as file:
            parquet = pq.ParquetFile(file, **THRIFTY)
            # Not by the statistics which columns have nulls: Arrow ends the process at those of some damaged files.
            table = parquet.read([*dict.fromkeys(("status", "key", *of.names))])
        found = stored_rows(table)
        if found.num_rows != len(self):
            raise DamagedShard(f"{name} has {found.num_rows:,} samples, the data {len(self):,}")
        self._check_keys(name, found["key"])
        for column in of.names:
            if column not in parquet.schema_arrow.names:  # which other shards have
                found = found.append_column(column, pa.nulls(len(found)))
        return _Table(found, of)

    def _check_keys(self, table: str, keys: pa.ChunkedArray) -> None:
        """Raises DamagedShard for the table of another shard. Where keys begin with the number of their shard, no data
        are read for it, which takes a request to a store."""
        start = self._shards.key_start(self._number)
        for number in {0, len(keys) - 1}:
            key = keys[number].as_py()
            if not (key.startswith(start) if start else key == self._shard.files(number)[0]):
                raise DamagedShard(f"{table} has the key {key!r}: the table of another shard lies in its place")


class _Table:
    """The values of the rows of one shard that have samples."""

    def __init__(self, table: pa.Table, of: TableColumns) -> None:
        self._added = of.added
        self._values: dict[str, Callable[[Sequence[int]], list[Any]]] = {}  # column -> the values of rows
        self._absent: dict[str, None] = {}  # columns that are null in all rows
        self._valid: dict[str, bytes] = {}  # column -> a byte for each row, 0 where it is null
        for name, column in ((name, table[name]) for name in of.names):
            has_null_parts = is_list(column.type) and pc.list_flatten(column).null_count
            if name in of.added or name in of.inexact or has_null_parts:
                self._values[name] = _values_of(column)
            elif column.null_count == len(column):
                self._absent[name] = None
            elif column.null_count:
                self._valid[name] = bytes(column.is_valid().cast(pa.uint8()).to_pylist())

    def complete(self, samples: Sequence[dict[str, Any]], numbers: Sequence[int]) -> None:
        """Put the values of the table into the samples with these numbers."""
        for name, values_at in self._values.items():
            for sample, value in zip(samples, values_at(numbers), strict=True):
                if name in sample or name in self._added:
                    sample[name] = value
        for sample, number in zip(samples, numbers, strict=True):
            sample.update(self._absent)
            for name, is_valid in self._valid.items():
                if not is_valid[number]:
                    sample[name] = None


def _values_of(column: pa.ChunkedArray) -> Callable[[Sequence[int]], list[Any]]:
    """The function that gives the values of rows. Numbers do without Arrow, which takes 5 µs for a value."""
    if not pa.types.is_floating(column.type):
        return lambda numbers: values(column.slice(*numbers, 1) if len(numbers) == 1 else take(column, numbers))
    array = pa.concat_arrays(column.chunks).cast(pa.float64())
    floats = memoryview(array.buffers()[1]).cast("d")[array.offset :][: len(array)]
    is_valid = array.is_valid().to_pylist() if array.null_count else None
    return lambda numbers: [floats[n] if is_valid is None or is_valid[n] else None for n in numbers]


def _has_floats(type: pa.DataType) -> bool:
    """Whether its values may be NaN or infinite, which JSON has no notation for."""
    if pa.types.is_nested(type):
        return any(_has_floats(type.field(n).type) for n in range(type.num_fields))
    return bool(pa.types.is_floating(type.value_type if pa.types.is_dictionary(type) else type))


def _is_inexact_in_records(type: pa.DataType) -> bool:
    """Whether a value that is not null is another one in a record: rounded to float32, a bool as a number, or JSON."""
    if is_list(type):
        inner = type.value_type
        return bool(pa.types.is_boolean(inner) or pa.types.is_nested(inner) or pa.types.is_float64(inner))
    return bool(pa.types.is_nested(type) or pa.types.is_float64(type))
