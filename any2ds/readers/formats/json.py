"""Lists in one JSON document: an array of objects, or what pandas writes; and files of one object a line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any, BinaryIO, ClassVar, Literal

import ijson
import orjson
import pyarrow as pa

from any2ds.core.errors import MissingColumns, ReadError, WrongFormat
from any2ds.readers.bad_rows import BadRow, excerpt
from any2ds.readers.contract import Columns
from any2ds.readers.formats._objects import Group, line_batches, noting_keys, parsed, to_batches
from any2ds.readers.formats._repair import repaired
from any2ds.readers.formats._text import BATCH_ROWS, blocks, one_line

Form = Literal["lines", "objects", "array", "columns", "lists", "index", "split", "table"]
"""One object a line; objects over several lines; an array of objects; the orients of pandas, `lists` being its
`to_dict("list")`. Its `orient="records"` is an array, with `lines=True` one object a line."""

_UNKNOWN = (
    "not a form of JSON that is known: it takes an array of objects, one object a line, or what pandas writes with "
    "orient=columns, records, index, split or table"
)
_ABSENT: Any = object()


class Json:
    """All forms are streamed, so that the list can be larger than memory; but for `columns` and `lists`, whose wanted
    columns are in memory as JSON, because the last one ends where the file does. NaN and Infinity are null."""

    seekable: ClassVar[bool] = False

    def __init__(self) -> None:
        self.names: list[str] = []  # keys of the first objects, or of the columns at the beginning

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        pieces = blocks(stream)
        head = next((piece for piece in pieces if piece.strip()), b"")
        if not head:
            return
        form, keys = _form(b"".join(repaired([head])).lstrip(), columns.url)
        pieces = chain([head], pieces)
        if form == "lines":
            yield from line_batches(pieces, columns, schema, self.names)
            return
        pieces = repaired(pieces)
        if form in ("columns", "lists"):
            found = _Columns(columns.names, form == "lists").read(pieces)
            self.names = names = list(dict.fromkeys([*keys, *(name for name in columns.names if found[name])]))
            required = columns.names if schema is None else [columns.url]
            if absent := [name for name in required if name not in names]:
                raise MissingColumns(absent, names)
            yield from to_batches(_rows(found), columns, schema, "row")
        else:
            yield from to_batches(noting_keys(_objects(pieces, form), self.names), columns, schema, "item")


# --- which form it is ---


def _form(head: bytes, url: str) -> tuple[Form, Sequence[str]]:
    """The form of a list that begins with `head`, and the keys of the first object in `head`. Raises WrongFormat."""
    if head[:1] == b"[":
        first_events = [event for event, _ in (_events(head[:65536]) or [])[1:2]]
        if first_events and first_events[0] not in ("start_map", "end_array"):
            raise WrongFormat(f"{_UNKNOWN}: this array begins with something else than an object")
        return "array", ()
    if head[:1] != b"{":
        raise WrongFormat(f"{_UNKNOWN}: neither an array nor an object")
    line, _, rest = head.partition(b"\n")
    try:
        first, is_line = parsed(line), True
    except (ValueError, RecursionError):
        if (first := _skeleton(head)) is None:
            return "lines", ()  # of which the first is malformed
        is_line = False
    if is_line and rest.strip():
        return "lines", ()
    form = _form_of(first, url)
    return "objects" if form == "lines" and not is_line else form, list(first)


def _form_of(document: Mapping[str, Any], url: str) -> Form:
    keys = document.keys()
    if keys - {"index"} == {"columns", "data"} and _are(list, document.values()):
        return "split"
    if keys == {"schema", "data"} and isinstance(document["schema"], dict) and isinstance(document["data"], list):
        return "table"
    values = document.get(url, _ABSENT)
    if isinstance(values, dict):
        return "columns"
    if isinstance(values, list):
        return "lists"
    if values is _ABSENT and document:
        if _are(dict, document.values()):
            has_rows = any(url in row for row in document.values()) or all(key.isdecimal() for key in document)
            return "index" if has_rows else "columns"
        if _are(list, document.values()):
            return "lists"
        if any(isinstance(value, (list, dict)) for value in document.values()):
            raise WrongFormat(f"{_UNKNOWN}; or its object lacks the column {url!r} (--url_col)")
    return "lines"


def _are(kind: type, values: Any) -> bool:
    return all(isinstance(value, kind) for value in values)


def _events(head: bytes) -> list[tuple[str, Any]] | None:
    """The parser's events for the beginning of a document; None if it is malformed."""
    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events, multiple_values=True)
    try:
        parser.send(head)
    except ijson.JSONError:
        return None
    return events  # type: ignore[no-any-return]


def _skeleton(head: bytes) -> dict[str, Any] | None:
    """The beginning of an object: its keys, the keys of its objects, and empty arrays for its arrays."""
    events = _events(head.rstrip())  # `blocks` adds a newline where the document breaks off
    if events is None:
        return None
    found: dict[str, Any] = {}
    depth, outer, inner = 0, "", ""
    for event, value in events:
        if event == "map_key":
            outer, inner = (value, inner) if depth == 1 else (outer, value)
            if depth == 2 and isinstance(found.get(outer), dict):
                found[outer][inner] = None
        elif event in ("start_map", "start_array"):
            if depth == 1:
                found[outer] = {} if event == "start_map" else []
            depth += 1
        elif event in ("end_map", "end_array"):
            depth -= 1
            if not depth:
                break
        elif depth == 1:
            found[outer] = value
    return found


# --- forms with an object for each row ---


def _objects(pieces: Iterator[bytes], form: Form) -> Iterator[Group]:
    """Raises ReadError where the document is malformed."""
    used, names = 0, list[str]()
    found: Any = ijson.sendable_list()
    header: Any = ijson.sendable_list()
    parsers = {
        "array": lambda: [ijson.items_coro(found, "item", use_float=True)],
        "objects": lambda: [ijson.items_coro(found, "", use_float=True, multiple_values=True)],
        "index": lambda: [ijson.kvitems_coro(found, "", use_float=True)],
        "table": lambda: [ijson.items_coro(found, "data.item", use_float=True)],
        "split": lambda: [
            ijson.items_coro(header, "columns.item", use_float=True),
            ijson.items_coro(found, "data.item", use_float=True),
        ],
    }[form]()
    for failure in _fed(pieces, parsers):
        items = [value for _, value in found] if form == "index" else list(found)
        names += map(str, header)
        del found[:], header[:]
        if form == "split":
            if items and not names:
                raise WrongFormat("its columns are named behind its data, where pandas names them first")
            items = [_named(names, item) for item in items]
        numbers = range(used + 1, used + len(items) + 1)
        yield [_object(item, number) for item, number in zip(items, numbers, strict=True)], numbers
        used += len(items)
        if failure is not None:
            is_malformed = isinstance(failure.__cause__, ijson.JSONError)
            where = f"item {used + 1}" if is_malformed else failure.where
            raise ReadError(where, failure.reason) from failure.__cause__


def _named(names: Sequence[str], item: Any) -> Any:
    is_row = isinstance(item, list) and len(item) == len(names)
    return dict(zip(names, item, strict=True)) if is_row else item


def _object(item: Any, number: int) -> Mapping[str, Any] | BadRow:
    if isinstance(item, dict):
        return item
    return BadRow(f"item {number}", f"not a JSON object: {excerpt(repr(item), 50)}")


def _fed(pieces: Iterator[bytes], parsers: Sequence[Any]) -> Iterator[ReadError | None]:
    """Feeds the document to the parsers. Yields None after each piece, and at the end the error, if any."""
    failure: ReadError | None = None
    piece: bytes | None = b""
    while piece is not None and failure is None:
        try:
            piece = next(pieces, None)
        except ReadError as error:
            yield error
            return
        for parser in parsers:  # each keeps what it has found before an error
            try:
                if piece is None:
                    parser.close()
                else:
                    parser.send(piece)
            except ijson.JSONError as error:
                failure = ReadError("", f"not JSON ({one_line(error)})")
                failure.__cause__ = error
        yield failure


# --- forms with a column after the other ---


class _Columns:
    """Reads the columns `names` of an object of columns: objects by index, or arrays."""

    def __init__(self, names: Sequence[str], are_lists: bool) -> None:
        self._names, self._are_lists = names, are_lists

    def read(self, pieces: Iterator[bytes]) -> dict[str, list[pa.Array]]:
        """The values of each column, as JSON. Raises ReadError unless all have the same rows."""
        found: dict[str, list[pa.Array]] = {name: [] for name in self._names}
        waiting: dict[str, Any] = {name: ijson.sendable_list() for name in self._names}
        labels = {name: hashlib.sha256() for name in self._names}
        parser: Callable[[str], Any] = lambda name: (  # noqa: E731
            ijson.items_coro(waiting[name], f"{name}.item", use_float=True)
            if self._are_lists
            else ijson.kvitems_coro(waiting[name], name, use_float=True)
        )
        for failure in _fed(pieces, [parser(name) for name in self._names]):
            if failure is not None:
                raise failure
            for name, items in waiting.items():
                if not items:
                    continue
                if not self._are_lists:
                    labels[name].update("\0".join([label for label, _ in items]).encode() + b"\0")
                values = items if self._are_lists else [value for _, value in items]
                found[name].append(pa.array([_dumped(value) for value in values], pa.large_binary()))
                del items[:]
        full = [name for name in self._names if found[name]]
        if len({(sum(map(len, found[name])), labels[name].digest()) for name in full}) > 1:
            raise ReadError("row 0", f"the columns {', '.join(full)} do not have the same rows")
        return found


def _dumped(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # a number of more than 64 bits
        return orjson.dumps(str(value))


def _rows(found: Mapping[str, Sequence[pa.Array]]) -> Iterator[Group]:
    """The rows of columns that are complete."""
    names = [name for name in found if found[name]]
    values = zip_longest(*(_loaded(found[name]) for name in names))
    objects: list[Mapping[str, Any] | BadRow] = []
    used = 0
    for row in values:
        objects.append(dict(zip(names, row, strict=True)))
        if len(objects) == BATCH_ROWS:
            yield objects, range(used + 1, used + len(objects) + 1)
            objects, used = [], used + len(objects)
    yield objects, range(used + 1, used + len(objects) + 1)


def _loaded(arrays: Sequence[pa.Array]) -> Iterator[Any]:
    for array in arrays:
        yield from map(orjson.loads, array.to_pylist())


PART = Json
