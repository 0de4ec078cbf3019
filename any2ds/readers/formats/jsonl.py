"""Lists of one JSON object a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from any2ds.core.errors import WrongFormat
from any2ds.readers.contract import AS_USUAL, Block, Form, Wanted
from any2ds.readers.formats._objects import LONGEST_LINE, Group, Item, item_of, object_blocks
from any2ds.readers.formats._text import BLOCK, TextReader, whole_lines

_ARRAY = re.compile(rb"\s*\[\s*(\{|$)")


class Jsonl(TextReader):
    """A line that is no object is a bad row. Keys may be absent or null in some lines; blank lines are skipped."""

    def __init__(self, form: Form = AS_USUAL) -> None:
        super().__init__(form)
        self.names: list[str] = []  # keys of the first objects

    def blocks(self, stream: BinaryIO, wanted: Wanted) -> Iterator[Block]:
        held = BLOCK if wanted.needs_types else 0  # one object is too few to tell types from
        return object_blocks(line_groups(self._pieces(stream, held)), wanted, "line", self.names)


def line_groups(pieces: Iterator[bytes]) -> Iterator[Group]:
    """The rows of JSON lines."""
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
            items.append(item_of(line, len(line) > LONGEST_LINE, "line"))
            numbers.append(number)
        yield Group(items, numbers, len(block))


PART = Jsonl
