"""The rows of a dataset, shard by shard: those of its samples with their files, and those that failed."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.core import layout, plugins
from any2ds.core.errors import DamagedShard, MissingColumns, OutputError, UsageError
from any2ds.core.failures import SUCCESS
from any2ds.core.rows import KEY_COLUMN
from any2ds.core.samples import CAPTION, METADATA, StoredSample, row_key
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.expected import ExpectedShards
from any2ds.dataset.places import of_place
from any2ds.dataset.shards import ranges_text
from any2ds.loading import ahead
from any2ds.loading.copies import ShardCopies
from any2ds.loading.metadata import translated
from any2ds.loading.opened import OpenShards
from any2ds.loading.shards import ShardSet, look
from any2ds.storage.stores import Stores
from any2ds.writers.contract import Fields
from any2ds.writers.formats.parquet import THRIFTY, body_columns

_ROWS_AT_ONCE = 64  # of the metadata
_ALWAYS = ("key", "status", "ext")  # ext: shards of other tools have no such column
_USUAL_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which samples of a shard, and what of them."""

    columns: tuple[str, ...] | None = None  # of the metadata; None: all
    statuses: frozenset[str] | None = frozenset({SUCCESS})  # None: all
    with_data: bool = True

    @classmethod
    def of(cls, columns: Sequence[str] | str | None, status: Sequence[str] | str | None, with_data: bool) -> Wanted:
        """From what users write: one name, several, or None for all."""
        names = (columns,) if isinstance(columns, str) else None if columns is None else tuple(columns)
        statuses = (status,) if isinstance(status, str) else status
        return cls(names, None if statuses is None else frozenset(statuses), with_data)


@dataclass(frozen=True, slots=True)
class FinishedShards:
    """The shards of the dataset at `place`, a folder or the name of a recipe's in `data_dir`."""

    place: str
    stores: Stores
    data_dir: str | None = None  # None: the usual one
    partial: bool = False  # also those of a dataset that is not finished
    with_data: bool = True  # else their data need not be there

    def __iter__(self) -> Iterator[ShardSet]:
        """Each as a dataset of its own, in order.

        Raises OutputError for what is no dataset, and, unless it may be `partial`, for one that is not finished: shards
        are missing, or no run has come to the end of its list. Raises DamagedShard as `load` does.
        """
        yield from of_place(self._in, self.place, self.data_dir, self.stores).one_by_one()

    def _in(self, folder: str, stores: Stores) -> ShardSet:
        found = look(folder, stores)
        if isinstance(found, ShardSet):
            return found
        if not self.partial and (lacks := _lacking(found.dataset)):
            raise OutputError(f"{folder!r} is not finished: {lacks}; partial=True reads what is there")
        return ShardSet.of_dataset(found, all_rows=True, with_data=self.with_data)


def _lacking(dataset: Dataset) -> str:
    """What is missing, as text; empty if nothing is known to be missing."""
    expected = ExpectedShards.of(dataset, dataset.finished.ids)
    unfinished = [files.shard_id for files in dataset.shards if not files.stats]
    if missing := sorted({*expected.missing, *unfinished}):
        return f"shards are missing ({ranges_text(missing)})"
    is_unread = dataset.run is not None and expected.has_unread_list
    return "no run has come to the end of its list" if is_unread else ""


def rows_of(shard: ShardSet, wanted: Wanted) -> Iterator[dict[str, Any]]:
    """The rows of a shard, in the order of its metadata, without those that a later retry has tried again.

    Files are read as `load` reads them, those of a local shard one by one. Raises MissingColumns, and DamagedShard,
    which names the shard.
    """
    with ExitStack() as stack:
        yield from _Shard(shard, wanted, stack).rows()


class _Shard:
    def __init__(self, shard: ShardSet, wanted: Wanted, stack: ExitStack) -> None:
        self._shard, self._wanted, self._stack = shard, wanted, stack
        self._writer = plugins.load("writers", shard.output_format)
        self._has_stored = wanted.statuses is None or SUCCESS in wanted.statuses
        self._has_failed = wanted.statuses is None or bool(wanted.statuses - {SUCCESS})

    def rows(self) -> Iterator[dict[str, Any]]:
        shard, wanted = self._shard, self._wanted
        if not (name := shard.tables[0]):
            yield from self._without_metadata()
            return
        with translated(shard, 0):
            file = self._stack.enter_context(shard.in_this_process().folder.open(name))
            table = self._stack.enter_context(pq.ParquetFile(file, **THRIFTY))
            bodies = body_columns(table.schema_arrow) if self._writer.holds_metadata else ()
            names = [name for name in table.schema_arrow.names if name not in bodies]
            if missing := [name for name in wanted.columns or () if name not in names]:
                raise MissingColumns(missing, names, shard.describe(0))
            always = [name for name in _ALWAYS if name in names]
            read = list(names if wanted.columns is None else dict.fromkeys([*always, *wanted.columns]))
            files = self._files_in_order(table) if wanted.with_data and self._has_stored else None
            retried = self._retried_keys(table) if self._has_failed else frozenset[str]()
            stored = 0
            for batch in table.iter_batches(_ROWS_AT_ONCE, columns=read):
                for row in batch.select(read).to_pylist():
                    is_stored = row["status"] == SUCCESS
                    stored += is_stored
                    if wanted.statuses is not None and row["status"] not in wanted.statuses:
                        continue
                    if retried and row_key(row["key"]) in retried:
                        continue
                    found = next(files, None) if is_stored and files is not None else None
                    yield self._sample(row, found, "caption" in names) if wanted.with_data else row
            if stored != shard.total:
                raise DamagedShard(f"{name} has {stored:,} samples, its statistics say {shard.total:,}")

    def _retried_keys(self, table: pq.ParquetFile) -> frozenset[str]:
        """Keys of rows of the shard that also stand in finished shards of later retries: these have their outcome."""
        shard = self._shard
        retries = [retry for retry in shard.retries if retry.shards.start > shard.shard_ids[0]]
        if not retries:
            return frozenset()
        own = pa.array({row_key(key) for key in table.read(["key"])["key"].to_pylist()}, pa.string())
        first, last = (bound.as_py() for bound in pc.min_max(own).values())
        found: set[str] = set()
        for retry in retries:
            name = layout.segment_file(retry.segment, layout.SEGMENT_ROWS)
            with shard.in_this_process().folder.open(name) as stream, pq.ParquetFile(stream) as rows:
                column = rows.schema_arrow.names.index(KEY_COLUMN)
                # Each shard of a retry is a row group of its list.
                for group, shard_id in zip(range(rows.metadata.num_row_groups), retry.shards, strict=False):
                    keys = rows.metadata.row_group(group).column(column).statistics
                    if shard_id not in retry.missing and keys.min <= last and first <= keys.max:
                        tried = rows.read_row_group(group, [KEY_COLUMN])[KEY_COLUMN]
                        found.update(tried.filter(pc.is_in(tried, value_set=own)).to_pylist())
        return frozenset(found)

    def _sample(self, row: dict[str, Any], found: dict[str, Any] | None, has_caption: bool) -> dict[str, Any]:
        """A row of the metadata with its files."""
        ext, data, members = row.get("ext"), None, dict[str, bytes]()
        if found is not None:
            files = found["members"]
            ext = ext or StoredSample(found["key"], files).ext
            if found["key"] != row["key"] or ext not in files:
                raise DamagedShard(f"{self._shard.describe(0)}: {row['key']!r} is without its file")
            data = files[ext]
            in_columns = {METADATA} if self._writer.has_members else set[str]()
            known = {ext, *in_columns, *([CAPTION] if has_caption else [])}
            members = {name: body for name, body in files.items() if name not in known}
        return {"members": members, **row, "ext": ext, "data": data}  # a column may be called members

    def _without_metadata(self) -> Iterator[dict[str, Any]]:
        """Of tar files that other tools wrote, whose samples are all that there is."""
        if self._wanted.columns:
            raise MissingColumns(list(self._wanted.columns), list(_ALWAYS), self._shard.describe(0))
        opened = self._opened()
        for found in self._files(opened, range(opened.count(0))) if self._has_stored else ():
            files = found["members"]
            row = {
                "key": found["key"],
                "status": SUCCESS,
                "ext": StoredSample(found["key"], files).ext or next(iter(files)),
            }
            if self._wanted.with_data:
                row["data"] = files.pop(row["ext"])
                row["members"] = files
            yield row

    def _files_in_order(self, table: pq.ParquetFile) -> Iterator[dict[str, Any]] | None:
        """The files of each row that has some; None if none has any, then an object store has no folder."""
        if self._writer.extension is None or not self._shard.total:
            return None
        opened, numbers = self._opened(), range(self._shard.total)
        if self._shard.is_own:
            return self._files(opened, numbers)
        # Other tools may store them in another order than the metadata.
        rows = table.read(["key", "status"]).to_pydict()
        keys = [key for key, status in zip(rows["key"], rows["status"], strict=True) if status == SUCCESS]
        places = {key: number for number, key in enumerate(opened.keys(0))}
        if missing := [key for key in keys if key not in places]:
            raise DamagedShard(f"{self._shard.describe(0)}: {missing[0]!r} is without its file")
        return self._files(opened, [places[key] for key in keys])

    def _opened(self) -> OpenShards:
        """Copies of what cannot be read by ranges are in the temporary folder, for as long as they are read."""
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="any2ds-"))
        return OpenShards(self._shard, Fields(as_files=True), ShardCopies(Path(folder), 0))

    def _files(self, opened: OpenShards, numbers: Sequence[int]) -> Iterator[dict[str, Any]]:
        """`key` and `members` of these samples; of a store, some are read ahead."""
        shard = self._shard
        try:
            opened.count(0)
        except UsageError:  # of compressed records, which can only be read in their order
            stored = self._stack.enter_context(contextlib.closing(self._writer.read(opened.data(0).local())))
            return (sample.as_files for sample in stored)
        if shard.folder.is_local:
            return (opened.get(0, number) for number in numbers)
        size = ahead.chunk_size(shard.data_bytes[0] // len(numbers) or _USUAL_BYTES)
        chunks = (numbers[start : start + size] for start in range(0, len(numbers), size))
        read = ahead.in_order(lambda chunk: opened.get_many(0, chunk), chunks)
        return self._stack.enter_context(contextlib.closing(read))
