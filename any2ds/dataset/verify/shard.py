"""Checks one shard against itself: statistics, metadata and data, to the last byte.

Each file is read once: of a shard in a store, each is copied to this machine once. A file that cannot be had is
`unreadable`; one that is there and makes no sense is broken.
"""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.config.hashes import recorded_hash_columns
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import error_text
from any2ds.core.failures import SUCCESS
from any2ds.core.metadata import HASHES, STORED_BYTES, STORED_CRC32
from any2ds.core.samples import StoredSample, row_key
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.dataset.shards import ShardEntry
from any2ds.dataset.verify.report import Finding, Findings
from any2ds.writers.contract import WithSidecars
from any2ds.writers.formats.parquet import THRIFTY

_NEEDED = ("key", "status", "ext", "bytes")  # columns of the metadata
_NEEDED_OF_OTHERS = ("key", "status")  # in datasets of img2dataset
_FILE_COLUMNS = (*_NEEDED, STORED_BYTES.name, STORED_CRC32.name, *HASHES)  # that tell of the file of a row
_ROWS_AT_ONCE = 1000  # of the metadata, whose captions may be long
# Numbers of errors that damage causes as well: a place in a file that cannot be, or a folder where a file should be.
_DAMAGE_ERRORS = {None, errno.EINVAL, errno.EOVERFLOW, errno.EISDIR, errno.ENOTDIR}


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to check."""

    files: ShardFiles
    reads_contents: bool = True  # False: check only whether the files are there, and their sizes
    listed: ShardEntry | None = None  # what a closed list of shards says, which saves to read the statistics


@dataclass(slots=True)
class Checked:
    """What was checked of a shard, or of several, and what is wrong."""

    findings: list[Finding] = field(default_factory=list)
    rows: int = 0  # that no other shard has, by the statistics
    samples: int = 0
    bytes_read: int = 0  # of samples
    hashes: set[str] = field(default_factory=set)  # that were recomputed
    unchecked_files: int = 0  # that a step has changed, and that have no checksum
    shards_read: int = 0  # contents and all

    def add(self, other: Checked) -> None:
        self.findings += other.findings
        self.rows += other.rows
        self.samples += other.samples
        self.bytes_read += other.bytes_read
        self.hashes |= other.hashes
        self.unchecked_files += other.unchecked_files
        self.shards_read += other.shards_read


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
        if not task.reads_contents or any(finding.is_broken for finding in self.findings) or files.metadata is None:
            return
        self.result.shards_read = 1
        table = self._read_metadata(files.metadata)
        if table is not None:
            self._check_keys(table, shard)
            self._check_visible_table(table)
            if files.data is not None and self._dataset.writer is not None:
                self._check_data(table, files.data)

    def add_error(self, error: BaseException, kind: str, message: str) -> None:
        """Add what cannot be read: `kind` if it is broken, `unreadable` if the system refuses it."""
        self.findings.add("unreadable" if _is_of_the_system(error) else kind, f"{message}: {error_text(error)}")

    def _local(self, name: str) -> Path:
        """A file or folder of the shard on this machine. Raises _Unreadable."""
        if name not in self._paths:
            try:
                path = self._copies.enter_context(self._dataset.local(name))
                if path.is_dir():
                    os.listdir(path)
                else:
                    open(path, "rb").close()
            except Exception as error:  # every file system has exceptions of its own
                raise _Unreadable(f"{name} cannot be read: {error_text(error)}") from error
            self._paths[name] = path
        return self._paths[name]

    # --- statistics and files ---

    def _read_stats(self, name: str) -> ShardEntry | None:
        try:
            content = self._dataset.read(name)
        except Exception as error:  # every file system has exceptions of its own
            raise _Unreadable(f"{name} cannot be read: {error_text(error)}") from error
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
        files, dataset, writer = self._files, self._dataset, self._dataset.writer
        extension = writer.extension if writer is not None else None
        for kind, name in (("stats", files.stats), ("metadata", files.metadata)):
            if name is not None and not files.sizes[name]:
                self.findings.add(kind, f"{name} is empty")
        if files.metadata is None and not (self._is_of_other_tool and dataset.output_format == "dummy"):
            self.findings.add("metadata", "there is no metadata")
        if files.data is not None:
            size = files.sizes[files.data]
            if shard.data_bytes and size != shard.data_bytes:
                said = f"{size:,} bytes, its statistics say {shard.data_bytes:,}"
                self.findings.add("data", f"{files.data} has {said}")
        elif extension or (extension == "" and shard.samples):  # object stores have no empty folders
            self.findings.add(
                "data", f"there is no data: {f'a .{extension} file' if extension else 'a folder'} is missing"
            )
        if self._is_of_other_tool:
            return
        if dataset.hides and files.visible is None and extension is not None:
            self.findings.add("metadata", "its .parquet is missing")
        for end in dataset.extra_ends:
            if not any(name.endswith(end) for name in files.extra_files):
                hint = ": verify --repair writes it" if writer is not None and end in writer.sidecars else ""
                self.findings.add("beside", f"its {end} is missing{hint}")

    # --- metadata ---

    def _read_metadata(self, name: str) -> pa.Table | None:
        """The columns that tell of files, of a table that was read to its end; None if they cannot be had."""
        path, members = self._local(name), self._dataset.members
        wanted = {*_FILE_COLUMNS, *(members.prefixed(dict.fromkeys(_FILE_COLUMNS)) if members is not None else ())}
        try:
            with pq.ParquetFile(path, **THRIFTY) as file:
                columns = self._dataset.metadata_columns(file.schema_arrow)
                batches = file.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False)
                kept = [column for column in columns if column in wanted]
                schema = pa.schema([file.schema_arrow.field(column) for column in kept])
                table = pa.Table.from_batches([batch.select(kept) for batch in batches], schema)
        except Exception as error:  # of Arrow, and of the system
            self.add_error(error, "metadata", f"{name} cannot be read to its end")
            return None
        needed = _NEEDED_OF_OTHERS if self._is_of_other_tool else _NEEDED
        if missing := [column for column in needed if column not in kept]:
            self.findings.add("metadata", f"{name} has no column {', '.join(missing)}")
            return None
        return table

    def _check_keys(self, table: pa.Table, shard: ShardEntry) -> None:
        """Check that each key stands once and is of this shard (in a retry: of an earlier one); and their number."""
        names = self._dataset.layout
        lines = Counter(key or "" for key in table["key"].to_pylist())
        for key, count in lines.items():
            if count > 1:
                self.findings.about("keys", key, "more than one row with the same key")
            place = names.place_of(row_key(key)) if names is not None else (shard.shard_id, 0)
            is_of_retry = shard.replaces > 0
            if place is None or (place[0] >= shard.shard_id if is_of_retry else place[0] != shard.shard_id):
                whose = "a row of an earlier shard" if is_of_retry else "this shard"
                self.findings.about("keys", key, f"not a key of {whose}")
        counts = {
            "count": (shard.count, len(set(map(row_key, lines)))),
            "samples": (shard.samples, _stored(table).num_rows),
        }
        for name, (recorded, counted) in counts.items():
            if recorded != counted:
                message = f"{self._files.stats}: {name} is {recorded}, but the metadata has {counted}"
                self.findings.add("stats", message)

    def _check_visible_table(self, table: pa.Table) -> None:
        """With a preset, other tools read a table of its own, of the same rows."""
        if (name := self._files.visible) is None:
            return
        path = self._local(name)
        try:
            rows = pq.read_metadata(path).num_rows
        except Exception as error:  # of Arrow, and of the system
            self.add_error(error, "metadata", f"{name} cannot be read")
            return
        if rows != table.num_rows:
            self.findings.add("metadata", f"{name} has {rows} rows, {self._files.metadata} has {table.num_rows}")

    # --- data ---

    def _check_data(self, table: pa.Table, name: str) -> None:
        writer, path = self._dataset.writer, self._local(name)
        assert writer is not None
        samples = _Samples(self._dataset, _stored(table), self._is_of_other_tool, self.findings, self.result)
        try:
            found: Any = writer.read(path)
            with closing(found):
                for sample in found:
                    samples.compare(sample)
        except Exception as error:  # DamagedShard, and those of the system
            self.add_error(error, "data", f"{name} cannot be read to its end, after {samples.progress}")
            return
        samples.finish()
        if not any(finding.is_broken for finding in self.findings):  # else they are made again with it
            self._check_sidecars(name, path)

    def _check_sidecars(self, data: str, path: Path) -> None:
        """Extra files must be the same as those made from the data now."""
        writer = cast("type[WithSidecars]", self._dataset.writer)
        present = {end: name for name in self._files.extra_files for end in writer.sidecars if name.endswith(end)}
        if not present:
            return
        try:
            made = writer.make_sidecars(path)
            for end, name in present.items():
                if self._dataset.read(name) != made[end]:
                    self.findings.add("beside", f"{name} does not belong to {data}")
        except Exception as error:  # of whoever made the shard, and of file systems
            self.findings.add("unreadable", f"its {' and '.join(present)} cannot be checked: {error_text(error)}")


class _Samples:
    """Compares the samples of the data with the rows of the metadata that are stored, in any order."""

    def __init__(
        self, dataset: Dataset, stored: pa.Table, is_of_other_tool: bool, findings: Findings, result: Checked
    ) -> None:
        self._about, self._result = findings.about, result
        self._members, self._is_of_other_tool = dataset.members, is_of_other_tool
        # Hashes by img2dataset are of the bytes before they were resized.
        hashes = () if is_of_other_tool else recorded_hash_columns(dataset.run.options if dataset.run else None)
        result.hashes = {name for name in hashes if name in stored.schema.names}
        self._table = stored
        self._unseen = {key: number for number, key in enumerate(stored["key"].to_pylist())}
        self._block_start, self._block = 0, list[dict[str, Any]]()

    @property
    def progress(self) -> str:
        return f"{self._table.num_rows - len(self._unseen):,} of {self._table.num_rows:,} samples"

    def compare(self, sample: StoredSample) -> None:
        number = self._unseen.pop(sample.key, None)
        if number is None:
            self._about("samples", sample.key, "in the data, but no success in the metadata, or more than once")
        elif self._is_of_other_tool:
            self._result.bytes_read += sum(_read(body) for body in sample.members.values())
        else:
            row = self._row(number)
            for ext, prefix in self._files(row):
                if (body := sample.members.get(ext)) is not None:
                    self._check_file(sample.key, body, row, prefix)
                else:
                    whose = f"its {prefix.removesuffix('_')}" if prefix else "its file"
                    message = f"{whose} has another extension than in the metadata, or is missing"
                    self._about("samples", sample.key, message)

    def finish(self) -> None:
        """To be called at the end of the data."""
        for key in self._unseen:
            self._about("samples", key, "a success in the metadata, but not in the data")

    def _row(self, number: int) -> dict[str, Any]:
        """A row of the metadata, of which a block is values of Python at a time: most samples come in its order."""
        if not self._block_start <= number < self._block_start + len(self._block):
            self._block_start = number - number % _ROWS_AT_ONCE
            self._block = self._table.slice(self._block_start, _ROWS_AT_ONCE).to_pylist()
        return self._block[number - self._block_start]

    def _files(self, row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Extension of each file that a sample is to have, and with what the columns that tell of it begin."""
        if self._members is None:
            yield row["ext"], ""
            return
        for ext, _ in self._members.stored(row):
            yield ext, f"{ext.partition('.')[0]}_"

    def _check_file(self, key: str, body: StoredBody, row: Mapping[str, Any], prefix: str) -> None:
        """Size and hashes; those hashes are of the file that arrived, so one that a step has changed has a CRC-32."""
        changed_to = row.get(prefix + STORED_BYTES.name)
        is_changed = changed_to is not None
        crc32 = row.get(prefix + STORED_CRC32.name) if is_changed else None
        self._result.unchecked_files += is_changed and crc32 is None
        self._result.bytes_read += body.size
        if body.size != (changed_to if is_changed else row[f"{prefix}bytes"]):
            self._about("samples", key, "its file has not the size that is in the metadata")
            return  # its hash differs, of course
        digests = {} if is_changed else {name: getattr(hashlib, name)() for name in self._result.hashes}
        found = 0
        for piece in body.chunks():
            for digest in digests.values():
                digest.update(piece)
            found = zlib.crc32(piece, found) if crc32 is not None else 0
        if crc32 is not None and found != crc32:
            self._about("hash", key, f"the CRC-32 of the file is not {prefix}{STORED_CRC32.name} in the metadata")
        for name, digest in digests.items():
            if digest.hexdigest() != row[prefix + name]:
                self._about("hash", key, f"{prefix}{name} of the file is not that of the metadata")


def _read(body: StoredBody) -> int:
    """Read a file to its end; returns how many bytes it has."""
    return sum(map(len, body.chunks()))


def _stored(table: pa.Table) -> pa.Table:
    """The rows that have a sample."""
    return table.filter(pc.fill_null(pc.equal(table["status"], SUCCESS), False))


def _is_of_the_system(error: BaseException | None) -> bool:
    """Whether the system, or a store, refuses what may be sound."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno not in _DAMAGE_ERRORS):
            return True
        error = error.__cause__
    return False
