"""The seams of any2ds. A new part implements one of these in one file and is found by its module's name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Literal, Protocol

import pyarrow as pa

from any2ds.config import OutputOptions, StorageOptions
from any2ds.lockfile import Hold
from any2ds.mediaoptions import MediaOptions
from any2ds.metadata import MetadataTable
from any2ds.storage import OutputFolder
from any2ds.stored import StoredSample
from any2ds.types import Event, Fetched, RobotsCost, Row, RunReport, Sample, ShardError, ShardJob, ShardReport
from any2ds.vitals import Snapshot, Traffic

if TYPE_CHECKING:
    from any2ds.thumbnails import Thumbnail


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


class Fetcher(Protocol):
    """Fetches rows. One lives as long as its process, across shards, unless the watchdog gives it up."""

    def robots_cost(self) -> RobotsCost:
        """What robots.txt has cost since the last call: `RobotsCost()` for a fetcher that does not ask for it."""
        ...

    def traffic(self) -> Traffic:
        """How it goes, for people who watch; asked about twice a second, in the thread that iterates over `fetch`.

        `waits` are seconds in which that thread slept, by what kept it from starting more; none are also fine.
        """
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


class Transform(Protocol):
    """A step that changes files. Called from several threads at once, with samples whose bodies are in memory.

    Its module can be imported without the libraries that it needs. One that puts further files beside a sample
    (`with_member`) names their extensions in `members`; in record formats each is a column.
    """

    extra: ClassVar[str]  # that brings them
    options: ClassVar[frozenset[str]]  # those that ask for it: without one of them it is no step of the run
    columns: Mapping[str, pa.DataType]  # of the metadata that it may fill

    @classmethod
    def of(cls, media: MediaOptions) -> Transform:
        """Raises ImportError if a library is missing, OptionError."""
        ...

    @classmethod
    def libraries(cls, media: MediaOptions) -> Sequence[str]:
        """Those that decide the bytes and the metadata that it makes, by the names of their packages."""
        ...

    @staticmethod
    def unsupported(sample: Sample) -> str:
        """For a file that it does not take: why, if it is one of its media, for the report; else ""."""
        ...

    @staticmethod
    def takes(sample: Sample) -> bool:
        """Whether the file is one of its kind, by `mime_type`, `ext` and the first bytes."""
        ...

    def memory(self, sample: Sample) -> int:
        """Bytes that it is going to take for this file, about, besides the file. Raises NotDecodable."""
        ...

    def __call__(self, sample: Sample) -> Sample | Sequence[Sample]:
        """What becomes of it: the same sample if it stays as it is, `with_data`, `failed`, `filtered`, or several.

        Raises NotDecodable for a broken file. Whatever else it raises is the row's `transform_error`.
        """
        ...


class BatchTransform(Protocol):
    """A step that takes several samples at once. Called from one thread at a time."""

    columns: Mapping[str, pa.DataType]
    batch_size: int

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Sample | Sequence[Sample]]:
        """What becomes of each, in the same order."""
        ...


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


class Worker(Protocol):
    """What a distributor runs: a stream of jobs in, a stream of events out. It can be pickled."""

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        """Works on the jobs that it has while `next(jobs)` waits for another. One with an `attempt` may be finished
        already: by a worker that died before anybody had its report."""
        ...

    def stop(self) -> None:
        """Asked from another thread, or before it has begun: begin no job more, give up without a word what cannot
        be finished soon, and end when the rest is done."""
        ...

    @property
    def patience(self) -> float:
        """Seconds without an event after which its process is stuck, jobs or not; 0: it never is."""
        ...

    @property
    def waiting(self) -> bool:
        """Asked from another thread: whether it is held up by a disk, which is no reason to lose patience."""
        ...

    @property
    def folder(self) -> OutputFolder:
        """Where it publishes: a place that all workers of a run see, and the run as well. Another object each time."""
        ...

    def under(self, holds: tuple[Hold, ...]) -> Worker:
        """The same, but publishing nothing once one of `holds` is lost."""
        ...


class Distributor(Protocol):
    """Runs a worker over jobs, somewhere. Made from RunOptions.

    If it has a method `close()` that is called when the run is over, in whatever way, and its folder is free again. A
    static method `check(options)` of its class is called where it is there, before anything is made, and raises
    UsageError if it cannot do what the options ask for.
    """

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        """Every job gives one ShardReport or ShardError, in any order, with Progress in between.

        Pulls jobs as workers have room. A job whose worker died is given to another, with a higher `attempt`, as often
        as `max_shard_retry` allows; what Progress has told of the rows of its open shards is taken back then, by a
        Progress with fewer than none. Closing the iterator stops all workers within a second. It may be called again
        when the iterator before has ended.
        """
        ...

    def stop(self, grace: float) -> None:
        """Pull and give out no more jobs, `Worker.stop` the workers, and break them off after `grace` seconds.

        Asked from a signal handler or another thread, at any time; it only leaves word. The iterator soon yields a
        Progress, and ends when all workers have; jobs without a report are nobody's business then. A `map` that begins
        afterwards is empty. Asked again, the shorter time counts.
        """
        ...


def _none(count: int) -> Sequence[Thumbnail]:
    return ()


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What reporters may know of a run before it begins."""

    command: Literal["download", "retry", "finish"]
    output: OutputFolder
    options: Mapping[str, Any]  # as given and by default, without secrets
    storage: StorageOptions
    identity: str  # of the dataset: the same for every run that goes on with it
    made: OutputOptions | None = None  # how the dataset is made
    finished: Collection[int] = ()  # the shards that are there before it begins
    from_shell: bool = False  # whether the person has typed a command, rather than called a function
    member: str = ""  # which of several runs that make the dataset together it is, as `rank-3-of-8`
    missing: Callable[[], Collection[int]] = tuple  # shards that others are to make, when all of its own are through
    # Up to so many samples of the finished shards, as people may look at them. It reads files, takes
    # its time, and gives fewer rather than raising.
    samples: Callable[[int], Sequence[Thumbnail]] = _none


class Reporter(Protocol):
    """Tells somebody how the run goes. A reporter that raises is switched off, and the run goes on.

    Its class, the `PART` of its module, is called with WatchOptions and RunInfo. It is told one thing at a time, though
    in different threads; all but the one for the terminal have a thread of their own, where they may take their time.

    Two further methods are asked for where they are there. `check(watch)`, a static one, is called before anything is
    made, and raises UsageError if the reporter cannot do what the options ask for. `give_up()` is called from another
    thread when the run has ended and nobody waits any more: what would outlive the run, such as a process, ends then.
    """

    def on_start(self, finished_shards: int) -> None: ...

    def on_progress(self, now: Snapshot) -> None:
        """About twice a second, whether or not anything has happened, and once more before `on_finish`."""
        ...

    def on_shard(self, event: ShardReport | ShardError) -> None:
        """A shard is finished, or could not be made."""
        ...

    def on_stopping(self, open_shards: int, grace: float) -> None:
        """The run was asked to stop; so many shards are open, and some may be finished within `grace` seconds."""
        ...

    def on_finish(self, total: RunReport) -> None: ...
