"""The samples of a dataset, shard by shard, each with its row of the metadata."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from any2ds.core import layout, plugins
from any2ds.core.bodies.stored import SpoolFile
from any2ds.core.errors import DamagedShard, MissingColumns, OutputError, UsageError, error_text, redacted
from any2ds.core.failures import SUCCESS
from any2ds.core.samples import CAPTION, METADATA, StoredSample
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.expected import ExpectedShards
from any2ds.dataset.listing import Entry, ShardFiles
from any2ds.dataset.shard_list import ranges_text
from any2ds.dataset.shard_sample import ShardSample
from any2ds.storage.stores import Stores
from any2ds.writers.formats.parquet import THRIFTY
from any2ds.writers.previous_shard import SamplesByKey

_ROWS_AT_ONCE = 64  # of the metadata
_ALWAYS = ("key", "status", "ext")  # ext: shards of other tools have no such column
_ALL_SHARDS = 1 << 62


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
class FinishedShard:
    """The files of one shard. Small, to be sent to the process that reads it."""

    files: ShardFiles
    entries: tuple[Entry, ...]  # the same in the folder, and the run file

    @property
    def name(self) -> str:
        """For people."""
        return self.files.data or self.files.metadata or self.files.stats or str(self.files.shard_id)


def finished_shards(url: str, stores: Stores | None = None, partial: bool = False) -> Iterator[FinishedShard]:
    """Those of a dataset, in order: by `.any2ds/shards` if it is closed, else by listing the folder.

    Raises OutputError for a folder that holds no dataset, and, unless it may be `partial`, for one that is not
    finished: shards are missing, or no run has come to the end of its list.
    """
    dataset = ShardSample.of(url, stores, most=_ALL_SHARDS).dataset
    if dataset.writer is None:
        plugins.load("writers", dataset.output_format or "")  # says what is missing
    if not partial and (lacks := _lacking(dataset)):
        raise OutputError(f"{url!r} is not finished: {lacks}; partial=True reads what is there")
    for files in dataset.finished:
        names = (layout.RUN_FILE, *files.present)
        yield FinishedShard(files, tuple(dataset.entries[name] for name in names if name in dataset.entries))


def _lacking(dataset: Dataset) -> str:
    """What is missing, as text; empty if nothing is known to be missing."""
    expected = ExpectedShards.of(dataset, dataset.shards.finished())
    unfinished = [files.shard_id for files in dataset.shards.values() if not files.stats]
    if missing := sorted({*expected.missing, *unfinished}):
        return f"shards are missing ({ranges_text(missing)})"
    is_unread = dataset.run is not None and expected.has_unread_list
    return "no run has come to the end of its list" if is_unread else ""


class ShardReader:
    """Reads shards of the dataset at `url`, one after the other, in one thread."""

    def __init__(self, url: str, stores: Stores | None, wanted: Wanted) -> None:
        self._url, self._stores, self._wanted = url, stores, wanted
        self._dataset: Dataset | None = None

    def __call__(self, shard: FinishedShard) -> Iterator[dict[str, Any]]:
        """Its samples, in the order of the metadata; memory holds one of them, and the keys of the shard.

        A shard in a store is copied into the temporary folder first, if its data are wanted. Raises MissingColumns, and
        DamagedShard, which names the shard, if it cannot be read to its end.
        """
        try:
            if self._dataset is None:  # with this shard only, so that the folder is not listed again
                self._dataset = Dataset(self._url, self._stores, shard.entries)
            with ExitStack() as stack:
                yield from _Shard(self._dataset, shard, self._wanted, stack).samples()
        except UsageError:
            raise
        except Exception as error:  # of Arrow, any format's library and any file system
            message = f"shard {shard.name} of {redacted(self._url)!r} cannot be read: {error_text(error)}"
            raise DamagedShard(message) from error


class _Shard:
    def __init__(self, dataset: Dataset, shard: FinishedShard, wanted: Wanted, stack: ExitStack) -> None:
        self._dataset, self._files, self._wanted, self._stack = dataset, shard.files, wanted, stack
        self._name = shard.name
        self._writer = dataset.writer or plugins.load("writers", dataset.output_format or "")
        has_stored = wanted.statuses is None or SUCCESS in wanted.statuses
        self._has_data = wanted.with_data and has_stored and self._writer.extension is not None
        self._copied: Path | None = None  # of the data, on this machine
        self._table = self._metadata()

    def samples(self) -> Iterator[dict[str, Any]]:
        names = self._dataset.metadata_columns(self._table.schema_arrow)
        columns, statuses = self._wanted.columns, self._wanted.statuses
        if columns is not None and (missing := [name for name in columns if name not in names]):
            raise MissingColumns(missing, names, f"shard {self._name}")
        read = list(names if columns is None else dict.fromkeys([*(n for n in _ALWAYS if n in names), *columns]))
        stored = self._stored() if self._has_data else None
        for batch in self._table.iter_batches(_ROWS_AT_ONCE, columns=read):
            for row in batch.select(read).to_pylist():
                if statuses is not None and row["status"] not in statuses:
                    continue
                found = stored.get(row["key"]) if stored is not None and row["status"] == SUCCESS else None
                yield self._sample(row, found, "caption" in names) if self._wanted.with_data else row
        if stored is not None:
            stored.expect_end()

    def _sample(self, row: dict[str, Any], found: StoredSample | None, has_caption: bool) -> dict[str, Any]:
        """A row of the metadata with its files."""
        ext, data, members = row.get("ext"), None, dict[str, bytes]()
        if found is not None:
            ext = ext or found.ext
            if ext not in found.members:
                raise DamagedShard(f"{row['key']!r} is without its file")
            data = found.members[ext].read()
            in_columns = {METADATA} if self._writer.has_members else set[str]()
            known = {ext, *in_columns, *([CAPTION] if has_caption else [])}
            members = {name: body.read() for name, body in found.members.items() if name not in known}
        return {"members": members, **row, "ext": ext, "data": data}  # a column may be called members

    def _metadata(self) -> pq.ParquetFile:
        if self._has_data and self._files.metadata is not None and self._files.metadata == self._files.data:
            return self._stack.enter_context(pq.ParquetFile(self._data(), **THRIFTY))
        if self._files.metadata is None:
            raise DamagedShard("its metadata are missing")
        return self._stack.enter_context(self._dataset.metadata_file(self._files))

    def _stored(self) -> SamplesByKey | None:
        """The samples in the data. Other tools may store them in another order than the metadata; then they wait."""
        table = self._table.read(["key", "status"]).to_pydict()
        keys = {key for key, status in zip(table["key"], table["status"], strict=True) if status == SUCCESS}
        if not keys:  # then an object store has no folder
            return None
        path, spool = self._data(), SpoolFile(Path(tempfile.gettempdir()))
        self._stack.callback(spool.close)
        return self._stack.enter_context(
            contextlib.closing(SamplesByKey(self._name, self._writer.read(path), keys, spool))
        )

    def _data(self) -> Path:
        """The data on this machine."""
        if self._copied is None:
            if self._files.data is None:
                raise DamagedShard("its data are missing")
            self._copied = self._stack.enter_context(self._dataset.local(self._files.data))
        return self._copied
