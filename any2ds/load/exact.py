"""Values that a format cannot hold, restored from the metadata table beside a shard.

Records of `tf.train.Example` have no nulls, no float64 and no bools in lists; JSON has no NaN and no infinity. The
metadata table has all of them, and its rows that have samples are in the order of the shard.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.core.errors import DamagedShard
from any2ds.core.metadata import RECIPE_KEY, stored_rows
from any2ds.core.tables import is_list, values
from any2ds.writers.formats.parquet import THRIFTY

if TYPE_CHECKING:
    from any2ds.load.shards import ShardSet

_JSON, _RECORDS = ("webdataset", "files"), ("tfrecord", "arrayrecord")


class ExactColumns:
    """The columns of a dataset that have values which its format cannot hold; one object for all its shards."""

    def __init__(self, shards: ShardSet, schema: pa.Schema, columns: Collection[str] | None) -> None:
        """`schema` is that of the metadata; `columns` are those that samples have, None for all."""
        self.shards = shards
        self.is_json = shards.output_format in _JSON
        is_recipe = RECIPE_KEY in schema.names  # whose nested columns are no JSON in records
        types = {field.name: field.type for field in schema if columns is None or field.name in columns}
        inexact = _has_floats if self.is_json else pa.types.is_float64 if is_recipe else _is_inexact_in_records
        self.replaced = [name for name, type in types.items() if inexact(type)]
        self.nullable = [] if self.is_json else [name for name in types if name not in self.replaced]

    @classmethod
    def of(cls, shards: ShardSet, schema: pa.Schema | None, columns: Collection[str] | None) -> ExactColumns | None:
        """None where samples have all their values from the data file."""
        if schema is None or not shards.is_own or shards.output_format not in (*_JSON, *_RECORDS):
            return None
        found = cls(shards, schema, columns)
        return found if found.replaced or found.nullable else None


class ExactShard:
    """The exact values of one shard. Its table is read for the first sample that needs it."""

    def __init__(self, columns: ExactColumns, shard: int) -> None:
        self._of, self._shard = columns, shard

    def restore(self, sample: dict[str, Any], number: int) -> None:
        """Put the exact values of the sample with this number in the place of those that its data file has."""
        for name in self._of.replaced:
            if name in sample and not (self._of.is_json and type(sample[name]) is float):
                (sample[name],) = values(self._replaced[name].slice(number, 1))
        if self._of.nullable:
            nulls = self._nulls
            sample.update(nulls.absent)
            for name, is_valid in nulls.valid.items():
                if not is_valid[number]:
                    sample[name] = None
            for name, lists in nulls.lists.items():
                if number in lists:
                    sample[name] = list(lists[number])

    @cached_property
    def _replaced(self) -> Mapping[str, pa.ChunkedArray]:
        table = self._read(self._of.replaced)
        return {name: table[name] for name in table.column_names}

    @cached_property
    def _nulls(self) -> _Nulls:
        return _Nulls(self._read(self._of.nullable))

    def _read(self, columns: list[str]) -> pa.Table:
        """These columns of the rows that have samples, without columns in which the file counts no null."""
        shards = self._of.shards.in_this_process()
        name = shards.tables[self._shard]
        try:
            stream = shards.folder.open(name)
        except FileNotFoundError as error:
            raise DamagedShard(f"{name} is missing, which has the exact values of its columns") from error
        with stream as file:
            parquet = pq.ParquetFile(file, **THRIFTY)
            skipped = set() if columns is self._of.replaced else _without_nulls(parquet.metadata)
            table = parquet.read(["status", *(name for name in columns if name not in {"status", *skipped})])
        found = stored_rows(table)
        for name in columns:
            if name not in parquet.schema_arrow.names:  # a column that other shards have
                found = found.append_column(name, pa.nulls(len(found)))
        return found.select([name for name in found.column_names if name in columns])


class _Nulls:
    """The nulls of some columns."""

    def __init__(self, table: pa.Table) -> None:
        self.absent: dict[str, None] = {}  # columns that are null in all rows
        self.valid: dict[str, bytes] = {}  # column -> a byte for each row, 0 where it is null
        self.lists: dict[str, dict[int, list[Any]]] = {}  # column -> its lists with nulls in them, by row
        for name, column in zip(table.column_names, table.columns, strict=True):
            if column.null_count == len(column):
                self.absent[name] = None
            elif column.null_count:
                self.valid[name] = bytes(column.is_valid().cast(pa.uint8()).to_pylist())
            if is_list(column.type) and pc.list_flatten(column).null_count:
                self.lists[name] = {
                    n: each for n, each in enumerate(values(column)) if each is not None and None in each
                }


def _without_nulls(file: pq.FileMetaData) -> set[str]:
    """The columns whose statistics count no null."""
    nulls: dict[str, int] = {}
    for group in range(file.num_row_groups):
        for column in map(file.row_group(group).column, range(file.num_columns)):
            known = column.statistics is not None and column.statistics.has_null_count
            name = column.path_in_schema.partition(".")[0]
            nulls[name] = nulls.get(name, 0) + (column.statistics.null_count if known else 1)
    return {name for name, count in nulls.items() if not count}


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
