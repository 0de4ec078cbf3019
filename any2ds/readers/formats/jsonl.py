"""Lists of one JSON object a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import pyarrow as pa

from any2ds.core.errors import WrongFormat
from any2ds.readers.bad_rows import excerpt
from any2ds.readers.contract import AS_USUAL, Columns, Form
from any2ds.readers.formats._objects import LONGEST_LINE, TOO_LONG, Group, Item, object_batches, parsed
from any2ds.readers.formats._text import BLOCK, TextReader, one_line, whole_lines

_ARRAY = re.compile(rb"\s*\[\s*(\{|$)")


class Jsonl(TextReader):
    """A line that is no object is a bad row. Keys may be absent or null in some lines; blank lines are skipped."""

    def __init__(self, form: Form = AS_USUAL) -> None:
        super().__init__(form)
        self.names: list[str] = []  # keys of the first objects

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        has_types = schema is not None or not columns.others
        held = 0 if has_types else BLOCK  # one object is too few to tell types from
        return line_batches(self._pieces(stream, held=held), columns, schema, self.names)


def line_batches(
    pieces: Iterator[bytes], columns: Columns, schema: pa.Schema | None, keys: list[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of JSON lines; the first keys are added to `keys`."""
    return object_batches(_groups(pieces), columns, schema, "line", keys)


def _groups(pieces: Iterator[bytes]) -> Iterator[Group]:
    number = 0
    for block in whole_lines(pieces, LONGEST_LINE):
        items: list[Item] = []
        numbers = []
        for line in block.removesuffix(b"\n").split(b"\n"):
            number += 1
            if not line.strip():
                continue
            if number == 1 and _ARRAY.match(line):
                raise WrongFormat("this is an array in one document, not one object a line", "json")
            items.append(_item(line))
            numbers.append(number)
        yield Group(items, numbers, len(block))


def _item(line: bytes) -> Item:
    try:
        value = parsed(line)
    except (ValueError, RecursionError) as error:
        why = f"not JSON ({one_line(error)})" if len(line) <= LONGEST_LINE else f"a line {TOO_LONG}"
        return f"{why}: {excerpt(line)!r}"
    return value if isinstance(value, dict) else f"not a JSON object: {excerpt(line, 50)}"


PART = Jsonl
