"""The contract of readers: each is one file in `formats/`, named as its format, with the class as PART."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar, Protocol

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Columns:
    """The wanted columns of a url list, by their names in it, or as paths to values in nested ones."""

    url: str
    caption: str | None = None
    others: tuple[str, ...] = ()
    expected_hashes: tuple[str, ...] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict)  # declared for some of the others
    urls: tuple[str, ...] = ()  # the columns of all URLs, where a row has several

    @property
    def names(self) -> tuple[str, ...]:
        """Each once, the URL column first."""
        return tuple(dict.fromkeys([*self.texts, *self.others]))

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that each file must have: without them, nothing could be fetched, or not be checked."""
        return (self.url, *self.urls, *self.expected_hashes)

    def of_file(self, is_first: bool) -> tuple[str, ...]:
        """The columns that a file must have: the first one all of them."""
        return self.names if is_first else self.required

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that are always text."""
        caption = None if self.caption in self.others else self.caption  # which keeps its type in the metadata
        found = (self.url, *self.urls, caption, *self.expected_hashes)
        return tuple(dict.fromkeys(name for name in found if name is not None))


@dataclass(frozen=True, slots=True)
class Form:
    """How a list is written, as far as the options say it; None: as its format and its first rows do."""

    separator: str | None = None  # between values; with a blank behind it, values may have blanks in front
    quoting: str = "auto"  # "minimal": values may be quoted; "none": a quote is a character like others
    comment: str | None = None  # what lines begin with that are no rows
    columns: tuple[str, ...] | None = None  # names, for a list without a header
    encoding: str | None = None  # of a text
    rows: str | None = None  # path to the rows in a document of JSON: "data.items"


AS_USUAL = Form()


class Reader(Protocol):
    """Reads one url list. With `seekable`, `stream` must be able to seek (a footer at the end).

    Optional: `rows`, the number of rows, and `names`, those of all columns of the list, both known with the first
    batch; `altered`, column -> why values became null; `replaced`, the first row with bytes that are not UTF-8;
    `undecoded`, a list with the name of the encoding where bytes are none of it;
    `row_groups(stream, columns, schema)`, so that a list is shuffled over all row groups, see parquet.
    """

    seekable: ClassVar[bool]

    def __init__(self, form: Form) -> None: ...

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """The rows of `stream` in order, in batches of `columns.names`, in bounded memory.

        `stream` is decompressed; its `read` may be short. A format without named columns (txt) has one, called
        `columns.url`. `schema` has the types of an earlier file of the same list: a format without types yields these,
        else `columns.types`; a format with types keeps its own, and the caller casts. With a schema, columns may be
        absent but for `columns.required`.

        A malformed row, or one with a value that does not fit the type of its column, becomes a bad row
        (`readers.bad_rows`), if the next row can be found: batches then have that column as well.

        Raises MissingColumns if a column is absent, WrongFormat if the input is in another format, and ReadError where
        the list breaks off or `stream.read` raises it, after yielding the rows before.
        """
        ...
