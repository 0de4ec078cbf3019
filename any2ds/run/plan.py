"""The shards of a run's list: which are finished, which this run makes, and what it learns of the list on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from any2ds.config.options import Config
from any2ds.core.errors import ChangedList, ReadError, error_text
from any2ds.core.manifest import Ending, Segment
from any2ds.core.rows import ShardJob
from any2ds.dataset.run_file import begin_segment, end_segment
from any2ds.readers.dedupe import mark_duplicates
from any2ds.readers.plan import Cut
from any2ds.readers.sources import Source
from any2ds.run.compare import Difference
from any2ds.run.monitor import Outlook
from any2ds.run.place import Place
from any2ds.run.ranks import rank_of
from any2ds.run.retried import RetriedRows
from any2ds.storage.folders import OutputFolder

_MOST_HELD = 64 << 20  # bytes of rows that wait until the finished shards after them are compared


class ShardPlan:
    """Makes jobs of a list, and records where its segments begin and end."""

    def __init__(self, config: Config, source: Source, output: OutputFolder, place: Place) -> None:
        self.output = output
        self.finished = place.finished  # shards of all lists
        self.shards = set(place.finished_of_list)  # the finished shards of the list
        self.skipped = 0  # shards that came by and were finished
        self._config, self._source, self._place = config, source, place
        self._limit, self._rank = config.input.limit, rank_of(config.share)
        self._layout = config.output.layout
        self._retried = RetriedRows(output, place.manifest)
        self._rows = 0  # of the list, so far
        self._next = place.parts[0].first_shard  # behind the last shard so far
        self._passed_over = 0  # rows so far that this run does not fetch
        self._to_come = sum(map(self._makes, self.shards))  # finished shards of this run, not seen yet

    def _makes(self, shard_id: int) -> bool:
        return self._rank is None or self._rank.makes(shard_id)

    def jobs(self) -> Iterator[ShardJob]:
        """The jobs for the shards that this run makes, in the order of the list.

        Raises ReadError where the list breaks off, after the jobs before, and ChangedList if finished shards were made
        from another list.
        """
        place, schema = self._place, self._source.schema
        rows = place.divided(self._source.batches(ends=place.by_file))
        if self._config.output.dedupe == "run":
            rows, schema = mark_duplicates(rows, schema, self._layout, place.shard_at, self._config.media)
        shards = self._ended(place.cuts(rows, self._config.url_columns))
        return self._compared(cut.job(schema, self._settled(cut)) for cut in shards if self._is_wanted(cut))

    def missing(self) -> list[int]:
        """The shards of the list, of all ranks, that are not finished now. To be asked when the list was read."""
        present = self.output.finished_shards()
        spans = (range(part.first_shard, self._next if part.end is None else part.end) for part in self._place.parts)
        return [shard_id for span in spans for shard_id in span if shard_id not in present]

    def outlook(self) -> Outlook:
        """How much there is to do. Called from any thread."""
        rows, planned, share = self._source.rows, self._rows, self._source.share_of(self._rows)
        to_come = 0 if self._place.by_file else max(0, self._to_come) * self._layout.rows_per_shard
        if self._rank is not None:
            total = rows if rows is not None else planned / share if share else planned
            to_come += round(max(0.0, total - planned) * (1 - 1 / self._rank.world_size))
        passed_over = self._passed_over + to_come
        passed_over = passed_over if rows is None else min(passed_over, rows)
        return Outlook(rows, planned, share, passed_over, self._config.input.shuffle is None)

    # --- while the list is read ---

    def _ended(self, cuts: Iterator[Cut]) -> Iterator[Cut]:
        """The shards of the list. Where a segment ends is recorded before a shard with fewer rows than there is room
        for: it never gets further ones.

        So is where the list breaks off: rows behind that are a segment of their own when it can be read. A rank leaves
        them, since the lists of other ranks may not break off.
        """
        short: Cut | None = None  # until it is known whether more rows follow
        failure: ReadError | None = None
        try:
            for cut in cuts:
                self._check(cut)
                if short is not None:
                    yield short
                short = cut if cut.rows < self._layout.rows_per_shard else None
                if short is None:
                    yield cut
        except ReadError as error:  # the rows before it are not affected
            if isinstance(error, ChangedList):
                raise
            failure = error
        if failure is None or (short is not None and short.is_broken_off and self._may_end_here):
            is_whole = self._end()
        else:
            is_whole = short is None or not short.is_broken_off
        if short is not None and is_whole:
            yield short
        if failure is not None:
            raise failure

    def _check(self, cut: Cut) -> None:
        """Begin a segment for rows behind the last one. Raises ChangedList if these are not the rows of the shard."""
        try:
            if self._place.comparison is not None:
                self._place.comparison.check(cut)
        except Difference as difference:
            raise self._changed(str(difference)) from difference
        if self._place.part_of(cut.shard_id) is None:
            if (segment := self._place.next_part) is None:
                raise self._changed(
                    f"it had {cut.start:,} rows and has more now, which come behind another list that no run has read "
                    "to its end: finish that one first"
                )
            begin_segment(self.output, segment)
            self._place = self._place.with_segment(segment)
        self._rows, self._next = cut.start + cut.rows, cut.shard_id + 1

    @property
    def _may_end_here(self) -> bool:
        """Whether a segment can end where the list has broken off."""
        return self._rank is None and self._part_that_ends().end_row is None

    def _end(self) -> bool:
        """Record where the last segment ends. Returns whether the list has come to this end.

        Raises ChangedList if it has fewer rows than its shards were made from.
        """
        last, is_limited = self._part_that_ends(), self._rows == self._limit
        behind = max((shard_id for shard_id in self.shards if shard_id >= self._next), default=None)
        if not is_limited and behind is not None:
            name = self._layout.shard_name(behind)
            raise self._changed(f"the list ends with row {self._rows:,}, and shard {name} was made from rows behind it")
        if last.end_row is not None:
            if self._rows < last.end_row and not is_limited:
                raise self._changed(f"the list ends with row {self._rows:,}, and had {last.end_row:,} rows before")
            return self._rows == last.end_row
        if behind is not None:
            return False  # runs without the limit have made shards behind it
        limit = self._limit if is_limited else None
        ending = Ending(self._rows - last.start_row, self._next - last.first_shard, limit)
        try:
            self._place = self._place.with_segment(end_segment(self.output, last, ending))
        except OSError as error:
            raise ReadError("", f"the end of the list cannot be recorded: {error_text(error)}") from error
        return True

    def _part_that_ends(self) -> Segment:
        """The segment in which the list ends."""
        parts = [part for part in self._place.parts if part.start_row < self._rows]
        return parts[-1] if parts else self._place.parts[0]

    def _is_wanted(self, cut: Cut) -> bool:
        """Whether this run makes the shard."""
        makes = self._makes(cut.shard_id)
        if cut.shard_id in self.shards:
            self._to_come -= makes
            self.skipped += makes
        elif makes:
            return True
        self._passed_over += cut.rows
        return False

    def _settled(self, cut: Cut) -> dict[int, str]:
        """The rows of a shard that a retry has taken over, when the shard was there before."""
        part = self._place.part_of(cut.shard_id)
        keys = map(self._layout.keys(cut.shard_id), range(cut.rows))
        return {} if part is None else self._retried.taken_from(part.number, keys)

    def _compared(self, jobs: Iterable[ShardJob]) -> Iterator[ShardJob]:
        """The jobs, each once the finished shards after it were compared. No more than 64 MiB of rows wait for that."""
        held: deque[ShardJob] = deque()
        size = 0
        try:
            for job in jobs:
                held.append(job)
                size += len(job.rows)
                while held and (size > _MOST_HELD or self._is_compared(held[0].shard_id)):
                    size -= len(held[0].rows)
                    yield held.popleft()
        except ChangedList:
            raise
        except ReadError:
            yield from held
            raise
        yield from held

    def _is_compared(self, shard_id: int) -> bool:
        """Whether a shard behind it fits the list, as far as there are finished ones."""
        comparison = self._place.comparison
        return comparison is None or shard_id < self._next - 1 or shard_id > comparison.last

    def _changed(self, difference: str) -> ChangedList:
        return ChangedList(
            f"{self.output.url!r} holds shards of another url list: {difference}. It was read up to there"
        )
