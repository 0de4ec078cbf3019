"""Makes shards of the samples that a recipe generates: a stream of shard jobs in, a stream of events out.

job ─▶ slices of the sorted runs ─▶ metadata and files, in order ─▶ writer ─▶ publish ─▶ report
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from any2ds.config.hashes import hash_columns
from any2ds.config.media import MediaOptions
from any2ds.config.options import OutputOptions, StorageOptions
from any2ds.core import plugins
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import error_text, is_full
from any2ds.core.failures import SUCCESS
from any2ds.core.filetypes import UNKNOWN_EXT, recognize_file
from any2ds.core.metadata import OUTCOME_FIELDS, STORED_BYTES, STORED_CRC32
from any2ds.core.reports import Event, Progress, ShardError, ShardReport
from any2ds.core.rows import Row, ShardJob
from any2ds.core.samples import Sample, free_extension
from any2ds.core.stats import as_written
from any2ds.core.tables import rows_of
from any2ds.dataset.features import KEY_COLUMN, SPLIT_COLUMN, Features
from any2ds.recipes.spool import KEY, ShardRows, pieces_of
from any2ds.storage.folders import OutputFolder
from any2ds.storage.opening import open_folder
from any2ds.worker.context import ShardContext, StagedFiles, stats_json
from any2ds.worker.shard_stats import ShardStats

if TYPE_CHECKING:
    from any2ds.core.layout import Layout
    from any2ds.storage.lock.lock_file import LockRef

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.5
_ROWS_PER_PROCESS = 100_000  # fewer take about as long as the start of processes and what they load
_ROWS_AT_ONCE = 256  # whose files are in memory
_BYTES_AT_ONCE = 16 << 20  # of small files that a writer may hold


@dataclass(frozen=True, slots=True)
class Place:
    """The place where the rows of a shard lie, as a job for `SampleWorker` carries it."""

    split: str
    folder: str  # of the runs of the split
    pieces: Sequence[Sequence[Any]]  # as `spool.pieces_to_json` has them

    def to_bytes(self) -> bytes:
        return json.dumps({"split": self.split, "folder": self.folder, "pieces": self.pieces}).encode()

    def rows(self) -> ShardRows:
        return ShardRows.of(Path(self.folder), pieces_of(self.pieces))


def inlined(place: Place) -> bytes:
    """A place that holds the rows themselves, for workers that do not see the folder."""
    batches = list(place.rows().batches)
    sink = pa.BufferOutputStream()
    schema = batches[0].schema.with_metadata({b"split": place.split.encode()})
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _place_of(rows: bytes) -> tuple[str, ShardRows]:
    """The split, and the rows, of a job."""
    if rows[:1] == b"{":
        place = Place(**json.loads(rows))
        return place.split, place.rows()
    with pa.ipc.open_stream(rows) as stream:
        return stream.schema.metadata[b"split"].decode(), ShardRows(list(stream))


class SampleWorker:
    """The `Worker` of a build, for splits whose samples are generated; can be sent anywhere."""

    patience = 0.0
    rows_per_process = _ROWS_PER_PROCESS

    def __init__(
        self,
        options: OutputOptions,
        storage: StorageOptions,
        features: Mapping[str, Any],
        locks: tuple[LockRef, ...] = (),
    ) -> None:
        """`features` as `Features.spec` has them; it publishes nothing without the `locks`."""
        self._options, self._storage, self._spec, self._locks = options, storage, dict(features), locks
        self._stopping = False
        self.log_level = log.getEffectiveLevel()

    @property
    def folder(self) -> OutputFolder:
        return open_folder(self._options.output_folder, self._storage)

    @property
    def layout(self) -> Layout:
        return self._options.layout

    @property
    def waiting(self) -> bool:
        return False

    def under(self, locks: tuple[LockRef, ...]) -> SampleWorker:
        worker = copy.copy(self)
        worker._locks = (*self._locks, *locks)
        return worker

    def stop(self) -> None:
        self._stopping = True

    def share(self, processes: int) -> None:
        """Nothing to do: it takes one core in any case."""

    def among(self, machines: int) -> SampleWorker:
        return self

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        from any2ds.storage.lock.run_lock import working

        output = self.folder
        room = output.staging_room
        with working(output, self._locks), room.watched(), output.staging() as folder:
            maker = _Maker(self._options, Features.of_spec(self._spec), folder, output)
            for job in jobs:
                if self._stopping:
                    return
                try:
                    room.check()
                    yield from maker.make(job)
                except Exception as error:
                    if is_full(error):
                        raise room.full(error) from error
                    text = "".join(traceback.format_exception(error))
                    yield ShardError(job.shard_id, error_text(error), text, job.attempt)


class _Maker:
    """Makes one shard after the other."""

    def __init__(self, options: OutputOptions, features: Features, folder: Path, output: OutputFolder) -> None:
        self._options, self._features, self._output = options, features, output
        writer = plugins.load("writers", options.output_format)
        self._has_members = writer.has_members
        further = [leaf.column for leaf in features.files[1:]]
        columns: dict[str, pa.DataType] = {} if writer.has_members else dict.fromkeys(further, pa.binary())
        if further:  # as of what a step has made: a sample has members that its list does not have
            columns |= {STORED_BYTES.name: STORED_BYTES.type, STORED_CRC32.name: STORED_CRC32.type}
        self._context = ShardContext(options, writer, folder, MediaOptions(), columns)
        self._hashes = [(name, getattr(hashlib, name)) for name in hash_columns(options)]
        self._nothing = {**dict.fromkeys(OUTCOME_FIELDS), "status": SUCCESS}
        self._exts = [getattr(leaf.plain, "ext", "bin") for leaf in features.files]
        self._told = time.monotonic()

    def make(self, job: ShardJob) -> Iterator[Event]:
        """One ShardReport, with Progress before it."""
        if job.attempt and (report := self._published(job)):
            yield report
            return
        split, rows = _place_of(job.rows)
        table = _described(rows.table(pa.schema([pa.field(KEY, pa.string()), *self._features.schema])), split)
        metadata = self._context.metadata(table)
        staged = StagedFiles(self._context, job.shard_id)
        writer = staged.open(metadata)
        stats, told, size, position = ShardStats(), 0, 0, -1
        # The JSON beside a file has what the list says; other formats take it from the table.
        extra = _dicts(table) if self._has_members else None
        taken = self._context.taken(table)
        keys = self._context.layout.keys(job.shard_id)
        count = max(1, len(self._features.files))
        files = rows.files(count) if self._features.files else iter([((b"", "bin"),)] * job.count)
        try:
            for position, found in enumerate(files):
                own = next(extra) if extra is not None else None
                row = Row(job.shard_id, position, keys(position), None, own.pop("caption", None) if own else None, own)
                sample = self._sample(row, found, taken)
                metadata.add(sample)
                writer.write(sample)
                stats.add_row(SUCCESS, SUCCESS)
                stats.add_sample(sample.ext, sample.size)
                size += sample.size
                if writer.held > _BYTES_AT_ONCE:
                    writer.flush()
                if time.monotonic() - self._told > _PROGRESS_SECONDS:
                    self._told = time.monotonic()
                    yield Progress({SUCCESS: position + 1 - told}, size)
                    told, size = position + 1, 0
            stats.splits = {split: position + 1}
            writer.close()
            data_bytes = staged.data_bytes
            self._output.publish({**staged.data(), **staged.write_metadata(metadata)})
            report = replace(stats.report(job.shard_id), urls_sha256=job.fingerprint, data_bytes=data_bytes)
            name = self._context.layout.stats_name(job.shard_id)
            self._output.write(name, stats_json(self._context.figures(report)))
        except BaseException:
            with suppress(Exception):  # it may be what failed
                writer.close()
            staged.discard()
            raise
        finally:
            metadata.close()
        yield Progress({SUCCESS: job.count - told}, size)
        yield report

    def _sample(self, row: Row, files: Sequence[tuple[bytes | None, str]], taken: frozenset[str]) -> Sample:
        data, named = files[0]
        body = StoredBody.of(data or b"")
        mime_type, ext = recognize_file(body, None) if data else (None, UNKNOWN_EXT)
        if ext == UNKNOWN_EXT:
            ext = named or self._exts[0] if self._features.files else "bin"
        if self._options.file_ext != "auto":
            ext = self._options.file_ext
        elif ext.lower() in taken:
            ext = free_extension(ext, taken)
        fields = {**self._nothing, "mime_type": mime_type, "ext": ext, "bytes": body.size, "attempts": 0}
        for name, new_hash in self._hashes:
            fields[name] = new_hash(data or b"").hexdigest()
        if len(files) == 1:
            return Sample(row, body, ext, fields)
        extra: dict[str, StoredBody] = {}
        for leaf, (content, name), usual in zip(self._features.files[1:], files[1:], self._exts[1:], strict=True):
            if content is None:
                continue
            if not self._has_members:
                fields[leaf.column] = content
                continue
            further = StoredBody.of(content)
            _, kind = recognize_file(further, None)
            kind = (name or usual) if kind == UNKNOWN_EXT else kind
            extra[f"{leaf.column.replace('/', '.')}.{kind}"] = further
        return Sample(row, body, ext, fields, extra_files=extra)

    def _published(self, job: ShardJob) -> ShardReport | None:
        """The figures of a shard that an earlier attempt of this run has finished, whose report got lost."""
        content = self._output.read(self._context.layout.stats_name(job.shard_id))
        with suppress(KeyError, TypeError, ValueError):
            report = ShardReport.from_json(as_written(content or b""))
            if (report.shard_id, report.urls_sha256) == (job.shard_id, job.fingerprint):
                return report
        if content is not None:
            self._output.remove(self._context.layout.stats_name(job.shard_id))
        return None


def _described(table: pa.Table, split: str) -> pa.Table:
    """The columns of a run as those of a list: `url`, the features, the key and the split."""
    columns = {"url": pa.nulls(table.num_rows, pa.string())}
    columns |= {name: table[name] for name in table.schema.names if name != KEY}
    columns |= {KEY_COLUMN: table[KEY], SPLIT_COLUMN: pa.repeat(pa.scalar(split), table.num_rows)}
    return pa.table(columns)


def _dicts(table: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in table.drop_columns("url").to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from rows_of(batch)
