"""A source as Arrow's record batches, which table libraries and clusters take: files as bytes, metadata as they are.

Durations are text, as most formats have them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from any2ds.core.errors import UsageError, error_text
from any2ds.core.tables import is_list, scalar_of
from any2ds.load.libraries import imported

if TYPE_CHECKING:
    from any2ds.load.source import Sample, Source

_ROWS_AT_ONCE = 64
_MOST_BYTES = 1 << 30  # of the files in a batch: a column of Arrow holds less than 2 GiB


def reader(source: Source) -> pa.RecordBatchReader:
    """Batches of its samples, in order, read when they are asked for; they are never decoded."""
    schema = schema_of(source)
    return pa.RecordBatchReader.from_batches(schema, batches(source, schema))


def schema_of(source: Source) -> pa.Schema:
    of = pa.types
    features = dict(source.features)
    if source.recipe is not None and source.columns is None and source.recipe.features.files:
        features.pop("data", None)  # it has a name of its own
    return pa.schema([(name, pa.string() if of.is_duration(type) else type) for name, type in features.items()])


def batches(source: Source, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Raises UsageError for a column whose values have no place in Arrow."""
    read = source.undecoded(with_features=True)
    for start in range(0, len(read), _ROWS_AT_ONCE):
        for samples in _parts(read[start : start + _ROWS_AT_ONCE]):
            columns = [_column([_plain(sample.get(field.name)) for sample in samples], field) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _plain(value: Any) -> Any:
    """With lists in the place of the arrays of a recipe's samples."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _column(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError):  # what JSON has as text: durations, and dates in nested values
        pass
    try:
        if pa.types.is_string(field.type):
            return pa.array([None if value is None else str(value) for value in values], pa.string())
        if pa.types.is_temporal(field.type) and any(isinstance(value, str) for value in values):
            return pa.array([scalar_of(value, field.type) for value in values], field.type)
        return pa.array(values).cast(field.type)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UsageError(
            f"{field.name}: its values are not {field.type} in this format, name the other columns: {error_text(error)}"
        ) from error


def _parts(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    if len(samples) > 1 and sum(len(sample.get("data") or b"") for sample in samples) > _MOST_BYTES:
        half = len(samples) // 2
        yield from _parts(samples[:half])
        yield from _parts(samples[half:])
    else:
        yield samples


def spark(source: Source, session: Any) -> Any:
    """A DataFrame of Spark, of which each task reads a shard."""
    types = imported("pyspark.sql.pandas.types", "to_spark")
    own, shards = schema_of(source), source.shards
    schema = pa.schema([field.with_type(_type_of_spark(field.type)) for field in own])

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for found in batches(shards[number], own):
                    yield found.cast(schema)

    tasks = session.range(0, len(shards), 1, max(1, len(shards)))
    return tasks.mapInArrow(read, types.from_arrow_schema(schema))


def _type_of_spark(type: pa.DataType) -> pa.DataType:
    """The nearest that it has."""
    of = pa.types
    if of.is_dictionary(type):
        return _type_of_spark(type.value_type)
    if of.is_unsigned_integer(type):
        return pa.decimal128(20, 0) if of.is_uint64(type) else pa.int64()
    if of.is_float16(type):
        return pa.float32()
    if of.is_null(type):
        return pa.string()
    if is_list(type):
        return pa.list_(_type_of_spark(type.value_type))
    if of.is_struct(type):
        return pa.struct([field.with_type(_type_of_spark(field.type)) for field in type])
    return type
