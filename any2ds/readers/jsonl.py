"""Lists of one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, ClassVar

import pyarrow as pa

from any2ds.protocols import Columns
from any2ds.readers._objects import lines, to_batches
from any2ds.readers._text import blocks


class Jsonl:
    """Keys may be absent or null in some lines; blank lines are skipped."""

    seekable: ClassVar[bool] = False

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        return to_batches(lines(blocks(stream)), columns, schema, "line")


PART = Jsonl
