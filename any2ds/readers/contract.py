"""What a reader of one format implements, and which columns it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar, Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a url list are wanted, by the names they have in it."""

    url: str
    caption: str | None = None
    others: tuple[str, ...] = ()
    expected_hash: str | None = None
    types: Mapping[str, pa.DataType] = field(default_factory=dict)  # that are declared for some of the others

    @property
    def names(self) -> tuple[str, ...]:
        """Each once; the column of the URLs is the first."""
        return tuple(dict.fromkeys([*self.texts, *self.others]))

    @property
    def texts(self) -> tuple[str, ...]:
        """Those that are text, whatever their values look like."""
        return tuple(name for name in (self.url, self.caption, self.expected_hash) if name is not None)


class Reader(Protocol):
    """Reads one url list. `seekable` says that `stream` must be able to seek (a footer at the end).

    If it knows how many rows there are, it says so as `rows` with the first of them. A reader of files with row groups
    may have `row_groups(stream, columns)`, as parquet has, so that a list is shuffled over all of them.
    """

    seekable: ClassVar[bool]

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """The rows of `stream` in order, in batches of exactly `columns.names`, in bounded memory.

        `stream` is already decompressed; its `read` may return less than was asked for. A format without named
        columns (txt) has one, called `columns.url`. `schema` gives the types that an earlier file of the same list
        had: a format without types of its own yields these, else those of `columns.types`; what has types keeps them,
        and the caller casts.

        A malformed row, or one with a value that does not have the type of its column, is a row of nulls with a reason
        (`badrows`) where the next row can be found.

        Raises MissingColumns if a column is absent, WrongFormat if the input is in another format, and ReadError where
        it breaks off, after having yielded what stands before; so with a ReadError that `stream.read` raises.
        """
        ...
