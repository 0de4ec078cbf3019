"""What a writer of one output format implements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from any2ds.config.options import OutputOptions
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample, StoredSample


class ShardWriter(Protocol):
    """Writes the data file of one shard, to a local path. `close` completes it; a writer that is not closed is lost."""

    extension: ClassVar[str | None]  # of the data file; "" for a folder; None where there is no data
    holds_metadata: ClassVar[bool]  # whether the data file contains the metadata table as well
    has_members: ClassVar[bool]  # whether caption and metadata of a sample lie beside its file, as `.txt` and `.json`
    sidecars: ClassVar[tuple[str, ...]]  # ends of the names of files beside the data, which `close` completes as well
    held: int  # bytes of bodies that it keeps in memory, until the next `flush` at the latest

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        """`path` is `<folder>/<shard><. and extension>`, and a sidecar `<folder>/<shard><its end>`."""
        ...

    def write(self, sample: Sample) -> None:
        """Add a successful sample, in the order of keys, after its metadata. The body is released by the caller."""
        ...

    def flush(self) -> None:
        """Let go of what is held in memory, because it is short."""
        ...

    def close(self) -> None: ...

    @staticmethod
    def read(path: Path) -> Iterator[StoredSample]:
        """The samples of a shard that was written, in the order of the file; to be closed by whoever stops early.

        Raises DamagedShard where the file is broken, also where it merely lacks its end, if its format has one.
        """
        ...


class WithSidecars(ShardWriter, Protocol):
    """A writer that has `sidecars`."""

    @staticmethod
    def make_sidecars(path: Path) -> Mapping[str, bytes]:
        """What they hold for a data file that is there, by the end of their name.

        Raises OSError, or anything else where the file is broken.
        """
        ...
