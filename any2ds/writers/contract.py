"""The methods of a writer of one output format, and of the shards that it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample


class ShardWriter(Protocol):
    """Writes the data file of one shard, to a local path. `close` completes it; a writer that is not closed is lost.

    A subclass says how it differs from a format that writes each sample at once.
    """

    extension: ClassVar[str | None]  # of the data file; "" for a folder; None where there is no data
    holds_metadata: ClassVar[bool] = False  # whether the data file contains the metadata table as well
    has_members: ClassVar[bool] = False  # whether a caption and metadata lie beside each file, as `.txt` and `.json`
    sidecars: ClassVar[tuple[str, ...]] = ()  # ends of the names of files beside the data, which `close` completes as
    # well: the indexes that `shard` asks its data for
    most_bytes: ClassVar[int | None] = None  # of a file, as far as the format can hold it; None: any number
    most_sample_bytes: ClassVar[int | None] = None  # the same, of all files of a sample together
    held: int = 0  # bytes of bodies that it keeps in memory, until the next `flush` at the latest
    shard: ClassVar[type[Shard] | None] = None  # reads what was written; None where there is no data

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        """`path` is `<folder>/<shard><. and extension>`, and a sidecar `<folder>/<shard><its end>`."""
        ...

    def write(self, sample: Sample) -> None:
        """Add a successful sample, in the order of keys, after its metadata. The body is released by the caller."""
        ...

    def flush(self) -> None:
        """Let go of what is held in memory, because it is short."""

    def close(self) -> None:
        """Complete the data file."""


class ShardData(Protocol):
    """The data file of a finished shard, on this machine or in a store. All methods raise DamagedShard."""

    name: str
    is_local: bool  # whether it lies on this machine
    size: int  # bytes; 0 for a folder
    samples: int | None  # as many as the shard should have; None if unknown
    key_start: str  # with what the keys of its samples begin; "" if unknown

    def read(self, start: int, size: int) -> bytes:
        """Exactly `size` bytes."""
        ...

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[bytes, int]]:
        """For each pair of start and size a buffer, and where in it the range begins: neighbours share a buffer."""
        ...

    def index(self, end: str, make: Callable[[Path], bytes]) -> bytes:
        """The content of the sidecar with this end of its name, or what `make` returns for the data file."""
        ...

    def local(self) -> Path:
        """The data file on this machine, maybe a copy for as long as this object lives."""
        ...


@dataclass(frozen=True, slots=True)
class Fields:
    """Parts of a sample that is read by number."""

    columns: tuple[str, ...] | None = None  # `data` and columns of the metadata; None: all
    schema: pa.Schema | None = None  # of the metadata; None if there are none
    data_column: str | None = None  # what the dataset calls the column of its files; None: as their extension
    members: tuple[str, ...] = ()  # columns of the files of a sample that has several, see `core.members`
    further: tuple[pa.Field, ...] = ()  # further files that the schema does not have, as far as they are known


ALL_FIELDS = Fields()


class Shard(Protocol):
    """The samples of one finished shard, by number, in the order of the data. It may be used by several threads.

    All methods raise DamagedShard where the file, or its index, is broken, with the key where that is known.
    """

    def __init__(self, data: ShardData, fields: Fields = ALL_FIELDS) -> None: ...

    def __len__(self) -> int: ...

    def keys(self) -> list[str]:
        """The keys of all samples; it may read as much as all of them."""
        ...

    def files(self, number: int) -> tuple[str, Mapping[str, StoredBody]]:
        """The key of a sample, and its files by extension, as they are stored: caption and metadata among them.

        Tar files and folders have their bytes read when they are asked for; records and row groups lie in memory.
        """
        ...

    def row(self, number: int) -> dict[str, Any]:
        """A sample as `fields` say: `key`, `data`, `ext`, the columns of the metadata, and further files."""
        ...

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]: ...
