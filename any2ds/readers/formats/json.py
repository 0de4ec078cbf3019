"""Lists in one JSON document: an array of objects, or what pandas writes; and files of one object a line."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, zip_longest
from typing import Any, BinaryIO, ClassVar, Literal

import pyarrow as pa

from any2ds.core.errors import MissingColumns, ReadError, WrongFormat
from any2ds.readers.bad_rows import BadRow, excerpt
from any2ds.readers.contract import Columns
from any2ds.readers.formats._document import Document, Ended, Malformed
from any2ds.readers.formats._objects import TOO_LONG, Group, line_batches, noting_keys, parsed, to_batches
from any2ds.readers.formats._text import BATCH_ROWS, BLOCK, blocks, one_line

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
    columns are in memory as JSON, because the last one ends where the file does."""

    seekable: ClassVar[bool] = False

    def __init__(self) -> None:
        self.names: list[str] = []  # keys of the first objects, or of the columns at the beginning

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        pieces = blocks(stream)
        head = next((piece for piece in pieces if piece.strip()), b"")
        if not head:
            return
        form, keys = _form(head.lstrip(), columns.url)
        pieces = chain([head], pieces)
        if form == "lines":
            yield from line_batches(pieces, columns, schema, self.names)
        elif form in ("columns", "lists"):
            found = _columns(Document(pieces), columns.names, form == "lists")
            self.names = names = list(dict.fromkeys([*keys, *(name for name in columns.names if found[name])]))
            required = columns.names if schema is None else [columns.url]
            if absent := [name for name in required if name not in names]:
                raise MissingColumns(absent, names)
            yield from to_batches(_rows(found), columns, schema, "row")
        else:
            yield from to_batches(noting_keys(_objects(Document(pieces), form), self.names), columns, schema, "item")


# --- which form it is ---


def _form(head: bytes, url: str) -> tuple[Form, Sequence[str]]:
    """The form of a list that begins with `head`, and the keys of the first object in `head`. Raises WrongFormat."""
    if head[:1] == b"[":
        if head[1:].lstrip()[:1] not in (b"{", b"]", b""):
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


def _skeleton(head: bytes) -> dict[str, Any] | None:
    """The beginning of an object: its keys, the keys of its objects, and empty arrays for its arrays; None if it is
    malformed."""
    document = Document(iter([head]))
    found: dict[str, Any] = {}
    try:
        for key in document.members():
            first = document.peek()
            found[key] = {} if first == b"{" else [] if first == b"[" else None
            if first == b"{":
                for inner in document.members():
                    found[key][inner] = None
                    document.value(is_wanted=False)
            else:
                text = document.value(is_wanted=first != b"[")
                found[key] = found[key] if text is None else parsed(text)
    except Ended:
        pass
    except (Malformed, ValueError, RecursionError):
        return None
    return found


# --- forms with an object for each row ---


def _objects(document: Document, form: Form) -> Iterator[Group]:
    """Raises ReadError where the document is malformed."""
    items: list[Mapping[str, Any] | BadRow] = []
    used = size = 0
    texts = _split(document) if form == "split" else _texts(document, form)
    failure: ReadError | None = None
    while failure is None:
        try:
            names, text = next(texts, ((), _ABSENT))
        except ReadError as error:
            failure = error
        else:
            if text is _ABSENT:
                break
            items.append(_object(text, names, used + len(items) + 1))
            size += len(text or b"")
        if size >= BLOCK or failure is not None:
            yield Group(items, range(used + 1, used + len(items) + 1), size)
            used, size, items = used + len(items), 0, []
    if failure is not None:
        where = f"item {used + 1}" if isinstance(failure, Malformed) else failure.where
        raise ReadError(where, failure.reason) from failure.__cause__
    yield Group(items, range(used + 1, used + len(items) + 1), size)


Texts = Iterator[tuple[Sequence[str], bytes | None]]
"""The names of the columns, if rows are arrays; and a row as JSON, None if it is too long."""


def _texts(document: Document, form: Form) -> Texts:
    if form == "array":
        for _ in document.elements():
            yield (), document.value()
    elif form == "index":
        for _ in document.members():
            yield (), document.value()
    elif form == "table":
        for key in document.members():
            if key != "data":
                document.value(is_wanted=False)
                continue
            for _ in document.elements():
                yield (), document.value()
    else:
        while document.peek():
            yield (), document.value()
        return
    if document.peek():
        raise Malformed("text behind the end of the document")


def _split(document: Document) -> Texts:
    names: list[str] | None = None
    for key in document.members():
        if key == "columns":
            with suppress(ValueError):
                names = list(map(str, parsed(document.value() or b"")))
        elif key == "data":
            for _ in document.elements():
                if names is None:
                    raise WrongFormat("its columns are named behind its data, where pandas names them first")
                yield names, document.value()
        else:
            document.value(is_wanted=False)
    if document.peek():
        raise Malformed("text behind the end of the document")


def _object(text: bytes | None, names: Sequence[str], number: int) -> Mapping[str, Any] | BadRow:
    """A row of a document; with `names`, one that is an array of their values."""
    where = f"item {number}"
    if text is None:
        return BadRow(where, f"an item {TOO_LONG}")
    try:
        item = parsed(text)
    except (ValueError, RecursionError) as error:
        return BadRow(where, f"not JSON ({one_line(error)}): {excerpt(text)!r}")
    if names and isinstance(item, list) and len(item) == len(names):
        item = dict(zip(names, item, strict=True))
    return item if isinstance(item, dict) else BadRow(where, f"not a JSON object: {excerpt(text, 50)}")


# --- forms with a column after the other ---


def _columns(document: Document, names: Sequence[str], are_lists: bool) -> dict[str, list[pa.Array]]:
    """The values of the columns `names` of an object of columns, which are arrays or objects by index; as JSON.

    Raises ReadError unless all have the same rows.
    """
    found: dict[str, list[pa.Array]] = {name: [] for name in names}
    labels = {name: hashlib.sha256() for name in names}
    for name in document.members():
        if name not in found:
            document.value(is_wanted=False)
            continue
        values: list[bytes | None] = []
        size = 0
        for label in document.elements() if are_lists else document.members():
            if label is not None:
                labels[name].update(label.encode(errors="replace") + b"\0")
            values.append(document.value())
            size += len(values[-1] or b"")
            if size >= BLOCK:
                found[name].append(pa.array(values, pa.large_binary()))
                values, size = [], 0
        if values:
            found[name].append(pa.array(values, pa.large_binary()))
    full = [name for name in names if found[name]]
    if len({(sum(map(len, found[name])), labels[name].digest()) for name in full}) > 1:
        raise ReadError("row 0", f"the columns {', '.join(full)} do not have the same rows")
    return found


def _rows(found: Mapping[str, Sequence[pa.Array]]) -> Iterator[Group]:
    """The rows of columns that are complete."""
    names = [name for name in found if found[name]]
    texts = zip_longest(*(_texts_of(found[name]) for name in names))
    objects: list[Mapping[str, Any] | BadRow] = []
    used = size = 0
    for row in texts:
        objects.append(_row(names, row, used + len(objects) + 1))
        size += sum(len(text or b"") for text in row)
        if len(objects) == BATCH_ROWS or size >= BLOCK:
            yield Group(objects, range(used + 1, used + len(objects) + 1), size)
            objects, used, size = [], used + len(objects), 0
    yield Group(objects, range(used + 1, used + len(objects) + 1), size)


def _row(names: Sequence[str], texts: Sequence[bytes | None], number: int) -> Mapping[str, Any] | BadRow:
    for name, text in zip(names, texts, strict=True):
        if text is None:
            return BadRow(f"row {number}", f"column {name!r}: a value {TOO_LONG}")
    try:
        return {name: parsed(text or b"") for name, text in zip(names, texts, strict=True)}
    except (ValueError, RecursionError) as error:
        return BadRow(f"row {number}", f"not JSON ({one_line(error)})")


def _texts_of(arrays: Sequence[pa.Array]) -> Iterator[bytes | None]:
    for array in arrays:
        yield from array.to_pylist()


PART = Json
