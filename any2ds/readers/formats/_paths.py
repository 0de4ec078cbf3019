"""The values at paths in nested columns, and the rows that the elements of a list make: in objects, as JSON and Python
have them (`flat_objects`), and in columns of Parquet and Arrow (`flat_batches`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from any2ds.core.tables import is_list
from any2ds.readers.arrow import decoded
from any2ds.readers.paths import EACH, NUMBER, Path, Step, path_of


def path_to_text(name: str, type: pa.DataType) -> str:
    """The path to the first texts in a nested column, such as `images[].url`; empty if there are none."""
    if pa.types.is_struct(type):
        paths = (path_to_text(f"{name}.{field.name}", field.type) for field in _likely_first(type))
        return next(filter(None, paths), "")
    if is_list(type):
        return path_to_text(name + EACH, type.value_type) if EACH not in name else ""
    return name if pa.types.is_string(type) or pa.types.is_large_string(type) else ""


def _likely_first(type: pa.StructType) -> list[pa.Field]:
    return sorted(type, key=lambda field: "url" not in field.name.lower())


# --- objects ---


_ABSENT = object()  # no value, where null is one


def flat_objects(item: Mapping[str, Any], names: Collection[str], each: str | None) -> Iterator[Mapping[str, Any]]:
    """The rows that an object stands for: with the values of the paths among `names` under these names.

    With `each`, the path of a list, one for each of its elements that is not null, and one for a value that is no list.
    """
    paths = [(name, path_of(name)) for name in names if name not in item]
    whole = {**item, **_present((name, _at(item, path)) for name, path in paths if path.element is None)}
    if each is None:
        yield whole
        return
    elements = _at(item, path_of(each))
    if not isinstance(elements, (list, tuple)):
        elements = [] if elements is _ABSENT else [elements]
    for number, element in enumerate(elements):
        if element is not None:
            own = _present((name, _behind(element, path.element)) for name, path in paths if path.element is not None)
            yield {**whole, each + NUMBER: number, **own}


def _present(values: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in values if value is not _ABSENT}


def weight(values: Iterable[Any]) -> int:
    """About the bytes that values of JSON take as columns."""
    waiting, size = list(values), 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [*value, *value.values()]
        elif isinstance(value, (list, tuple)):
            waiting += value
        else:
            size += len(value) if isinstance(value, (str, bytes)) else 8
    return size


def _at(item: Mapping[str, Any], path: Path) -> Any:
    return _behind(item.get(path.root, _ABSENT), path.steps)


def _behind(value: Any, steps: Sequence[Step]) -> Any:
    """The value behind some steps, or _ABSENT. What lies behind null is null."""
    for step in steps:
        if value is None:
            return None
        if isinstance(value, Mapping) and isinstance(step, str):
            value = value.get(step, _ABSENT)
        elif isinstance(value, (list, tuple)) and isinstance(step, int):
            value = value[step] if step < len(value) else None
        else:
            return _ABSENT
    return value


# --- columns ---


def names_with_paths(schema: pa.Schema, names: Iterable[str]) -> list[str]:
    """The columns of a schema, and those of `names` that are paths to values in it."""
    existing = list(schema.names)
    return existing + [name for name in names if name not in existing and _type_at(schema, path_of(name)) is not None]


def roots(names: Iterable[str], existing: Collection[str]) -> list[str]:
    """The columns that have to be read for `names`."""
    found = (name if name in existing else path_of(name.removesuffix(NUMBER)).root for name in names)
    return list(dict.fromkeys(found))


def flat_batches(
    batches: Iterable[pa.RecordBatch], names: Sequence[str], each: str | None, most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """`batches` with the columns `names`, of which some are paths; with `each` as in `flat_objects`.

    What many elements repeat makes several batches, of about `most_bytes`.
    """
    for batch in batches:
        for part in [batch] if each is None else _by_element(batch, names, each, most_bytes):
            yield _selected(part, names)


_ELEMENT = "any2ds.element"


def _selected(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    arrays = []
    for name in names:
        path = path_of(name)
        if name in batch.schema.names:
            arrays.append(batch[name])
        elif path.element is not None:
            arrays.append(_value_at(batch[_ELEMENT], path.element))
        else:
            arrays.append(_value_at(batch[path.root], path.steps))
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _by_element(batch: pa.RecordBatch, names: Sequence[str], each: str, most_bytes: int) -> Iterator[pa.RecordBatch]:
    path, number = path_of(each), each + NUMBER
    lists = _as_list(_value_at(batch[path.root], path.steps))
    elements, rows, (starts, _) = pc.list_flatten(lists), pc.list_parent_indices(lists), _extents(lists)
    places = pc.indices_nonzero(elements.is_valid()).cast(pa.int64())
    repeated = batch.select(roots((name for name in names if EACH not in name and name != number), batch.schema.names))
    sizes = [repeated.slice(row, 1).nbytes for row in range(batch.num_rows)]
    for start, end in _pieces([sizes[row] for row in rows.take(places).to_pylist()], most_bytes):
        own = places.slice(start, end - start)
        parents = rows.take(own)
        arrays = [elements.take(own), pc.subtract(own, starts.take(parents))]
        arrays += [column.take(parents) for column in repeated.columns]
        yield pa.RecordBatch.from_arrays(arrays, names=[_ELEMENT, number, *repeated.schema.names])


def _pieces(sizes: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Where pieces of neighbours begin and end whose sizes are together no more than `most`, or that are one alone."""
    start = total = 0
    for end, size in enumerate(sizes):
        if total + size > most and end > start:
            yield start, end
            start, total = end, 0
        total += size
    if sizes:
        yield start, len(sizes)


def _value_at(array: pa.Array, steps: Sequence[Step]) -> pa.Array:
    for step in steps:
        array = decoded(array)
        if isinstance(step, str):
            array = pc.struct_field(array, step)
        else:
            lists = _as_list(array)
            starts, lengths = _extents(lists)
            array = pc.list_flatten(lists).take(pc.if_else(pc.greater(lengths, step), pc.add(starts, step), None))
    return decoded(array)


def _as_list(array: pa.Array) -> pa.Array:
    return array.cast(pa.list_(array.type.value_field)) if pa.types.is_fixed_size_list(array.type) else array


def _extents(lists: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Where the elements of each list begin among all elements, and how many it has."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    return pc.subtract(pc.cumulative_sum(lengths), lengths), lengths


def _type_at(schema: pa.Schema, path: Path) -> pa.DataType | None:
    """The type of the value at a path; None if there is none."""
    if path.root.endswith(NUMBER):
        return pa.int64()
    if path.root not in schema.names:
        return None
    type = _type_behind(schema.field(path.root).type, path.steps)
    if path.element is None or type is None:
        return type
    return _type_behind(type.value_type, path.element) if is_list(type) else None


def _type_behind(type: pa.DataType, steps: Sequence[Step]) -> pa.DataType | None:
    for step in steps:
        if isinstance(step, str) and pa.types.is_struct(type) and type.get_field_index(step) >= 0:
            type = type.field(step).type
        elif isinstance(step, int) and is_list(type):
            type = type.value_type
        else:
            return None
    return type
