"""Checks one shard against itself: statistics, metadata and data, to the last byte."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
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
from any2ds.core.failures import DROPPED, DUPLICATE, FILTERED, NO_FAILURES, STATUS_OF_STAGE, SUCCESS, failure_code
from any2ds.core.layout import Layout
from any2ds.core.members import Members
from any2ds.core.metadata import DUPLICATE_OF, SPLIT, STORED_BYTES, STORED_CRC32, splits_of
from any2ds.core.on_disk import MOST_IN_MEMORY, held
from any2ds.core.samples import CAPTION, METADATA, StoredSample, first_of, row_key, sample_key
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.dataset.shard_list import ShardEntry
from any2ds.dataset.verify.findings import Finding, Findings
from any2ds.writers.contract import WithSidecars
from any2ds.writers.formats.parquet import THRIFTY

_STATUSES = {*NO_FAILURES, *STATUS_OF_STAGE.values()}
_NEEDED = ("key", "url", "status", "error_code", "ext", "bytes")
_ROWS_AT_ONCE = 1000  # of the metadata, whose captions may be long
_OF_MEMBERS = ("status", "ext", "bytes")
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
    contents: bool = True  # False: check only whether the files are there, and their numbers of rows
    listed: ShardEntry | None = None  # what a closed list of shards says, where contents are not read


@dataclass(slots=True)
class ShardResult:
    """What was checked of a shard, and what is wrong."""

    shard_id: int
    findings: tuple[Finding, ...] = ()
    rows: int = 0  # by its statistics
    samples: int = 0
    bytes_read: int = 0  # of its samples
    hashes: tuple[str, ...] = ()  # that were recomputed
    changed: int = 0  # samples whose files a step has changed, and that have no checksum
    contents: bool = False  # whether they were read
    entry: ShardEntry | None = None  # what the list of shards should have; None if the statistics are unreadable


def check_listed(dataset: Dataset, task: ShardTask) -> ShardResult | None:
    """The result for a shard that has its files, of the size and with the rows that the list of shards says.

    None if that is not known or not so, or if contents are to be read: `check_shard` tells then. No file is opened.
    """
    files, entry = task.files, task.listed
    ends = dataset.extra_ends
    if entry is None or files.stats is None or files.metadata is None or len(files.extra_files) < len(ends):
        return None
    if task.rows not in (None, entry.count) or not all(dataset.entries[name].size for name in files.present[:2]):
        return None
    if dataset.writer is None or (dataset.hides and files.visible is None):
        return None
    if dataset.writer.extension is not None:
        if files.data is None and (dataset.writer.extension or entry.samples):
            return None
        if entry.data_bytes and dataset.entries[files.data or ""].size != entry.data_bytes:
            return None
    return ShardResult(files.shard_id, rows=entry.count, samples=entry.samples, entry=entry)


def check_shard(dataset: Dataset, task: ShardTask) -> ShardResult:
    check = _ShardCheck(dataset, task)
    try:
        check.run()
    except Exception as error:  # whatever may lie in a folder: the other shards are checked
        check.add_error(error, "data", "it cannot be checked")
    check.result.findings = tuple(check.findings)
    return check.result


class _ShardCheck:
    def __init__(self, dataset: Dataset, task: ShardTask) -> None:
        self._dataset, self._task, self._files = dataset, task, task.files
        self._writer = dataset.writer
        self._stats: Stats | None = None
        self.visible: frozenset[str] | None = None  # columns of the table that other tools read, if it is another one
        self.findings = Findings(task.files.shard_id)
        self.result = ShardResult(task.files.shard_id, contents=task.contents)

    @property
    def members(self) -> Members | None:
        return self._dataset.members

    @property
    def _member_columns(self) -> list[str]:
        """Those that tell of the members of a sample."""
        return list(self.members.prefixed(dict.fromkeys(_OF_MEMBERS))) if self.members else []

    @property
    def is_img2dataset(self) -> bool:
        """Whether another tool made this shard, maybe in a dataset that any2ds has completed."""
        return self._dataset.is_img2dataset or (self._stats is not None and self._stats.shard_id is None)

    def add_error(self, error: BaseException, kind: str, message: str) -> None:
        """Add what cannot be read: `kind` if it is broken, `unreadable` if the system refuses it."""
        self.findings.add("unreadable" if _is_of_the_system(error) else kind, f"{message}: {error_text(error)}")

    def run(self) -> None:
        files = self._files
        if files.stats is None:
            self.findings.add("unfinished", f"{' and '.join(files.present)} without stats: the shard is not finished")
            return
        self._check_stats(files.stats)
        sidecars = self._writer.sidecars if self._writer else ()
        for end in () if self.is_img2dataset else self._dataset.extra_ends:
            if not any(name.endswith(end) for name in files.extra_files):
                hint = ": verify --repair writes it" if end in sidecars else ""
                self.findings.add("beside", f"its {end} is missing{hint}")
        if self._task.contents:
            if self._has_metadata() and (table := self._check_metadata(files.metadata or "")) is not None:
                self._check_data(table)
        elif self._has_metadata():
            self._check_sizes(files.metadata or "")

    # --- statistics ---

    def _check_stats(self, name: str) -> None:
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
        self.result.entry = ShardEntry.of_stats(self._files.shard_id, stats, data.size if data else 0)
        self.result.rows, self.result.samples = stats.count, stats.samples
        if stats.shard_id is not None and stats.shard_id != self._files.shard_id:
            self.findings.add("stats", f"{name} is of shard {stats.shard_id}")
        total = stats.successes + stats.dropped + stats.filtered + stats.duplicates + sum(stats.failed.values())
        if total != stats.count:
            self.findings.add("stats", f"{name}: count is {stats.count}, but its parts add up to {total}")
        if stats.samples < stats.successes:
            self.findings.add("stats", f"{name}: {stats.successes} rows are stored, in {stats.samples} samples")
        if self._task.rows is not None and stats.count != self._task.rows:
            message = f"{name}: count is {stats.count}, but the list has {self._task.rows} rows for it"
            self.findings.add("list", message)
        outcomes = sum(stats.status_dict.values())
        if outcomes != stats.count and not self.is_img2dataset:  # img2dataset limits it
            self.findings.add("stats", f"{name}: status_dict adds up to {outcomes}, and count is {stats.count}")

    def _compare(self, name: str, recorded: object, counted: object) -> None:
        if recorded != counted:
            self.findings.add("stats", f"{self._files.stats}: {name} is {recorded}, but the metadata has {counted}")

    # --- metadata ---

    def _has_metadata(self) -> bool:
        """Whether there are metadata; adds a finding if they are missing."""
        if self._files.metadata is not None:
            return True
        if not (self.is_img2dataset and self._dataset.output_format == "dummy"):
            self.findings.add("metadata", "there is no metadata")
        return False

    def _check_sizes(self, metadata: str) -> None:
        """Of files that are not opened."""
        if not self._dataset.entries[metadata].size:
            self.findings.add("metadata", f"{metadata} is empty")
        if self._has_data(is_needed=self._stats is None or self._stats.successes > 0):
            self._check_data_size()

    def _check_data_size(self) -> None:
        """What reads as a whole may still lack its last bytes, such as the zeros at the end of a tar file."""
        data, stats = self._dataset.entries[self._files.data or ""], self._stats
        if stats is not None and stats.data_bytes and data.size != stats.data_bytes:
            text = f"{data.name} has {data.size:,} bytes, its statistics say {stats.data_bytes:,}"
            self.findings.add("data", text)

    def _check_metadata(self, name: str) -> pa.Table | None:
        """Returns the table if the data can be compared with it."""
        try:
            table = self._read_metadata(name)
            rows = self._count_rows(table)
        except Exception as error:  # of Arrow, of the system and of file systems
            self.add_error(error, "metadata", f"{name} cannot be read to its end")
            return None
        if self._stats is not None:
            self._compare("count", self._stats.count, rows)
        needed = ("key", "status") if self.is_img2dataset else (*_NEEDED, *self._member_columns)
        if missing := [column for column in needed if column not in table.schema.names]:
            self.findings.add("metadata", f"{name} has no column {', '.join(missing)}")
            return None
        for column in ("key", "status"):
            if not pa.types.is_string(table.schema.field(column).type):
                self.findings.add("metadata", f"{name}: the column {column} is no text")
                return None
        keys = table["key"].to_pylist()
        by_row = self._by_row(keys)
        self._check_keys(keys, by_row)
        self._check_outcomes(table, by_row)
        self._check_visible_table(table)
        return table

    def _read_metadata(self, name: str) -> pa.Table:
        with self._dataset.local(name) as path:
            with open(path, "rb"):  # raises the error of the system, if there is one
                pass
            with pq.ParquetFile(path, **THRIFTY) as file:
                columns = self._dataset.metadata_columns(file.schema_arrow)
                batches = held(file.iter_batches(_ROWS_AT_ONCE, columns=columns, use_threads=False))
                if not batches:
                    return file.read(columns=columns)
                table = pa.Table.from_batches(batches)
                return table.combine_chunks() if table.nbytes <= MOST_IN_MEMORY else table

    def _check_visible_table(self, table: pa.Table) -> None:
        """With a preset: the table for other tools must have the same values as the complete one."""
        name = self._files.visible
        if name is None:
            if self._dataset.hides and not self.is_img2dataset and self._writer and self._writer.extension is not None:
                self.findings.add("metadata", "its .parquet is missing")
            return
        try:
            with self._dataset.local(name) as path, pq.ParquetFile(path, **THRIFTY) as file:
                columns = [column for column in file.schema_arrow.names if column in table.schema.names]
                visible = file.read(columns=columns).select(columns)
        except Exception as error:  # of Arrow, of the system and of file systems
            self.add_error(error, "metadata", f"{name} cannot be read to its end")
            return
        self.visible = frozenset(columns)
        for column in columns:
            is_exact = _is_plain(table[column].type) and not pa.types.is_floating(table[column].type)
            if is_exact and not visible[column].equals(table[column]):
                self.findings.add("metadata", f"{name}: column {column[:50]} differs from {self._files.metadata}")
        if "key" not in columns or visible.num_rows != table.num_rows:
            self.findings.add("metadata", f"{name} has other rows than {self._files.metadata}")

    def _count_rows(self, table: pa.Table) -> int:
        """How many rows of the list the metadata describes."""
        if "key" not in table.schema.names or not pa.types.is_string(table.schema.field("key").type):
            return int(table.num_rows)
        return len(self._by_row(table["key"].to_pylist()))

    def _by_row(self, keys: list[str | None]) -> list[range]:
        """The rows of the table for each row of the list: one for each of its samples, next to each other."""
        if self.is_img2dataset:
            return [range(number, number + 1) for number in range(len(keys))]
        found: list[range] = []
        start = 0
        for _, of_row in groupby(row_key(key or "") for key in keys):
            stop = start + sum(1 for _ in of_row)
            found.append(range(start, stop))
            start = stop
        return found

    def _check_keys(self, keys: list[str | None], by_row: list[range]) -> None:
        names, shard_id = self._dataset.layout, self._files.shard_id
        if names is not None and not self.is_img2dataset:
            for position, of_row in enumerate(by_row):
                self._check_keys_of_row(names.key(shard_id, position), [keys[number] for number in of_row])
        elif names is not None:  # img2dataset stores rows in the order in which they arrived
            first, digits = names.shard_name(shard_id), names.position_digits
            for key in keys:
                if key is None or not key.startswith(first) or len(key) != len(first) + digits:
                    self.findings.about("keys", key, "not a key of this shard")
        for key, times in Counter(keys).items():
            if times > 1:
                self.findings.about("keys", key, "more than one row with the same key")

    def _check_keys_of_row(self, own: str, keys: list[str | None]) -> None:
        """A row has its `own` key, or this with a number behind it for each of its samples."""
        if keys == [own]:
            return
        for part, key in enumerate(keys):
            if row_key(key or "") != own:
                self.findings.about("keys", key, "not the key of its place in the metadata")
            elif key == own:
                self.findings.about("keys", key, "the key of a row beside those of its samples")
            elif key != sample_key(own, part, len(keys)):
                self.findings.about("keys", key, "the samples of a row are not numbered one by one from 0 on")

    def _check_outcomes(self, table: pa.Table, by_row: list[range]) -> None:
        """Statistics count rows; the outcome of a row with several samples is that of `first_of`."""
        statuses = table["status"].to_pylist()
        firsts = [of_row[first_of(statuses[of_row.start : of_row.stop])] for of_row in by_row]
        counts = Counter(statuses[number] for number in firsts)
        stats = self._stats
        if stats is not None:
            self._compare("successes", stats.successes, counts[SUCCESS])
            for status in {*stats.failed, *(status for status in counts if (status or "").startswith("failed_to_"))}:
                self._compare(status, stats.failed.get(status, 0), counts[status])
        if self.is_img2dataset:
            return
        for status in set(statuses) - _STATUSES:
            self.findings.add("metadata", f"the status {str(status)[:100]!r} does not exist")
        codes = pc.coalesce(table["error_code"], table["status"]).to_pylist()
        for code in set(codes) - _STATUSES:
            try:
                failure_code(code)
            except KeyError:
                self.findings.add("metadata", f"the error_code {str(code)[:100]!r} does not exist")
        members = self.members
        sizes = _sizes(table) if members is None else list(map(sum, zip(*_sizes_of(table, members), strict=True)))
        if stats is not None:
            self._compare("dropped", stats.dropped, counts[DROPPED])
            self._compare("filtered", stats.filtered, counts[FILTERED])
            self._compare("duplicates", stats.duplicates, counts[DUPLICATE])
            self._compare("samples", stats.samples, statuses.count(SUCCESS))
            recorded, counted = Counter(stats.status_dict), Counter(codes[number] for number in firsts)
            for code in sorted(str(c) for c in recorded.keys() | counted.keys() if recorded[c] != counted[c])[:3]:
                self._compare(f"status_dict[{code}]", recorded[code], counted[code])
            if stats.size is not None:
                stored = (size or 0 for size, status in zip(sizes, statuses, strict=True) if status == SUCCESS)
                self._compare("bytes", stats.size, sum(stored))
            if stats.splits:
                stored_rows = table.filter(pc.equal(table["status"], SUCCESS))
                names = stored_rows[SPLIT].to_pylist() if SPLIT in stored_rows.schema.names else ()
                self._compare("splits", dict(stats.splits), splits_of(names))
        columns = (table[name].to_pylist() for name in ("key", "status", "error_code", "ext", "bytes"))
        for key, status, code, ext, size in zip(*columns, strict=True):
            succeeded = status == SUCCESS
            if succeeded != (bool(ext) and size is not None) or (succeeded and code is not None):
                self.findings.about("metadata", key, "status, error_code, ext and bytes contradict each other")
            elif status not in NO_FAILURES and code is None:
                self.findings.about("metadata", key, "failed without an error_code")
        self._check_duplicates(table)

    def _check_duplicates(self, table: pa.Table) -> None:
        names = self._dataset.layout
        if DUPLICATE_OF.name not in table.schema.names or names is None:
            if pc.any(pc.equal(table["status"], DUPLICATE)).as_py():
                self.findings.add("metadata", "duplicates, but no column duplicate_of")
            return
        columns = (table[name].to_pylist() for name in ("key", "status", DUPLICATE_OF.name))
        for key, status, first in zip(*columns, strict=True):
            if (status == DUPLICATE) != (first is not None):
                self.findings.about("metadata", key, "status and duplicate_of contradict each other")
            elif first is not None and not _is_earlier(first, key, names):
                self.findings.about("metadata", key, "duplicate_of is not the key of an earlier row")

    # --- data ---

    def _has_data(self, is_needed: bool) -> bool:
        """Whether there is a data file that can be read; adds a finding if it is missing and `is_needed`."""
        writer = self._writer
        if writer is None or writer.extension is None:
            return False
        if self._files.data is None and (writer.extension or is_needed):  # object stores have no empty folders
            shown = f"a .{writer.extension} file" if writer.extension else "a folder"
            self.findings.add("data", f"there is no data: {shown} is missing")
        return self._files.data is not None

    def _check_data(self, table: pa.Table) -> None:
        successes = table.filter(pc.fill_null(pc.equal(table["status"], SUCCESS), False))
        if not self._has_data(is_needed=successes.num_rows > 0) or self._writer is None:
            return
        name = self._files.data or ""
        run = self._dataset.run
        # Hashes by img2dataset are of the bytes before they were resized.
        hashes = () if self.is_img2dataset else recorded_hash_columns(run.options if run else None)
        check = _DataCheck(self, successes, self._writer.has_members, hashes)
        self.result.hashes = check.hashes
        try:
            with self._dataset.local(name) as path:
                _ask_system(path)
                samples: Any = self._writer.read(path)
                with closing(samples):
                    for sample in samples:
                        check.compare(sample)
        except DamagedShard as error:
            read = f"{check.read:,} of {successes.num_rows:,} samples"
            self.add_error(error, "data", f"{name} cannot be read to its end, after {read}")
        except OSError as error:
            self.findings.add("unreadable", f"{name} cannot be read: {error_text(error)}")
        else:
            check.finish()
            if not any(finding.is_broken for finding in self.findings):  # else they are made again with it
                self._check_data_size()
                self._check_sidecars(name)

    def _check_sidecars(self, data: str) -> None:
        """They must be the same as those made from the data now."""
        if self._writer is None:
            return
        present = {end: name for name in self._files.extra_files for end in self._writer.sidecars if name.endswith(end)}
        if not present:
            return
        try:
            with self._dataset.local(data) as path:
                made = cast("type[WithSidecars]", self._writer).make_sidecars(path)
            for end, name in present.items():
                if self._dataset.read(name) != made[end]:
                    self.findings.add("beside", f"{name} does not belong to {data}")
        except Exception as error:  # of whoever made the shard, and of file systems
            self.findings.add("unreadable", f"its {' and '.join(present)} cannot be checked: {error_text(error)}")


class _DataCheck:
    """Compares the samples in the data with those that the metadata describes."""

    def __init__(self, shard: _ShardCheck, successes: pa.Table, has_members: bool, hashes: Sequence[str]) -> None:
        """`has_members`: the format stores members beside the file; `hashes`: columns of hashes to recompute."""
        self._about, self._result, self._is_img2dataset = shard.findings.about, shard.result, shard.is_img2dataset
        self._has_members = has_members
        self._names = frozenset(successes.schema.names)
        self._in_json = self._names if shard.visible is None else shard.visible
        self._columns: dict[str, list[Any]] = {
            name: successes[name].to_pylist()
            for name in successes.schema.names
            if _is_plain(successes.schema.field(name).type)
        }
        self._members = shard.members
        self._has_steps = STORED_BYTES.name in self._columns  # steps may add members
        self._rows: dict[str | None, int] = {key: row for row, key in enumerate(self._columns["key"])}
        self._seen = bytearray(successes.num_rows)
        self._last = -1
        self.hashes = tuple(name for name in hashes if name in self._columns)
        self.read = 0

    def compare(self, sample: StoredSample) -> None:
        key, about = sample.key, self._about
        self.read += 1
        row = self._rows.get(key)
        if row is None or self._seen[row]:
            about("samples", key, _UNKNOWN if row is None else _TWICE)
            for member in sample.members.values():
                _skip(member)
            return
        if row < self._last and not self._is_img2dataset:
            about("samples", key, "not in the order of the metadata")
        self._last = max(row, self._last)
        self._seen[row] = 1
        self._check_members(sample, row)
        files = {sample.ext: ""} if self._is_img2dataset else self._files(row)
        for ext, prefix in files.items():
            if (body := sample.members.get(ext)) is not None:
                self._check_body(key, body, row, prefix)
        # In formats without members, and without captions, the file itself may have one of these extensions.
        members = {name: body for name, body in sample.members.items() if self._has_members and name not in files}
        if (caption := members.get(CAPTION)) is not None:
            written = caption.read().decode("utf-8", "replace")
            if (
                not self._is_img2dataset
                and "caption" in self._columns
                and written != (self._columns["caption"][row] or "")
            ):
                about("samples", key, "its .txt is not the caption in the metadata")
        if (described := members.get(METADATA)) is not None:
            self._check_json(key, row, described.read())

    def finish(self) -> None:
        """To be called at the end of the data."""
        for key, row in self._rows.items():
            if not self._seen[row]:
                self._about("samples", key, "a success in the metadata, but not in the data")

    def _check_members(self, sample: StoredSample, row: int) -> None:
        about, key = self._about, sample.key
        if self._is_img2dataset:
            if sample.body is None:
                about("samples", key, "without its file")
            return
        files = self._files(row)
        for ext, prefix in files.items():
            if ext not in sample.members:
                whose = f"its {prefix.removesuffix('_')}" if prefix else "its file"
                about("samples", key, f"{whose} has another extension than in the metadata, or is not there")
        members = set(sample.members) - set(files)
        wanted = {METADATA, *([CAPTION] if "caption" in self._names else [])} if self._has_members else set()
        for name in sorted(wanted - members - set(files)):
            about("samples", key, f"without its .{name}")
        for name in members - wanted:
            if not self._has_steps:
                about("samples", key, "with a member too many")
            elif name not in (CAPTION, METADATA):
                _skip(sample.members[name])

    def _files(self, row: int) -> dict[str, str]:
        """Extension of each file that a sample is to have -> with what the columns that tell of it begin."""
        if self._members is None:
            return {self._columns["ext"][row]: ""}
        fields = {name: values[row] for name, values in self._columns.items()}
        return {ext: f"{ext.partition('.')[0]}_" for ext, _ in self._members.stored(fields)}

    def _check_body(self, key: str, body: StoredBody, row: int, prefix: str) -> None:
        about, columns = self._about, self._columns
        changed_to = columns[prefix + STORED_BYTES.name][row] if self._has_steps else None
        is_changed = changed_to is not None
        crc32 = columns[prefix + STORED_CRC32.name][row] if is_changed and STORED_CRC32.name in columns else None
        self._result.changed += is_changed and crc32 is None
        # Hashes are those of the file that arrived.
        digests = [] if is_changed else [(name, getattr(hashlib, name)()) for name in self.hashes]
        found = 0
        for piece in body.chunks():
            for _, digest in digests:
                digest.update(piece)
            if crc32 is not None:
                found = zlib.crc32(piece, found)
        self._result.bytes_read += body.size
        if not self._is_img2dataset and body.size != (changed_to if is_changed else columns[f"{prefix}bytes"][row]):
            about("samples", key, "its file has not the size that is in the metadata")
            return  # its hash differs, of course
        if crc32 is not None and found != crc32:
            about("hash", key, f"the CRC-32 of the file is not {prefix}{STORED_CRC32.name} in the metadata")
        for name, digest in digests:
            if digest.hexdigest() != columns[prefix + name][row]:
                about("hash", key, f"{prefix}{name} of the file is not that of the metadata")

    def _check_json(self, key: str, row: int, content: bytes) -> None:
        about = self._about
        try:
            described = _parsed(content)
        except ValueError:
            about("samples", key, "its .json cannot be read")
            return
        if self._is_img2dataset:
            if described.get("key", key) != key:
                about("samples", key, "its .json has another key")
            return
        names = self._in_json
        plain = {name: self._columns[name][row] for name in names & self._columns.keys() if name != "key"}
        # Rewriting a shard may add columns, which samples from before do not have in their .json.
        absent = {name for name in plain if plain[name] is None and name not in described}
        if described.keys() != names - absent or described["key"] != key:
            about("samples", key, "its .json has other fields than the metadata, or another key")
            return
        for name in plain.keys() - absent:
            value = plain[name]
            if described[name] != value and not (isinstance(value, float) and _same_number(described[name], value)):
                about("samples", key, f"its .json differs from the metadata in {name[:50]}")


_UNKNOWN, _TWICE = "in the data, but no success in the metadata", "in the data more than once"


def _skip(member: StoredBody) -> None:
    """Read it, because the samples are a stream."""
    for _ in member.chunks():
        pass


def _ask_system(path: Path) -> None:
    """Raises OSError if the file or folder must not be read."""
    if path.is_dir():
        os.listdir(path)
    else:
        with open(path, "rb"):
            pass


def _sizes(table: pa.Table) -> Sequence[int | None]:
    """Of the files as they are stored."""
    if STORED_BYTES.name not in table.schema.names:
        return cast("list[int | None]", table["bytes"].to_pylist())
    return cast("list[int | None]", pc.coalesce(table[STORED_BYTES.name], table["bytes"]).to_pylist())


def _sizes_of(table: pa.Table, members: Members) -> list[list[int]]:
    """The same of the file of each member, 0 where it is not stored."""
    found = []
    for name in members.names:
        of = {each: table[f"{name}_{each}"] for each in ("status", "bytes")}
        stored = f"{name}_{STORED_BYTES.name}"
        size = pc.coalesce(table[stored], of["bytes"]) if stored in table.schema.names else of["bytes"]
        there = pc.fill_null(pc.equal(of["status"], SUCCESS), False)
        found.append(pc.fill_null(pc.if_else(there, size, 0), 0).to_pylist())
    return found


def _parsed(content: bytes) -> dict[str, Any]:
    """Raises ValueError if it is no JSON object."""
    try:
        found = orjson.loads(content)
    except ValueError:
        try:
            found = json.loads(content)  # other tools write NaN and surrogates
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _same_number(written: Any, value: float) -> bool:
    """JSON has neither NaN nor infinity, and shows a float32 in its own digits."""
    if written is None:
        return value != value or value in (float("inf"), float("-inf"))
    return isinstance(written, (int, float)) and abs(written - value) <= 1e-6 * abs(value)


def _is_plain(kind: pa.DataType) -> bool:
    """Whether its values are the same in Python, in parquet and in JSON."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(is_text or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_earlier(first: str, key: str | None, names: Layout) -> bool:
    """Whether `first` can be the key of a row before the one of `key`."""

    def place(text: str) -> tuple[int, int] | None:
        number, position = text[: -names.position_digits], text[-names.position_digits :]
        if not (number.isdecimal() and position.isdecimal() and text.isascii()):
            return None
        found = int(number), int(position)
        return found if names.key(*found) == text and found[1] < names.rows_per_shard else None

    one, other = place(first), place(key or "")
    return one is not None and other is not None and one < other


def _is_of_the_system(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _SYSTEM_ERRORS):
            return True
        error = error.__cause__
    return False
