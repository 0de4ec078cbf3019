"""JSON objects as columns: the first objects give the types, later values must fit them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from any2ds.core.errors import ReadError
from any2ds.readers.bad_rows import MOST_LEADING, BadRow, Leading, excerpt, misfit, shown, with_bad_rows
from any2ds.readers.contract import Columns
from any2ds.readers.formats._repair import is_not_finite, without_nan, without_surrogates
from any2ds.readers.formats._text import one_line, require, whole_lines

LONGEST_LINE = 2**24  # bytes; as Python values they take up to 25 times as much
TOO_LONG = f"of over {LONGEST_LINE >> 20} MiB"
_ENOUGH = 100  # objects; a key that none of them has is missing
_DEEPEST = 50  # levels of nested values, of which Arrow's files take 64
_LONGEST_NUMBER = 4000  # digits of an integer; Python itself refuses more than 4,300


class Group(NamedTuple):
    """Some rows of a list."""

    items: Sequence[Mapping[str, Any] | BadRow]
    numbers: Sequence[int]  # of them in the list
    size: int = 0  # bytes of their text; 0 for rows that are Python objects


_MISFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)
# Where all Python values are of these types, pyarrow converts them without loss.
_KINDS: Mapping[pa.DataType, frozenset[type]] = {
    pa.int64(): frozenset({int}),
    pa.float64(): frozenset({int, float}),
    pa.bool_(): frozenset({bool}),
    pa.string(): frozenset({str}),
}
_JSON_KINDS = frozenset({int, float, bool, str, list, dict})
_ALL_DIGITS_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_TWENTY_DIGITS = b"0" * 20
_NESTED = (list, tuple, dict)


def to_batches(
    groups: Iterable[Group | pa.RecordBatch],
    columns: Columns,
    schema: pa.Schema | None,
    place: str,
    known: dict[str, pa.DataType] | None = None,
) -> Iterator[pa.RecordBatch]:
    """One batch per group. `place` is the word before an object's number: line, item, row.

    The types are added to `known` as soon as the first rows have given them; from then on `groups` may hold batches of
    these types as well.

    A column must occur in the first group, if only in one object, or in groups of together 100 objects where they are
    smaller; the column of the URLs so in every list. Values of kinds that do not go together, objects whose keys differ
    and nested values without a type become JSON text. An object with another value that does not have the type of its
    column is a bad row, as is one whose URL is an array or an object.
    """
    types: dict[str, pa.DataType] = {name: pa.string() for name in columns.texts} | dict(columns.types)
    if schema is not None:
        types |= {field.name: field.type for field in schema}
    leading = Leading()
    is_first = True
    for group in _gathered(groups, columns.names if schema is None else [columns.url]):
        if isinstance(group, pa.RecordBatch):
            yield group
            continue
        items, numbers, _ = group
        bad = {row: item for row, item in enumerate(items) if isinstance(item, BadRow)}
        objects = [item for item in items if not isinstance(item, BadRow)]
        if not objects:
            if schema is None and is_first:
                leading.hold(bad.values())
            elif bad:
                yield with_bad_rows(_nothing(columns.names, types), bad)
            continue
        was_first, is_first = is_first, False
        if was_first:
            _require(columns, objects, schema is not None)
        own = [number for number, item in zip(numbers, items, strict=True) if not isinstance(item, BadRow)]
        batch, misfits = _typed(objects, columns, types)
        reasons = {row: BadRow(f"{place} {own[row]}", reason) for row, reason in misfits.items()}
        if was_first and schema is None and len(misfits) == len(objects):  # none of them says what the list is
            raise reasons[min(reasons)].error
        if known is not None:
            known.update(types)
        yield with_bad_rows(batch, leading.before(bad), reasons)
    leading.end()


def _typed(
    objects: Sequence[Mapping[str, Any]], columns: Columns, types: dict[str, pa.DataType]
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """The columns, and the reasons of rows that do not fit. Adds the missing types to `types`."""
    misfits: dict[int, str] = {}
    arrays = []
    for name in columns.names:
        values = [item.get(name) for item in objects]
        for row, value in enumerate(values):
            if isinstance(value, _NESTED) and _is_deep(value):
                values[row] = None
                misfits.setdefault(row, f"column {name!r}: a value of more than {_DEEPEST} levels")
        if name == columns.url:
            for row, value in enumerate(values):
                if value.__class__ in (list, dict):
                    what = f"column {name!r}: {shown(value)} is no URL"
                    misfits[row] = f"{what}; --input_format=json reads a table in one document"
        if name not in types:
            types[name] = _type_of(values)
        is_declared = name in columns.types
        try:
            arrays.append(_array(values, types[name], is_declared))
        except _MISFIT:
            fitting = []
            for row, value in enumerate(map(without_surrogates, values)):
                fits = _fits(value, types[name], is_declared)
                fitting.append(value if fits else None)
                if not fits:
                    misfits.setdefault(row, misfit(name, types[name], value, is_declared))
            arrays.append(_array(fitting, types[name], is_declared))
    return pa.record_batch(arrays, names=list(columns.names)), misfits


def _is_deep(value: Any) -> bool:
    """Whether a value has more than _DEEPEST levels; Python's own functions fail at about 1,000."""
    waiting = [(value, 1)]
    while waiting:
        value, level = waiting.pop()
        if level > _DEEPEST:
            return True
        parts = value.values() if isinstance(value, dict) else value
        waiting += [(part, level + 1) for part in parts if isinstance(part, _NESTED)]
    return False


def _nothing(names: Sequence[str], types: Mapping[str, pa.DataType]) -> pa.RecordBatch:
    schema = pa.schema([pa.field(name, types[name]) for name in names])
    return pa.RecordBatch.from_pylist([], schema=schema)


def _gathered(groups: Iterable[Group | pa.RecordBatch], names: Iterable[str]) -> Iterator[Group | pa.RecordBatch]:
    """`groups`, the first of them joined until all `names` have occurred, or _ENOUGH objects."""
    iterator: Iterator[Any] = iter(groups)
    missing = set(names)
    items: list[Mapping[str, Any] | BadRow] = []
    numbers: list[int] = []
    objects = size = 0
    failure: ReadError | None = None
    while missing and objects < _ENOUGH and len(items) <= MOST_LEADING and size <= LONGEST_LINE:
        try:
            more = next(iterator, None)
        except ReadError as error:
            failure, more = error, None
        if more is None:
            break
        items += more.items
        numbers += more.numbers
        size += more.size
        found = [item for item in more.items if not isinstance(item, BadRow)]
        objects += len(found)
        missing.difference_update(*found)
    yield Group(items, numbers, size)
    if failure is not None:
        raise failure
    yield from iterator


def line_batches(
    pieces: Iterator[bytes], columns: Columns, schema: pa.Schema | None, keys: list[str]
) -> Iterator[pa.RecordBatch]:
    """The batches of JSON lines; the first keys are added to `keys`. A line that is no object is a bad row; blank lines
    are skipped."""
    known: dict[str, pa.DataType] = {}
    yield from to_batches(noting_keys(_lines(pieces, columns, known), keys), columns, schema, "line", known)


def noting_keys(groups: Iterable[Group | pa.RecordBatch], keys: list[str]) -> Iterator[Group | pa.RecordBatch]:
    """`groups`; the keys of the first one with objects are added to `keys`."""
    for group in groups:
        if not keys and not isinstance(group, pa.RecordBatch):
            keys += keys_of(group.items)
        yield group


def keys_of(objects: Sequence[Mapping[str, Any] | BadRow]) -> list[str]:
    """Those of the first objects, each once."""
    return list(dict.fromkeys(str(key) for each in objects[:_ENOUGH] if isinstance(each, Mapping) for key in each))


def _lines(
    pieces: Iterator[bytes], columns: Columns, known: Mapping[str, pa.DataType]
) -> Iterator[Group | pa.RecordBatch]:
    number = 0
    for block in whole_lines(pieces, LONGEST_LINE):
        if known and (batch := _by_pyarrow(block, columns, known)) is not None:
            number += batch.num_rows
            yield batch
            continue
        items: list[Mapping[str, Any] | BadRow] = []
        numbers = []
        for line in block.removesuffix(b"\n").split(b"\n"):
            number += 1
            try:
                item = parsed(line)
            except (ValueError, RecursionError) as error:
                if not line.strip():
                    continue
                why = f"not JSON ({one_line(error)})" if len(line) <= LONGEST_LINE else f"a line {TOO_LONG}"
                item = BadRow(f"line {number}", f"{why}: {excerpt(line)!r}")
            if not isinstance(item, (dict, BadRow)):
                item = BadRow(f"line {number}", f"not a JSON object: {excerpt(line, 50)}")
            items.append(item)
            numbers.append(number)
        yield Group(items, numbers, len(block))


def _by_pyarrow(block: bytes, columns: Columns, known: Mapping[str, pa.DataType]) -> pa.RecordBatch | None:
    """The rows, if each line is an object with values of exactly the types of the columns; in a third of the time."""
    schema = pa.schema([pa.field(name, known[name]) for name in columns.names])
    if not all(type in _KINDS for type in schema.types):
        return None
    # Only where each line begins as an object does: pyarrow crashes if the first one is null.
    if not block.startswith(b"{") or block.count(b"\n{") != block.count(b"\n") - 1:
        return None
    try:
        block.decode()  # which pyarrow does not check
        table = pajson.read_json(
            pa.BufferReader(block),
            pajson.ReadOptions(use_threads=False, block_size=len(block) + 1),
            pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except (pa.ArrowException, UnicodeDecodeError):
        return None
    (batch,) = table.combine_chunks().to_batches() or [None]
    if batch is None or batch.num_rows != block.count(b"\n"):
        return None
    floats = [column for column in batch.columns if pa.types.is_floating(column.type)]
    # Integers that a float cannot hold are bad rows, which pyarrow rounds.
    return None if any((pc.max(pc.abs(column)).as_py() or 0) >= 2**53 for column in floats) else batch


def parsed(line: bytes) -> Any:
    """Raises ValueError or RecursionError if `line` is not JSON."""
    if _TWENTY_DIGITS not in line.translate(_ALL_DIGITS_ZERO):  # orjson rounds integers of more than 64 bits
        try:
            return orjson.loads(line)
        except ValueError:
            if not line.strip():
                raise
    # Python's own json takes NaN and Infinity, which it writes, halves of surrogate pairs, and any number.
    return without_surrogates(json.loads(line, parse_int=_integer))


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_NUMBER else digits


def _require(columns: Columns, objects: Sequence[Mapping[str, Any]], may_be_absent: bool) -> None:
    wanted = [columns.url] if may_be_absent else columns.names
    absent = [name for name in wanted if not any(name in item for item in objects)]
    if absent:
        existing = list(dict.fromkeys(str(name) for item in objects for name in item))
        require(absent, existing)


def _type_of(values: Sequence[Any]) -> pa.DataType:
    if not all(value is None or value.__class__ in (int, float) for value in values):
        values = [None if is_not_finite(value) else value for value in values]  # pandas has NaN for what is missing
    try:
        found = pa.array(values).type
    except _MISFIT:
        return pa.string()
    if pa.types.is_nested(found) and not (_is_definite(found) and all(_has_shape(v, found, True) for v in values)):
        return pa.string()
    return pa.string() if pa.types.is_null(found) else found


def _is_definite(type: pa.DataType) -> bool:
    """Whether no part of a nested type is null."""
    if pa.types.is_struct(type):
        return type.num_fields > 0 and all(_is_definite(field.type) for field in type)
    if pa.types.is_list(type):
        return _is_definite(type.value_type)
    return not pa.types.is_null(type)


def _has_shape(value: Any, type: pa.DataType, exactly: bool = False) -> bool:
    """Whether pyarrow converts a nested value to `type` without loss."""
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


def _array(values: Sequence[Any], type: pa.DataType, is_declared: bool = False) -> pa.Array:
    """`values` in `type`; a declared type is also parsed from text. Raises one of _MISFIT instead of losing values."""
    if is_declared and not pa.types.is_string(type) and any(value.__class__ is str for value in values):
        return _from_texts(values, type)
    if not pa.types.is_floating(type) and any(map(is_not_finite, values)):
        values = [None if is_not_finite(value) else value for value in values]
    allowed = _KINDS.get(type)
    if allowed is not None:
        kinds = {value.__class__ for value in values} - {None.__class__}
        if not kinds <= allowed:
            values = _coerced(values, type, kinds & _JSON_KINDS - allowed)
    elif pa.types.is_nested(type):
        values = [value if _has_shape(value, type) else without_nan(value) for value in values]
        if not all(_has_shape(value, type) for value in values):
            raise TypeError("another shape")
    return pa.array(values, type)


def _from_texts(values: Sequence[Any], type: pa.DataType) -> pa.Array:
    texts = [value if value.__class__ is str else None for value in values]
    others = [None if value.__class__ is str else value for value in values]
    return pc.coalesce(pa.array(texts, pa.string()).cast(type), _array(others, type))


def _fits(value: Any, type: pa.DataType, is_declared: bool) -> bool:
    kind = value.__class__
    if kind is int and pa.types.is_int64(type):
        return bool(-(2**63) <= value < 2**63)
    if value is None or (kind is not int and kind in _KINDS.get(type, ())):
        return True
    try:
        _array([value], type, is_declared)
    except _MISFIT:
        return False
    return True


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
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(value, default=str, ensure_ascii=False)
