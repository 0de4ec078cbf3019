"""Lists that are one JSON array of objects; files of one object a line, which often have the same name, also go."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, BinaryIO, ClassVar

import ijson
import pyarrow as pa

from any2ds.errors import ReadError
from any2ds.protocols import Columns
from any2ds.readers._objects import Group, lines, to_batches
from any2ds.readers._text import blocks, one_line


class Json:
    """The array is streamed, so it can be larger than memory."""

    seekable: ClassVar[bool] = False

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        pieces = blocks(stream)
        head = next(pieces, b"")
        pieces = chain([head], pieces)
        if head.lstrip()[:1] == b"{":
            yield from to_batches(lines(pieces), columns, schema, "line")
            return
        if head.lstrip()[:1] not in (b"[", b""):
            raise ReadError("line 1", "neither an array nor an object")
        yield from to_batches(_items(pieces) if head.strip() else (), columns, schema, "item")


def _items(pieces: Iterator[bytes]) -> Iterator[Group]:
    """The objects of an array. Raises ReadError at the first item that is none."""
    found: Any = ijson.sendable_list()
    parser = ijson.items_coro(found, "item", use_float=True)
    used, piece = 0, None
    failure: ReadError | None = None
    while failure is None:
        try:
            piece = next(pieces, None)
            if piece is not None:
                parser.send(piece)
            else:
                parser.close()
        except ReadError as error:
            failure = error
        except ijson.JSONError as error:
            failure = ReadError(f"item {used + len(found) + 1}", f"not JSON ({one_line(error)})")
            failure.__cause__ = error
        items = list(found)
        del found[:]
        whole = next((i for i, item in enumerate(items) if not isinstance(item, dict)), len(items))
        if whole < len(items):
            failure = ReadError(f"item {used + whole + 1}", f"not a JSON object: {one_line(items[whole], 50)}")
        yield items[:whole], range(used + 1, used + whole + 1)
        used += whole
        if piece is None:
            break
    if failure is not None:
        raise failure


PART = Json
