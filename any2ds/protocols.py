"""The seams of any2ds. A new part implements one of these in one file and is found by its module's name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar, Protocol

import pyarrow as pa

from any2ds.metadata import MetadataTable
from any2ds.types import Event, Fetched, Row, RunReport, Sample, ShardJob


class Reader(Protocol):
    """Reads one url list. `seekable` says that `stream` must be able to seek (a footer at the end)."""

    seekable: ClassVar[bool]

    def batches(self, stream: BinaryIO, columns: Sequence[str], schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """The rows of `stream` in order, only `columns`, in bounded memory.

        `stream` is already decompressed. The first of `columns` holds the URLs; a format without named columns
        (txt) gives its only column that name. `schema` is the one that an earlier file of the same list had:
        batches come in just these types. Raises `MissingColumns` if a column is absent, and `ReadError` where the
        input is malformed, after having yielded what stands before.
        """
        ...


class Fetcher(Protocol):
    """Fetches rows. One lives as long as its process, across shards."""

    def fetch(self, rows: Iterable[Row]) -> Iterator[Sequence[Fetched]]:
        """Pulls `rows` as it has room and yields outcomes in the order in which they complete.

        Yields at least every 0.1 seconds, an empty batch if nothing is new, so that the caller can look after its
        other work. Every row comes back exactly once; nothing that concerns one row raises. `next(rows)` may wait;
        it runs in a thread of its own.
        """
        ...

    def close(self) -> None:
        """Abort what is in flight and free everything, at once."""
        ...


class ShardWriter(Protocol):
    """Writes the data file of one shard, to a local path. `close` completes it; a writer that is not closed is lost."""

    extension: ClassVar[str | None]  # of the data file; "" for a folder; None where there is no data
    holds_metadata: ClassVar[bool]  # whether the data file contains the metadata table as well

    def __init__(self, path: Path, metadata: MetadataTable) -> None: ...

    def write(self, sample: Sample) -> None:
        """Add a successful sample, in the order of keys, after its metadata. The body is released by the caller."""
        ...

    def close(self) -> None: ...


class Worker(Protocol):
    """What a distributor runs: a stream of jobs in, a stream of events out. It can be pickled."""

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]: ...


class Distributor(Protocol):
    """Runs a worker over jobs, somewhere."""

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        """Every job gives one ShardReport or ShardError, in any order, with Progress in between.

        Pulls jobs as workers have room. Closing the iterator stops all workers within a second.
        """
        ...


class Reporter(Protocol):
    """Tells somebody how the run goes. A reporter that raises is switched off, and the run goes on."""

    def on_start(self, output_folder: str, skipped_shards: int) -> None: ...

    def on_event(self, event: Event, total: RunReport) -> None: ...

    def on_finish(self, total: RunReport) -> None: ...
