"""Rows of a retry: the failed rows of a dataset, gathered into the list of a segment, and read from it again.

A row stands in the list under the key that it has, with how it failed. What became of it stands in the last segment
that has its key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.core import layout
from any2ds.core.errors import DamagedShard, error_text
from any2ds.core.failures import STATUS_OF_STAGE, FailureFilter
from any2ds.core.manifest import Manifest, Segment
from any2ds.core.members import Members
from any2ds.core.metadata import DUPLICATE_OF, SPLIT
from any2ds.core.rows import KEY_COLUMN, MEMBERS_COLUMN, REPLACES_COLUMN
from any2ds.core.samples import first_of, row_key
from any2ds.core.tables import take
from any2ds.readers.plan import cuts
from any2ds.storage.folders import OutputFolder

_AT_ONCE = 8  # shards whose metadata are read ahead: each takes a few requests on a remote store


class RetriedRows:
    """The rows that the retries of a dataset have taken over from earlier segments."""

    def __init__(self, output: OutputFolder, manifest: Manifest) -> None:
        self._output = output
        self._retries = [segment for segment in manifest.segments if segment.kind == "retry"]

    def among(self, keys: Iterable[str], number: int) -> dict[int, str]:
        """Place in `keys`, of rows of segment `number` -> how a row had failed there that a later retry has taken.

        Without a later retry `keys` are not read: a dataset may have billions of rows.
        """
        found: dict[int, str] = {}
        if not any(each.number > number for each in self._retries):
            return found
        wanted = pa.array([*keys], pa.string())
        for later, rows in reversed(self._lists):  # the first of several retries tells how the row had failed here
            if later > number:
                places = pc.index_in(rows[KEY_COLUMN], value_set=wanted).to_pylist()
                taken = zip(places, rows[REPLACES_COLUMN].to_pylist(), strict=True)
                found.update((place, why) for place, why in taken if place is not None)
        return found

    @cached_property
    def _lists(self) -> list[tuple[int, pa.Table]]:
        """Number of each retry, and the keys and failures of its rows."""
        found = []
        for segment in self._retries:
            with rows_of(self._output, segment) as file:
                found.append((segment.number, file.read([KEY_COLUMN, REPLACES_COLUMN])))
        return found


@contextmanager
def rows_of(output: OutputFolder, segment: Segment) -> Iterator[pq.ParquetFile]:
    """The rows of a retry; each group of them is a shard. Raises DamagedShard."""
    name = layout.segment_file(segment.number, layout.SEGMENT_ROWS)
    try:
        with output.open(name) as stream, pq.ParquetFile(stream, pre_buffer=True) as file:
            if file.num_row_groups != segment.shards:
                raise OSError(f"it has the rows of {file.num_row_groups:,} shards, not of {segment.shards:,}")
            yield file
    except (pa.ArrowException, OSError) as error:
        raise DamagedShard(f"{name}, the list of a retry, cannot be read: {error_text(error)}") from error


class FailedRows:
    """The failed rows of finished shards, by their last outcome."""

    def __init__(self, output: OutputFolder, manifest: Manifest, codes: Collection[str]) -> None:
        """`codes` say which failures are meant."""
        self._output, self._manifest = output, manifest
        self._members = Members.of(manifest.options)
        self._is_meant = FailureFilter(codes)
        self._retried = RetriedRows(output, manifest)
        self.damaged: list[tuple[int, str]] = []  # shards whose metadata cannot be read, and why

    def write(self, shards: Iterable[int], path: Path) -> list[int]:
        """Write the list of a retry of these shards, a row group for each new shard, and return their numbers of rows.

        Rows of shards that have one split each come into shards that have one, too.
        """
        written: list[int] = []
        with ExitStack() as stack:
            writer: pq.ParquetWriter | None = None
            for cut in cuts(self._batches(sorted(shards)), self._manifest.layout.rows_per_shard, by_marker=True):
                if writer is None:
                    writer = stack.enter_context(pq.ParquetWriter(path, cut.batches[0].schema, compression="zstd"))
                writer.write_table(pa.Table.from_batches(cut.batches), cut.rows)
                written.append(cut.rows)
        return written

    def _batches(self, shards: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """The failed rows of shards, in order, with an empty batch where the split of whole shards becomes another."""
        split: str | None = None
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="any2ds-metadata") as pool:
            for start in range(0, len(shards), 4 * _AT_ONCE):
                several = shards[start : start + 4 * _AT_ONCE]
                for shard_id, found in zip(several, pool.map(self._failed_rows, several), strict=True):
                    if isinstance(found, Exception):
                        self.damaged.append((shard_id, error_text(found)))
                    elif found is not None:
                        split_before, (split, table) = split, found
                        batches = table.combine_chunks().to_batches()
                        if split != split_before:
                            yield batches[0].slice(0, 0)
                        yield from batches

    def _failed_rows(self, shard_id: int) -> tuple[str | None, pa.Table] | Exception | None:
        """The failed rows of a shard as its list had them, and the split of all; None if there are none."""
        name = self._manifest.layout.metadata_names(shard_id)[0]
        try:
            with self._output.open(name) as stream, pq.ParquetFile(stream, pre_buffer=True) as file:
                failed = self._selected(shard_id, file.read(["key", "status", "error_code"]))
                return self._as_listed(file, failed) if failed else None
        except Exception as error:  # of any file system; it concerns this shard alone
            return error

    def _selected(self, shard_id: int, outcomes: pa.Table) -> list[tuple[int, str, str]]:
        """Row of the table, key and failure of each row of the list that has failed, and that no retry has."""
        statuses, codes = outcomes["status"].to_pylist(), outcomes["error_code"].to_pylist()
        rows_of: dict[str, list[int]] = {}  # a row may have several samples
        for row, key in enumerate(outcomes["key"].to_pylist()):
            rows_of.setdefault(row_key(key), []).append(row)
        outcome_rows = {key: rows[first_of([statuses[row] for row in rows])] for key, rows in rows_of.items()}
        failed = [
            (row, key, f"{'transform' if statuses[row] == STATUS_OF_STAGE['transform'] else 'fetch'}:{codes[row]}")
            for key, row in outcome_rows.items()
            if self._is_meant(statuses[row], codes[row])
        ]
        segment = self._manifest.segment_of(shard_id)
        taken = self._retried.among([key for _, key, _ in failed], segment.number) if segment is not None else ()
        return [each for place, each in enumerate(failed) if place not in taken]

    def _as_listed(self, file: pq.ParquetFile, failed: list[tuple[int, str, str]]) -> tuple[str | None, pa.Table]:
        """The rows of `failed` with the columns of the list and those of a retry, and the split of all rows."""
        columns = [*self._manifest.columns, *({DUPLICATE_OF.name} & {*file.schema_arrow.names})]
        outcomes = [] if self._members is None else [*self._members.prefixed(dict.fromkeys(("status", "error_code")))]
        rows = file.read([*columns, *outcomes])
        splits = rows[SPLIT].unique().to_pylist() if SPLIT in columns else []
        split = str(splits[0]) if len(splits) == 1 else None
        rows = take(rows, [row for row, _, _ in failed])
        own = {name: rows[name] for name in columns}  # without parquet's notes on fields, which are wrong elsewhere
        own[KEY_COLUMN] = pa.array([key for _, key, _ in failed], pa.string())
        own[REPLACES_COLUMN] = pa.array([why for _, _, why in failed], pa.string())
        if self._members is not None:
            became = map(dict, map(self._members.outcomes, rows.select(outcomes).to_pylist()))
            own[MEMBERS_COLUMN] = pa.array([orjson.dumps(each).decode() for each in became], pa.string())
        return split, pa.table(own)
