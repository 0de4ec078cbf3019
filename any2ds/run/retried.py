"""Rows of a retry: the failed rows of a dataset, gathered into the list of a segment, and read from it again.

A row stands in the list under the key that it has, with how it failed. What became of it stands in the last segment
that has its key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.core import layout
from any2ds.core.errors import DamagedShard, error_text
from any2ds.core.failures import STATUS_OF_STAGE, FailureFilter
from any2ds.core.manifest import Manifest, Segment
from any2ds.core.members import Members
from any2ds.core.metadata import HASH_MATCHES, OUTCOME_FIELDS, SPLIT
from any2ds.core.rows import KEY_COLUMN, MEMBERS_COLUMN, REPLACES_COLUMN
from any2ds.core.samples import first_of, row_key
from any2ds.core.tables import take
from any2ds.storage.folders import OutputFolder
from any2ds.writers.formats.parquet import data_column, member_columns

_AT_ONCE = 8  # shards whose metadata are read ahead: each takes a few requests on a remote store
_TRANSFORM = STATUS_OF_STAGE["transform"]

REPAIR = "any2ds verify --repair puts it back to be made"


class RetriedRows:
    """The rows that the retries of a dataset have taken over from earlier segments."""

    def __init__(self, output: OutputFolder, manifest: Manifest) -> None:
        self._output = output
        self._retries = [segment for segment in manifest.segments if segment.kind == "retry"]

    @cached_property
    def _lists(self) -> list[tuple[int, pa.Table]]:
        """Number of each segment, and its keys and failures."""
        columns = [KEY_COLUMN, REPLACES_COLUMN]
        found = []
        for segment in self._retries:
            with rows_of(self._output, segment) as file:
                found.append((segment.number, file.read(columns)))
        return found

    def taken_from(self, number: int, keys: Iterable[str]) -> dict[int, str]:
        """Place in `keys`, of rows of segment `number` -> how a row had failed there that a retry has taken over."""
        if not any(each.number > number for each in self._retries):
            return {}
        found: dict[int, str] = {}
        wanted = pa.array(list(keys), pa.string())
        for later, rows in self._lists:
            if later > number:
                places = pc.index_in(rows[KEY_COLUMN], value_set=wanted).to_pylist()
                taken = zip(places, rows[REPLACES_COLUMN].to_pylist(), strict=True)
                found = {**{place: why for place, why in taken if place is not None}, **found}
        return found

    def keys_behind(self, number: int) -> pa.Array:
        """The keys of all rows that retries after segment `number` have taken over."""
        chunks = [chunk for later, rows in self._lists if later > number for chunk in rows[KEY_COLUMN].chunks]
        return pa.concat_arrays(chunks) if chunks else pa.array([], pa.string())


@contextmanager
def rows_of(output: OutputFolder, segment: Segment) -> Iterator[pq.ParquetFile]:
    """The rows of a retry; each group of them is a shard. Raises DamagedShard."""
    name = layout.segment_file(segment.number, layout.SEGMENT_ROWS)
    try:
        with output.open(name) as stream, pq.ParquetFile(stream, pre_buffer=True) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        raise DamagedShard(f"{name}, the list of a retry, cannot be read: {error_text(error)}") from error


class FailedRows:
    """The failed rows of finished shards, by their last outcome."""

    def __init__(
        self,
        output: OutputFolder,
        manifest: Manifest,
        codes: Collection[str],
        own_columns: Collection[str],
    ) -> None:
        """`codes` say which failures are meant; `own_columns` of the metadata do not come from the list."""
        self._output, self._manifest = output, manifest
        self._members = Members.of(manifest.options)
        names = dict.fromkeys(("status", "error_code"))
        self._of_members = [] if self._members is None else list(self._members.prefixed(names))
        self._is_meant = FailureFilter(codes)
        self._own = {"key", *OUTCOME_FIELDS, HASH_MATCHES.name, *own_columns}
        self._retried = RetriedRows(output, manifest)
        self._later_keys = {each.number: self._retried.keys_behind(each.number) for each in manifest.segments}
        self.damaged: list[tuple[int, str]] = []  # shards whose metadata cannot be read, and why

    def write(self, shards: Collection[int], path: Path) -> list[int]:
        """Write the list of a retry of these shards, a row group for each new shard, and return their numbers of rows.

        Rows of shards that have one split each come into shards that have one, too.
        """
        rows_per_shard, written = self._manifest.layout.rows_per_shard, []
        writer: pq.ParquetWriter | None = None
        try:
            for _, several in groupby(self._tables(sorted(shards)), key=lambda each: each[0]):
                for group in _divided((table for _, table in several), rows_per_shard):
                    writer = writer or pq.ParquetWriter(path, group.schema, compression="zstd")
                    writer.write_table(group, rows_per_shard)
                    written.append(group.num_rows)
        finally:
            if writer is not None:
                writer.close()
        return written

    def _tables(self, shards: Sequence[int]) -> Iterator[tuple[str | None, pa.Table]]:
        """The failed rows of each shard that has any, in order, and the split that all its rows have, if they do.

        All have the columns of the first.
        """
        schema: pa.Schema | None = None
        numbers = iter(shards)
        waiting: deque[tuple[int, Future[tuple[str | None, pa.Table] | None]]] = deque()
        pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="any2ds-metadata")
        try:
            while True:
                while len(waiting) < _AT_ONCE and (number := next(numbers, None)) is not None:
                    waiting.append((number, pool.submit(self._failed_rows, number)))
                if not waiting:
                    return
                shard_id, future = waiting.popleft()
                try:
                    found = future.result()
                except Exception as error:  # of any file system; it concerns this shard alone
                    self.damaged.append((shard_id, error_text(error)))
                    continue
                if found is not None:
                    split, table = found
                    schema = schema or table.schema
                    yield split, table.select(schema.names).cast(schema)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _failed_rows(self, shard_id: int) -> tuple[str | None, pa.Table] | None:
        """The failed rows of a shard as its list had them, and the split of all; None if there are none.

        Raises DamagedShard.
        """
        segment = self._manifest.segment_of(shard_id)
        names = self._manifest.layout.metadata_names(shard_id)
        with closing(_first_there(self._output, names)) as stream, pq.ParquetFile(stream, pre_buffer=True) as file:
            schema = file.schema_arrow
            if missing := {"key", "url", "status"} - set(schema.names):
                raise DamagedShard(f"{names[-1]}: it has no column {', '.join(sorted(missing))}: {REPAIR}")
            outcomes = file.read([name for name in ("key", "status", "error_code") if name in schema.names])
            failed = self._selected(outcomes, None if segment is None else self._later_keys[segment.number])
            if not failed:
                return None
            bodies = {*member_columns(schema), data_column(schema)}
            wanted = [name for name in schema.names if name not in bodies and name not in self._own]
            rows = file.read([*wanted, *self._of_members])
            taken = take(rows, [row for row, _, _ in failed])
            table = taken.select(wanted)
        # What parquet has noted about its fields would be written again, and is wrong in another file.
        table = pa.Table.from_arrays(table.columns, schema=pa.schema([pa.field(f.name, f.type) for f in table.schema]))
        table = table.append_column(KEY_COLUMN, pa.array([key for _, key, _ in failed], pa.string()))
        if self._members is not None:
            became = map(dict, map(self._members.outcomes, taken.select(self._of_members).to_pylist()))
            texts = [orjson.dumps(outcomes).decode() for outcomes in became]
            table = table.append_column(MEMBERS_COLUMN, pa.array(texts, pa.string()))
        splits = rows[SPLIT].unique().to_pylist() if SPLIT in rows.schema.names else []
        split = str(splits[0]) if len(splits) == 1 else None
        return split, table.append_column(REPLACES_COLUMN, pa.array([why for _, _, why in failed], pa.string()))

    def _selected(self, outcomes: pa.Table, later_keys: pa.Array | None) -> list[tuple[int, str, str]]:
        """Row of the table, key and failure of each row of the list that has failed, and that no retry has."""
        columns: Mapping[str, list[Any]] = outcomes.to_pydict()
        keys = [row_key(key or "") for key in columns["key"]]
        codes = columns.get("error_code") or [None] * len(keys)
        rows_of: dict[str, list[int]] = {}  # a row may have several samples
        for row, key in enumerate(keys):
            rows_of.setdefault(key, []).append(row)
        statuses = columns["status"]
        outcome_rows = {key: rows[first_of([statuses[row] for row in rows])] for key, rows in rows_of.items()}
        failed = [
            (row, key, f"{'transform' if statuses[row] == _TRANSFORM else 'fetch'}:{codes[row] or statuses[row]}")
            for key, row in outcome_rows.items()
            if self._is_meant(statuses[row], codes[row])
        ]
        if not failed or later_keys is None or not len(later_keys):
            return failed
        is_taken = pc.is_in(pa.array([key for _, key, _ in failed], pa.string()), value_set=later_keys).to_pylist()
        return [each for each, taken in zip(failed, is_taken, strict=True) if not taken]


def _divided(tables: Iterable[pa.Table], rows_per_shard: int) -> Iterator[pa.Table]:
    """Rows in tables of `rows_per_shard`, the last of which may have less."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        while sum(each.num_rows for each in waiting) >= rows_per_shard:
            rows = pa.concat_tables(waiting)
            yield rows.slice(0, rows_per_shard)
            waiting = [rows.slice(rows_per_shard)]
    if waiting and (left := pa.concat_tables(waiting)).num_rows:
        yield left


def _first_there(output: OutputFolder, names: Sequence[str]) -> Any:
    """The first of these files that is there. Raises DamagedShard."""
    for name in names:
        try:
            return output.open(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DamagedShard(f"{name} cannot be read: {error_text(error)}; {REPAIR}") from error
    raise DamagedShard(f"{names[-1]} is missing: {REPAIR}")
