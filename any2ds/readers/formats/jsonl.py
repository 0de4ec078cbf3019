"""Lists of one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, ClassVar

import pyarrow as pa

from any2ds.readers.contract import Columns
from any2ds.readers.formats._objects import line_batches
from any2ds.readers.formats._text import BLOCK, blocks


class Jsonl:
    """Keys may be absent or null in some lines; blank lines are skipped."""

    seekable: ClassVar[bool] = False

    def __init__(self) -> None:
        self.names: list[str] = []  # keys of the first objects

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        has_types = schema is not None or not columns.others
        pieces = blocks(stream, held=0 if has_types else BLOCK)  # one object is too few to tell types from
        return line_batches(pieces, columns, schema, self.names)


PART = Jsonl
