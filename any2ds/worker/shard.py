"""One shard while it is being made: puts outcomes back in order, writes them, and publishes the result."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from any2ds.core.bodies.buffer import Buffer
from any2ds.core.reports import ShardReport
from any2ds.core.rows import Row, ShardJob
from any2ds.core.samples import Sample, Samples, outcome_of, release
from any2ds.readers.dedupe import Copies, also_the_same, expected_hashes, repeated
from any2ds.storage.folders import OutputFolder
from any2ds.worker.context import ShardContext, StagedFiles, named, stats_json
from any2ds.worker.job_rows import JobRows
from any2ds.worker.joined_rows import JoinedRows
from any2ds.worker.shard_stats import ShardStats
from any2ds.writers.contract import ShardWriter

_TURN = 64 << 20  # bytes written in one go of what was waiting; sockets wait meanwhile


class OpenShard:
    """Takes the outcomes of the rows of `job` in any order; complete when there is one for each row.

    Not all rows are fetched: duplicates and bad rows have their outcome already, and with `fetch_once` rows with the
    URL of an earlier one get the outcome of that.
    """

    def __init__(self, job: ShardJob, context: ShardContext, buffer: Buffer, fetch_once: bool) -> None:
        self.job = job
        self._context = context
        self._layout = context.layout
        self._buffer = buffer
        self._rows = JobRows(job, self._layout)
        self.metadata = context.metadata(self._rows.table)
        self._staged = StagedFiles(context, job.shard_id)
        self._writer: ShardWriter | None = None  # opened with the first sample
        self._accounted = 0  # bytes held by the writer that the buffer knows of
        self._waiting: dict[int, Samples] = {}  # outcomes whose turn has not come
        self._next = 0  # position whose turn it is
        self._members = context.media.members  # where a row has several URLs
        self.stats = ShardStats(self._members)
        self._bytes = 0  # of stored files
        self._further = 0  # bytes of further files, and of what else is large in the metadata
        self.reported: Counter[str] = Counter()  # rows by outcome, as far as Progress has reported them
        self.reported_bytes = 0  # of these
        self.handed = 0  # position up to which a fetcher has taken the rows
        self.is_discarded = False
        self._not_fetched = self._rows.not_fetched()
        rows = self._rows.table
        self._taken = context.taken(rows)
        self.joined = self._joined(fetch_once)  # where a row has several URLs
        self._first_of = (
            repeated(rows.column("url"), expected_hashes(rows), also_the_same(rows, context.media))
            if fetch_once and self.joined is None
            else {}
        )
        self._copies = Copies(self._first_of, self._rows.at(list(self._first_of))) if self._first_of else None
        self.settled = self._count_settled()  # outcomes of rows that are not fetched, and of their copies
        self.write_pending()

    def _joined(self, fetch_once: bool) -> JoinedRows | None:
        if (members := self._members) is None:
            return None
        joined = JoinedRows(members, self._rows, self._not_fetched, tuple(self._context.own_columns), self.stats)
        if fetch_once:
            joined.fetch_once(self._context.media)
        return joined

    def _count_settled(self) -> Counter[str]:
        outcomes = Counter[str]()
        for position, code in self._not_fetched.items():
            if position not in self._first_of:
                outcomes[code] += self.rows_with(position)
        return outcomes

    @property
    def all_handed(self) -> bool:
        """Whether a fetcher has taken all the rows to fetch."""
        if self.joined is not None:
            return self.joined.all_handed(self.handed)
        first_of, not_fetched = self._first_of, self._not_fetched
        return all(position in first_of or position in not_fetched for position in range(self.handed, self.job.count))

    @property
    def complete(self) -> bool:
        return self._next == self.job.count

    def rows(self) -> Iterator[Row]:
        """The rows to fetch."""
        if self.joined is not None:
            return self.joined.rows()
        if not (self._first_of or self._not_fetched):
            return iter(self._rows)
        known = self._first_of.keys() | self._not_fetched.keys()
        return self._rows.at([position for position in range(self.job.count) if position not in known])

    def under_way(self) -> list[int]:
        """Positions of the rows that a fetcher has taken, and that have no outcome."""
        if self.joined is not None:
            return self.joined.under_way(self.handed)
        known = self._waiting.keys() | self._first_of.keys() | self._not_fetched.keys()
        return [position for position in range(self._next, self.handed) if position not in known]

    def join(self, samples: Samples) -> Sequence[Samples]:
        """The rows of which all is known now that this is, which has become of one of their URLs; to be taken."""
        assert self.joined is not None
        found = self.joined.add(samples)
        if not found:
            for sample in samples:
                self._make_room(sample)
        return found

    def add(self, samples: Samples) -> bool:
        """Write the samples of a row if its turn has come, and those that were waiting for it; else keep them.

        False if more can be written by `write_pending`, which is for the next turn because this one took long enough.
        Raises OSError and whatever else the writer raises; the shard is to be discarded then.
        """
        if self._taken:
            samples = named(samples, self._taken)
        position = samples[0].row.position
        if position != self._next:
            self._waiting[position] = samples
            for sample in samples:
                self._make_room(sample)
            return True
        self._write_next(samples)
        has_more = self._waiting or self._not_fetched or self._copies is not None
        return self.write_pending() if has_more else True

    def rows_with(self, position: int) -> int:
        """How many rows have the outcome of this one that is about to be taken."""
        return 1 if self._copies is None else 1 + self._copies.of(position)

    def write_pending(self) -> bool:
        """Write the samples whose turn it is, as far as they are known. False and raises as `add` does."""
        enough = self._bytes + _TURN
        while (samples := self._known()) is not None:
            self._write_next(samples)
            if self._buffer.is_short(self.held):
                self.flush()  # nobody else looks after the memory before the turn is over
            if self._bytes >= enough:
                return False
        return True

    def _known(self) -> Samples | None:
        """The samples of the row whose turn it is, if they are known."""
        position = self._next
        if self._copies is not None and (copies := self._copies.at(position)):
            return copies
        if position in self._not_fetched:
            return (self._rows.outcome(position),)
        return self._waiting.pop(position, None) if self._waiting else None

    @property
    def held(self) -> int:
        """Bytes of bodies that the writer keeps in memory."""
        return self._writer.held if self._writer else 0

    @property
    def staged(self) -> int:
        """Bytes of bodies on the staging disk, about."""
        return self._bytes + self._further

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
        self._writer = writer = self._writer or self._staged.open(self.metadata)
        writer.close()
        data_bytes = self._staged.data_bytes
        files = {**self._staged.data(), **self._staged.write_metadata(self.metadata)}
        output.publish(files)
        self._staged.discard()
        self.stats.splits = self.metadata.splits
        self.stats.replaces, self.stats.replaced_members = self._rows.replaces, self._rows.replaced_members
        self.metadata.close()
        report = replace(self.stats.report(self.job.shard_id), urls_sha256=self.job.fingerprint, data_bytes=data_bytes)
        output.write(self._layout.stats_name(self.job.shard_id), stats_json(self._context.figures(report)))
        return report

    def discard(self) -> None:
        """Free what the shard holds, in memory and on disk; others may need it."""
        self.is_discarded = True
        self._account(0)
        if self._writer is not None:
            with contextlib.suppress(Exception):  # it may be what failed
                self._writer.close()
        self._staged.discard()
        if self.joined is not None:
            self.joined.discard()
        self.metadata.close()
        for samples in self._waiting.values():
            release(samples)
        self._waiting.clear()
        if self._copies is not None:
            self._copies.discard()

    def _write_next(self, samples: Samples) -> None:
        """Write the samples of the row whose turn it is, which are released then, and count its outcome."""
        is_shared = self._copies is not None and self._copies.keep(samples)
        left = iter(samples)
        try:
            for sample in left:
                try:
                    self.metadata.add(sample)
                    if sample.body is not None:
                        if is_shared:
                            self._make_room(sample)
                        self._store(sample, sample.body.size)
                finally:
                    release((sample,))
        except BaseException:
            release(left)
            raise
        outcome, position = outcome_of(samples), self._next
        code = status = outcome.fields["status"]
        if outcome.failure is not None:
            code = outcome.failure.code
            if code not in self.stats.examples:
                column = "url" if self._members is None else self._members.deciding_url(outcome.fields)
                self.stats.add_example(code, self._rows.url(position, column))
        self.stats.add_row(status, code)
        if self.joined is not None:
            self.stats.add_members(outcome.fields)
        elif position not in self._first_of:  # copies were transferred once, with the first of them
            self.stats.add_transfer(outcome.fields.get("attempts"), outcome.seconds)
        self._next += 1

    def _store(self, sample: Sample, size: int) -> None:
        writer = self._writer
        if writer is None:  # many shards may be waiting for their first sample
            writer = self._writer = self._staged.open(self.metadata)
        writer.write(sample)
        if writer.held != self._accounted:
            self._account(writer.held)
        self._bytes += size
        if self.metadata.added or sample.extra_files:
            self._further += self.metadata.added or sum(further.size for further in sample.extra_files.values())
        self.stats.add_sample(sample.ext, size, sample.not_processed)
        if sample.extra_files and self._members is not None:
            for ext, body in self._members.files(sample):
                self.stats.add_file(ext, body.size)

    def _make_room(self, sample: Sample) -> None:
        """Spill the files of a sample that has to wait, unless there is plenty of memory."""
        if self._buffer.used > self._buffer.few:
            for body in sample.bodies:
                body.spill()

    def _account(self, held: int) -> None:
        self._buffer.used += held - self._accounted
        self._accounted = held
