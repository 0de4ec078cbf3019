"""Finds what failed in a finished dataset, and makes shard jobs of it; reads how the dataset was made."""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from any2ds.core.errors import DamagedShard, OutputError, shard_count, words_of
from any2ds.core.failures import FailureFilter
from any2ds.core.layout import Layout, finished_shards
from any2ds.core.metadata import HASHES
from any2ds.core.rows import ShardJob
from any2ds.core.samples import row_key
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

_AT_ONCE = 8  # shards whose metadata are looked at ahead: each takes a few requests where they are remote


class Failed:
    """The failed rows of the finished shards of `output` that `codes` mean.

    `shards` are the finished ones, `unfinished` those of which files are there, or later ones are; `skipped` counts
    shards that turned out to have no such row.
    """

    def __init__(
        self,
        output: OutputFolder,
        layout: Layout,
        codes: tuple[str, ...],
        of_transforms: Collection[str] = (),
        hashes: Collection[str] = HASHES,
    ) -> None:
        """`of_transforms` are the columns of the metadata that transforms fill, `hashes` those of computed hashes.
        Raises OutputError if no shard is finished."""
        self._of_transforms, self._hashes = of_transforms, hashes
        self._output, self._layout, self._codes = output, layout, codes
        self._is_meant = FailureFilter(codes)
        names = output.names()
        self.shards = set(finished_shards(names))
        self.skipped = 0
        self._looked_at = self._planned = 0  # shards, and rows of them that are to be fetched again
        if not self.shards:
            raise OutputError(f"{output.url!r} holds no finished shard")
        begun = {int(match[1]) for name in names if (match := re.fullmatch(r"(\d+)(?:\.[a-z]+)?", name))}
        self.unfinished = (begun | set(range(max(self.shards)))) - self.shards

    def jobs(self) -> Iterator[ShardJob]:
        """One for each shard with such rows, in order, as fast as they are asked for.

        Raises DamagedShard at the end if there are shards whose metadata cannot be read, which are left alone.
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
                except Exception as error:  # it concerns this shard alone, and every file system has its own
                    damaged.append((shard_id, words_of(error)))
                    found = None
                else:
                    self.skipped += found is None
                self._looked_at += 1
                if found is not None:
                    job, rows = found
                    self._planned += rows
                    yield job
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if damaged:
            first, why = damaged[0]
            raise DamagedShard(f"{shard_count(len(damaged), 'was', 'were')} left alone, the first ({first}): {why}")

    def outlook(self) -> Outlook:
        """How much there is to do. From any thread."""
        share = self._looked_at / len(self.shards)
        return Outlook(self._planned if share == 1 else None, self._planned, share)

    def _job(self, shard_id: int) -> tuple[ShardJob, int] | None:
        """With all rows of the shard, and how many of them are to be fetched again; None if there are none.

        Raises DamagedShard.
        """
        name = self._layout.metadata_name(shard_id)
        with opened(self._output, *self._layout.metadata_names(shard_id)) as file:
            names = column_names(file.schema_arrow)
            told = file.read([column for column in ("key", "status", "error_code") if column in names])
            keys, statuses = told["key"].to_pylist(), told["status"].to_pylist()
            codes = told["error_code"].to_pylist() if "error_code" in names else [None] * len(statuses)
            if not any(map(self._is_meant, statuses, codes)):
                return None
            try:
                count = len({row_key(key or "") for key in keys})
                rows_of = by_row(places(keys, self._layout, shard_id, count))
            except DamagedShard as error:
                raise DamagedShard(f"{name}: {error}") from None
            meant = sum(self._is_meant(*outcome) for outcome in outcomes_of(told, rows_of).values())
            if not meant:
                return None
            wanted = list_columns(names, self._of_transforms, self._hashes)
            table = without_field_metadata(file.read(wanted).select(wanted))
        rows = table.take(pa.array([rows_of[position][0] for position in range(count)], pa.int64()))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        return ShardJob(shard_id, sink.getvalue().to_pybytes(), rows.num_rows, redo=self._codes), meant
