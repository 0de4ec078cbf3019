"""Lays the former version of a shard and new outcomes together, in the order of the keys, as the files of a new one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

from any2ds.core.bodies.stored import Heap
from any2ds.core.failures import DROPPED, DUPLICATE, FILTERED, NO_FAILURES, STATUS_OF_STAGE, SUCCESS
from any2ds.core.histogram import Histogram
from any2ds.core.metadata import STORED_BYTES, MetadataTable, example_of
from any2ds.core.reports import RobotsCost, ShardReport, most_frequent, not_processed_in
from any2ds.core.rows import ShardJob
from any2ds.core.samples import Sample, Samples, first_of, outcome_of, part_of
from any2ds.storage.disk.staging import remove
from any2ds.storage.folders import OutputFolder
from any2ds.worker.job_rows import JobRows
from any2ds.worker.workshop import StagedFiles, Workshop
from any2ds.writers.previous_shard import FormerVersion, SamplesByKey

_FAILED = STATUS_OF_STAGE["fetch"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What it took to make a shard again."""

    robots: RobotsCost
    attempts: int  # transfers
    latencies: Histogram  # seconds of those that succeeded


class Merge:
    """`outcomes`, by position, take the places of those that the former version has, or lacks; all others are kept.

    `heap` is where samples wait that are not in order. Raises DamagedShard if the former version cannot be read.
    """

    def __init__(
        self,
        job: ShardJob,
        workshop: Workshop,
        output: OutputFolder,
        outcomes: Mapping[int, Samples],
        heap: Heap,
    ) -> None:
        layout = self._layout = workshop.layout
        self._job, self._workshop, self._writer, self._folder = job, workshop, workshop.writer, workshop.folder
        self._output, self._outcomes, self._heap = output, outcomes, heap
        self._staged = StagedFiles(workshop, job.shard_id)
        rows = JobRows(job, layout)
        self._former = FormerVersion.read(output, layout, job.shard_id, rows.table["url"].to_pylist())
        kept = frozenset(self._former.rows_of.keys() - outcomes.keys())
        own = workshop.metadata(rows.table).own_columns
        self._fields = self._former.values(["key", *own])  # by row of the former table
        self._rows = JobRows(job, layout, self._former.beneath(rows.table, kept, ["key", *own]))
        rows_of = self._former.rows_of
        told = (self._fields[row] for n in kept for row in rows_of[n])
        self._stored = frozenset(fields["key"] for fields in told if fields.get("status") == SUCCESS)

    def files(self, start_time: float, cost: Cost) -> dict[str, Path]:
        """The files that are to replace those of the former version, by their names, in the order of publishing."""
        with closing(self._workshop.metadata(self._rows.table)) as metadata:
            return self._files(metadata, start_time, cost)

    def _files(self, metadata: MetadataTable, start_time: float, cost: Cost) -> dict[str, Path]:
        files, data_bytes = dict[str, Path](), self._former.stats.get("data_bytes")  # of others: nobody knows
        figures = Figures()
        has_new = any(sample.body is not None for samples in self._outcomes.values() for sample in samples)
        if self._staged.data_name is None or not (has_new or self._writer.holds_metadata):
            for position, samples in enumerate(self._rows_in_order()):
                for sample in samples:
                    metadata.add(sample)
                figures.add([sample.fields for sample in samples], url=partial(self._rows.url, position))
        else:
            with closing(self._staged.open(metadata)) as writer, closing(self._with_bodies()) as rows:
                for position, of_row in enumerate(rows):
                    told, sizes = list[Sample](), list[int | None]()
                    for sample in of_row:
                        metadata.add(sample)
                        told.append(sample)
                        sizes.append(sample.body.size if sample.body is not None else None)
                        if sample.body is not None or sample.stored is not None:
                            writer.write(sample)
                    figures.add([sample.fields for sample in told], sizes, partial(self._rows.url, position))
            files, data_bytes = self._staged.data(), self._staged.data_bytes
        files.update(self._staged.write_metadata(metadata))
        files.update(self._staged.write_stats(self._stats(figures, start_time, cost, data_bytes)))
        return files

    def _rows_in_order(self) -> Iterator[Samples]:
        """The samples of each row; those that are kept without what they have in the data."""
        for position in range(self._job.count):
            if (samples := self._outcomes.get(position)) is None:
                row = self._rows.bare(position)
                told = [dict(self._fields[number]) for number in self._former.rows_of[position]]
                parts = [part_of(fields.pop("key")) for fields in told]
                samples = [
                    Sample(row, None, fields.get("ext") or "", fields, part=part, parts=len(told))
                    for fields, part in zip(told, parts, strict=True)
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
        with closing(SamplesByKey(name, read, set(self._stored), self._heap)) as former:
            for samples in self._rows_in_order():
                yield (self._from(former, sample) for sample in samples)
            former.expect_end()

    def _from(self, former: SamplesByKey, sample: Sample) -> Sample:
        if sample.row.position in self._outcomes or sample.key not in self._stored:
            return sample
        stored = former.get(sample.key)
        ext = sample.ext or stored.ext  # shards of other tools have no such column
        return replace(sample, body=stored.members.get(ext), ext=ext, stored=stored)

    def _stats(self, figures: Figures, start_time: float, cost: Cost, data_bytes: int | None) -> dict[str, Any]:
        """The figures of the whole shard, and what the former ones say besides; times and costs are added up."""
        before = dict(self._former.stats)
        if len(self._former.rows_of) != self._job.count:
            before.pop("urls_sha256", None)  # of the rows that it had
        outcomes = (outcome_of(samples) for samples in self._outcomes.values())
        new = sum(outcome.fields.get("bytes") or 0 for outcome in outcomes)
        figures.complete_bytes((before.get("bytes") or 0) + new)
        report = replace(figures.report(self._job.shard_id), start_time=start_time, end_time=time.time())
        fingerprint = self._job.fingerprint
        left = Counter(not_processed_in(before)) + not_processed_of(self._outcomes.values())
        before.pop("lacking", None)  # an earlier version's name for it
        report = replace(report, urls_sha256=fingerprint, data_bytes=data_bytes or 0, not_processed=most_frequent(left))
        latencies = cost.latencies + Histogram.from_json(before.get("latencies") or {})
        report = replace(report, robots=cost.robots, attempts=cost.attempts, latencies=dict(latencies.counts))
        now = self._workshop.figures(report)
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
        self._staged.discard()
        remove(self._folder / f"former-{self._staged.data_name}")


def not_processed_of(rows: Iterable[Samples]) -> Counter[str]:
    """Reason -> files that a step has left as they came."""
    samples = (sample for of_row in rows for sample in of_row)
    reasons = (sample.not_processed for sample in samples if sample.fields.get("status") == SUCCESS)
    return Counter(reason for reason in reasons if reason)


class Figures:
    """Adds up what the metadata say of rows."""

    def __init__(self) -> None:
        self._statuses: Counter[str] = Counter()
        self._codes: Counter[str] = Counter()
        self._exts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._samples = 0
        self._bytes: int | None = 0  # None: nobody knows the size of a file

    def add(
        self,
        samples: Sequence[Mapping[str, Any]],
        sizes: Sequence[int | None] = (),
        url: Callable[[], str | None] = lambda: None,
    ) -> None:
        """What is said of the samples of one row; `sizes` of their files in bytes, where they do not say it; its `url`,
        for an example."""
        outcome = samples[first_of([fields.get("status") for fields in samples])]
        status = outcome.get("status") or "failed_to_download"
        self._statuses[status] += 1
        is_code = status in NO_FAILURES
        code = status if is_code else outcome.get("error_code") or status
        self._codes[code] += 1
        if not is_code and code not in self._examples and (shown := example_of(url())):
            self._examples[code] = shown
        for fields, size in zip_longest(samples, sizes):
            if fields.get("status") != SUCCESS:
                continue
            self._samples += 1
            if fields.get("ext"):
                self._exts[fields["ext"]] += 1
            known = fields.get(STORED_BYTES.name)
            known = fields.get("bytes") if known is None else known
            size = size if known is None else known
            self._bytes = None if size is None or self._bytes is None else self._bytes + size

    def complete_bytes(self, otherwise: int) -> None:
        """So many they are if the sum is not known."""
        if self._bytes is None:
            self._bytes = otherwise

    def report(self, shard_id: int) -> ShardReport:
        named = (SUCCESS, DROPPED, FILTERED, DUPLICATE, _FAILED)
        others = sum(self._statuses.values()) - sum(self._statuses[status] for status in named)
        return ShardReport(
            shard_id=shard_id,
            count=sum(self._statuses.values()),
            successes=self._statuses[SUCCESS],
            failed_to_download=self._statuses[_FAILED],
            failed_to_subsample=others,
            dropped=self._statuses[DROPPED],
            filtered=self._statuses[FILTERED],
            duplicates=self._statuses[DUPLICATE],
            samples=self._samples,
            bytes=self._bytes or 0,
            status_dict=dict(self._codes),
            examples=dict(self._examples),
            exts=dict(self._exts),
        )
