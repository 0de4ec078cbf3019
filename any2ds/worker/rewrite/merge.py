"""Merges the previous shard and new outcomes, in the order of the keys, into the files of a new shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from any2ds.core.bodies.stored import SpoolFile
from any2ds.core.errors import DamagedShard
from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import Histogram
from any2ds.core.members import Members, column
from any2ds.core.metadata import MetadataTable
from any2ds.core.reports import not_processed_in
from any2ds.core.rows import ShardJob
from any2ds.core.samples import Sample, Samples, StoredSample, outcome_of, part_of
from any2ds.core.stats import check_sums
from any2ds.storage.disk.staging import remove
from any2ds.storage.folders import OutputFolder
from any2ds.worker.context import ShardContext, StagedFiles
from any2ds.worker.job_rows import JobRows
from any2ds.worker.kept_files import KeptFiles, read_kept
from any2ds.worker.shard_stats import ShardStats
from any2ds.writers.previous_shard import REPAIR, PreviousShard, SamplesByKey


class Merge:
    """`outcomes`, by position, take the places of those that the previous shard has, or lacks; all others are kept.

    Samples that are not in order wait in `spool`. Raises DamagedShard if the previous shard cannot be read.
    """

    def __init__(
        self,
        job: ShardJob,
        context: ShardContext,
        output: OutputFolder,
        outcomes: Mapping[int, Samples],
        spool: SpoolFile,
    ) -> None:
        layout = self._layout = context.layout
        self._job, self._context, self._writer, self._folder = job, context, context.writer, context.folder
        self._output, self._outcomes, self._spool = output, outcomes, spool
        self._staged = StagedFiles(context, job.shard_id)
        rows = JobRows(job, layout)
        self._previous = PreviousShard.read(output, layout, job.shard_id, rows.table["url"].to_pylist())
        kept = frozenset(self._previous.rows_of.keys() - outcomes.keys())
        own = context.metadata(rows.table).own_columns
        self._fields = self._previous.values(["key", *own])  # by row of the previous table
        self._rows = JobRows(job, layout, self._previous.beneath(rows.table, kept, ["key", *own]))
        rows_of = self._previous.rows_of
        kept_rows = (self._fields[row] for n in kept for row in rows_of[n])
        stored = {fields["key"] for fields in kept_rows if fields.get("status") == SUCCESS}
        # Rows with several URLs that were a success before, and have further files now.
        before = self._previous.outcomes
        self._completed = {
            self._fields[rows_of[n][0]]["key"]: n for n in outcomes if n in before and before[n][0] == SUCCESS
        }
        self._stored = frozenset(stored | self._completed.keys())

    def files(self, tried: ShardStats) -> dict[str, Path]:
        """The files that are to replace those of the previous shard, by their names, in the order of publishing.

        `tried` counts what was tried now: its times and costs are added to the previous ones.
        """
        with closing(self._context.metadata(self._rows.table)) as metadata:
            return self._files(metadata, tried)

    def _files(self, metadata: MetadataTable, tried: ShardStats) -> dict[str, Path]:
        files, data_bytes = dict[str, Path](), self._previous.stats.get("data_bytes")  # of others: nobody knows
        stats = ShardStats(self._context.media.members)
        has_new = bool(self._completed) or any(
            sample.body is not None for samples in self._outcomes.values() for sample in samples
        )
        if self._staged.data_name is None or not (has_new or self._writer.holds_metadata):
            for position, samples in enumerate(self._rows_in_order()):
                for sample in samples:
                    metadata.add(sample)
                stats.add_metadata([sample.fields for sample in samples], partial(self._rows.url, position))
        else:
            with closing(self._staged.open(metadata)) as writer, closing(self._with_bodies()) as rows:
                for position, of_row in enumerate(rows):
                    written, sizes = list[Sample](), list[int | None]()
                    for sample in of_row:
                        metadata.add(sample)
                        written.append(sample)
                        sizes.append(sample.body.size if sample.body is not None else None)
                        if sample.body is not None or sample.stored is not None or sample.key in self._completed:
                            writer.write(sample)
                    stats.add_metadata([sample.fields for sample in written], partial(self._rows.url, position), sizes)
            files, data_bytes = self._staged.data(), self._staged.data_bytes
        files.update(self._staged.write_metadata(metadata))
        if self._context.media.members is not None and self._staged.data_name is not None:
            files.update(self._kept_files())
        stats.splits = metadata.splits
        files.update(self._staged.write_stats(self._stats(stats, tried, data_bytes)))
        return files

    def _rows_in_order(self) -> Iterator[Samples]:
        """The samples of each row; those that are kept without what they have in the data."""
        for position in range(self._job.count):
            if (samples := self._outcomes.get(position)) is None:
                row = self._rows.bare(position)
                rows = [dict(self._fields[number]) for number in self._previous.rows_of[position]]
                parts = [part_of(fields.pop("key")) for fields in rows]
                samples = [
                    Sample(row, None, fields.get("ext") or "", fields, part=part, parts=len(rows))
                    for fields, part in zip(rows, parts, strict=True)
                ]
            yield samples

    def _with_bodies(self) -> Generator[Iterable[Sample], None, None]:
        """As `_rows_in_order`, with what the data file has of them. Each sample is to be used before the next one is
        asked for."""
        name = self._staged.data_name
        if name is None or self._writer.extension == "":  # a folder, in which samples have files: it gets the new ones
            yield from self._rows_in_order()
            return
        read = self._writer.read(self._output.local_copy(name, self._folder))
        with closing(SamplesByKey(name, read, set(self._stored), self._spool)) as previous:
            for samples in self._rows_in_order():
                yield (self._from(previous, sample) for sample in samples)
            previous.expect_end()

    def _from(self, previous: SamplesByKey, sample: Sample) -> Sample:
        if sample.key not in self._stored or (sample.row.position in self._outcomes and not self._completed):
            return sample
        stored = previous.get(sample.key)
        if (members := self._context.media.members) is not None:
            found = _completed(sample, stored, members)
            return found if sample.row.position in self._outcomes else replace(found, stored=stored)
        ext = sample.ext or stored.ext  # shards of other tools have no such column
        return replace(sample, body=stored.members.get(ext), ext=ext, stored=stored)

    def _kept_files(self) -> dict[str, Path]:
        """Those of rows that have failed still, by the name of the file that they are in."""
        layout = self._layout
        name, shard_id = layout.kept_name(self._job.shard_id), self._job.shard_id
        tried = {layout.key(shard_id, position) for position in self._outcomes}
        kept = KeptFiles(self._folder / f"new-{name.rpartition('/')[2]}")
        for key, files in read_kept(self._output, name, self._folder):
            if key not in tried:
                kept.add_files(key, files)
        for samples in self._outcomes.values():
            for sample in samples:
                if sample.failure is not None and sample.extra_files:
                    kept.add(sample)
        if not kept.count:
            kept.discard()
            return {}
        kept.close()
        return {name: kept.path}

    def _stats(self, stats: ShardStats, tried: ShardStats, data_bytes: int | None) -> dict[str, Any]:
        """The statistics: `stats` of the whole shard, times and costs of `tried` added to the previous ones."""
        before = dict(self._previous.stats)
        try:
            check_sums(before)
        except ValueError as error:
            name = self._layout.stats_name(self._job.shard_id)
            raise DamagedShard(f"{name} cannot be understood: {error}; {REPAIR}") from error
        if len(self._previous.rows_of) != self._job.count:
            before.pop("urls_sha256", None)  # of the rows that it had
        if stats.bytes is None:
            outcomes = (outcome_of(samples) for samples in self._outcomes.values())
            stats.bytes = (before.get("bytes") or 0) + sum(outcome.fields.get("bytes") or 0 for outcome in outcomes)
        stats.start_time, stats.robots, stats.attempts = tried.start_time, tried.robots, tried.attempts
        stats.latencies = tried.latencies + Histogram.from_json(before.get("latencies") or {})
        stats.not_processed = Counter(not_processed_in(before)) + tried.not_processed
        stats.processed = Counter(before.get("processed") or {}) + tried.processed
        report = replace(
            stats.report(self._job.shard_id), urls_sha256=self._job.fingerprint, data_bytes=data_bytes or 0
        )
        now = self._context.figures(report)
        if data_bytes is None:
            del now["data_bytes"]
        if before and "shard_id" not in before:  # another tool has made most of it, and it goes on to say so
            del now["shard_id"], now["any2ds"]
        for name in ("duration", "robots_files", "robots_bytes", "robots_seconds", "attempts"):
            now[name] += before.get(name) or 0
        now["start_time"] = before.get("start_time") or now["start_time"]
        return {**before, **{name: value for name, value in now.items() if value != ""}}  # "" is: not known

    def discard(self) -> None:
        """Remove the files that are still there."""
        remove(self._folder / f"new-{self._layout.kept_name(self._job.shard_id).rpartition('/')[2]}")
        self._staged.discard()
        remove(self._folder / f"former-{self._staged.data_name}")


def _completed(sample: Sample, stored: StoredSample, members: Members) -> Sample:
    """A sample with the files that the previous shard has of it, and those that it has got now."""
    now = {} if sample.body is None else {sample.ext: sample.body, **sample.extra_files}
    there = {ext: body for ext, body in stored.members.items() if ext.partition(".")[0] in members.names and "." in ext}
    found: dict[str, Any] = {}
    for name in members.names:
        own = f"{name}.{sample.fields.get(column(name, 'ext'))}"
        if (body := now.pop(own, None) or there.pop(own, None)) is not None:
            found[own] = body
    (ext, body), *others = {**found, **there, **now}.items()
    return replace(sample, body=body, ext=ext, extra_files=dict(others))
