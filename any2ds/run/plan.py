"""The shards of a run's list: which are finished, which this run makes, and what it learns of the list on the way."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import islice

import pyarrow as pa

from any2ds.config.options import Config
from any2ds.core import layout
from any2ds.core.errors import ChangedList, ReadError, error_text
from any2ds.core.manifest import Ending, Segment
from any2ds.core.on_disk import held
from any2ds.core.rows import KEY_COLUMN, ShardJob
from any2ds.dataset.run_file import begin_segment, end_segment
from any2ds.readers.dedupe import mark_duplicates
from any2ds.readers.plan import Cut
from any2ds.readers.sources import Source
from any2ds.run.compare import another_list, difference
from any2ds.run.monitor import Outlook
from any2ds.run.place import Place
from any2ds.run.ranks import rank_of
from any2ds.run.retried import RetriedRows
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)


class ShardPlan:
    """Makes jobs of a list, and records where its segments begin and end."""

    def __init__(self, config: Config, source: Source, output: OutputFolder, place: Place) -> None:
        """Raises OutputError if finished shards were made from another list; nothing was changed then."""
        self.output = output
        self.finished: Collection[int] = place.finished  # shards of all lists
        self.shards: Collection[int] = place.finished_of_list
        self.skipped = 0  # shards that came by and were finished
        self._source, self._place = source, place
        self._is_in_order = config.input.shuffle is None
        self._limit, self._rank = config.input.limit, rank_of(config.share)
        self._layout = config.output.layout
        self._retried = RetriedRows(output, place.manifest)
        self._rows = 0  # of the list, so far
        self._next = place.parts[0].first_shard  # behind the last shard so far
        self._passed_over = 0  # rows so far that this run does not fetch
        self._to_come = sum(map(self._rank.makes, self.shards))  # finished shards of this run, not seen yet
        rows, self._schema = place.divided(source.batches(ends=place.by_file)), source.schema
        if config.output.dedupe == "run":
            rows, self._schema = mark_duplicates(rows, self._schema, self._layout, place.shard_at, config.media)
        compared = (*config.url_columns, *([KEY_COLUMN] if config.output.key_col is not None else []))
        self._cuts = place.cuts(rows, compared)
        self._compared = deque(_on_disk(self._compare()))
        self._remove_broken()

    def jobs(self) -> Iterator[ShardJob]:
        """The jobs for the shards that this run makes, in the order of the list.

        Raises ReadError where the list breaks off, after the jobs before.
        """
        for cut in self._ended():
            if self._is_wanted(cut):
                yield cut.job(self._schema, self._settled(cut))

    def outlook(self) -> Outlook:
        """How much there is to do. Called from any thread."""
        rows, planned, share = self._source.rows, self._rows, self._source.share_of(self._rows)
        to_come = 0 if self._place.by_file else max(0, self._to_come) * self._layout.rows_per_shard
        if not self._rank.is_alone:
            total = rows if rows is not None else planned / share if share else planned
            to_come += round(max(0.0, total - planned) * (1 - 1 / self._rank.world_size))
        passed_over = self._passed_over + to_come
        passed_over = passed_over if rows is None else min(passed_over, rows)
        return Outlook(rows, planned, share, passed_over, self._is_in_order)

    def missing(self) -> int:
        """How many shards of the list, of all ranks, are not finished now. To be asked when the list was read."""
        present = self.output.finished_shards()
        return sum(len(span) - sum(shard_id in span for shard_id in present) for span in self._place.spans(self._next))

    # --- before the run ---

    def _compare(self) -> Iterator[Cut]:
        """The shards of a list that may have changed, up to the last finished one, without rows that are not needed.

        Raises OutputError where its rows are not those of a finished shard.
        """
        made = self._place.to_compare
        last, rows = max(made, default=-1), 0
        for cut in self._cuts if made else ():
            rows = cut.start + cut.rows
            shard = made.get(cut.shard_id)
            is_cut_off = shard is not None and rows == self._limit and cut.rows < shard.count
            if shard is not None and not is_cut_off and (text := difference(self.output, self._layout, cut, shard)):
                raise another_list(self.output, text, not self._is_in_order)
            is_needed = cut.shard_id not in self.shards and self._rank.makes(cut.shard_id)
            yield cut if is_needed else replace(cut, batches=())
            if cut.shard_id >= last:
                return
        if made and rows != self._limit:
            name = self._layout.shard_name(last)
            text = f"the list ends with row {rows:,}, and shard {name} was made from rows behind it"
            raise another_list(self.output, text, not self._is_in_order)

    def _remove_broken(self) -> None:
        """Remove the statistics of shards that are made again: they never lie beside the data of another shard."""
        if self._place.broken:
            self.output.remove(layout.SHARDS_FILE)
        for shard_id, reason in sorted(self._place.broken.items()):
            log.warning("%s: its shard is made again", reason)
            self.output.remove(self._layout.stats_name(shard_id))

    # --- while the list is read ---

    def _ended(self) -> Iterator[Cut]:
        """The shards of the list. Where a segment ends is recorded before a shard with fewer rows than there is room
        for: it never gets further ones.

        So is where the list breaks off: rows behind that are a segment of their own when it can be read. A rank leaves
        them, since the lists of other ranks may not break off.
        """
        short: Cut | None = None  # until it is known whether more rows follow
        failure: ReadError | None = None
        try:
            for cut in self._all_cuts():
                self._begin_segment_of(cut)
                if short is not None:
                    yield short
                short = cut if cut.rows < self._layout.rows_per_shard else None
                if short is None:
                    yield cut
        except ChangedList:
            raise
        except ReadError as error:  # the rows before it are not affected
            failure = error
        is_whole = short is None or not short.is_broken_off
        if failure is None or (not is_whole and self._rank.is_alone and self._last_part().ending is None):
            is_whole = self._end(is_broken_off=failure is not None)
        if short is not None and is_whole:
            yield short
        if failure is not None:
            raise failure

    def _all_cuts(self) -> Iterator[Cut]:
        while self._compared:
            yield self._compared.popleft()
        yield from self._cuts

    def _begin_segment_of(self, cut: Cut) -> None:
        """Begin a segment for rows behind the last one. Raises ChangedList if that cannot be."""
        if self._place.part_of(cut.shard_id) is None:
            if (segment := self._place.next_part) is None:
                raise ChangedList(
                    f"the list had {cut.start:,} rows and has more now, which come behind another list that no run has "
                    "read to its end: finish that one first"
                )
            begin_segment(self.output, segment)
            self._place = self._place.with_segment(segment)
        self._rows, self._next = cut.start + cut.rows, cut.shard_id + 1

    def _end(self, is_broken_off: bool) -> bool:
        """Record where the last segment ends. Returns whether the list has come to this end.

        Raises ChangedList if the list has fewer rows than before, unless it broke off or this run has a limit.
        """
        last, limit = self._last_part(), self._limit if self._rows == self._limit else None
        if last.end_row is not None:
            if self._rows < last.end_row and limit is None:
                raise ChangedList(f"the list ends with row {self._rows:,}, and had {last.end_row:,} rows before")
            return self._rows == last.end_row
        if any(shard_id >= self._next for shard_id in self.shards):  # of runs with a higher limit, or with none
            if limit is None and not is_broken_off:
                raise ChangedList(f"the list ends with row {self._rows:,}, and there are shards of rows behind it")
            return False
        ending = Ending(self._rows - last.start_row, self._next - last.first_shard, limit)
        try:
            self._place = self._place.with_segment(end_segment(self.output, last, ending))
        except OSError as error:
            raise ReadError("", f"the end of the list cannot be recorded: {error_text(error)}") from error
        return True

    def _last_part(self) -> Segment:
        """The segment in which the list ends."""
        return [part for part in self._place.parts if part.start_row < max(1, self._rows)][-1]

    def _is_wanted(self, cut: Cut) -> bool:
        """Whether this run makes the shard."""
        makes = self._rank.makes(cut.shard_id)
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
        return {} if part is None else self._retried.among(cut.keys(self._layout), part.number)


def _on_disk(cuts: Iterable[Cut]) -> Iterator[Cut]:
    """The cuts, whose rows are in a temporary file where they are many. All are read first."""
    without_rows: list[tuple[Cut, int]] = []  # and the number of batches of each

    def batches() -> Iterator[pa.RecordBatch]:
        for cut in cuts:
            without_rows.append((replace(cut, batches=()), len(cut.batches)))
            yield from cut.batches

    rows = iter(held(batches()))
    return (replace(cut, batches=tuple(islice(rows, count))) for cut, count in without_rows)
