"""The columns of tar files of other tools, which have no metadata beside them: the keys of each sample's JSON, its
caption, and its further files by their extensions."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.errors import UsageError, error_text
from any2ds.load.delivery import CLASS
from any2ds.load.opened import OpenShards, StoredSample
from any2ds.load.shards import ShardSet

_LOOKED_AT = 100  # samples, whose columns are those of the dataset
_ROWS_AT_ONCE = 64
_END = ".columns"  # of the table of a shard in the cache of indexes
_OF_FILES = ("data", "key", "ext")


class ForeignColumns:
    """Finds the columns by the first samples, and makes a table of a shard when a condition asks for it."""

    def __init__(self, shards: ShardSet, opened: OpenShards) -> None:
        """`opened` gives samples with all that they have."""
        self._shards, self._opened = shards, opened
        self.fields: tuple[pa.Field, ...] = ()
        self.has_classes = False  # whether `cls` has numbers
        self.extensions: set[str] = set()  # of the files that are the data of their samples
        first = next((n for n in range(len(shards)) if shards.samples(n)), None)
        if first is not None:
            found_first = self._samples(first, range(min(_LOOKED_AT, shards.samples(first))))
            samples = [sample for sample in found_first if not isinstance(sample, Exception)]
            self.extensions = {str(sample["ext"]) for sample in samples if sample["ext"]}
            found = dict.fromkeys(name for sample in samples for name in sample if name not in _OF_FILES)
            self.has_classes = any(type(sample.get(CLASS)) is int for sample in samples)
            self.fields = tuple(pa.field(name, _type_of([sample.get(name) for sample in samples])) for name in found)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the columns that a condition may name: files have none of their bytes there."""
        own = [pa.field("key", pa.string()), pa.field("ext", pa.string())]
        return pa.schema([*own, *(field for field in self.fields if not pa.types.is_binary(field.type))])

    def table(self, shard: int) -> pa.Table:
        """The columns of all samples of a shard. It is made once, by reading the shard, and kept beside the indexes.

        Raises DamagedShard.
        """
        content = self._opened.data(shard).made_index(_END, lambda _: self._made(shard))
        found = pq.read_table(pa.BufferReader(content))
        columns = [_cast(found, field) for field in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _made(self, shard: int) -> bytes:
        rows: list[dict[str, Any]] = []
        count = self._shards.samples(shard)
        for start in range(0, count, _ROWS_AT_ONCE):
            for sample in self._samples(shard, range(start, min(start + _ROWS_AT_ONCE, count))):
                if isinstance(sample, Exception):
                    if isinstance(sample.__cause__, OSError):  # it may be there the next time
                        raise sample
                    sample = {}  # a damaged one has no values
                rows.append({name: value for name, value in sample.items() if type(value) is not bytes})
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        table = pa.table({name: _array(values) for name, values in columns.items()})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        return bytes(sink.getvalue())

    def _samples(self, shard: int, numbers: range) -> list[StoredSample]:
        found = self._opened.get_many(shard, numbers)
        for sample in found:
            if isinstance(sample, dict) and type(sample.get(CLASS)) is bytes and sample[CLASS].isdigit():
                sample[CLASS] = int(sample[CLASS])
        return found


def _cast(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    """A column as the first samples have it. Raises UsageError."""
    if field.name not in table.column_names:
        return pa.chunked_array([pa.nulls(len(table), field.type)])
    try:
        return table[field.name].cast(field.type)
    except (pa.ArrowException, TypeError) as error:
        raise UsageError(
            f"where: {field.name!r} is {field.type} in the first samples, and not in all: {error_text(error)}"
        ) from error


def _array(values: list[Any]) -> pa.Array:
    type = _type_of(values)
    texts = [None if value is None else str(value) for value in values] if type == pa.string() else values
    return pa.array(texts, type)


def _type_of(values: list[Any]) -> pa.DataType:
    """The type that all values have: text where they have several."""
    try:
        found = pa.array(values).type
    except (pa.ArrowException, TypeError, OverflowError):
        return pa.string()
    is_empty_struct = pa.types.is_struct(found) and not found.num_fields
    return pa.string() if pa.types.is_null(found) or is_empty_struct else found
