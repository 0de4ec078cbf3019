"""The contract of readers: each is one file in `formats/`, named as its format, with the class as PART.

A reader turns bytes into blocks of values; `readers.rows` makes rows of one schema from the blocks of all formats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol

import pyarrow as pa

from any2ds.core.errors import InputError, MissingColumns
from any2ds.readers.paths import NUMBER


class Field(NamedTuple):
    """A column of the dataset that comes from the list."""

    name: str
    source: str  # its name in the list, or the path of its values
    kind: str = ""  # "url", "caption", "hash", "key" and "name" are text; others have the type of their first values
    type: pa.DataType | None = None  # that is declared


@dataclass(frozen=True, slots=True)
class Wanted:
    """The columns that are read of a list, by their names in it, or as paths to values in nested ones."""

    names: tuple[str, ...]  # that of the URLs first
    required: frozenset[str]  # of these; a list without one of them is refused
    urls: tuple[str, ...] = ()  # all columns of URLs
    needs_types: bool = False  # the first rows decide types, and should be many

    @classmethod
    def only(cls, *names: str) -> Wanted:
        return cls(names, frozenset(names), names[:1])

    @property
    def url(self) -> str:
        return self.names[0]

    def without(self, optional: Iterable[str]) -> Wanted:
        """A copy in which the `optional` columns may be absent, but for that of the URLs."""
        return replace(self, required=self.required.difference(optional) | {self.url})

    def found_in(self, existing: Sequence[str]) -> list[str]:
        """The columns of `names` that exist. Raises MissingColumns, or InputError for a name that is there twice."""
        if missing := [name for name in self.names if name in self.required and name not in existing]:
            raise MissingColumns(missing, [name for name in existing if not name.endswith(NUMBER)])
        found = [name for name in self.names if name in existing]
        if twice := [name for name in found if existing.count(name) > 1]:
            raise InputError(f"the url list has several columns called {twice[0]!r}")
        return found


class Form(NamedTuple):
    """How a list is written, as far as the options say it; None: as its format and its first rows do."""

    separator: str | None = None  # between values; with a blank behind it, values may have blanks in front
    quoting: str = "auto"  # "minimal": values may be quoted; "none": a quote is a character like others
    comment: str | None = None  # what lines begin with that are no rows
    columns: tuple[str, ...] | None = None  # names, for a list without a header
    encoding: str | None = None  # of a text
    rows: str | None = None  # path to the rows in a document of JSON: "data.items"


AS_USUAL = Form()


class Converter(Protocol):
    """Converts values of a format's lists to types."""

    def infer(self, values: Any) -> pa.DataType:
        """The type of a column, from its first values."""
        ...

    def convert(self, values: Any, type: pa.DataType, field: Field) -> tuple[pa.Array, Iterable[int]]:
        """The values in `type`, and the positions of those that do not fit, which are null.

        Raises ReadError for a type that no value can have.
        """
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """Some rows of a list, as its format has them."""

    values: Mapping[str, Any]  # column -> values: an array of Arrow, or a list of Python values
    rows: int
    converter: Converter
    place: Callable[[int], str]  # position of a row in the block -> its place in the list, such as `line 7`
    bad: Mapping[int, str]  # position of a row that cannot be read, and has no values -> why
    of_folders: Collection[str] = ()  # columns whose value, a text, stands in the names of folders


class Reader(Protocol):
    """Reads one url list. With `seekable`, `stream` must be able to seek (a footer at the end).

    Optional: `rows`, the number of rows, and `names`, those of all columns of the list, both known with the first
    block; `notes`, what the user should know of the list, by subject; `row_groups(stream, wanted)`, so that a list is
    shuffled over all row groups, see parquet.
    """

    seekable: ClassVar[bool]

    def __init__(self, form: Form) -> None: ...

    def blocks(self, stream: BinaryIO, wanted: Wanted) -> Iterator[Block]:
        """The rows of `stream` in order, in bounded memory.

        `stream` is decompressed; its `read` may be short. A format without named columns (txt) has one, called
        `wanted.url`. A malformed row is a bad one, if the next row can be found.

        Raises MissingColumns if a column is absent, WrongFormat if the input is in another format, and ReadError where
        the list breaks off or `stream.read` raises it, after yielding the rows before.
        """
        ...
