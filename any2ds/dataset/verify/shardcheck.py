"""Checks one shard against itself: figures, metadata and data, to the last byte."""

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
from any2ds.core.metadata import DUPLICATE_OF, STORED_BYTES, STORED_CRC32
from any2ds.core.samples import CAPTION, METADATA, StoredSample, first_of, row_key, sample_key
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset, ShardFiles
from any2ds.dataset.shard_list import ShardEntry, entry_of
from any2ds.dataset.verify.findings import Finding, Findings
from any2ds.writers.contract import WithSidecars
from any2ds.writers.formats.parquet import THRIFTY

_STATUSES = {*NO_FAILURES, *STATUS_OF_STAGE.values()}
_NEEDED = ("key", "url", "status", "error_code", "ext", "bytes")
# The system's word on a file, or on itself; whatever else goes wrong in reading is the file's fault.
_OF_THE_SYSTEM = {
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EIO", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "ESTALE", "ETIMEDOUT", "EAGAIN")
    if hasattr(errno, name)
} | {errno.EBUSY, errno.ELOOP}


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to check. Without `contents`: whether its files are there and their numbers of rows agree."""

    files: ShardFiles
    rows: int | None  # that the url list has for it, where that is known
    contents: bool = True


@dataclass(frozen=True, slots=True)
class ShardResult:
    shard_id: int
    findings: tuple[Finding, ...] = ()
    rows: int = 0  # as its stats say
    samples: int = 0
    bytes_read: int = 0  # of its samples
    hashes: tuple[str, ...] = ()  # that were recomputed
    changed: int = 0  # samples whose files are not as they arrived, and of which no checksum tells
    contents: bool = False
    entry: ShardEntry | None = None  # what a list of shards should say of it; None where its stats do not tell


@dataclass(frozen=True, slots=True)
class ShardChecker:
    """Checks shards of `dataset`. Can be pickled."""

    dataset: Dataset

    def __call__(self, task: ShardTask) -> ShardResult:
        check = _Check(self.dataset, task)
        try:
            check.run()
        except Exception as error:  # whatever may lie in a folder: it is a finding, and the others are checked
            check.note(error, "data", "it cannot be checked")
        return check.result()


class _Check:
    def __init__(self, dataset: Dataset, task: ShardTask) -> None:
        self._dataset, self._task, self._files = dataset, task, task.files
        self._found = Findings(task.files.shard_id)
        self._writer = dataset.writer
        self._stats: Stats | None = None
        self._entry: ShardEntry | None = None
        self._changed = self._bytes = 0
        self._hashes: tuple[str, ...] = ()
        self._in_sight: frozenset[str] | None = None  # columns of the metadata, where these are not all of them

    @property
    def _is_foreign(self) -> bool:
        """Whether another tool made this shard, be it in a dataset that any2ds has completed."""
        return self._dataset.is_foreign or (self._stats is not None and self._stats.shard_id is None)

    def result(self) -> ShardResult:
        files = self._files
        rows = self._stats.count if self._stats else 0
        return ShardResult(
            files.shard_id,
            tuple(self._found),
            rows,
            self._stats.samples if self._stats else 0,
            self._bytes,
            self._hashes,
            self._changed,
            self._task.contents,
            self._entry,
        )

    def note(self, error: BaseException, kind: str, message: str) -> None:
        """What cannot be read: because it is broken, which is `kind`, or because the system says no."""
        self._found.add("unreadable" if _is_of_the_system(error) else kind, f"{message}: {error_text(error)}")

    def run(self) -> None:
        files = self._files
        if files.stats is None:
            lies = " and ".join(files.present)
            self._found.add("unfinished", f"{lies} without stats: it is not done")
            return
        self._check_stats(files.stats)
        sidecars = self._writer.sidecars if self._writer else ()
        for end in () if self._is_foreign else self._dataset.ends_beside:
            end_words = ": verify --repair writes it" if end in sidecars else ""
            if not any(name.endswith(end) for name in files.extra_files):
                self._found.add("beside", f"its {end} is missing" + end_words)
        table = self._check_metadata()
        if self._task.contents:
            if table is not None:
                self._check_data(table)
        elif self._lacks_data(self._stats is None or self._stats.successes > 0):
            return

    # --- figures ---

    def _check_stats(self, name: str) -> None:
        try:
            content = self._dataset.read(name)
        except Exception as error:  # every file system has exceptions of its own
            self._found.add("unreadable", f"{name} cannot be read: {error_text(error)}")
            return
        try:
            stats = self._stats = Stats.parse(content)
            data = self._dataset.entries.get(self._files.data or "")
            self._entry = entry_of(self._files.shard_id, content, data.size if data else 0)
        except ValueError as error:
            self._found.add("stats", f"{name} cannot be understood: {error}")
            return
        if stats.shard_id is not None and stats.shard_id != self._files.shard_id:
            self._found.add("stats", f"{name} is of shard {stats.shard_id}")
        summed = stats.successes + stats.dropped + stats.filtered + stats.duplicates + sum(stats.failed.values())
        if summed != stats.count:
            self._found.add("stats", f"{name}: count is {stats.count}, but its parts add up to {summed}")
        if stats.samples < stats.successes:
            self._found.add("stats", f"{name}: {stats.successes} rows are stored, in {stats.samples} samples")
        if self._task.rows is not None and stats.count != self._task.rows:
            self._found.add("list", f"{name}: count is {stats.count}, but the list has {self._task.rows} rows for it")
        outcomes = sum(stats.status_dict.values())
        if outcomes != stats.count and not self._is_foreign:  # theirs is capped
            self._found.add("stats", f"{name}: status_dict adds up to {outcomes}, and count is {stats.count}")

    def _compare(self, what: str, said: object, counted: object) -> None:
        if said != counted:
            self._found.add("stats", f"{self._files.stats}: {what} is {said}, but the metadata has {counted}")

    # --- metadata ---

    def _check_metadata(self) -> pa.Table | None:
        name = self._files.metadata
        if name is None:
            if not (self._is_foreign and self._dataset.output_format == "dummy"):
                self._found.add("metadata", "there is no metadata")
            return None
        table = None
        try:
            if self._task.contents:
                with self._dataset.local(name) as path:
                    table = self._load(path)
                rows = self._rows_in(table)
            else:
                with self._dataset.metadata_file(self._files) as file:
                    rows = file.metadata.num_rows
                    if self._stats is not None and rows != self._stats.count:  # some may have several samples
                        rows = self._rows_in(file.read(columns=["key"]))
        except Exception as error:  # of Arrow, of the system and of file systems
            self.note(error, "metadata", f"{name} cannot be read to its end")
            return None
        if self._stats is not None:
            self._compare("count", self._stats.count, rows)
        if table is None:
            return None
        needed = ("key", "status") if self._is_foreign else _NEEDED
        if missing := [column for column in needed if column not in table.schema.names]:
            self._found.add("metadata", f"{name} has no column {', '.join(missing)}")
            return None
        for column in ("key", "status"):
            if not pa.types.is_string(table.schema.field(column).type):
                self._found.add("metadata", f"{name}: the column {column} is no text")
                return None
        keys = table["key"].to_pylist()
        self._check_keys(keys)
        self._check_outcomes(table, self._by_row(keys))
        self._check_what_is_in_sight(table)
        return table

    def _check_what_is_in_sight(self, table: pa.Table) -> None:
        """A table for other tools says of each row what the fuller one does."""
        name = self._files.shown
        if name is None:
            if self._dataset.hides and not self._is_foreign and self._writer and self._writer.extension is not None:
                self._found.add("metadata", "its .parquet is missing")
            return
        try:
            with self._dataset.local(name) as path, pq.ParquetFile(path, **THRIFTY) as file:
                columns = [column for column in file.schema_arrow.names if column in table.schema.names]
                shown = file.read(columns=columns).select(columns)
        except Exception as error:  # of Arrow, of the system and of file systems
            self.note(error, "metadata", f"{name} cannot be read to its end")
            return
        self._in_sight = frozenset(columns)
        for column in columns:
            is_exact = _is_plain(table[column].type) and not pa.types.is_floating(table[column].type)
            if is_exact and not shown[column].equals(table[column]):
                self._found.add("metadata", f"{name}: its column {column[:50]} is not what {self._files.metadata} has")
        if "key" not in columns or shown.num_rows != table.num_rows:
            self._found.add("metadata", f"{name} has not the rows of {self._files.metadata}")

    def _rows_in(self, table: pa.Table) -> int:
        """How many rows of the list a table of metadata tells of."""
        is_plain = "key" not in table.schema.names or not pa.types.is_string(table.schema.field("key").type)
        return table.num_rows if is_plain else len(self._by_row(table["key"].to_pylist()))

    def _by_row(self, keys: list[str | None]) -> list[range]:
        """The rows of the table that tell of each row of the list: one for each of its samples, side by side."""
        if self._is_foreign:
            return [range(number, number + 1) for number in range(len(keys))]
        found: list[range] = []
        start = 0
        for _, of_row in groupby(row_key(key or "") for key in keys):
            stop = start + sum(1 for _ in of_row)
            found.append(range(start, stop))
            start = stop
        return found

    def _load(self, path: Path) -> pa.Table:
        with open(path, "rb"):  # the system's own word, if it says no
            pass
        with pq.ParquetFile(path, **THRIFTY) as file:
            return file.read(columns=self._dataset.metadata_columns(file.schema_arrow))

    def _check_keys(self, keys: list[str | None]) -> None:
        names, shard_id = self._dataset.layout, self._files.shard_id
        if names is not None and not self._is_foreign:
            for position, of_row in enumerate(self._by_row(keys)):
                self._check_keys_of(names.key(shard_id, position), [keys[number] for number in of_row])
        elif names is not None:  # theirs are in the order in which they arrived
            first, digits = names.shard_name(shard_id), names.position_digits
            for key in keys:
                if key is None or key[: len(first)] != first or len(key) != len(first) + digits:
                    self._found.about("keys", key, "not a key of this shard")
        if len(set(keys)) != len(keys):
            for key, times in Counter(keys).items():
                if times > 1:
                    self._found.about("keys", key, "more than one row with the same key")

    def _check_keys_of(self, own: str, keys: list[str | None]) -> None:
        """Those of one row: its `own`, or with a number behind it for each of its samples."""
        if keys == [own]:
            return
        for part, key in enumerate(keys):
            if row_key(key or "") != own:
                self._found.about("keys", key, "not the key of its place in the metadata")
            elif key == own:
                self._found.about("keys", key, "the key of a row beside those of its samples")
            elif key != sample_key(own, part, len(keys)):
                self._found.about("keys", key, "the samples of a row are not numbered one by one from 0 on")

    def _check_outcomes(self, table: pa.Table, by_row: list[range]) -> None:
        """Figures are of rows, and a row with several samples is what `first_of` says."""
        reported = table["status"].to_pylist()
        firsts = [of_row[first_of(reported[of_row.start : of_row.stop])] for of_row in by_row]
        statuses = Counter(reported[number] for number in firsts)
        stats = self._stats
        if stats is not None:
            self._compare("successes", stats.successes, statuses[SUCCESS])
            for status in {*stats.failed, *(status for status in statuses if (status or "").startswith("failed_to_"))}:
                self._compare(status, stats.failed.get(status, 0), statuses[status])
        if self._is_foreign:
            return
        for status in set(reported) - _STATUSES:
            self._found.add("metadata", f"the status {str(status)[:100]!r} does not exist")
        every_code = pc.coalesce(table["error_code"], table["status"]).to_pylist()
        codes = Counter(every_code[number] for number in firsts)
        for code in set(every_code) - _STATUSES:
            try:
                failure_code(code)
            except KeyError:
                self._found.add("metadata", f"the error_code {str(code)[:100]!r} does not exist")
        if stats is not None:
            self._compare("dropped", stats.dropped, statuses[DROPPED])
            self._compare("filtered", stats.filtered, statuses[FILTERED])
            self._compare("duplicates", stats.duplicates, statuses[DUPLICATE])
            self._compare("samples", stats.samples, reported.count(SUCCESS))
            if dict(stats.status_dict) != dict(codes):
                said, counted = Counter(stats.status_dict), codes
                other = sorted(str(code) for code in said.keys() | codes.keys() if said[code] != counted[code])
                for code in other[:3]:
                    self._compare(f"status_dict[{code}]", said[code], counted[code])
        columns = ["key", "status", "error_code", "ext", "bytes"]
        total = 0
        stored = _sizes(table)
        for key, status, code, ext, size, kept in zip(
            *(table[name].to_pylist() for name in columns), stored, strict=True
        ):
            succeeded = status == SUCCESS
            total += kept or 0 if succeeded else 0
            if succeeded != (bool(ext) and size is not None) or (succeeded and code is not None):
                self._found.about("metadata", key, "status, error_code, ext and bytes contradict each other")
            elif status not in NO_FAILURES and code is None:
                self._found.about("metadata", key, "failed without an error_code")
        if stats is not None and stats.size is not None:
            self._compare("bytes", stats.size, total)
        self._check_duplicates(table)

    def _check_duplicates(self, table: pa.Table) -> None:
        names = self._dataset.layout
        if DUPLICATE_OF.name not in table.schema.names or names is None:
            if pc.any(pc.equal(table["status"], DUPLICATE)).as_py():
                self._found.add("metadata", "duplicates, but no column duplicate_of")
            return
        columns = ("key", "status", DUPLICATE_OF.name)
        for key, status, first in zip(*(table[name].to_pylist() for name in columns), strict=True):
            if (status == DUPLICATE) != (first is not None):
                self._found.about("metadata", key, "status and duplicate_of contradict each other")
            elif first is not None and not _is_earlier(first, key, names):
                self._found.about("metadata", key, "duplicate_of is not the key of an earlier row")

    # --- data ---

    def _lacks_data(self, has_samples: bool) -> bool:
        """Whether there is no data file, which is told if there should be one."""
        writer, name = self._writer, self._files.data
        if writer is None or writer.extension is None or name is not None:
            return writer is None or name is None
        if writer.extension or has_samples:  # an empty folder is nothing in an object store
            shown = f"a .{writer.extension} file" if writer.extension else "a folder"
            self._found.add("data", f"there is no data: {shown} is missing")
        return True

    def _check_data(self, table: pa.Table) -> None:
        successes = table.filter(pc.fill_null(pc.equal(table["status"], SUCCESS), False))
        if self._lacks_data(successes.num_rows > 0) or self._writer is None:
            return
        name = self._files.data or ""
        hashes = recorded_hash_columns(self._dataset.run.options if self._dataset.run else None)
        expected = _Expected(successes, self._found, self._is_foreign, self._writer.has_members, hashes)
        expected.described = self._in_sight
        self._hashes = expected.hashes
        try:
            with self._dataset.local(name) as path:
                self._ask_system(path)
                samples: Any = self._writer.read(path)
                with closing(samples):
                    for sample in samples:
                        expected.compare(sample)
        except DamagedShard as error:
            read = f"{expected.read:,} of {successes.num_rows:,} samples"
            self.note(error, "data", f"{name} cannot be read to its end, after {read}")
        except OSError as error:
            self._found.add("unreadable", f"{name} cannot be read: {error_text(error)}")
        else:
            expected.finish()
            if not any(found.is_broken for found in self._found):  # else they are made again with it
                self._check_sidecars(name)
        self._bytes, self._changed = expected.bytes, expected.changed

    def _check_sidecars(self, data: str) -> None:
        """Against what they would be, made anew."""
        there = {end: name for name in self._files.extra_files for end in self._sidecar_ends if name.endswith(end)}
        if not there or self._writer is None:
            return
        try:
            with self._dataset.local(data) as path:
                made = cast("type[WithSidecars]", self._writer).make_sidecars(path)
            for end, name in there.items():
                if self._dataset.read(name) != made[end]:
                    self._found.add("beside", f"{name} is not that of {data}")
        except Exception as error:  # of whoever made the shard, and of file systems
            self._found.add("unreadable", f"its {' and '.join(there)} cannot be checked: {error_text(error)}")

    @property
    def _sidecar_ends(self) -> tuple[str, ...]:
        return self._writer.sidecars if self._writer is not None else ()

    @staticmethod
    def _ask_system(path: Path) -> None:
        """Raises OSError if it does not let the file or folder be read."""
        if path.is_dir():
            os.listdir(path)
        else:
            with open(path, "rb"):
                pass


class _Expected:
    """The samples that the metadata tells of, and what comes of them."""

    def __init__(
        self, successes: pa.Table, found: Findings, is_foreign: bool, has_members: bool, hashes: Sequence[str]
    ) -> None:
        """`hashes` are the columns of those that were computed."""
        self._found, self._is_foreign, self._has_members = found, is_foreign, has_members
        self._names = frozenset(successes.schema.names)
        known = [name for name in successes.schema.names if _is_plain(successes.schema.field(name).type)]
        self._plain = frozenset(known) - {"key"}
        self._columns = {name: successes[name].to_pylist() for name in known}
        self._sizes = [] if is_foreign else _sizes(successes)
        self._has_crc32 = STORED_CRC32.name in known
        self._has_steps = STORED_BYTES.name in known  # which may put further members beside a file
        self._rows: dict[str | None, int] = {key: row for row, key in enumerate(self._columns["key"])}
        self._seen = bytearray(successes.num_rows)
        self.described: frozenset[str] | None = None  # the columns that stand in its .json too; None for all
        self._last = -1
        self.read = 0
        self.bytes = 0
        self.changed = 0
        # Theirs are of the bytes before they were resized.
        self.hashes = () if is_foreign else tuple(name for name in hashes if name in known)

    def compare(self, sample: StoredSample) -> None:
        key, about = sample.key, self._found.about
        self.read += 1
        row = self._rows.get(key)
        if row is None:
            about("samples", key, "in the data, but no success in the metadata")
        elif self._seen[row]:
            about("samples", key, "in the data more than once")
        elif row < self._last and not self._is_foreign:
            about("samples", key, "not in the order of the metadata")
        else:
            self._last = row
        if row is None or self._seen[row]:
            for member in sample.members.values():
                for _ in member.chunks():
                    pass
            return
        self._seen[row] = 1
        self._check_members(sample, row)
        ext = sample.ext if self._is_foreign else self._value("ext", row)
        body = sample.members.get(ext)
        if body is not None:
            self._check_body(sample.key, body, row)
        # In formats without further files, and without captions, the file itself may be called so.
        extra_files = {name: body for name, body in sample.members.items() if self._has_members and name != ext}
        if (caption := extra_files.get(CAPTION)) is not None:
            written = caption.read().decode("utf-8", "replace")
            if not self._is_foreign and "caption" in self._plain and written != (self._value("caption", row) or ""):
                about("samples", key, "its .txt is not the caption in the metadata")
        if (described := extra_files.get(METADATA)) is not None:
            self._check_json(key, row, described.read())

    def finish(self) -> None:
        """To be called at the end of the data."""
        for key, row in self._rows.items():
            if not self._seen[row]:
                self._found.about("samples", key, "a success in the metadata, but not in the data")

    def _value(self, name: str, row: int) -> Any:
        return self._columns[name][row]

    def _is_null(self, name: str, row: int) -> bool:
        return name in self._plain and self._value(name, row) is None

    def _check_members(self, sample: StoredSample, row: int) -> None:
        about, key = self._found.about, sample.key
        if self._is_foreign:
            if sample.body is None:
                about("samples", key, "without its file")
            return
        ext = self._value("ext", row)
        extra_files = set(sample.members) - {ext}
        if ext not in sample.members:
            about("samples", key, "its file has another extension than in the metadata, or is not there")
        wanted = {METADATA, *([CAPTION] if "caption" in self._names else [])} if self._has_members else set()
        for name in sorted(wanted - extra_files - {ext}):
            about("samples", key, f"without its .{name}")
        for name in extra_files - wanted:
            if not self._has_steps:
                about("samples", key, "with a member too many")
            elif name not in (CAPTION, METADATA):
                for _ in sample.members[name].chunks():
                    pass

    def _check_body(self, key: str, body: StoredBody, row: int) -> None:
        about = self._found.about
        is_changed = self._has_steps and self._value(STORED_BYTES.name, row) is not None
        crc32 = self._value(STORED_CRC32.name, row) if is_changed and self._has_crc32 else None
        self.changed += is_changed and crc32 is None
        # Hashes are those of what arrived.
        digests = [] if is_changed else [(name, getattr(hashlib, name)()) for name in self.hashes]
        found = 0
        for piece in body.chunks():
            for _, digest in digests:
                digest.update(piece)
            if crc32 is not None:
                found = zlib.crc32(piece, found)
        self.bytes += body.size
        if not self._is_foreign and body.size != self._sizes[row]:
            about("samples", key, "its file has not the size that is in the metadata")
            return  # the hash says no more
        if crc32 is not None and found != crc32:
            about("hash", key, f"the CRC-32 of the file is not {STORED_CRC32.name} in the metadata")
        for name, digest in digests:
            if digest.hexdigest() != self._value(name, row):
                about("hash", key, f"{name} of the file is not that of the metadata")

    def _check_json(self, key: str, row: int, written: bytes) -> None:
        about = self._found.about
        try:
            described = _parsed(written)
        except ValueError:
            about("samples", key, "its .json cannot be read")
            return
        if self._is_foreign:
            if described.get("key", key) != key:
                about("samples", key, "its .json has another key")
            return
        # A column that shards have only since they were made again is in the .json of the samples made since.
        names = self._names if self.described is None else self.described
        lacking = {name for name in names - described.keys() if name != "key" and self._is_null(name, row)}
        if described.keys() != names - lacking or described["key"] != key:
            about("samples", key, "its .json has other fields than the metadata, or another key")
            return
        for name in (self._plain & names) - lacking:
            value = self._value(name, row)
            if described[name] != value and not (isinstance(value, float) and _same_number(described[name], value)):
                about("samples", key, f"its .json differs from the metadata in {name[:50]}")


def _sizes(table: pa.Table) -> list[int | None]:
    """Of the files as they are stored."""
    if STORED_BYTES.name not in table.schema.names:
        return list(table["bytes"].to_pylist())
    return list(pc.coalesce(table[STORED_BYTES.name], table["bytes"]).to_pylist())


def _parsed(written: bytes) -> dict[str, Any]:
    """Raises ValueError for what is no JSON object."""
    try:
        described = orjson.loads(written)
    except ValueError:
        try:
            described = json.loads(written)  # by others: NaN, and surrogates
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
    if not isinstance(described, dict):
        raise ValueError("no object")
    return described


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
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _OF_THE_SYSTEM):
            return True
        error = error.__cause__
    return False
