"""The seams of any2ds. A new part implements one of these in one file and is found by its module's name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Protocol

import pyarrow as pa

from any2ds.metadata import MetadataTable
from any2ds.types import Event, Fetched, RobotsCost, Row, RunReport, Sample, ShardJob


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a url list are wanted, by the names they have in it."""

    url: str
    caption: str | None = None
    others: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Each once; the column of the URLs is the first."""
        return tuple(dict.fromkeys([*self.texts, *self.others]))

    @property
    def texts(self) -> tuple[str, ...]:
        """Those that are text, whatever their values look like."""
        return (self.url,) if self.caption is None else (self.url, self.caption)


class Reader(Protocol):
    """Reads one url list. `seekable` says that `stream` must be able to seek (a footer at the end)."""

    seekable: ClassVar[bool]

    def batches(self, stream: BinaryIO, columns: Columns, schema: pa.Schema | None) -> Iterator[pa.RecordBatch]:
        """The rows of `stream` in order, in batches of exactly `columns.names`, in bounded memory.

        `stream` is already decompressed; its `read` may return less than was asked for. A format without named
        columns (txt) has one, called `columns.url`. `schema` gives the types that an earlier file of the same list
        had: a format without types of its own yields these; what has types keeps them, and the caller casts.

        Raises MissingColumns if a column is absent, and ReadError where the input is malformed, after having yielded
        what stands before; so with a ReadError that `stream.read` raises.
        """
        ...


class Fetcher(Protocol):
    """Fetches rows. One lives as long as its process, across shards, unless the watchdog gives it up."""

    def robots_cost(self) -> RobotsCost:
        """What robots.txt has cost since the last call: `RobotsCost()` for a fetcher that does not ask for it."""
        ...

    @property
    def signs(self) -> int:
        """Grows with every sign of life that is neither an outcome nor a byte of a body: an attempt begins or ends.

        Who pauses on purpose, with rows to fetch, lets it grow in the meantime: the watchdog gives up a fetcher in
        which nothing moves for `fetch.limits.watchdog_limit` seconds.
        """
        ...

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
    held: int  # bytes of bodies that it keeps in memory, until the next `flush` at the latest

    def __init__(self, path: Path, metadata: MetadataTable) -> None: ...

    def write(self, sample: Sample) -> None:
        """Add a successful sample, in the order of keys, after its metadata. The body is released by the caller."""
        ...

    def flush(self) -> None:
        """Let go of what is held in memory, because it is short."""
        ...

    def close(self) -> None: ...


class Worker(Protocol):
    """What a distributor runs: a stream of jobs in, a stream of events out. It can be pickled."""

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]: ...

    @property
    def patience(self) -> float:
        """Seconds without an event after which its process is stuck, jobs or not; 0: it never is."""
        ...

    @property
    def waiting(self) -> bool:
        """Asked from another thread: whether it is held up by a disk, which is no reason to lose patience."""
        ...


class Distributor(Protocol):
    """Runs a worker over jobs, somewhere."""

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        """Every job gives one ShardReport or ShardError, in any order, with Progress in between.

        Pulls jobs as workers have room. Closing the iterator stops all workers within a second.
        """
        ...


class Reporter(Protocol):
    """Tells somebody how the run goes. A reporter that raises is switched off, and the run goes on."""

    def on_start(self, finished_shards: int) -> None: ...

    def on_event(self, event: Event, total: RunReport) -> None: ...

    def on_finish(self, total: RunReport) -> None: ...
