"""Lists in one JSON document: an array of objects, here or below a path; columns, as pandas writes them; or lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import BinaryIO

import pyarrow as pa

from any2ds.core.errors import MissingColumns, ReadError, WrongFormat
from any2ds.readers.bad_rows import excerpt
from any2ds.readers.contract import AS_USUAL, Columns, Form
from any2ds.readers.formats._document import Document, Ended, Malformed
from any2ds.readers.formats._objects import TOO_LONG, Group, Item, object_batches, parsed
from any2ds.readers.formats._text import BATCH_ROWS, BLOCK, TextReader, one_line
from any2ds.readers.formats.jsonl import line_batches

_KNOWN = "an array of objects, one object a line, or an object of columns as pandas writes it"


class Json(TextReader):
    """All forms are streamed, so that the list can be larger than memory; but for an object of columns, whose wanted
    ones are held as JSON: the last one ends where the file does."""

    def __init__(self, form: Form = AS_USUAL) -> None:
        super().__init__(form)
        self.names: list[str] = []  # keys of the first objects, or of the columns

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        pieces = self._pieces(stream)
        head = next((piece for piece in pieces if piece.strip()), b"").lstrip()
        if not head:
            return
        document = Document(chain([head], pieces))
        if self._form.rows is not None:
            find(document, self._form.rows)
            yield from object_batches(_groups(_items(_elements(document))), columns, schema, "item", self.names)
        elif head.startswith(b"["):
            if head[1:].lstrip()[:1] not in (b"{", b"]", b""):
                raise WrongFormat(f"this array begins with something else than an object: a list is {_KNOWN}")
            texts = _to_the_end(document, _elements(document))
            yield from object_batches(_groups(_items(texts)), columns, schema, "item", self.names)
        elif not head.startswith(b"{"):
            raise WrongFormat(f"neither an array nor an object: a list is {_KNOWN}")
        else:
            yield from self._of_objects(head, pieces, document, columns, schema)

    def _of_objects(
        self, head: bytes, pieces: Iterator[bytes], document: Document, columns: Columns, schema: pa.Schema | None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a document that begins with an object: columns, or the first row."""
        outline, is_cut = _outline(head)
        lacks_urls = columns.url not in outline and not {"[", "{"}.isdisjoint(outline.values())
        has_long_columns = lacks_urls and is_cut  # before that of the URLs
        if has_long_columns or outline.get(columns.url, "") in ("[", "{"):
            yield from self._of_columns(document, columns, schema)
        elif lacks_urls and "\n" not in outline:
            raise _no_rows_here(outline, columns.url)
        elif _is_object(head.partition(b"\n")[0]):
            yield from line_batches(chain([head], pieces), columns, schema, self.names)
        else:
            yield from object_batches(_groups(_items(_objects(document))), columns, schema, "item", self.names)

    def _of_columns(self, document: Document, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        found: dict[str, list[pa.Array]] = {}
        labels: dict[str, list[str]] = {}
        outline: dict[str, str] = {}
        for name in document.members():
            self.names.append(name)
            outline[name] = document.peek().decode(errors="replace")
            if name not in columns.names:
                document.value(is_wanted=False)
                continue
            labels[name] = []
            found[name] = _column(document, labels[name])
        if columns.url not in found:
            raise _no_rows_here(outline, columns.url)
        if absent := [name for name in columns.of_file(is_first=schema is None) if name not in found]:
            raise MissingColumns(absent, self.names)
        sizes = {name: sum(map(len, arrays)) for name, arrays in found.items()}
        if len({*sizes.values()}) > 1 or any(own != labels[columns.url] for own in labels.values()):
            raise ReadError("row 0", f"the columns {', '.join(found)} do not have the same rows")
        yield from object_batches(_groups(_rows(found)), columns, schema, "row", self.names)


def find(document: Document, path: str) -> None:
    """Stop before what lies at a path of keys. Raises WrongFormat if there is nothing."""
    for key in path.split("."):
        keys = []
        if document.peek() != b"{":
            raise WrongFormat(f"--rows={path}: there is no object with a key {key!r}")
        for name in document.members():
            if name == key:
                break
            keys.append(name)
            document.value(is_wanted=False)
        else:
            raise WrongFormat(f"--rows={path}: no key {key!r}; keys that exist: {', '.join(map(one_line, keys[:20]))}")


def _outline(head: bytes) -> tuple[dict[str, str], bool]:
    """Key -> the first character of its value, of the object that begins here, with a key `\\n` if more objects follow;
    and whether `head` ends within the object, which may have more keys then."""
    document, found = Document(iter([head])), dict[str, str]()
    try:
        for key in document.members():
            if first := document.peek():
                found[key] = first.decode(errors="replace")
            document.value(is_wanted=False)
        if document.peek():
            found["\n"] = ""
    except Ended:
        return found, True
    except (Malformed, ValueError, RecursionError):
        pass
    return found, False


def _no_rows_here(outline: Mapping[str, str], url: str) -> WrongFormat:
    arrays = [key for key, first in outline.items() if first == "["]
    where = f": --rows={one_line(arrays[0], 50)} reads the rows there" if arrays else f": a list is {_KNOWN}"
    return WrongFormat(f"one object without the column {url!r}, whose keys are {one_line(', '.join(outline))}{where}")


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(parsed(line), dict)
    except (ValueError, RecursionError):
        return not line.rstrip().endswith((b"{", b",", b"["))  # a malformed line, unless an object goes on


# --- rows one after the other ---

Texts = Iterator[bytes | None]
"""Rows as JSON; None for one that is too long."""


def _elements(document: Document) -> Texts:
    """The elements of an array, or the values of an object."""
    for _ in document.members() if document.peek() == b"{" else document.elements():
        yield document.value()


def _objects(document: Document) -> Texts:
    while document.peek():
        yield document.value()


def _to_the_end(document: Document, texts: Texts) -> Texts:
    yield from texts
    if document.peek():
        raise Malformed("text behind the end of the document")


def _groups(rows: Iterator[tuple[Item, int]]) -> Iterator[Group]:
    """The items in groups, of `rows` that are an item and the bytes of its text each.

    Raises ReadError where the document is malformed.
    """
    items: list[Item] = []
    used = size = 0
    failure: ReadError | None = None
    is_read = False
    while not is_read:
        try:
            row = next(rows, None)
        except ReadError as error:
            failure, row = error, None
        if row is not None:
            items.append(row[0])
            size += row[1]
        is_read = row is None
        if len(items) == BATCH_ROWS or size >= BLOCK or is_read:
            yield Group(items, range(used + 1, used + len(items) + 1), size)
            used, size, items = used + len(items), 0, []
    if failure is not None:
        where = f"item {used + 1}" if isinstance(failure, Malformed) else failure.where
        raise ReadError(where, failure.reason) from failure.__cause__


def _items(texts: Texts) -> Iterator[tuple[Item, int]]:
    return ((_item(text), len(text or b"")) for text in texts)


def _item(text: bytes | None) -> Item:
    if text is None:
        return f"an item {TOO_LONG}"
    try:
        item = parsed(text)
    except (ValueError, RecursionError) as error:
        return f"not JSON ({one_line(error)}): {excerpt(text)!r}"
    return item if isinstance(item, dict) else f"not a JSON object: {excerpt(text, 50)}"


# --- one column after the other ---


def _column(document: Document, labels: list[str]) -> list[pa.Array]:
    """The values of a column as JSON; an object's keys, which are the labels of rows, are added to `labels`."""
    arrays, values, size = list[pa.Array](), list[bytes | None](), 0
    for label in document.elements() if document.peek() == b"[" else document.members():
        if label is not None:
            labels.append(label)
        values.append(document.value())
        size += len(values[-1] or b"")
        if size >= BLOCK:
            arrays.append(pa.array(values, pa.large_binary()))
            values, size = [], 0
    return [*arrays, pa.array(values, pa.large_binary())]


def _rows(found: Mapping[str, Sequence[pa.Array]]) -> Iterator[tuple[Item, int]]:
    names = list(found)
    columns = [(text for array in found[name] for text in array.to_pylist()) for name in names]
    return ((_row(names, texts), sum(len(text or b"") for text in texts)) for texts in zip(*columns, strict=True))


def _row(names: Sequence[str], texts: Sequence[bytes | None]) -> Item:
    try:
        return {name: parsed(text) for name, text in zip(names, texts, strict=True) if text is not None}
    except (ValueError, RecursionError) as error:
        return f"not JSON ({one_line(error)})"


PART = Json
