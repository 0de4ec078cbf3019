"""Finds the failed rows of a finished dataset, and makes jobs to fetch them again."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from any2ds.core.errors import DamagedShard, OutputError, error_text, shard_count
from any2ds.core.failures import FailureFilter
from any2ds.core.layout import Layout, finished_shards
from any2ds.core.members import Members
from any2ds.core.metadata import HASHES
from any2ds.core.rows import ShardJob
from any2ds.core.samples import row_key
from any2ds.core.tables import take
from any2ds.dataset.shard_list import gaps
from any2ds.run.monitor import Outlook
from any2ds.storage.folders import OutputFolder
from any2ds.writers.previous_shard import (
    by_row,
    column_names,
    list_columns,
    opened,
    outcomes_of,
    places,
    without_field_metadata,
)

log = logging.getLogger(__name__)

_AT_ONCE = 8  # shards whose metadata are read ahead: each takes a few requests on a remote store


class FailedRows:
    """The plan of a retry: the rows of finished shards that failed with one of `codes`.

    `shards` are the finished shards; `skipped` counts those that turned out to have no such row.
    """

    def __init__(
        self,
        output: OutputFolder,
        layout: Layout,
        codes: tuple[str, ...],
        of_transforms: Collection[str] = (),
        hashes: Collection[str] = HASHES,
        members: Members | None = None,
    ) -> None:
        """`of_transforms` are the columns of the metadata that transforms fill, `hashes` those of computed hashes.

        Of a row with several URLs (`members`) those that failed are fetched, also where it is a success without them.

        Raises OutputError if no shard is finished.
        """
        self._of_transforms, self._hashes, self._members = of_transforms, hashes, members
        self._output, self._layout, self._codes = output, layout, codes
        self._is_selected = FailureFilter(codes)
        names = output.names()
        self.shards = set(finished_shards(names))
        self.skipped = 0
        self._looked_at = 0  # shards
        self._planned = 0  # rows of them to fetch again
        if not self.shards:
            raise OutputError(f"{output.url!r} holds no finished shard")
        begun = {int(match[1]) for name in names if (match := re.fullmatch(r"(\d{1,18})(?:\.[a-z]+)?", name))}
        last = max(self.shards)
        unfinished = [*gaps(sorted(self.shards)), *((shard, shard) for shard in begun if shard > last)]
        self._unfinished = sum(end - start + 1 for start, end in unfinished)
        self._first_unfinished = min((start for start, _ in unfinished), default=0)

    def warn_of_unfinished(self) -> None:
        """Log which shards are not finished, but have files, or come before finished ones."""
        if self._unfinished:
            log.warning(
                "%d shards are not finished, the first is %d: run the original download command to complete them",
                self._unfinished,
                self._first_unfinished,
            )

    def jobs(self) -> Iterator[ShardJob]:
        """A job for each shard with such rows, in order.

        Raises DamagedShard at the end if the metadata of shards cannot be read; these are left as they are.
        """
        damaged: list[tuple[int, str]] = []
        waiting: deque[tuple[int, Future[tuple[ShardJob, int] | None]]] = deque()
        numbers = iter(sorted(self.shards))
        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="any2ds-metadata")
        try:
            while True:
                while len(waiting) < _AT_ONCE and (number := next(numbers, None)) is not None:
                    waiting.append((number, pool.submit(self._job, number)))
                if not waiting:
                    break
                shard_id, future = waiting.popleft()
                try:
                    found = future.result()
                except Exception as error:  # of any file system; it concerns this shard alone
                    damaged.append((shard_id, error_text(error)))
                    self._looked_at += 1
                    continue
                self._looked_at += 1
                if found is None:
                    self.skipped += 1
                    continue
                job, rows = found
                self._planned += rows
                yield job
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if damaged:
            first, why = damaged[0]
            raise DamagedShard(f"{shard_count(len(damaged), 'was', 'were')} left alone, the first ({first}): {why}")

    def outlook(self) -> Outlook:
        """How much there is to do. Called from any thread."""
        share = self._looked_at / len(self.shards)
        return Outlook(self._planned if share == 1 else None, self._planned, share)

    def _job(self, shard_id: int) -> tuple[ShardJob, int] | None:
        """The job, with all rows of the shard, and how many of them to fetch again; None if there are none.

        Raises DamagedShard.
        """
        name = self._layout.metadata_name(shard_id)
        with opened(self._output, *self._layout.metadata_names(shard_id)) as file:
            names = column_names(file.schema_arrow)
            outcomes = file.read([column for column in ("key", "status", "error_code") if column in names])
            keys, statuses = outcomes["key"].to_pylist(), outcomes["status"].to_pylist()
            codes = outcomes["error_code"].to_pylist() if "error_code" in names else [None] * len(statuses)
            has_members = self._members is not None
            if not (has_members or any(map(self._is_selected, statuses, codes))):
                return None
            try:
                count = len({row_key(key or "") for key in keys})
                rows_of = by_row(places(keys, self._layout, shard_id, count))
            except DamagedShard as error:
                raise DamagedShard(f"{name}: {error}") from None
            if self._members is not None:
                of_members = [name for name in self._members.outcome_columns() if name in names]
                found = file.read(of_members).to_pylist()
                selected = sum(bool(self._members.to_retry(row, self._is_selected)) for row in found)
            else:
                selected = sum(self._is_selected(*outcome) for outcome in outcomes_of(outcomes, rows_of).values())
            if not selected:
                return None
            wanted = list_columns(names, self._of_transforms, self._hashes)
            table = without_field_metadata(file.read(wanted).select(wanted))
        rows = take(table, [rows_of[position][0] for position in range(count)])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        return ShardJob(shard_id, sink.getvalue().to_pybytes(), rows.num_rows, redo=self._codes), selected
