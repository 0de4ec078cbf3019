"""JSON objects and Python dicts as columns: the first objects give the types, later values must fit them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from any2ds.core.errors import ReadError
from any2ds.readers.arrow import BATCH_BYTES, BATCH_ROWS, id_text
from any2ds.readers.bad_rows import excerpt, one_line, shown
from any2ds.readers.contract import Block, Field, Wanted
from any2ds.readers.formats._paths import flat_objects, path_to_text, roots, weight
from any2ds.readers.formats._repair import is_not_finite, without_nan, without_surrogates
from any2ds.readers.paths import NUMBER, list_of, path_of

LONGEST_LINE = 2**24  # bytes; as Python values they take up to 25 times as much
TOO_LONG = f"of over {LONGEST_LINE >> 20} MiB"
_MOST_LEADING = 1000  # bad objects before the first good one
_ENOUGH = 100  # objects; a key that none of them has is missing
_DEEPEST = 50  # levels of nested values, of which Arrow's files take 64
_LONGEST_NUMBER = 4000  # digits of an integer; Python itself refuses more than 4,300

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
_NESTED_KINDS = frozenset(_NESTED)

Item = Mapping[str, Any] | str
"""An object, or why it could not be read."""


class Group(NamedTuple):
    """Some rows of a list."""

    items: Sequence[Item]
    numbers: Sequence[int]  # of them in the list
    size: int = 0  # bytes of their text; 0 for rows that are Python objects


def object_blocks(groups: Iterable[Group], wanted: Wanted, place: str, keys: list[str]) -> Iterator[Block]:
    """One block for each group. `place` is the word before an object's number: line, item, row. The keys of the first
    objects are added to `keys`.

    A column must occur in the first group, if only in one object, or in groups of together 100 objects where they are
    smaller. Values of kinds that do not go together, objects whose keys differ and nested values without a type become
    JSON text. An object with another value that does not have the type of its column is a bad row, as is one whose URL
    is an array or an object.
    """
    if any(path_of(name).is_nested for name in wanted.names):
        groups = _flattened(groups, wanted)
    for group in _gathered(groups, wanted.required):
        bad = {row: item for row, item in enumerate(group.items) if isinstance(item, str)}
        objects: list[Mapping[str, Any]] = [{} if isinstance(item, str) else item for item in group.items]
        if not keys and len(bad) < len(objects):
            keys += dict.fromkeys(str(key) for item in objects[:_ENOUGH] for key in item)
            if not wanted.required <= set(keys):
                wanted.found_in([*dict.fromkeys([*keys, *set[str]().union(*objects)])])
        values = {name: [item.get(name) for item in objects] for name in wanted.names}
        for name, column in values.items():
            if _NESTED_KINDS.isdisjoint(map(type, column)):
                continue
            for row, value in enumerate(column):
                if isinstance(value, _NESTED) and (name == wanted.url or _is_deep(value)):
                    column[row] = None
                    why = _no_url(name, value) if name == wanted.url else f"more than {_DEEPEST} levels"
                    bad.setdefault(row, f"column {name!r}: {why}")
        yield Block(values, len(objects), OBJECTS, _places(place, group.numbers), bad)


def _flattened(groups: Iterable[Group], wanted: Wanted) -> Iterator[Group]:
    """The rows that objects stand for, in groups of bounded size: what elements of a list share counts each time."""
    names, each = wanted.names, list_of(wanted.url)
    shared = [name for name in names if list_of(name) is None and not name.endswith(NUMBER)]
    for group in groups if each is None else _with_lists(groups, wanted):
        items, numbers, size = list[Item](), list[int](), 0
        for item, number in zip(group.items, group.numbers, strict=True):
            rows: Iterable[Item] = [item]
            item_size = 0
            if not isinstance(item, str):
                own = None if wanted.url in item else each
                rows = flat_objects(item, names, own)
                item_size = weight(map(item.get, roots(shared, item))) if own else 0
            for row in rows:
                items.append(row)
                numbers.append(number)
                size += item_size
                if len(items) >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield Group(items, numbers, size)
                    items, numbers, size = [], [], 0
        if items:
            yield Group(items, numbers, size)


def _with_lists(groups: Iterable[Group], wanted: Wanted) -> Iterator[Group]:
    """`groups`. Raises MissingColumns if none of the first objects has the column in which the lists are."""
    objects, keys = 0, dict[str, None]()
    for group in groups:
        if objects < _ENOUGH:
            own = [item for item in group.items if not isinstance(item, str)]
            objects += len(own)
            keys |= dict.fromkeys(str(key) for item in own[:_ENOUGH] for key in item)
            if objects >= _ENOUGH:
                _require_list(wanted, keys)
        yield group
    if 0 < objects < _ENOUGH:
        _require_list(wanted, keys)


def _require_list(wanted: Wanted, keys: Collection[str]) -> None:
    if path_of(wanted.url).root not in keys and wanted.url not in keys:
        Wanted.only(wanted.url).found_in([*keys])


def _gathered(groups: Iterable[Group], names: Iterable[str]) -> Iterator[Group]:
    """`groups`, the first of them joined until all `names` have occurred, or _ENOUGH objects."""
    iterator, missing, failure = iter(groups), set(names), None
    items, numbers, objects, size = list[Item](), list[int](), 0, 0
    while missing and objects < _ENOUGH and len(items) <= _MOST_LEADING and size <= LONGEST_LINE:
        try:
            group = next(iterator, None)
        except ReadError as error:
            failure, group = error, None
        if group is None:
            break
        items += group.items
        numbers += group.numbers
        size += group.size
        found = [item for item in group.items if not isinstance(item, str)]
        objects += len(found)
        missing.difference_update(*found)
    yield Group(items, numbers, size)
    if failure is not None:
        raise failure
    yield from iterator


def _no_url(column: str, value: Any) -> str:
    try:
        path = "" if _is_deep(value) else path_to_text(column, pa.array([value]).type)
    except _MISFIT:
        path = ""
    return f"{shown(value)} is no URL" + (f"; {shlex.quote(f'--url_col={path}')} reads those in it" if path else "")


def _places(word: str, numbers: Sequence[int]) -> Callable[[int], str]:
    return lambda row: f"{word} {numbers[row]}"


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


def item_of(text: bytes, is_too_long: bool, word: str) -> Item:
    """The object that a text is; `word` is what the text is in the list: line, item."""
    try:
        value = parsed(text)
    except (ValueError, RecursionError) as error:
        why = f"a {word} {TOO_LONG}" if is_too_long else f"not JSON ({one_line(error)})"
        return f"{why}: {excerpt(text)!r}"
    return value if isinstance(value, dict) else f"not a JSON object: {excerpt(text, 50)}"


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_NUMBER else digits


class _Objects:
    """Values that are Python's."""

    def infer(self, values: Sequence[Any]) -> pa.DataType:
        if not all(value is None or value.__class__ in (int, float) for value in values):
            values = [None if is_not_finite(value) else value for value in values]  # pandas has NaN for what is missing
        try:
            found = pa.array(values).type
        except _MISFIT:
            return pa.string()
        if pa.types.is_nested(found):
            is_whole = _is_definite(found) and all(_has_shape(value, found, exactly=True) for value in values)
            return found if is_whole else pa.string()
        return pa.string() if pa.types.is_null(found) else found

    def convert(self, values: Sequence[Any], type: pa.DataType, field: Field) -> tuple[pa.Array, Iterable[int]]:
        if field.kind == "name":
            values = [id_text(value) for value in values]
        if {value.__class__ for value in values} - {None.__class__} <= _KINDS.get(type, frozenset()):
            try:
                return pa.array(values, type), ()
            except _MISFIT:  # an integer of too many bits, half of a surrogate pair
                pass
        fitting, misfits = [], []
        for row, value in enumerate(values):
            try:
                fitting.append(_fitting(value, type, field.type is not None))
            except _MISFIT:
                fitting.append(None)
                misfits.append(row)
        try:
            return pa.array(fitting, type), misfits
        except pa.ArrowNotImplementedError as error:
            raise ReadError("", excerpt(str(error))) from error


OBJECTS = _Objects()


def _fitting(value: Any, type: pa.DataType, is_declared: bool) -> Any:
    """A value that is `value` in `type`, for pyarrow; a declared type is also parsed from text. Raises one of _MISFIT
    instead of losing anything."""
    if value is None or (is_not_finite(value) and not pa.types.is_floating(type)):
        return None
    value, kind = without_surrogates(value), value.__class__
    if pa.types.is_string(type):
        return value if kind is str else _as_json(value)
    if is_declared and kind is str:
        return pa.scalar(value).cast(type).as_py()
    if kind is float and pa.types.is_int64(type) and value.is_integer():
        value = int(value)
    elif pa.types.is_nested(type):
        value = value if _has_shape(value, type) else without_nan(value)
        if not _has_shape(value, type):
            raise TypeError("another shape")
    elif type in _KINDS and kind in _JSON_KINDS - _KINDS[type]:
        raise TypeError("another kind of value")
    pa.scalar(value, type)
    return value


def _as_json(value: Any) -> str:
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # an integer of more than 64 bits
        return json.dumps(value, default=str, ensure_ascii=False)


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
