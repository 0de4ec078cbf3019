"""Objects with keys become columns: types from the first of them, later values held to these."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import orjson
import pyarrow as pa

from any2ds.errors import ReadError
from any2ds.protocols import Columns
from any2ds.readers._text import misfit, one_line, require, whole_lines

LONGEST_LINE = 2**26  # bytes
_ENOUGH = 100  # objects; a key that none of them has is missing

Group = tuple[Sequence[Mapping[str, Any]], Sequence[int]]
"""Objects, and their numbers in the list."""

_MISFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)
# Where all Python values are of these types, pyarrow converts them without loss.
_KINDS: Mapping[pa.DataType, frozenset[type]] = {
    pa.int64(): frozenset({int}),
    pa.float64(): frozenset({int, float}),
    pa.bool_(): frozenset({bool}),
    pa.string(): frozenset({str}),
}
_JSON_KINDS = frozenset({int, float, bool, str, list, dict})


def to_batches(
    groups: Iterable[Group], columns: Columns, schema: pa.Schema | None, place: str
) -> Iterator[pa.RecordBatch]:
    """One batch per group. `place` is the word before an object's number: line, item, row.

    A column must occur in the first group, if only in one object, or in groups of together 100 objects where they are
    smaller; the column of the URLs so in every list. Values of kinds that do not go together, objects whose keys differ
    and nested values without a type become JSON text.
    """
    types: dict[str, pa.DataType] = {name: pa.string() for name in columns.texts}
    if schema is not None:
        types |= {field.name: field.type for field in schema}
    is_first = True
    for objects, numbers in _gathered(groups, columns.names if schema is None else [columns.url]):
        if not objects:
            continue
        if is_first:
            _require(columns, objects, schema is not None)
            is_first = False
        arrays, misfits = {}, {}
        for name in columns.names:
            values = [item.get(name) for item in objects]
            if name not in types:
                types[name] = _type_of(values)
            try:
                arrays[name] = _array(values, types[name])
            except _MISFIT:
                misfits[name] = _first_misfit(values, types[name])
        if not misfits:
            yield pa.record_batch(list(arrays.values()), names=list(arrays))
            continue
        name, row = min(misfits.items(), key=lambda misfit: misfit[1])
        good = objects[:row]
        yield pa.record_batch(
            [_array([item.get(column) for item in good], types[column]) for column in columns.names],
            names=list(columns.names),
        )
        raise ReadError(f"{place} {numbers[row]}", misfit(name, types[name], objects[row].get(name)))


def _gathered(groups: Iterable[Group], names: Iterable[str]) -> Iterator[Group]:
    """`groups`, of which the first are made one until all of `names` have occurred or that can be expected."""
    iterator, missing = iter(groups), set(names)
    objects: list[Mapping[str, Any]] = []
    numbers: list[int] = []
    failure: ReadError | None = None
    while missing and len(objects) < _ENOUGH:
        try:
            more = next(iterator, None)
        except ReadError as error:
            failure, more = error, None
        if more is None:
            break
        objects += more[0]
        numbers += more[1]
        missing.difference_update(*more[0])
    yield objects, numbers
    if failure is not None:
        raise failure
    yield from iterator


def lines(pieces: Iterator[bytes]) -> Iterator[Group]:
    """The objects of JSON lines. Raises ReadError at the first line that is none."""
    number = 0
    for block in whole_lines(pieces, LONGEST_LINE):
        objects, numbers, problem = [], [], ""
        for line in block.removesuffix(b"\n").split(b"\n"):
            number += 1
            try:
                item = _parse(line)
            except (ValueError, RecursionError) as error:
                if not line.strip():
                    continue
                problem = f"not JSON ({one_line(error)})" if len(line) <= LONGEST_LINE else "a line of over 64 MiB"
                break
            if not isinstance(item, dict):
                problem = f"not a JSON object: {one_line(line.decode(errors='replace'), 50)}"
                break
            objects.append(item)
            numbers.append(number)
        yield objects, numbers
        if problem:
            raise ReadError(f"line {number}", problem)


def _parse(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except ValueError:
        if not line.strip():
            raise
        return json.loads(line)  # takes NaN and Infinity, which Python's own json writes


def _require(columns: Columns, objects: Sequence[Mapping[str, Any]], may_be_absent: bool) -> None:
    wanted = [columns.url] if may_be_absent else columns.names
    absent = [name for name in wanted if not any(name in item for item in objects)]
    if absent:
        existing = list(dict.fromkeys(str(name) for item in objects for name in item))
        require(absent, existing)


def _type_of(values: Sequence[Any]) -> pa.DataType:
    try:
        found = pa.array(values).type
    except _MISFIT:
        return pa.string()
    if pa.types.is_nested(found) and not (_is_definite(found) and all(_has_shape(v, found, True) for v in values)):
        return pa.string()
    return pa.string() if pa.types.is_null(found) else found


def _is_definite(type: pa.DataType) -> bool:
    """Whether no part of a nested type is left without a type."""
    if pa.types.is_struct(type):
        return type.num_fields > 0 and all(_is_definite(field.type) for field in type)
    if pa.types.is_list(type):
        return _is_definite(type.value_type)
    return not pa.types.is_null(type)


def _has_shape(value: Any, type: pa.DataType, exactly: bool = False) -> bool:
    """Whether pyarrow can turn a nested value into `type` without leaving something out."""
    if value is None:
        return True
    if pa.types.is_struct(type):
        names = {field.name for field in type}
        return (
            isinstance(value, Mapping)
            and (value.keys() == names if exactly else value.keys() <= names)
            and all(_has_shape(value.get(field.name), field.type, exactly) for field in type)
        )
    if pa.types.is_list(type):
        return isinstance(value, (list, tuple)) and all(_has_shape(part, type.value_type, exactly) for part in value)
    allowed = _KINDS.get(type)
    return allowed is None or value.__class__ in allowed or value.__class__ not in _JSON_KINDS


def _array(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    """`values` in `type`. Raises one of _MISFIT where that would lose something."""
    allowed = _KINDS.get(type)
    if allowed is not None:
        kinds = {value.__class__ for value in values} - {None.__class__}
        if not kinds <= allowed:
            values = _coerced(values, type, kinds & _JSON_KINDS - allowed)
    elif pa.types.is_nested(type) and not all(_has_shape(value, type) for value in values):
        raise TypeError("another shape")
    return pa.array(values, type)


def _coerced(values: Sequence[Any], type: pa.DataType, others: Set[Any]) -> Sequence[Any]:
    """`values` of which some are of the kinds `others`, which pyarrow would cut or refuse."""
    if pa.types.is_string(type):
        return [value if value is None else _as_text(value) for value in values]
    if pa.types.is_int64(type) and others == {float}:
        if not all(value.is_integer() for value in values if value.__class__ is float):
            raise ValueError("not whole numbers")
        return [int(value) if value.__class__ is float else value for value in values]
    if others:
        raise TypeError("another kind of value")
    return values


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _first_misfit(values: Sequence[Any], type: pa.DataType) -> int:
    for row, value in enumerate(values):
        try:
            _array([value], type)
        except _MISFIT:
            return row
    raise AssertionError("every value fits alone, but not all together")
