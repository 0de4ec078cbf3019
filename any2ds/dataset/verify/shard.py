"""Checks one shard against itself: statistics, metadata and data, to the last byte.

Each file of a shard in a store is copied to this machine once. A file that cannot be had is `unreadable`; one that is
there and makes no sense is broken.
"""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.hashes import recorded_hash_columns
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import error_text
from any2ds.core.metadata import HASHES, STORED_BYTES, STORED_CRC32, stored_rows
from any2ds.core.samples import row_key
from any2ds.core.stats import Stats
from any2ds.dataset.added_columns import AddedTable, mark_of
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.dataset.shards import ShardEntry
from any2ds.dataset.verify.report import Finding, Findings
from any2ds.writers.formats._shard import LocalData
from any2ds.writers.formats.parquet import THRIFTY

_NEEDED = ("key", "status", "ext", "bytes")  # columns of the metadata
_NEEDED_OF_OTHERS = ("key", "status")  # in datasets of img2dataset
_FILE_COLUMNS = (*_NEEDED, STORED_BYTES.name, STORED_CRC32.name, *HASHES)  # that tell of the file of a row
_ROWS_AT_ONCE = 1000  # of the metadata, whose captions may be long
_ADD_AGAIN = "the same add-columns command, after --repair, writes it"
# Numbers of errors that damage causes as well: a place in a file that cannot be, or a folder where a file should be.
_DAMAGE_ERRORS = {None, errno.EINVAL, errno.EOVERFLOW, errno.EISDIR, errno.ENOTDIR}


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to check."""

    files: ShardFiles
    reads_contents: bool = True  # False: check only whether the files are there, and their sizes
    listed: ShardEntry | None = None  # what a closed list of shards says, which saves to read the statistics
    added: AddedTable | None = None  # its metadata with columns that were added later


@dataclass(slots=True)
class Checked:
    """Figures of what was checked of a shard, or of several, and findings of what is wrong."""

    findings: list[Finding] = field(default_factory=list)
    rows: int = 0  # that no other shard has, by the statistics
    samples: int = 0
    bytes_read: int = 0  # of samples
    hashes: set[str] = field(default_factory=set)  # that were recomputed
    unchecked_files: int = 0  # that a step has changed, and that have no checksum
    shards_read: int = 0  # contents and all

    def add(self, other: Checked) -> None:
        self.findings += other.findings
        self.hashes |= other.hashes
        for name in ("rows", "samples", "bytes_read", "unchecked_files", "shards_read"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class _Unreadable(Exception):
    """A file cannot be had; the words say which, and why."""


def check_shard(dataset: Dataset, task: ShardTask) -> Checked:
    with ExitStack() as copies:
        check = _ShardCheck(dataset, task, copies)
        try:
            check.run()
        except _Unreadable as error:
            check.findings.add("unreadable", str(error))
        except Exception as error:  # whatever may lie in a folder: the other shards are checked
            check.add_error(error, "data", "it cannot be checked")
    check.result.findings = list(check.findings)
    return check.result


class _ShardCheck:
    def __init__(self, dataset: Dataset, task: ShardTask, copies: ExitStack) -> None:
        self._dataset, self._task, self._files = dataset, task, task.files
        self._copies = copies
        self._paths: dict[str, Path] = {}
        self._is_of_other_tool = dataset.is_img2dataset
        self.findings = Findings(task.files.shard_id)
        self.result = Checked()

    def run(self) -> None:
        files, task = self._files, self._task
        if files.stats is None:
            self.findings.add("unfinished", f"{' and '.join(files.present)} without stats: the shard is not finished")
            return
        shard = task.listed or self._read_stats(files.stats)
        if shard is None:
            return
        self.result.rows, self.result.samples = shard.count - shard.replaces, shard.samples
        self._check_presence(shard)
        if not task.reads_contents or self.findings.has_broken or files.metadata is None:
            return
        self.result.shards_read = 1
        table = self._read_metadata(files.metadata)
        if table is not None:
            self._check_keys(table, shard)
            if files.visible is not None:  # the table of other tools, with a preset
                self._check_rows(files.visible, "metadata", ("key",), table)
            self._check_added_table(table, shard)
            if files.data is not None and self._dataset.writer is not None:
                self._check_data(table, files.data)

    def add_error(self, error: BaseException, kind: str, message: str) -> None:
        """Add what cannot be read: `kind` if it is broken, `unreadable` if the system refuses it."""
        self.findings.add("unreadable" if _is_of_the_system(error) else kind, f"{message}: {error_text(error)}")

    def _local(self, name: str) -> Path:
        """A file or folder of the shard on this machine. Raises _Unreadable."""
        if name not in self._paths:
            with _having(name):
                path = self._copies.enter_context(self._dataset.local(name))
                if path.is_dir():
                    os.listdir(path)
                else:
                    open(path, "rb").close()
            self._paths[name] = path
        return self._paths[name]

    # --- statistics and files ---

    def _read_stats(self, name: str) -> ShardEntry | None:
        with _having(name):
            content = self._dataset.read(name)
        try:
            stats = Stats.parse(content)
        except ValueError as error:
            self.findings.add("stats", f"{name} cannot be understood: {error}")
            return None
        if stats.shard_id is None:
            self._is_of_other_tool = True  # maybe in a dataset that any2ds has completed
        elif stats.shard_id != self._files.shard_id:
            self.findings.add("stats", f"{name} is of shard {stats.shard_id}")
        return ShardEntry.of_stats(self._files.shard_id, stats)

    def _check_presence(self, shard: ShardEntry) -> None:
        """Whether the files are there; what reads as a whole may still lack its last bytes, so sizes are compared."""
        files, dataset, writer, add = self._files, self._dataset, self._dataset.writer, self.findings.add
        extension = writer.extension if writer is not None else None
        for kind, name in (("stats", files.stats), ("metadata", files.metadata)):
            if name is not None and not files.sizes[name]:
                add(kind, f"{name} is empty")
        if files.metadata is None and not (self._is_of_other_tool and dataset.output_format == "dummy"):
            add("metadata", "there is no metadata")
        if files.data is not None:
            size = files.sizes[files.data]
            if shard.data_bytes and size != shard.data_bytes:
                add("data", f"{files.data} has {size:,} bytes, its statistics say {shard.data_bytes:,}")
        elif extension or (extension == "" and shard.samples):  # object stores have no empty folders
            add("data", f"there is no data: {f'a .{extension} file' if extension else 'a folder'} is missing")
        if self._is_of_other_tool:
            return
        if dataset.hides and files.visible is None and extension is not None:
            add("metadata", "its .parquet is missing")
        for end in dataset.extra_ends:
            if not any(name.endswith(end) for name in files.extra_files):
                hint = ": verify --repair writes it" if writer is not None and end in writer.sidecars else ""
                add("beside", f"its {end} is missing{hint}")

    # --- metadata ---

    def _read_metadata(self, name: str) -> pa.Table | None:
        """The columns that tell of files; None if they cannot be had."""
        members = self._dataset.members
        wanted = {*_FILE_COLUMNS, *(members.prefixed(dict.fromkeys(_FILE_COLUMNS)) if members is not None else ())}
        needed = _NEEDED_OF_OTHERS if self._is_of_other_tool else _NEEDED
        return self._read_table(name, "metadata", wanted, needed)

    def _read_table(self, name: str, kind: str, wanted: Collection[str], needed: Iterable[str]) -> pa.Table | None:
        """The columns that are wanted of a table, which is read to its end; None, with a finding of this kind, if it is
        damaged or lacks a column that is needed."""
        path = self._local(name)
        try:
            with pq.ParquetFile(path, **THRIFTY) as file:
                columns = self._dataset.metadata_columns(file.schema_arrow)
                batches = file.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False)
                kept = [column for column in columns if column in wanted]
                schema = pa.schema([file.schema_arrow.field(column) for column in kept])
                table = pa.Table.from_batches([batch.select(kept) for batch in batches], schema)
        except Exception as error:  # of Arrow, and of the system
            self.add_error(error, kind, f"{name} cannot be read to its end")
            return None
        if missing := [column for column in needed if column not in columns]:
            self.findings.add(kind, f"{name} has no column {', '.join(missing)}")
            return None
        return table

    def _check_keys(self, table: pa.Table, shard: ShardEntry) -> None:
        """Check that each key stands once and is of this shard (in a retry: of an earlier one); and their number."""
        names, is_of_retry = self._dataset.layout, shard.replaces > 0
        lines = Counter(key or "" for key in table["key"].to_pylist())
        for key, count in lines.items():
            if count > 1:
                self.findings.about("keys", key, "more than one row with the same key")
            if names is None or names.has_names:
                continue
            place = names.place_of(row_key(key))
            if place is None or (place[0] >= shard.shard_id if is_of_retry else place[0] != shard.shard_id):
                whose = "a row of an earlier shard" if is_of_retry else "this shard"
                self.findings.about("keys", key, f"not a key of {whose}")
        for name, recorded, counted in (
            ("count", shard.count, len(set(map(row_key, lines)))),
            ("samples", shard.samples, stored_rows(table).num_rows),
        ):
            if recorded != counted:
                message = f"{self._files.stats}: {name} is {recorded}, but the metadata has {counted}"
                self.findings.add("stats", message)

    def _check_added_table(self, table: pa.Table, shard: ShardEntry) -> None:
        """Columns that were added later stand in a table with the same rows."""
        added = self._task.added
        if added is None or added.mark != mark_of(shard):
            return
        if self._dataset.folder.exists(added.name):
            self._check_rows(added.name, "columns", ("key", *added.columns), table, f": {_ADD_AGAIN}")
        else:
            self.findings.add("columns", f"{added.name} is missing: {_ADD_AGAIN}")

    def _check_rows(self, name: str, kind: str, needed: Sequence[str], table: pa.Table, hint: str = "") -> None:
        """Whether another table has the rows of the metadata."""
        found = self._read_table(name, kind, ("key",), needed)
        if found is not None and found["key"] != table["key"]:
            self.findings.add(kind, f"{name} has other rows than {self._files.metadata}{hint}")

    # --- data ---

    def _check_data(self, table: pa.Table, name: str) -> None:
        """Compare the samples of the data with the rows of the metadata that are stored, in any order."""
        writer, stored, about = self._dataset.writer, stored_rows(table), self.findings.about
        if writer is None or writer.shard is None:
            return
        if not self._is_of_other_tool:  # hashes by img2dataset are of the bytes before they were resized
            run = self._dataset.run
            hashes = recorded_hash_columns(run.options if run else None)
            self.result.hashes = {hash for hash in hashes if hash in stored.schema.names}
        unseen = {key: number for number, key in enumerate(stored["key"].to_pylist())}
        # Rows of the metadata become values of Python in blocks: most samples come in their order.
        block = lru_cache(1)(lambda start: stored.slice(start, _ROWS_AT_ONCE).to_pylist())
        data = LocalData(self._local(name))
        try:
            shard = writer.shard(data)
            for place in range(len(shard)):
                key, files = shard.files(place)
                number = unseen.pop(key, None)
                if number is None:
                    about("samples", key, "in the data, but no success in the metadata, or more than once")
                elif self._is_of_other_tool:
                    self.result.bytes_read += sum(len(piece) for file in files.values() for piece in file.chunks())
                else:
                    at = number % _ROWS_AT_ONCE
                    self._check_sample(key, files, block(number - at)[at])
        except Exception as error:  # DamagedShard, and those of the system
            seen = f"{stored.num_rows - len(unseen):,} of {stored.num_rows:,} samples"
            self.add_error(error, "data", f"{name} cannot be read to its end, after {seen}")
            return
        for key in unseen:
            about("samples", key, "a success in the metadata, but not in the data")
        if not self.findings.has_broken:  # else they are made again with it
            self._check_sidecars(name, data.indexes)

    def _check_sidecars(self, data: str, made: Mapping[str, bytes]) -> None:
        """Files beside the data must be the same as those that are made from them now."""
        for end, content in made.items():
            for name in self._files.extra_files:
                with _having(name):
                    if name.endswith(end) and self._dataset.read(name) != content:
                        self.findings.add("beside", f"{name} does not belong to {data}")

    def _check_sample(self, key: str, files: Mapping[str, StoredBody], row: Mapping[str, Any]) -> None:
        members = self._dataset.members
        wanted = [row["ext"]] if members is None else [ext for ext, _ in members.stored(row)]
        for ext in wanted:
            prefix = "" if members is None else f"{ext.partition('.')[0]}_"
            if (file := files.get(ext)) is not None:
                self._check_file(key, file, row, prefix)
            else:
                whose = f"its {prefix.removesuffix('_')}" if prefix else "its file"
                message = f"{whose} has another extension than in the metadata, or is missing"
                self.findings.about("samples", key, message)

    def _check_file(self, key: str, file: StoredBody, row: Mapping[str, Any], prefix: str) -> None:
        """Size and hashes; those hashes are of the file that arrived, so one that a step has changed has a CRC-32.

        `prefix` is how the columns that tell of the file begin.
        """
        about = self.findings.about
        changed_to, crc32 = row.get(prefix + STORED_BYTES.name), row.get(prefix + STORED_CRC32.name)
        hashes = {} if changed_to is not None else {name: hashlib.new(name) for name in self.result.hashes}
        crc = 0
        for piece in file.chunks():  # a video may be larger than memory
            self.result.bytes_read += len(piece)
            for made in hashes.values():
                made.update(piece)
            crc = crc if changed_to is None else zlib.crc32(piece, crc)
        if file.size != (row[f"{prefix}bytes"] if changed_to is None else changed_to):
            about("samples", key, "its file has not the size that is in the metadata")
        elif changed_to is None:
            for name, made in hashes.items():
                if made.hexdigest() != row[prefix + name]:
                    about("hash", key, f"{prefix}{name} of the file is not that of the metadata")
        elif crc32 is None:
            self.result.unchecked_files += 1
        elif crc != crc32:
            about("hash", key, f"the CRC-32 of the file is not {prefix}{STORED_CRC32.name} in the metadata")


@contextmanager
def _having(name: str) -> Iterator[None]:
    """Makes _Unreadable of whatever a file system raises where a file is asked for."""
    try:
        yield
    except Exception as error:
        raise _Unreadable(f"{name} cannot be read: {error_text(error)}") from error


def _is_of_the_system(error: BaseException | None) -> bool:
    """Whether the system, or a store, refuses what may be sound."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in _DAMAGE_ERRORS):
            return True
        error = error.__cause__
    return False
