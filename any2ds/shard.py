"""One shard while it is being made: puts outcomes back in order, writes them, and publishes the result."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.buffer import Body, Buffer
from any2ds.dedupe import Copies, repeated
from any2ds.layout import Layout
from any2ds.metadata import DUPLICATE_OF, MetadataTable
from any2ds.protocols import ShardWriter
from any2ds.storage import OutputFolder, remove
from any2ds.types import DUPLICATE, SUCCESS, RobotsCost, Row, Sample, ShardJob, ShardReport

WORTH_A_FLUSH = 1 << 20  # bytes held by a writer; less would make tiny row groups
_TURN = 64 << 20  # bytes written in one go of what was waiting; sockets wait meanwhile
_ROWS_AT_ONCE = 1000  # rows turned into Python objects in one go


def _to_python(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as Python values, and as text in columns that Python has none for (the year 10000, nanoseconds)."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError, ArithmeticError, pa.ArrowException):
        columns = [_values(batch.column(name)) for name in batch.schema.names]
        return [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError, ArithmeticError, pa.ArrowException):
        return [_text(value) for value in column]


def _text(value: pa.Scalar) -> str | None:
    if not value.is_valid:
        return None
    try:
        return str(value.cast(pa.string()).as_py())
    except pa.ArrowException:
        return None


class OpenShard:
    """Takes the outcomes of the rows of `job` in any order; complete when there is one for each row.

    Not all rows are fetched: duplicates have their outcome already, and with `fetch_once` rows with the URL of an
    earlier one get the outcome of that.
    """

    def __init__(
        self,
        job: ShardJob,
        layout: Layout,
        hashes: tuple[str, ...],
        writer: type[ShardWriter],
        folder: Path,
        buffer: Buffer,
        fetch_once: bool,
    ) -> None:
        self.job = job
        self._layout = layout
        self._buffer = buffer
        self._table = pa.ipc.open_stream(job.rows).read_all()
        self.metadata = MetadataTable(self._table, hashes)
        name = layout.shard_name(job.shard_id)
        self._data_name = None if writer.extension is None else f"{name}.{writer.extension}".rstrip(".")
        self._staged = folder / (self._data_name or f"{name}.none")
        self._staged_metadata = folder / f"{name}.metadata"
        self._open_writer = writer
        self._writer: ShardWriter | None = None  # opened with the first sample: many shards may be waiting
        self._accounted = 0  # bytes held by the writer that the buffer knows of
        self._waiting: dict[int, Sample] = {}  # outcomes whose turn has not come
        self._next = 0  # position whose turn it is
        self._counts: Counter[str] = Counter()
        self._statuses: Counter[str] = Counter()
        self._bytes = 0
        self.robots = RobotsCost()  # that this shard is to report
        self._start_time = time.time()
        self.handed = 0  # position up to which a fetcher has taken the rows
        self.closed = False  # no more of its rows are to be fetched
        self._duplicates = self._positions_of_duplicates()
        self._first_of = repeated(self._table.column("url")) if fetch_once else {}
        self._copies = Copies(self._first_of, self._rows_at(list(self._first_of))) if self._first_of else None
        self.go_on()

    @property
    def duplicates(self) -> int:
        """Rows that are not fetched, because their URL stands in an earlier row of the run."""
        return len(self._duplicates)

    @property
    def complete(self) -> bool:
        return self._next == self.job.count

    def rows(self) -> Iterator[Row]:
        """The rows to fetch."""
        if not (self._first_of or self._duplicates):
            return self._rows(self._table, count())
        known = self._first_of.keys() | self._duplicates
        return self._rows_at([position for position in range(self.job.count) if position not in known])

    def _rows_at(self, positions: list[int]) -> Iterator[Row]:
        return self._rows(self._table.take(pa.array(positions, pa.int64())), positions)

    def _rows(self, table: pa.Table, numbers: Iterable[int]) -> Iterator[Row]:
        shard_id, layout = self.job.shard_id, self._layout
        extra = [name for name in table.schema.names if name not in ("url", "caption", DUPLICATE_OF.name)]
        positions = iter(numbers)
        for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
            urls = batch.column("url").to_pylist()
            captions = batch.column("caption").to_pylist() if self.metadata.has_captions else [None] * len(urls)
            extras = _to_python(batch.select(extra)) if extra else [None] * len(urls)
            for url, caption, columns in zip(urls, captions, extras, strict=True):
                position = next(positions)
                yield Row(shard_id, position, layout.key(shard_id, position), url, caption, columns)

    def rows_without_outcome(self, among: int | None = None) -> list[Row]:
        """Of the first `among` rows those to fetch, bare of what the list says of them; of all if it is None.

        There are no others to be fetched in the latter case: whoever asks is going to record these as failed.
        """
        self.closed = self.closed or among is None
        known = self._waiting.keys() | self._first_of.keys() | self._duplicates
        positions = range(self._next, self.job.count if among is None else among)
        key = self._layout.key
        return [
            Row(self.job.shard_id, position, key(self.job.shard_id, position), None)
            for position in positions
            if position not in known
        ]

    def take(self, sample: Sample) -> bool:
        """Write the sample if its turn has come, and those that were waiting for it; else keep it.

        False if more can be written by `go_on`, which is for the next turn because this one took long enough. Raises
        OSError and whatever else the writer raises; the shard is to be discarded then.
        """
        if sample.row.position != self._next:
            self._waiting[sample.row.position] = sample
            if sample.body is not None:
                self._make_room(sample.body)
            return True
        self._write_next(sample)
        return self.go_on()

    def rows_with(self, sample: Sample) -> int:
        """How many rows have the outcome of this one that is about to be taken."""
        return 1 if self._copies is None else 1 + self._copies.of(sample.row.position)

    def go_on(self) -> bool:
        """Write the samples whose turn it is, as far as they are known. False and raises as `take` does."""
        enough = self._bytes + _TURN
        while (sample := self._known()) is not None:
            self._write_next(sample)
            if self._buffer.used > self._buffer.half and self.held >= WORTH_A_FLUSH:
                self.flush()  # nobody else looks after the memory before the turn is over
            if self._bytes >= enough:
                return False
        return True

    def _known(self) -> Sample | None:
        """The sample whose turn it is, if it is known."""
        position = self._next
        if self._copies is not None and (copy := self._copies.at(position)):
            return copy
        if position in self._duplicates:
            row = Row(self.job.shard_id, position, self._layout.key(self.job.shard_id, position), None)
            return Sample(row, None, "", {"status": DUPLICATE, "attempts": 0})
        return self._waiting.pop(position, None) if self._waiting else None

    def _positions_of_duplicates(self) -> frozenset[int]:
        if not self.metadata.has_duplicates:
            return frozenset()
        known = self._table.column(DUPLICATE_OF.name).is_valid().to_pylist()
        return frozenset(position for position, is_known in enumerate(known) if is_known)

    @property
    def held(self) -> int:
        """Bytes of bodies that the writer keeps in memory."""
        return self._writer.held if self._writer else 0

    def flush(self) -> None:
        """Let the writer let go of it."""
        if self._writer is not None:
            self._writer.flush()
            self._account(self.held)

    def settle(self) -> None:
        """To be called when it is complete: what the writer still holds is about to be written, by another thread."""
        self._account(0)

    def publish(self, output: OutputFolder) -> ShardReport:
        """Complete the files and give them their final names: data, metadata, then the stats, which mean `done`."""
        writer = self._writer or self._open()
        writer.close()
        files = {} if self._data_name is None else {self._data_name: self._staged}
        if not writer.holds_metadata:
            pq.write_table(self.metadata.table(), self._staged_metadata)
            files[self._layout.metadata_name(self.job.shard_id)] = self._staged_metadata
        for name, staged in files.items():
            output.publish(staged, name)
        report = ShardReport(
            shard_id=self.job.shard_id,
            count=self.job.count,
            successes=self._statuses[SUCCESS],
            failed_to_download=self._statuses["failed_to_download"],
            failed_to_subsample=self._statuses["failed_to_subsample"],
            duplicates=self._statuses[DUPLICATE],
            bytes=self._bytes,
            start_time=self._start_time,
            end_time=time.time(),
            status_dict=dict(self._counts),
            robots=self.robots,
        )
        output.write(
            self._layout.stats_name(self.job.shard_id), orjson.dumps(report.to_json(), option=orjson.OPT_INDENT_2)
        )
        return report

    def discard(self) -> None:
        """Free what the shard holds, in memory and on disk; others may be in want of it."""
        self.closed = True
        self._account(0)
        if self._writer is not None:
            with contextlib.suppress(Exception):  # it may be what failed
                self._writer.close()
        for staged in (self._staged, self._staged_metadata):
            remove(staged)
        for sample in self._waiting.values():
            if sample.body is not None:
                sample.body.release()
        self._waiting.clear()
        if self._copies is not None:
            self._copies.discard()

    def _write_next(self, sample: Sample) -> None:
        failure, body = sample.failure, sample.body
        is_shared = self._copies is not None and self._copies.keep(sample)
        self.metadata.add(sample)
        if body is not None:
            try:
                if is_shared:
                    self._make_room(body)
                (self._writer or self._open()).write(sample)
            finally:
                body.release()
                self._account(self.held)
            self._bytes += body.size
        status = sample.fields["status"]
        self._counts[failure.code if failure else status] += 1
        self._statuses[status] += 1
        self._next += 1

    def _make_room(self, body: Body) -> None:
        """It is going to wait, which it does in the spool unless there is plenty of memory."""
        if self._buffer.used > self._buffer.few:
            body.spill()

    def _account(self, held: int) -> None:
        self._buffer.used += held - self._accounted
        self._accounted = held

    def _open(self) -> ShardWriter:
        self._writer = self._open_writer(self._staged, self.metadata)
        return self._writer
