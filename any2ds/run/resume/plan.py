"""The shards of a run's list: which are finished, which this run makes, and what it learns of the list on the way."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from any2ds.config.options import Config
from any2ds.core import layout
from any2ds.core.errors import ChangedList, ReadError, error_text
from any2ds.core.manifest import Manifest, Segment
from any2ds.core.rows import ShardJob
from any2ds.readers.dedupe import mark_duplicates
from any2ds.readers.plan import Cut, State, cuts, plan
from any2ds.readers.sources import Source
from any2ds.run.monitor import Outlook
from any2ds.run.ranks import rank_of
from any2ds.run.resume.compare import Comparison, Difference, check_growth, incomplete
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)

_MOST_HELD = 64 << 20  # bytes of rows that wait until the finished shards after them are compared


@dataclass(frozen=True, slots=True)
class FinishedShards:
    """What a dataset holds of a list before the run."""

    manifest: Manifest
    segment: Segment  # of the list
    of_list: frozenset[int]  # its finished shards
    of_all: frozenset[int]  # those of all lists
    counts: Mapping[int, int] = field(default_factory=dict)  # shard -> its rows, where they may be too few
    comparison: Comparison | None = None  # to do while planning, because the list can be read only once


class ShardPlan:
    """Makes jobs of a list, and records what it learns of it in `.any2ds/run`."""

    def __init__(self, config: Config, source: Source, output: OutputFolder, finished: FinishedShards) -> None:
        self.output = output
        self.shards = set(finished.of_list)  # the finished shards of the list
        self.finished = finished.of_all  # of all lists
        self.skipped = 0  # shards that came by and were finished
        self._config, self._source = config, source
        self._limit = config.input.limit
        self._rank = rank_of(config.share)
        self._layout = config.output.layout
        self._manifest, self._segment = finished.manifest, finished.segment
        self._behind = finished.manifest.behind(finished.segment)
        self._counts, self._comparison = finished.counts, finished.comparison
        self._rows = 0  # of the list, so far
        self._next = self._segment.first_shard
        self._passed_over = 0  # rows so far that this run does not fetch
        self._to_come = sum(
            1 for shard_id in self.shards if self._makes(shard_id)
        )  # finished shards of this run's share, not seen yet
        self._short: dict[int, int] = {}  # shard found to have too few rows -> the rows that it is to have
        self._is_read = False  # the list, to its end

    @property
    def _by_file(self) -> bool:
        """Whether no shard holds rows of two files."""
        return self._segment.cut == "file"

    def _makes(self, shard_id: int) -> bool:
        return self._rank is None or self._rank.makes(shard_id)

    def jobs(self) -> Iterator[ShardJob]:
        """The jobs for the shards that this run makes, in the order of the list.

        Raises ReadError where the list breaks off, after the jobs before, and ChangedList if finished shards were made
        from another list.
        """
        rows, schema = self._source.batches(ends=self._by_file), self._source.schema
        first = self._segment.first_shard
        if self._config.output.dedupe == "run":
            rows, schema = mark_duplicates(rows, schema, self._layout, first, self._config.media)
        shards = cuts(rows, self._layout.rows_per_shard, first, self._by_file, self._config.url_columns)
        return self._compared(plan(shards, schema, self._state))

    def missing(self) -> list[int]:
        """The shards of the list, of all ranks, that are not finished now. To be asked when the list was read."""
        present = self.output.finished_shards()
        missing = [shard_id for shard_id in range(self._segment.first_shard, self._next) if shard_id not in present]
        short = {shard_id: rows for shard_id, rows in self._short.items() if shard_id in present}
        return sorted([*missing, *incomplete(self.output, self._layout, short)])

    def outlook(self) -> Outlook:
        """How much there is to do. Called from any thread."""
        rows = self._source.rows if self._segment.rows is None else self._segment.rows
        planned, share = self._rows, self._source.share_of(self._rows)
        to_come = 0 if self._by_file else max(0, self._to_come) * self._layout.rows_per_shard
        if self._rank is not None:
            total = rows if rows is not None else planned / share if share else planned
            to_come += round(max(0.0, total - planned) * (1 - 1 / self._rank.world_size))
        passed_over = self._passed_over + to_come
        passed_over = passed_over if rows is None else min(passed_over, rows)
        return Outlook(rows, planned, share, passed_over, self._config.input.shuffle is None)

    # --- while the list is read ---

    def _state(self, cut: Cut) -> State:
        """What a shard needs. Raises ChangedList if finished shards were made from another list."""
        self._check(cut)
        shard_id, rows = cut.shard_id, cut.rows
        state: State = "missing"
        if shard_id in self.shards:
            if self._makes(shard_id):
                self._to_come -= 1
            if rows <= self._counts.get(shard_id, rows):
                self.skipped += 1
                self._passed_over += rows
                return "done"
            self.shards.discard(shard_id)
            self._short[shard_id] = rows
            state = "short"
        if not self._makes(shard_id):
            self._passed_over += rows
            return "done"
        if state == "short":
            self._passed_over += self._counts[shard_id]
        return state

    def _check(self, cut: Cut) -> None:
        """Raises ChangedList if finished shards were made from another list."""
        self._rows += cut.rows
        self._next = cut.shard_id + 1
        try:
            if self._behind is not None:
                check_growth(self._segment, self._rows)
            if self._comparison is not None:
                self._comparison(cut)
        except Difference as difference:
            raise self._changed(difference) from difference
        is_cut_off = (
            self._rows == self._limit and cut.rows < self._layout.rows_per_shard and cut.shard_id not in self.shards
        )
        if (cut.is_broken_off or is_cut_off) and self._makes(cut.shard_id) and cut.shard_id not in self._segment.short:
            # Recorded before the shard is made: it need not be the last one, and of an unchanged list only the last
            # and the short ones are looked at.
            self._segment = replace(self._segment, short=tuple(sorted({*self._segment.short, cut.shard_id})))
            self._manifest = self._manifest if self._rank is None else self._recorded_manifest()
            self._write()

    def _compared(self, jobs: Iterable[ShardJob]) -> Iterator[ShardJob]:
        """The jobs, each once the finished shards after it were compared; then record where the list ends.

        No more than 64 MiB of rows wait for that.
        """
        held: deque[ShardJob] = deque()
        size = 0
        try:
            for job in jobs:
                held.append(job)
                size += len(job.rows)
                while held and (size > _MOST_HELD or self._is_compared(held[0].shard_id)):
                    size -= len(held[0].rows)
                    yield held.popleft()
            if self._comparison is not None and self._rows != self._limit:
                self._comparison.ended(self._next, self._rows)
        except Difference as difference:
            raise self._changed(difference) from difference
        except ChangedList:
            raise
        except ReadError:  # the rows before it are not affected
            yield from held
            raise
        yield from held
        shards, short = self._next - self._segment.first_shard, tuple(self._short)
        ended = replace(self._segment, rows=self._rows, shards=shards, short=short, limit=None)
        if self._rows == self._limit:
            # Runs without the limit, or with a greater one, may have made shards behind it.
            has_more = self._segment.rows is not None or max(self.shards, default=-1) >= self._next
            ended = self._segment if has_more else replace(ended, limit=self._limit)
        has_changed, self._segment, self._is_read = ended != self._segment, ended, True
        if has_changed and self._rank is None:
            self._try_to_write()

    def _is_compared(self, shard_id: int) -> bool:
        comparison = self._comparison
        return comparison is None or comparison.compared > shard_id or shard_id > comparison.last

    def _changed(self, difference: Difference) -> ChangedList:
        return ChangedList(
            f"{self.output.url!r} holds shards of another url list: {difference}. It was read up to there"
        )

    # --- what is recorded ---

    @property
    def is_recorded(self) -> bool:
        """Whether a rank has nothing to record for the others. To be asked when its run has ended."""
        there, own = self._recorded_segment(), self._segment
        if not self._is_read or there is None:
            return not self._is_read
        return (there.rows, there.shards) == (own.rows, own.shards) and {*there.short} >= {*own.short}

    def record(self) -> None:
        """Record where the list ends, as a rank that holds the folder. Raises ChangedList if another rank has found
        another end."""
        there = self._recorded_segment()
        if there is not None and there.rows not in (None, self._rows):
            raise ChangedList(
                f"{self.output.url!r} is being made from lists that are not the same: one has {there.rows:,} rows, "
                f"and that of this run {self._rows:,}. Give each the same, and run the same command again"
            )
        if there is not None:  # shards that other ranks left short are not news
            self._segment = replace(self._segment, short=tuple(sorted({*there.short, *self._segment.short})))
        self._manifest = self._recorded_manifest()
        self._try_to_write()

    def _recorded_segment(self) -> Segment | None:
        first = self._segment.first_shard
        return next((segment for segment in self._recorded_manifest().lists if segment.first_shard == first), None)

    def _recorded_manifest(self) -> Manifest:
        """What `.any2ds/run` says now."""
        try:
            return Manifest.parse(self.output.read(layout.RUN_FILE) or b"")
        except ValueError:  # it was readable when this rank joined
            return self._manifest

    def _try_to_write(self) -> None:
        try:
            self._write()
        except OSError as error:  # the shards matter more; another run records it
            log.warning("%s could not be written: %s", layout.RUN_FILE, error_text(error))

    def _write(self) -> None:
        self.output.write(layout.RUN_FILE, self._manifest.with_list(self._segment).to_json())
