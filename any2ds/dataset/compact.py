"""`compact()`: the metadata of all shards in few parquet files, for those who query them.

The files lie out of sight, in `.any2ds/compact/<generation>/`, because loaders of other tools and `**/*.parquet` would
take them for shards. `.any2ds/compact/index` names them, and is written last: what it does not name does not count. A
run that begins to change shards removes all of it (`catalogue.py`), so that what is there is never an old state.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.options import CompactOptions, ParsedOptions, StorageOptions
from any2ds.config.signature import command
from any2ds.core import layout
from any2ds.core.errors import OutputError, error_text, shard_count
from any2ds.core.text import rows as row_count
from any2ds.core.version import __version__
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.dataset.places import located
from any2ds.storage.disk.staging import staging
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.stores import Stores
from any2ds.storage.swap import finish_swaps
from any2ds.writers.formats.parquet import THRIFTY

log = logging.getLogger(__name__)

SHARD = pa.field("shard_id", pa.int64())
"""The column that says which shard a row is in, unless the metadata have one of that name."""
_GROUP_ROWS = 122_880  # of a row group: as many as DuckDB makes
_GROUP_BYTES = 128 << 20  # in memory, after which one ends earlier
_READS_AT_ONCE = 32  # of a store; of a disk fewer, since more wait for each other
_READS_OF_DISK = 4
_MOST_PIECES = 1000  # that are joined: a table of a few rows takes 20 KB, whatever is in it
_READ_AHEAD = 32 << 20  # bytes of files that are read ahead
_WHOLE = 8 << 20  # bytes of a file of a store that is read at once
_UNIQUE = frozenset({"key", "url", "final_url", "md5", "sha256", "sha512"})  # a dictionary would hold them twice


@dataclass(frozen=True, slots=True)
class CompactFile:
    """One of the files, and the shards whose rows it has."""

    name: str  # in the folder of the dataset
    rows: int
    bytes: int
    first_shard: int
    last_shard: int


@dataclass(frozen=True, slots=True)
class CompactIndex:
    """What `.any2ds/compact/index` holds."""

    files: tuple[CompactFile, ...]
    shards: int
    rows_per_file: int
    state: str  # of the shards, see `state_of`

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def to_json(self) -> bytes:
        return orjson.dumps({"any2ds": __version__, **asdict(self)}, option=orjson.OPT_INDENT_2)

    @classmethod
    def parse(cls, content: bytes) -> CompactIndex:
        """Raises ValueError if `to_json` has not written it."""
        try:
            found = orjson.loads(content)
            files = tuple(CompactFile(**file) for file in found["files"])
            return cls(files, int(found["shards"]), int(found["rows_per_file"]), str(found["state"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no index of compacted metadata: {error}") from error


@dataclass(frozen=True, slots=True)
class Compaction:
    """The compacted metadata of a dataset."""

    output_folder: str
    files: tuple[str, ...]  # paths or URLs, each a parquet file
    shards: int
    rows: int
    is_new: bool  # whether they were made now; else nothing has changed since they were

    def __str__(self) -> str:
        count = "1 file" if len(self.files) == 1 else f"{len(self.files):,} files"
        where = f"{self.output_folder.rstrip('/')}/{layout.COMPACT_FOLDER}/*/*{layout.METADATA_END}"
        made = "" if self.is_new else ", as they were: nothing has changed"
        return f"metadata of {shard_count(self.shards)}, {row_count(self.rows)}, in {count}{made}: {where}"


@command(
    [CompactOptions],
    "Returns the files, which any parquet reader takes. Raises UsageError for a folder that holds no dataset, or in",
    "which a run is at work, and OutputError if the metadata of a shard cannot be read.",
)
def compact(options: ParsedOptions) -> Compaction:
    """Write the metadata of all finished shards into few parquet files, in the order of the shards."""
    (asked,) = options.groups
    stores = Stores(asked.storage_options)
    asked = located(asked, stores)
    Dataset(asked.output_folder, stores)  # before anything is written
    output = OutputFolder.at(asked.output_folder, StorageOptions(storage_options=asked.storage_options))
    with locked(output, "compact"):
        finish_swaps(output)
        dataset = Dataset(asked.output_folder, stores)
        index = current_index(dataset)
        is_new = index is None or index.rows_per_file != asked.rows_per_file
        if index is None or is_new:
            with output.staging_room.watched():
                index = _made(output, dataset, asked.rows_per_file)
        _remove_others(output, index)
    root = asked.output_folder.rstrip("/")
    files = tuple(f"{root}/{file.name}" for file in index.files)
    return Compaction(asked.output_folder, files, index.shards, index.rows, is_new)


# --- what is known of it ---


def state_of(dataset: Dataset) -> str:
    """A digest of the names and sizes of metadata and statistics: other shards, and most changes, make it another."""
    digest = hashlib.sha256()
    for files in _compacted(dataset):
        for name in (files.metadata, files.stats):
            entry = dataset.entries.get(name or "")
            digest.update(f"{name} {entry.size if entry else 0}\n".encode())
    return digest.hexdigest()


def index_of(dataset: Dataset) -> CompactIndex | None:
    """The index of a dataset, be it current or not; None if there is none. Raises ValueError if it is broken."""
    if layout.COMPACT_FOLDER not in dataset.entries:
        return None
    content = dataset.folder.read(layout.COMPACT_INDEX)
    return None if content is None else CompactIndex.parse(content)


def current_index(dataset: Dataset) -> CompactIndex | None:
    """The index, if it is of the shards as they are and its files are there as it says."""
    with suppress(ValueError):
        index = index_of(dataset)
        if index is not None and is_current(dataset, index) and not missing_files(dataset, index):
            return index
    return None


def is_current(dataset: Dataset, index: CompactIndex) -> bool:
    """Whether it is of the shards as they are."""
    return index.state == state_of(dataset)


def missing_files(dataset: Dataset, index: CompactIndex) -> list[str]:
    """The files of the index that are not there, or have another size."""
    sizes: dict[str, int] = {}
    for folder in {file.name.rpartition("/")[0] for file in index.files}:
        with suppress(FileNotFoundError):
            for info in dataset.folder.listed(folder):
                sizes[f"{folder}/{str(info['name']).rpartition('/')[2]}"] = int(info.get("size") or 0)
    return [file.name for file in index.files if sizes.get(file.name) != file.bytes]


def _compacted(dataset: Dataset) -> Iterator[ShardFiles]:
    """The shards that are. There may be a million of them, so nobody keeps their names."""
    return (files for files in dataset.finished if files.metadata)


# --- making it ---


def _made(output: OutputFolder, dataset: Dataset, rows_per_file: int) -> CompactIndex:
    """Write the files, and then the index."""
    generation = f"{layout.COMPACT_FOLDER}/{uuid.uuid4().hex[:8]}"
    files: list[CompactFile] = []
    with staging(output.staging_root, output.identity) as folder:
        for part in _parts(dataset, rows_per_file, folder):
            name = f"{generation}/{len(files):05d}{layout.METADATA_END}"
            size = part.path.stat().st_size
            output.publish(part.path, name)
            files.append(CompactFile(name, part.rows, size, part.first_shard, part.last_shard))
    shards = sum(1 for _ in _compacted(dataset))
    index = CompactIndex(tuple(files), shards, rows_per_file, state_of(dataset))
    output.write(layout.COMPACT_INDEX, index.to_json())
    return index


def _remove_others(output: OutputFolder, index: CompactIndex) -> None:
    """Remove earlier generations, and what a killed call has left."""
    kept = {file.name.split("/")[2] for file in index.files} | {layout.COMPACT_INDEX.rpartition("/")[2]}
    for name in output.names(layout.COMPACT_FOLDER):
        if name not in kept:
            output.remove_tree(f"{layout.COMPACT_FOLDER}/{name}")


def _parts(dataset: Dataset, rows_per_file: int, folder: Path) -> Iterator[_Part]:
    """The files, each when it is finished: a shard is in one of them, and their schema grows with the columns."""
    part: _Part | None = None
    for files, tables in _read(dataset):
        for table in tables:
            schema = _unified(part.schema, table.schema, files) if part is not None else table.schema
            if part is not None and (schema != part.schema or (part.rows >= rows_per_file and part.is_done(files))):
                yield part.closed()
                part = None
            if part is None:
                part = _Part(folder / f"{uuid.uuid4().hex}.parquet", schema, files.shard_id)
            part.add(table, files.shard_id)
    if part is not None:
        yield part.closed()


def _unified(schema: pa.Schema, other: pa.Schema, files: ShardFiles) -> pa.Schema:
    if schema == other:
        return schema
    try:
        return pa.unify_schemas([schema, other], promote_options="permissive")
    except pa.ArrowException as error:
        raise OutputError(f"{files.metadata} has other columns than the shards before: {error_text(error)}") from error


class _Part:
    """A file that is being written: a row group of rows is in memory."""

    def __init__(self, path: Path, schema: pa.Schema, first_shard: int) -> None:
        self.path, self.schema = path, schema
        self.rows = 0
        self.first_shard = self.last_shard = first_shard
        self._tables: list[pa.Table] = []
        self._pieces: list[pa.Table] = []  # that come next, and are not joined yet
        self._held = self._held_bytes = 0
        names = [name for name in schema.names if name not in _UNIQUE]
        self._file = pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=names)

    def is_done(self, files: ShardFiles) -> bool:
        """Whether it has all rows of its last shard, `files` being the next one to come."""
        return files.shard_id != self.last_shard

    def add(self, table: pa.Table, shard_id: int) -> None:
        self.last_shard = shard_id
        self.rows += table.num_rows
        self._held += table.num_rows
        self._held_bytes += table.get_total_buffer_size()
        self._pieces.append(table)
        if len(self._pieces) >= _MOST_PIECES:
            self._join()
        if self._held >= _GROUP_ROWS or self._held_bytes >= _GROUP_BYTES:
            self._write()

    def closed(self) -> _Part:
        self._write()
        self._file.close()
        return self

    def _write(self) -> None:
        self._join()
        if self._held:
            self._file.write_table(pa.concat_tables(self._tables), row_group_size=self._held)
        self._tables.clear()
        self._held = self._held_bytes = 0

    def _join(self) -> None:
        if self._pieces:
            joined = pa.concat_tables([self.schema.empty_table(), *self._pieces], promote_options="permissive")
            self._tables.append(joined.select(self.schema.names).combine_chunks())
            self._pieces.clear()


def _read(dataset: Dataset) -> Iterator[tuple[ShardFiles, Iterable[pa.Table]]]:
    """The tables of each shard, in order, read some shards ahead. Raises OutputError."""
    ahead: deque[tuple[ShardFiles, int, Future[list[pa.Table]]]] = deque()
    size, at_once = 0, _READS_OF_DISK if dataset.folder.is_local else _READS_AT_ONCE
    with ExitStack() as stack:
        threads = ThreadPoolExecutor(at_once, thread_name_prefix="any2ds-compact")
        stack.callback(threads.shutdown, wait=True, cancel_futures=True)
        for files in _compacted(dataset):
            own = dataset.entries[files.metadata or ""].size
            ahead.append((files, own, threads.submit(_tables, dataset, files)))
            size += own
            while ahead and (size > _READ_AHEAD or len(ahead) >= 2 * at_once):
                first, own, found = ahead.popleft()
                size -= own
                yield first, _result(first, found)
        while ahead:
            first, _, found = ahead.popleft()
            yield first, _result(first, found)


def _result(files: ShardFiles, found: Future[list[pa.Table]]) -> list[pa.Table]:
    try:
        return found.result()
    except Exception as error:  # of Arrow, of the system and of file systems
        problem = f"{files.metadata} cannot be read: {error_text(error)}; any2ds verify says what else is wrong"
        raise OutputError(problem) from error


def _metadata_file(dataset: Dataset, files: ShardFiles) -> AbstractContextManager[pq.ParquetFile]:
    """In a store a table without the files themselves comes with one request, not with one or two for each column."""
    name = files.metadata or ""
    holds_bodies = dataset.writer is not None and dataset.writer.holds_metadata
    if dataset.folder.is_local or holds_bodies or dataset.entries[name].size > _WHOLE:
        return dataset.metadata_file(files)
    whole: AbstractContextManager[pq.ParquetFile] = pq.ParquetFile(pa.BufferReader(dataset.read(name)), **THRIFTY)
    return whole


def _tables(dataset: Dataset, files: ShardFiles) -> list[pa.Table]:
    """One for each row group, with the number of the shard."""
    found = []
    with _metadata_file(dataset, files) as file:
        names = dataset.metadata_columns(file.schema_arrow)
        for group in range(file.num_row_groups):
            table: Any = file.read_row_group(group, columns=names, use_threads=False)
            table = table.replace_schema_metadata(None)
            if SHARD.name not in names:
                table = table.append_column(SHARD, pa.repeat(pa.scalar(files.shard_id, SHARD.type), table.num_rows))
            found.append(table)
    return found
