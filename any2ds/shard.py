"""One shard while it is being made: puts outcomes back in order, writes them, and publishes the result."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.buffer import Buffer
from any2ds.layout import Layout
from any2ds.metadata import MetadataTable
from any2ds.protocols import ShardWriter
from any2ds.storage import OutputFolder, remove
from any2ds.types import SUCCESS, Row, Sample, ShardJob, ShardReport

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
    """Takes the outcomes of the rows of `job` in any order; complete when there is one for each row."""

    def __init__(
        self,
        job: ShardJob,
        layout: Layout,
        hashes: tuple[str, ...],
        writer: type[ShardWriter],
        folder: Path,
        buffer: Buffer,
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
        self._start_time = time.time()
        self.handed = 0  # rows that a fetcher has taken
        self.closed = False  # no more of its rows are to be fetched

    @property
    def complete(self) -> bool:
        return self._next == self.job.count

    def rows(self) -> Iterator[Row]:
        shard_id, layout = self.job.shard_id, self._layout
        extra = [name for name in self._table.schema.names if name not in ("url", "caption")]
        positions = count()
        for batch in self._table.to_batches(max_chunksize=_ROWS_AT_ONCE):
            urls = batch.column("url").to_pylist()
            captions = batch.column("caption").to_pylist() if self.metadata.has_captions else [None] * len(urls)
            extras = _to_python(batch.select(extra)) if extra else [None] * len(urls)
            for url, caption, columns in zip(urls, captions, extras, strict=True):
                position = next(positions)
                yield Row(shard_id, position, layout.key(shard_id, position), url, caption, columns)

    def rows_without_outcome(self, among: int | None = None) -> list[Row]:
        """Of the first `among` rows, bare of what the list says of them; of all of them if it is None.

        There are no others to be fetched in the latter case: whoever asks is going to record these as failed.
        """
        self.closed = self.closed or among is None
        positions = range(self._next, self.job.count if among is None else among)
        key = self._layout.key
        return [
            Row(self.job.shard_id, position, key(self.job.shard_id, position), None)
            for position in positions
            if position not in self._waiting
        ]

    def take(self, sample: Sample) -> None:
        """Write the sample if its turn has come, and those that were waiting for it; else keep it.

        Raises OSError and whatever else the writer raises; the shard is to be discarded then.
        """
        if sample.row.position != self._next:
            self._waiting[sample.row.position] = sample
            if sample.body is not None and self._buffer.used > self._buffer.few:
                sample.body.spill()
            return
        ready: Sample | None = sample
        while ready is not None:
            self._write(ready)
            self._next += 1
            ready = self._waiting.pop(self._next, None) if self._waiting else None

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
            bytes=self._bytes,
            start_time=self._start_time,
            end_time=time.time(),
            status_dict=dict(self._counts),
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

    def _write(self, sample: Sample) -> None:
        failure, body = sample.failure, sample.body
        self.metadata.add(sample)
        if body is not None:
            try:
                (self._writer or self._open()).write(sample)
            finally:
                body.release()
                self._account(self.held)
            self._bytes += body.size
        self._counts[failure.code if failure else SUCCESS] += 1
        self._statuses[failure.status if failure else SUCCESS] += 1

    def _account(self, held: int) -> None:
        self._buffer.used += held - self._accounted
        self._accounted = held

    def _open(self) -> ShardWriter:
        self._writer = self._open_writer(self._staged, self.metadata)
        return self._writer
