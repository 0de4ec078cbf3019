"""Checks one shard against itself: statistics, metadata and data, to the last byte.

Each file is read once: of a shard in a store, each is copied to this machine once.
"""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.config.hashes import recorded_hash_columns
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, error_text
from any2ds.core.failures import SUCCESS
from any2ds.core.members import Members
from any2ds.core.metadata import STORED_BYTES, STORED_CRC32
from any2ds.core.on_disk import MOST_IN_MEMORY, held
from any2ds.core.samples import CAPTION, METADATA, StoredSample, first_of, row_key
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.dataset.shard_list import ShardEntry
from any2ds.dataset.verify.report import Finding, Findings
from any2ds.writers.contract import WithSidecars
from any2ds.writers.formats.parquet import THRIFTY

_NEEDED = ("key", "status", "error_code", "ext", "bytes")  # columns of the metadata
_NEEDED_OF_OTHERS = ("key", "status")  # in datasets of img2dataset
_NEEDED_OF_MEMBERS = ("status", "ext", "bytes")
_ROWS_AT_ONCE = 1000  # of the metadata, whose captions may be long
# Errors of the system; any other error in reading means that the file is broken.
_SYSTEM_ERRORS = {
    *(errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC),
    *(errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY, errno.ELOOP),
}


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to check."""

    files: ShardFiles
    rows: int | None  # that the url list has for it, if known
    reads_contents: bool = True  # False: check only whether the files are there, and their sizes
    listed: ShardEntry | None = None  # what a closed list of shards says, which saves to read the statistics


@dataclass(slots=True)
class RetriedRows:
    """The rows of a retry, which stand under the keys that they have in earlier shards, in columns."""

    shards: array[int] = field(default_factory=lambda: array("q"))  # where the row was tried before
    positions: array[int] = field(default_factory=lambda: array("q"))  # of the row in that shard
    successes: bytearray = field(default_factory=bytearray)  # 1 where it has a sample now


@dataclass(slots=True)
class ShardResult:
    """What was checked of a shard, and what is wrong."""

    shard_id: int
    findings: tuple[Finding, ...] = ()
    rows: int = 0  # that no other shard has, by its statistics
    samples: int = 0
    bytes_read: int = 0  # of its samples
    hashes: tuple[str, ...] = ()  # that were recomputed
    unchecked_files: int = 0  # that a step has changed, and that have no checksum
    was_read: bool = False  # contents and all
    entry: ShardEntry | None = None  # what the list of shards should have; None if the statistics are unreadable
    retried: RetriedRows | None = None


def check_shard(dataset: Dataset, task: ShardTask) -> ShardResult:
    with ExitStack() as copies:
        check = _ShardCheck(dataset, task, copies)
        try:
            check.run()
        except Exception as error:  # whatever may lie in a folder: the other shards are checked
            check.add_error(error, "data", "it cannot be checked")
    check.result.findings = tuple(check.findings)
    return check.result


class _ShardCheck:
    def __init__(self, dataset: Dataset, task: ShardTask, copies: ExitStack) -> None:
        self._dataset, self._task, self._files = dataset, task, task.files
        self._writer = dataset.writer
        self._copies = copies
        self._paths: dict[str, Path] = {}
        self._stats: Stats | None = None
        self.findings = Findings(task.files.shard_id)
        self.result = ShardResult(task.files.shard_id)

    def run(self) -> None:
        files, task = self._files, self._task
        if files.stats is None:
            self.findings.add("unfinished", f"{' and '.join(files.present)} without stats: the shard is not finished")
            return
        if task.listed is not None:
            self._record(task.listed)
        else:
            self._read_stats(files.stats)
        self._check_presence()
        if task.reads_contents:
            self.result.was_read = True
            if files.metadata is not None and (table := self._check_metadata(files.metadata)) is not None:
                self._check_data(table)
        elif self._has_data(is_needed=self.result.entry is None or self.result.entry.samples > 0):
            self._check_data_size()

    def add_error(self, error: BaseException, kind: str, message: str) -> None:
        """Add what cannot be read: `kind` if it is broken, `unreadable` if the system refuses it."""
        self.findings.add("unreadable" if _is_of_the_system(error) else kind, f"{message}: {error_text(error)}")

    @property
    def _is_of_other_tool(self) -> bool:
        """Whether another tool made this shard, maybe in a dataset that any2ds has completed."""
        return self._dataset.is_img2dataset or (self._stats is not None and self._stats.shard_id is None)

    def _local(self, name: str) -> Path:
        """A file or folder of the shard on this machine. Raises OSError if it must not be read."""
        if name not in self._paths:
            path = self._copies.enter_context(self._dataset.local(name))
            if path.is_dir():
                os.listdir(path)
            else:
                open(path, "rb").close()
            self._paths[name] = path
        return self._paths[name]

    # --- statistics and sizes ---

    def _read_stats(self, name: str) -> None:
        try:
            content = self._dataset.read(name)
        except Exception as error:  # every file system has exceptions of its own
            self.findings.add("unreadable", f"{name} cannot be read: {error_text(error)}")
            return
        try:
            stats = Stats.parse(content)
        except ValueError as error:
            self.findings.add("stats", f"{name} cannot be understood: {error}")
            return
        data = self._dataset.entries.get(self._files.data or "")
        self._stats = stats
        self._record(ShardEntry.of_stats(self._files.shard_id, stats, data.size if data else 0))
        self.result.rows -= sum(stats.replaces.values())
        if stats.shard_id is not None and stats.shard_id != self._files.shard_id:
            self.findings.add("stats", f"{name} is of shard {stats.shard_id}")

    def _record(self, entry: ShardEntry) -> None:
        self.result.entry = entry
        self.result.rows, self.result.samples = entry.count, entry.samples
        if self._task.rows is not None and entry.count != self._task.rows:
            message = f"{self._files.stats}: count is {entry.count}, but the list has {self._task.rows} rows for it"
            self.findings.add("list", message)

    def _check_presence(self) -> None:
        files, dataset, writer = self._files, self._dataset, self._writer
        if files.metadata is None and not (self._is_of_other_tool and dataset.output_format == "dummy"):
            self.findings.add("metadata", "there is no metadata")
        for kind, name in (("stats", files.stats), ("metadata", files.metadata)):
            if name is not None and not self._task.reads_contents and not dataset.entries[name].size:
                self.findings.add(kind, f"{name} is empty")
        if self._is_of_other_tool:
            return
        if dataset.hides and files.visible is None and writer is not None and writer.extension is not None:
            self.findings.add("metadata", "its .parquet is missing")
        for end in dataset.extra_ends:
            if not any(name.endswith(end) for name in files.extra_files):
                hint = ": verify --repair writes it" if writer is not None and end in writer.sidecars else ""
                self.findings.add("beside", f"its {end} is missing{hint}")

    def _has_data(self, is_needed: bool) -> bool:
        """Whether there is a data file that can be read; adds a finding if it is missing and `is_needed`."""
        writer = self._writer
        if writer is None or writer.extension is None:
            return False
        if self._files.data is None and (writer.extension or is_needed):  # object stores have no empty folders
            shown = f"a .{writer.extension} file" if writer.extension else "a folder"
            self.findings.add("data", f"there is no data: {shown} is missing")
        return self._files.data is not None

    def _check_data_size(self) -> None:
        """What reads as a whole may still lack its last bytes, such as the zeros at the end of a tar file."""
        data, entry = self._dataset.entries[self._files.data or ""], self.result.entry
        if entry is not None and entry.data_bytes and data.size != entry.data_bytes:
            text = f"{data.name} has {data.size:,} bytes, its statistics say {entry.data_bytes:,}"
            self.findings.add("data", text)

    # --- metadata ---

    def _check_metadata(self, name: str) -> pa.Table | None:
        """Returns the table if the data can be compared with it."""
        try:
            table = self._read_table(name)
        except Exception as error:  # of Arrow, of the system and of file systems
            self.add_error(error, "metadata", f"{name} cannot be read to its end")
            return None
        members = self._dataset.members
        needed: Sequence[str] = _NEEDED_OF_OTHERS if self._is_of_other_tool else _NEEDED
        if members is not None:
            needed = (*needed, *members.prefixed(dict.fromkeys(_NEEDED_OF_MEMBERS)))
        if missing := [column for column in needed if column not in table.schema.names]:
            self.findings.add("metadata", f"{name} has no column {', '.join(missing)}")
            return None
        for column in ("key", "status"):
            if not pa.types.is_string(table.schema.field(column).type):
                self.findings.add("metadata", f"{name}: the column {column} is no text")
                return None
        rows = list(_rows_of(table, has_samples=not self._is_of_other_tool))
        self._check_keys(table["key"].to_pylist(), rows)
        self._check_counts(table, rows)
        self._check_visible_table(table)
        return table

    def _read_table(self, name: str) -> pa.Table:
        with pq.ParquetFile(self._local(name), **THRIFTY) as file:
            columns = self._dataset.metadata_columns(file.schema_arrow)
            batches = held(file.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False))
            if not batches:
                return file.read(columns=columns)
            table = pa.Table.from_batches(batches)
            return table.combine_chunks() if table.nbytes <= MOST_IN_MEMORY else table

    def _check_visible_table(self, table: pa.Table) -> None:
        """With a preset, other tools read a table of its own, of the same rows."""
        name = self._files.visible
        if name is None:
            return
        try:
            with pq.ParquetFile(self._local(name), **THRIFTY) as file:
                columns = [column for column in file.schema_arrow.names if column in table.schema.names]
                visible = file.read(columns=columns)
        except Exception as error:  # of Arrow, of the system and of file systems
            self.add_error(error, "metadata", f"{name} cannot be read to its end")
            return
        if "key" not in columns or not visible["key"].equals(table["key"]):
            self.findings.add("metadata", f"{name} has other rows than {self._files.metadata}")

    def _check_keys(self, keys: Sequence[str | None], rows: Sequence[_Row]) -> None:
        names, shard_id = self._dataset.layout, self._files.shard_id
        for key, times in Counter(keys).items():
            if times > 1:
                self.findings.about("keys", key, "more than one row with the same key")
        if names is None:
            return
        if self._is_of_other_tool:  # img2dataset stores rows in the order in which they arrived
            first, length = names.shard_name(shard_id), len(names.key(shard_id, 0))
            for row in rows:
                if not row.key.startswith(first) or len(row.key) != length:
                    self.findings.about("keys", row.key, "not a key of this shard")
        elif self._stats is not None and self._stats.replaces:
            self.result.retried = RetriedRows()
            for row in rows:
                place = names.place_of(row.key)
                if place is None or place[0] >= shard_id:
                    self.findings.about("keys", row.key, "not the key of a row of an earlier shard")
                    continue
                self.result.retried.shards.append(place[0])
                self.result.retried.positions.append(place[1])
                self.result.retried.successes.append(row.status == SUCCESS)
        else:
            for position, row in enumerate(rows):
                if row.key != names.key(shard_id, position):
                    self.findings.about("keys", row.key, "not the key of its place in the metadata")

    def _check_counts(self, table: pa.Table, rows: Sequence[_Row]) -> None:
        """Whether the statistics have the same counts as the metadata."""
        stats = self._stats
        if stats is None:
            return
        statuses = Counter(row.status for row in rows)
        counts: dict[str, tuple[object, object]] = {
            "count": (stats.count, len(rows)),
            "successes": (stats.successes, statuses[SUCCESS]),
        }
        if not self._is_of_other_tool:
            stored = _stored(table)
            codes = pc.coalesce(table["error_code"], table["status"]).to_pylist()
            counts["samples"] = stats.samples, stored.num_rows
            counts["status_dict"] = dict(stats.status_dict), dict(Counter(codes[row.number] for row in rows))
            if stats.size is not None:
                counts["bytes"] = stats.size, _bytes_of(stored, self._dataset.members)
        for name, (recorded, counted) in counts.items():
            if recorded != counted:
                self.findings.add(
                    "stats", f"{self._files.stats}: {name} is {recorded}, but the metadata has {counted}"[:500]
                )

    # --- data ---

    def _check_data(self, table: pa.Table) -> None:
        stored = _stored(table)
        if not self._has_data(is_needed=stored.num_rows > 0) or self._writer is None:
            return
        name = self._files.data or ""
        samples = _Samples(self._dataset, stored, self._is_of_other_tool, self.findings, self.result)
        try:
            found: Any = self._writer.read(self._local(name))
            with closing(found):
                for sample in found:
                    samples.compare(sample)
        except DamagedShard as error:
            read = f"{samples.read:,} of {stored.num_rows:,} samples"
            self.add_error(error, "data", f"{name} cannot be read to its end, after {read}")
        except OSError as error:
            self.findings.add("unreadable", f"{name} cannot be read: {error_text(error)}")
        else:
            samples.finish()
            if not any(finding.is_broken for finding in self.findings):  # else they are made again with it
                self._check_data_size()
                self._check_sidecars(name)

    def _check_sidecars(self, data: str) -> None:
        """Extra files must be the same as those made from the data now."""
        sidecars = self._writer.sidecars if self._writer is not None else ()
        present = {end: name for name in self._files.extra_files for end in sidecars if name.endswith(end)}
        if not present:
            return
        try:
            made = cast("type[WithSidecars]", self._writer).make_sidecars(self._local(data))
            for end, name in present.items():
                if self._dataset.read(name) != made[end]:
                    self.findings.add("beside", f"{name} does not belong to {data}")
        except Exception as error:  # of whoever made the shard, and of file systems
            self.findings.add("unreadable", f"its {' and '.join(present)} cannot be checked: {error_text(error)}")


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the list in the metadata, where each of its samples has a line."""

    key: str
    status: str | None
    number: int  # of the line that stands for it


def _rows_of(table: pa.Table, has_samples: bool) -> Iterator[_Row]:
    """The lines of a row stand next to each other; a dataset of another tool has one for each."""
    keys, statuses = [key or "" for key in table["key"].to_pylist()], table["status"].to_pylist()
    if not has_samples:
        yield from (_Row(key, statuses[number], number) for number, key in enumerate(keys))
        return
    for key, lines in groupby(range(len(keys)), key=lambda number: row_key(keys[number])):
        numbers = list(lines)
        number = numbers[first_of([statuses[each] for each in numbers])]
        yield _Row(key, statuses[number], number)


class _Samples:
    """Compares the samples of the data with the rows of the metadata that are stored."""

    def __init__(
        self, dataset: Dataset, stored: pa.Table, is_of_other_tool: bool, findings: Findings, result: ShardResult
    ) -> None:
        self._about, self._result = findings.about, result
        self._members, self._is_of_other_tool = dataset.members, is_of_other_tool
        self._has_files_beside = dataset.writer is not None and dataset.writer.has_members
        # Hashes by img2dataset are of the bytes before they were resized.
        hashes = () if is_of_other_tool else recorded_hash_columns(dataset.run.options if dataset.run else None)
        result.hashes = tuple(name for name in hashes if name in stored.schema.names)
        self._table = stored.select([each.name for each in stored.schema if _is_plain(each.type)])
        self._numbers = {key: number for number, key in enumerate(stored["key"].to_pylist())}
        self._seen = bytearray(stored.num_rows)
        self._last = -1
        self._block_start, self._block = 0, list[dict[str, Any]]()
        self.read = 0

    def compare(self, sample: StoredSample) -> None:
        self.read += 1
        number = self._numbers.get(sample.key)
        if number is None or self._seen[number]:
            problem = "in the data, but no success in the metadata" if number is None else "in the data more than once"
            self._about("samples", sample.key, problem)
            return
        if number < self._last and not self._is_of_other_tool:
            self._about("samples", sample.key, "not in the order of the metadata")
        self._last = max(number, self._last)
        self._seen[number] = 1
        row = {"key": sample.key} if self._is_of_other_tool else self._row(number)
        files = {sample.ext: ""} if self._is_of_other_tool else self._files(row)
        for ext, prefix in files.items():
            if (body := sample.members.get(ext)) is None:
                whose = f"its {prefix.removesuffix('_')}" if prefix else "its file"
                self._about("samples", sample.key, f"{whose} has another extension than in the metadata, or is missing")
            else:
                self._check_file(sample.key, body, row, prefix)
        if self._has_files_beside:
            self._check_beside(sample, row, files)

    def finish(self) -> None:
        """To be called at the end of the data."""
        for key, number in self._numbers.items():
            if not self._seen[number]:
                self._about("samples", key, "a success in the metadata, but not in the data")

    def _row(self, number: int) -> dict[str, Any]:
        """A row of the metadata, of which some are values of Python at a time: samples come in their order."""
        if not self._block_start <= number < self._block_start + len(self._block):
            self._block_start = number - number % _ROWS_AT_ONCE
            self._block = self._table.slice(self._block_start, _ROWS_AT_ONCE).to_pylist()
        return self._block[number - self._block_start]

    def _files(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Extension of each file that a sample is to have -> with what the columns that tell of it begin."""
        if self._members is None:
            return {row["ext"]: ""}
        return {ext: f"{ext.partition('.')[0]}_" for ext, _ in self._members.stored(row)}

    def _check_file(self, key: str, body: StoredBody, row: Mapping[str, Any], prefix: str) -> None:
        changed_to = row.get(prefix + STORED_BYTES.name)
        is_changed = changed_to is not None
        crc32 = row.get(prefix + STORED_CRC32.name) if is_changed else None
        self._result.unchecked_files += is_changed and crc32 is None
        # Hashes are those of the file that arrived.
        digests = {} if is_changed else {name: getattr(hashlib, name)() for name in self._result.hashes}
        found = 0
        for piece in body.chunks():
            for digest in digests.values():
                digest.update(piece)
            if crc32 is not None:
                found = zlib.crc32(piece, found)
        self._result.bytes_read += body.size
        if not self._is_of_other_tool and body.size != (changed_to if is_changed else row[f"{prefix}bytes"]):
            self._about("samples", key, "its file has not the size that is in the metadata")
            return  # its hash differs, of course
        if crc32 is not None and found != crc32:
            self._about("hash", key, f"the CRC-32 of the file is not {prefix}{STORED_CRC32.name} in the metadata")
        for name, digest in digests.items():
            if digest.hexdigest() != row[prefix + name]:
                self._about("hash", key, f"{prefix}{name} of the file is not that of the metadata")

    def _check_beside(self, sample: StoredSample, row: Mapping[str, Any], files: Mapping[str, str]) -> None:
        """The caption and the metadata of a sample, which lie beside its file."""
        wanted = [] if self._is_of_other_tool else [METADATA, *([CAPTION] if "caption" in row else [])]
        for ext in wanted:
            if ext not in sample.members:
                self._about("samples", sample.key, f"without its .{ext}")
        for ext, body in sample.members.items():
            if ext in files:
                continue
            content = body.read()
            if ext == CAPTION and ext in wanted and content.decode("utf-8", "replace") != (row["caption"] or ""):
                self._about("samples", sample.key, "its .txt is not the caption in the metadata")
            elif ext == METADATA and (problem := _problem_of_json(content, row, is_exact=ext in wanted)):
                self._about("samples", sample.key, problem)


def _problem_of_json(content: bytes, row: Mapping[str, Any], is_exact: bool) -> str:
    """What is wrong with the `.json` of a sample; "" if nothing is. Texts and numbers are compared if it `is_exact`."""
    try:
        described = orjson.loads(content) if is_exact else _of_other_tool(content)
    except ValueError:
        return "its .json cannot be read"
    if not isinstance(described, dict):
        return "its .json cannot be read"
    if described.get("key", row["key"]) != row["key"]:
        return "its .json has another key"
    for name, value in row.items() if is_exact else ():
        if isinstance(value, (str, int)) and described.get(name, value) != value:
            return f"its .json differs from the metadata in {name[:50]}"
    return ""


def _of_other_tool(content: bytes) -> Any:
    """JSON that may have NaN and surrogates. Raises ValueError."""
    import json

    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _stored(table: pa.Table) -> pa.Table:
    """The rows that have a sample."""
    return table.filter(pc.fill_null(pc.equal(table["status"], SUCCESS), False))


def _bytes_of(stored: pa.Table, members: Members | None) -> int:
    """Bytes of the files of stored rows."""
    if members is not None:
        needed = members.prefixed(dict.fromkeys((*_NEEDED_OF_MEMBERS, STORED_BYTES.name)))
        rows = stored.select([name for name in needed if name in stored.schema.names]).to_pylist()
        return sum(size for row in rows for _, size in members.stored(row))
    sizes = stored["bytes"]
    if STORED_BYTES.name in stored.schema.names:
        sizes = pc.coalesce(stored[STORED_BYTES.name], sizes)
    return pc.sum(sizes).as_py() or 0


def _is_plain(kind: pa.DataType) -> bool:
    """Whether its values are the same in Python and in JSON."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _is_of_the_system(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SYSTEM_ERRORS):
            return True
        error = error.__cause__
    return False
