"""Makes shards of the samples that a recipe generates: files come from the spool, and nothing is fetched.

job ─▶ rows of the spool ─▶ metadata and files, in order ─▶ writer ─▶ publish ─▶ report
"""

from __future__ import annotations

import hashlib
import logging
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from any2ds.config.hashes import hash_columns
from any2ds.config.media import MediaOptions
from any2ds.config.options import Config, OutputOptions
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
from any2ds.dataset.features import Features
from any2ds.recipes.spool import ShardRows
from any2ds.storage.folders import OutputFolder
from any2ds.worker.context import ShardContext, StagedFiles, stats_json
from any2ds.worker.shard_stats import ShardStats
from any2ds.worker.worker import ShardWorker

if TYPE_CHECKING:
    from any2ds.storage.lock.lock_file import LockRef

log = logging.getLogger(__name__)

_PROGRESS_SECONDS = 0.5
ROWS_PER_PROCESS = 100_000  # fewer take about as long as the start of processes and what they load
_ROWS_AT_ONCE = 256  # whose columns are Python's objects
_BYTES_AT_ONCE = 16 << 20  # of small files that a writer may hold


class SampleWorker(ShardWorker):
    """The `Worker` of a build, for splits whose samples are generated."""

    def __init__(self, config: Config, features: Mapping[str, Any], locks: tuple[LockRef, ...] = ()) -> None:
        """`features` as `Features.spec` has them."""
        super().__init__(config.output, config.fetch, locks=locks, storage=config.storage)
        self._features = dict(features)
        self.rows_per_process = ROWS_PER_PROCESS
        self.patience = 0.0  # it waits for nobody

    def among(self, machines: int) -> SampleWorker:
        return self  # it sends no requests, which they would have to share

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        from any2ds.storage.lock.run_lock import working

        output = self.folder
        room = output.staging_room
        with working(output, self._locks), room.watched(), output.staging() as folder:
            maker = _Maker(self._options, Features.of_spec(self._features), folder, output)
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
        self._exts = [getattr(leaf.plain, "ext", "bin") for leaf in features.files] or ["bin"]
        self._told = time.monotonic()

    def make(self, job: ShardJob) -> Iterator[Event]:
        """One ShardReport, with Progress before it."""
        if job.attempt and (report := self._published(job)):
            yield report
            return
        rows = ShardRows.of_job(job.rows)
        table = rows.as_listed()
        metadata = self._context.metadata(table)
        staged = StagedFiles(self._context, job.shard_id)
        writer = staged.open(metadata)
        stats, told, size, taken = ShardStats(), 0, 0, self._context.taken(table)
        try:
            for row, files in zip(self._rows(job, table), rows.files(len(self._exts)), strict=True):
                sample = self._sample(row, files, taken)
                metadata.add(sample)
                writer.write(sample)
                stats.add_row(SUCCESS, SUCCESS)
                stats.add_sample(sample.ext, sample.size)
                size += sample.size
                if writer.held > _BYTES_AT_ONCE:
                    writer.flush()
                if time.monotonic() - self._told > _PROGRESS_SECONDS:
                    self._told = time.monotonic()
                    yield Progress({SUCCESS: row.position + 1 - told}, size)
                    told, size = row.position + 1, 0
            stats.splits = {rows.split: job.count}
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

    def _rows(self, job: ShardJob, table: pa.Table) -> Iterator[Row]:
        """The rows; with their columns where these are stored beside each file: other formats take the whole table."""
        keys = self._context.layout.keys(job.shard_id)
        if not self._has_members:
            yield from (Row(job.shard_id, position, keys(position), None) for position in range(job.count))
            return
        position = 0
        for batch in table.drop_columns("url").to_batches(max_chunksize=_ROWS_AT_ONCE):
            for extra in rows_of(batch):
                yield Row(job.shard_id, position, keys(position), None, extra.pop("caption", None), extra)
                position += 1

    def _sample(self, row: Row, files: Sequence[tuple[bytes | None, str]], taken: frozenset[str]) -> Sample:
        data, named = files[0]
        body = StoredBody.of(data or b"")
        mime_type, ext = recognize_file(body, None) if data else (None, UNKNOWN_EXT)
        if ext == UNKNOWN_EXT:
            ext = named or self._exts[0]
        if self._options.file_ext != "auto":
            ext = self._options.file_ext
        elif ext.lower() in taken:
            ext = free_extension(ext, taken)
        fields = {**self._nothing, "mime_type": mime_type, "ext": ext, "bytes": body.size, "attempts": 0}
        for name, new_hash in self._hashes:
            fields[name] = new_hash(data or b"").hexdigest()
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
        name = self._context.layout.stats_name(job.shard_id)
        content = self._output.read(name)
        with suppress(KeyError, TypeError, ValueError):
            report = ShardReport.from_json(as_written(content or b""))
            if (report.shard_id, report.urls_sha256) == (job.shard_id, job.fingerprint):
                return report
        if content is not None:
            self._output.remove(name)
        return None
