"""What formats of `tf.train.Example` records have in common: samples become records in batches, and come back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import pyarrow as pa

from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample, StoredSample
from any2ds.writers.formats._example import DATA, Encoder, bytes_value, features

_ROWS_AT_ONCE = 256  # encoded in one go
_HELD = 8 << 20  # bytes of files that wait for that
_TEXT = pa.field("txt", pa.string())
_LARGE = 1 << 20  # files from here on do not wait, and need not be in memory as a whole


class ExampleWriter(ABC):
    """A `ShardWriter` but for where its records go: to `_put`, in order.

    What a record says of its row comes from the metadata table, as Arrow has it, and is encoded column by column.
    """

    holds_metadata = False
    has_members = False
    sidecars = ()

    def __init__(self, metadata: MetadataTable, data: str = DATA) -> None:
        """`data` is the feature of the file."""
        self._metadata = metadata
        self._has_texts = metadata.hides and metadata.has_captions  # img2dataset has the caption twice
        schema = metadata.schema_in_sight
        self._encoder = Encoder(schema.append(_TEXT) if self._has_texts else schema, data)
        self._rows: list[int] = []  # of the metadata, in the order of `_files`
        self._files: list[list[bytes]] = []  # in pieces as they came: to join them would be one copy more
        self.held = 0

    @abstractmethod
    def _put(self, head: bytes, size: int, chunks: Iterable[bytes | memoryview]) -> None:
        """Write a record: `head`, and behind it a file of `size` bytes, in pieces."""

    def write(self, sample: Sample) -> None:
        body = sample.body
        if body is None:
            return
        row = len(self._metadata) - 1
        if body.size >= _LARGE:
            self.flush()
            (head,) = self._heads([row], [body.size])
            self._put(head, body.size, body.chunks())
            return
        self._rows.append(row)
        self._files.append([bytes(chunk) for chunk in body.chunks()])  # no copy of what is bytes already
        self.held += body.size + self._metadata.added
        if self.held >= _HELD or len(self._rows) >= _ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            sizes = [sum(map(len, file)) for file in self._files]
            for head, size, file in zip(self._heads(self._rows, sizes), sizes, self._files, strict=True):
                self._put(head, size, file)
        self._rows.clear()
        self._files.clear()
        self.held = 0

    def _heads(self, rows: list[int], sizes: list[int]) -> list[bytes]:
        first, stop = rows[0], rows[-1] + 1
        table = self._metadata.table_in_sight(first, stop)
        if self._has_texts:
            table = table.append_column(_TEXT, table["caption"])
        if stop - first != len(rows):  # some have failed
            table = table.take([row - first for row in rows])
        return self._encoder.heads(table, sizes)


def stored_sample(read: Callable[[int, int], bytes], size: int) -> StoredSample:
    """The sample in a record of `size` bytes; its file is read by `read` when it is asked for. Raises DamagedShard."""
    places: dict[str, tuple[int, int]] = {}
    last = "", 0, 0
    try:
        for last in features(read, size):
            name, start, stop = last
            if name in ("key", "ext", DATA):
                places[name] = bytes_value(read, start, stop)
        key = _text(read, *places["key"])
        if not {"ext", DATA} & places.keys():  # the file is in the last feature, whose name is its extension
            ext, places[DATA] = last[0], bytes_value(read, *last[1:])
        else:
            ext = _text(read, *places["ext"])
        start, stop = places[DATA]
    except ValueError as error:
        raise DamagedShard(f"a record is no tf.train.Example: {error}") from error
    except KeyError as error:
        raise DamagedShard(f"a record without {error.args[0]}") from error
    return StoredSample(key, {ext: StoredBody(stop - start, lambda offset, size: read(start + offset, size))})


def _text(read: Callable[[int, int], bytes], start: int, stop: int) -> str:
    return read(start, stop - start).decode()
