"""Lists in one JSON document: an array of objects, here or below a path; columns, as pandas writes them; or lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import BinaryIO

import pyarrow as pa

from any2ds.core.errors import ReadError, WrongFormat
from any2ds.readers.arrow import BATCH_ROWS
from any2ds.readers.bad_rows import one_line
from any2ds.readers.contract import AS_USUAL, Block, Form, Wanted
from any2ds.readers.formats._document import Document, Ended, Malformed
from any2ds.readers.formats._objects import TOO_LONG, Group, Item, item_of, object_blocks, parsed
from any2ds.readers.formats._text import BLOCK, TextReader
from any2ds.readers.formats.jsonl import line_groups

_KNOWN = "an array of objects, one object a line, or an object of columns as pandas writes it"


class Json(TextReader):
    """All forms are streamed, so that the list can be larger than memory; but for an object of columns, whose wanted
    ones are held as JSON: the last one ends where the file does."""

    def __init__(self, form: Form = AS_USUAL) -> None:
        super().__init__(form)
        self.names: list[str] = []  # keys of the first objects, or of the columns

    def blocks(self, stream: BinaryIO, wanted: Wanted) -> Iterator[Block]:
        pieces = self._pieces(stream)
        head = next((piece for piece in pieces if piece.strip()), b"").lstrip()
        if not head:
            return
        document = Document(chain([head], pieces))
        if self._form.rows is not None:
            find(document, self._form.rows)
            groups, place = _groups(_items(_elements(document))), "item"
        elif head.startswith(b"["):
            if head[1:].lstrip()[:1] not in (b"{", b"]", b""):
                raise WrongFormat(f"this array begins with something else than an object: a list is {_KNOWN}")
            groups, place = _groups(_items(_to_the_end(document, _elements(document)))), "item"
        elif not head.startswith(b"{"):
            raise WrongFormat(f"neither an array nor an object: a list is {_KNOWN}")
        else:
            groups, place = self._of_objects(head, pieces, document, wanted)
        yield from object_blocks(groups, wanted, place, self.names)

    def _of_objects(
        self, head: bytes, pieces: Iterator[bytes], document: Document, wanted: Wanted
    ) -> tuple[Iterator[Group], str]:
        """The rows of a document that begins with an object, columns or the first row, and the word for their place."""
        outline, is_cut = _outline(head)
        lacks_urls = wanted.url not in outline and not {"[", "{"}.isdisjoint(outline.values())
        has_long_columns = lacks_urls and is_cut  # before that of the URLs
        if has_long_columns or outline.get(wanted.url, "") in ("[", "{"):
            return _groups(_rows(self._columns(document, wanted))), "row"
        if lacks_urls and "\n" not in outline:
            raise _no_rows_here(outline, wanted.url)
        if _is_object(head.partition(b"\n")[0]):
            return line_groups(chain([head], pieces)), "line"
        return _groups(_items(_objects(document))), "item"

    def _columns(self, document: Document, wanted: Wanted) -> dict[str, list[pa.Array]]:
        columns: dict[str, list[pa.Array]] = {}
        labels: dict[str, list[str]] = {}
        outline: dict[str, str] = {}
        for name in document.members():
            outline[name] = document.peek().decode(errors="replace")
            if name not in wanted.names:
                document.value(is_wanted=False)
                continue
            labels[name] = []
            columns[name] = _column(document, labels[name])
        if wanted.url not in columns:
            raise _no_rows_here(outline, wanted.url)
        self.names += outline
        wanted.found_in(self.names)
        sizes = {name: sum(map(len, arrays)) for name, arrays in columns.items()}
        if len({*sizes.values()}) > 1 or any(own != labels[wanted.url] for own in labels.values()):
            raise ReadError("row 0", f"the columns {', '.join(columns)} do not have the same rows")
        return columns


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

    def group() -> Group:
        return Group(items, range(used + 1, used + len(items) + 1), size)

    try:
        for item, length in rows:
            items.append(item)
            size += length
            if len(items) == BATCH_ROWS or size >= BLOCK:
                yield group()
                used, size, items = used + len(items), 0, []
    except ReadError as error:
        yield group()
        where = f"item {used + len(items) + 1}" if isinstance(error, Malformed) else error.where
        raise ReadError(where, error.reason) from error.__cause__
    yield group()


def _items(texts: Texts) -> Iterator[tuple[Item, int]]:
    too_long = f"an item {TOO_LONG}"
    return ((too_long, 0) if text is None else (item_of(text, False, "item"), len(text)) for text in texts)


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
