"""One shard while it is rewritten from its previous version: outcomes that it has are kept, others take their places.

What arrives waits in a file of the shard's own, away from the buffer, until there is an outcome for each row that was
fetched. Then the publisher's thread, which holds up no socket, lays old and new together in the order of the keys. If
no file has come, the data stay as they are, and only metadata and stats are replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from any2ds.config.media import MediaOptions
from any2ds.core.bodies.buffer import Body
from any2ds.core.bodies.stored import SpoolFile, StoredBody
from any2ds.core.errors import DamagedShard
from any2ds.core.failures import SUCCESS, FailureFilter
from any2ds.core.reports import ShardReport
from any2ds.core.rows import Row, ShardJob
from any2ds.core.samples import Sample, Samples, outcome_of, release
from any2ds.core.tables import take
from any2ds.readers.dedupe import also_the_same, expected_hashes, repeated
from any2ds.storage.folders import OutputFolder
from any2ds.storage.swap import finish_swap, swap
from any2ds.worker.context import ShardContext, named
from any2ds.worker.job_rows import JobRows
from any2ds.worker.joined_rows import JoinedRows
from any2ds.worker.rewrite.merge import Merge
from any2ds.worker.shard_stats import ShardStats
from any2ds.writers.previous_shard import REPAIR, PreviousShard


class RewrittenShard:
    """Takes the outcomes of the rows of `job` that are to be fetched, in any order; an `OpenShard` for its owner.

    `job.redo` says which. Raises DamagedShard if the previous shard cannot be read, or is one of other rows; whatever
    fails, it stays as it is.
    """

    held = 0  # bytes of bodies that it keeps in memory
    joined: JoinedRows | None = None  # where a row has several URLs, see `RewrittenMembers`

    def __init__(self, job: ShardJob, context: ShardContext, output: OutputFolder, fetch_once: bool) -> None:
        self.job = job
        # Of the rows that are tried, and of new ones that are not fetched.
        self.stats = ShardStats(context.media.members)
        self.reported: Counter[str] = Counter()  # rows by outcome, as far as Progress has reported them
        self.reported_bytes = 0  # of these
        self.handed = 0  # position up to which a fetcher has taken the rows
        self.closed = False  # no more of its rows are to be fetched
        self._context, self._output = context, output
        layout = context.layout
        self._spool = SpoolFile(context.folder)
        self._outcomes: dict[int, Samples] = {}
        finish_swap(output, layout.shard_name(job.shard_id))  # left by a process that was killed over this shard
        rows = JobRows(job, layout)
        # Not kept until it is needed again: hundreds of shards may be open, each for the sake of a few rows.
        previous = PreviousShard.read(output, layout, job.shard_id, rows.table["url"].to_pylist())
        outcomes = previous.outcomes
        kept = self._kept_of(previous, FailureFilter(job.redo or ()))
        has_samples = any(outcomes[position][0] == SUCCESS for position in kept)
        self._data_name = layout.data_name(job.shard_id, context.writer.extension)
        self._expect_data(output, has_samples)
        not_fetched = {n: code for n, code in rows.not_fetched().items() if n not in previous.rows_of}
        for position in not_fetched:
            self._outcomes[position] = [rows.outcome(position)]
        self.settled = Counter(not_fetched.values())  # outcomes of rows that are not fetched and were not there before
        wanted = [n for n in range(job.count) if n not in kept and n not in not_fetched]
        self._taken = context.taken(rows.table)
        own = context.metadata(rows.table).own_columns
        table = take(previous.beneath(rows.table, kept, ["key", *own]), wanted)
        self._ask(rows, previous, table, wanted)
        if fetch_once:
            self._fetch_once(rows, wanted)

    def _kept_of(self, previous: PreviousShard, is_meant: FailureFilter) -> frozenset[int]:
        """The positions of the rows that stay as they are."""
        return frozenset(position for position, outcome in previous.outcomes.items() if not is_meant(*outcome))

    def _ask(self, rows: JobRows, previous: PreviousShard, table: pa.Table, wanted: list[int]) -> None:
        """Settle what is fetched; `table` has the rows at the positions `wanted`."""
        self._asked = JobRows(self.job, self._context.layout, table, wanted)
        attempts = previous.values(["attempts"])
        self._attempts = {
            n: attempts[previous.rows_of[n][0]].get("attempts") or 0 for n in wanted if n in previous.rows_of
        }
        self._copies: dict[int, list[int]] = {}
        self._to_fetch = wanted
        self._missing = set(wanted)

    def _fetch_once(self, rows: JobRows, wanted: list[int]) -> None:
        """Fetch a URL that several rows have for all of them."""
        self._copies = _copies(rows, wanted, self._context.media)
        copies = {position for positions in self._copies.values() for position in positions}
        self._to_fetch = [position for position in wanted if position not in copies]
        self._missing = set(self._to_fetch)

    @property
    def all_handed(self) -> bool:
        """Whether a fetcher has taken all the rows to fetch."""
        return not self._to_fetch or self.handed > self._to_fetch[-1]

    @property
    def complete(self) -> bool:
        return not self._missing

    def rows(self) -> Iterator[Row]:
        """The rows to fetch."""
        return self._asked.at(self._to_fetch)

    def rows_without_outcome(self, among: int | None = None) -> list[Row]:
        """Those to fetch among the first `among` rows; among all, of which no more are then, if it is None."""
        self.closed = self.closed or among is None
        stop = self.job.count if among is None else among
        return [self._asked.bare(position) for position in sorted(self._missing) if position < stop]

    def join(self, samples: Samples) -> Sequence[Samples]:
        """As that of an `OpenShard`."""
        return (samples,)

    def take(self, samples: Samples) -> bool:
        """Keep the samples of a row, and their copies.

        Raises OSError if the disk is full; the shard is to be discarded then.
        """
        samples = named(samples, self._taken)
        position = samples[0].row.position
        try:
            kept = [self._kept(sample) for sample in samples]
        finally:
            release(samples)
        self._missing.discard(position)
        if self.joined is None:
            outcome = outcome_of(kept)
            self.stats.add_transfer(outcome.fields.get("attempts"), outcome.seconds)
        self._outcomes[position] = [self._counting_attempts(sample) for sample in kept]
        if copies := self._copies.get(position):
            for row in self._asked.at(copies):
                self._outcomes[row.position] = [self._counting_attempts(replace(sample, row=row)) for sample in kept]
        return True

    def _kept(self, sample: Sample) -> Sample:
        if sample.body is None and not sample.extra_files:
            return sample
        has_data = self._data_name is not None
        if not has_data and self._context.writer.has_members:
            return replace(sample, body=None, extra_files={})
        extra_files = {ext: self._spooled(body) for ext, body in sample.extra_files.items()}
        if sample.body is None:  # of a failed row of several URLs
            return replace(sample, extra_files=extra_files)
        if not has_data:  # further files are columns
            return replace(sample, body=None, extra_files=extra_files)
        return replace(sample, body=self._spooled(sample.body), extra_files=extra_files)

    def _spooled(self, body: Body | StoredBody) -> StoredBody:
        """It in the spool, unless it was kept there when the shard was opened."""
        return body if isinstance(body, StoredBody) else self._spool.add(body.chunks())

    def rows_with(self, position: int) -> int:
        """How many rows have the outcome of this one that is about to be taken."""
        return 1 + len(self._copies.get(position, ()))

    def write_pending(self) -> bool:
        """Nothing is written before all is there."""
        return True

    @property
    def staged(self) -> int:
        """Bytes of bodies on the staging disk."""
        return self._spool.size

    def flush(self) -> None:
        """Nothing is held."""

    def settle(self) -> None:
        """Nothing is held."""

    def publish(self, output: OutputFolder) -> ShardReport:
        """Merge old and new, and replace the previous shard with the result.

        The figures are those of the rows that were tried, and of new ones that are not fetched; the stats have those of
        the whole.
        """
        rows = JobRows(self.job, self._context.layout)
        for position, samples in self._outcomes.items():
            self.stats.add_metadata([sample.fields for sample in samples], partial(rows.url, position))
            for sample in samples:
                self.stats.processed.update(sample.processed)
                if sample.not_processed and sample.fields.get("status") == SUCCESS:
                    self.stats.not_processed.update(sample.not_processed.values())
        report = self.stats.report(self.job.shard_id)
        if self._outcomes:
            with closing(self._spool):
                merge = Merge(self.job, self._context, output, self._outcomes, self._spool)
                try:
                    files = merge.files(self.stats)
                    swap(output, self._context.layout.shard_name(self.job.shard_id), files)
                    self._swapped(output, files)
                finally:
                    merge.discard()
        return report

    def _swapped(self, output: OutputFolder, files: Mapping[str, Path]) -> None:
        """The new version, with `files`, is in its place."""

    def discard(self) -> None:
        """Free what the shard holds on disk."""
        self.closed = True
        self._spool.close()

    def _expect_data(self, output: OutputFolder, has_samples: bool) -> None:
        """Raises DamagedShard if they are gone. A folder without a file is none in an object store."""
        name = self._data_name
        if name is not None and (has_samples or self._context.writer.extension) and not output.exists(name):
            raise DamagedShard(f"{name} is missing: {REPAIR}")

    def _counting_attempts(self, sample: Sample) -> Sample:
        before = self._attempts.get(sample.row.position)
        if not before:
            return sample
        return replace(sample, fields={**sample.fields, "attempts": before + (sample.fields.get("attempts") or 0)})


def _copies(rows: JobRows, wanted: list[int], media: MediaOptions) -> dict[int, list[int]]:
    """Of the rows at the positions `wanted`: the first one with a URL -> the others with the same."""
    found: dict[int, list[int]] = {}
    table = take(rows.table, wanted)
    for copy, first in repeated(table["url"], expected_hashes(table), also_the_same(table, media)).items():
        found.setdefault(wanted[first], []).append(wanted[copy])
    return found
