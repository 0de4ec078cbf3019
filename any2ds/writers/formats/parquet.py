"""Writes shards as parquet files that hold metadata and bytes together, failed rows with null bytes."""

from __future__ import annotations

import os
import threading
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate, count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, error_text
from any2ds.core.failures import SUCCESS
from any2ds.core.members import files_of
from any2ds.core.metadata import HASHES, MetadataTable
from any2ds.core.parquet_footer import Footer
from any2ds.core.samples import Sample
from any2ds.core.tables import values
from any2ds.writers.contract import ALL_FIELDS, Fields, ShardData, ShardWriter
from any2ds.writers.formats import _huggingface
from any2ds.writers.formats._shard import BaseShard, RangeFile, check_count, check_key

DATA = pa.field("data", pa.binary())
"""The column of the files, if it has no other name."""
_NAME_OF_DATA = b"any2ds.data_column"  # in the metadata of the schema, if it has
_NAMES_OF_MEMBERS = b"any2ds.members"  # the same of the columns of several files of a sample
_Files = dict[int, tuple[int, list[bytes]]]
WITHOUT_FILES = {b"any2ds.files": b"none"}
"""In the metadata of the schema of a table that holds no files, whatever its columns are."""
THRIFTY = {"pre_buffer": False, "buffer_size": 1 << 20, "page_checksum_verification": True}
"""How to open a file that may be big: else Arrow reads all row groups at once (1.1 GB for 1 GB)."""
_UNIQUE = frozenset({"key", "url", *HASHES})  # columns whose values hardly repeat: a dictionary would hold them twice
# Bytes of a page, looked at after each value: a file of this size or more has a page of its own, so that readers that
# know the page index need not read its neighbours.
_PAGE_BYTES = 1 << 16


class ParquetShard(BaseShard):
    """Rows that have files, by number, read by row groups, of which those read last stay in memory."""

    def __init__(self, data: ShardData, fields: Fields = ALL_FIELDS) -> None:
        self._data, self._fields = data, fields
        self.token = next(_TOKENS)
        self._lock = threading.Lock()  # one file of Arrow is for one thread
        self._groups = RecentGroups.of_this_process()
        with _damage():
            self._raw = RangeFile(data)
            self._file = pq.ParquetFile(pa.PythonFile(self._raw, "r"), **THRIFTY)
            about, schema = self._file.metadata, self._file.schema_arrow
            self._ends = list(accumulate(about.row_group(n).num_rows for n in range(about.num_row_groups)))
            self._bodies, self._members, self._exts = body_columns(schema), member_columns(schema), _ext_columns(schema)
            self._columns = self._columns_to_read(schema)
            self._rows: Sequence[int] = range(about.num_rows)
            if "status" in schema.names and about.num_rows != data.samples:
                statuses = self._file.read(["status"])["status"].combine_chunks()
                self._rows = array("I", pc.indices_nonzero(pc.equal(statuses, SUCCESS)).to_pylist())
        check_count(data, len(self._rows))

    def _columns_to_read(self, schema: pa.Schema) -> list[str]:
        wanted = self._fields.columns
        if wanted is None:
            return list(schema.names)
        bodies = self._bodies if "data" in wanted or ("ext" in wanted and "ext" not in schema.names) else []
        also = ["ext"] if bodies and self._members else []  # which of them are the data
        also += ["key"] if self._data.key_start else []  # says whether it is this shard
        return [name for name in schema.names if name in wanted or name in bodies or name in also] or ["key"]

    def __len__(self) -> int:
        return len(self._rows)

    def keys(self) -> list[str]:
        with self._lock, _damage():
            return list(self._file.read(["key"])["key"].take(pa.array(self._rows)).to_pylist())

    def files(self, number: int) -> tuple[str, dict[str, StoredBody]]:
        row = self._row(number)
        if missing := [name for name in ("key", *self._exts) if name not in row]:
            raise DamagedShard(f"it has no column {', '.join(missing)}")
        if self._exts == ["ext"]:
            exts = [row["ext"]]
        elif self._exts:
            exts = [f"{name}.{row[ext]}" for name, ext in zip(self._bodies, self._exts, strict=True)]
        else:
            exts = list(self._bodies)
        found = {ext: row[name] for ext, name in zip(exts, self._bodies, strict=True) if row[name] is not None}
        if not all(isinstance(name, str) for name in (row["key"], *found)):
            raise DamagedShard("a file without its key or extension")
        return row["key"], {ext: StoredBody.of(content) for ext, content in found.items()}

    def row(self, number: int) -> dict[str, Any]:
        row = self._row(number)
        if self._members and (ext := row.get("ext")):
            row["data"] = row.get(ext.partition(".")[0])
        for name in () if self._members else self._bodies:
            if (body := row.pop(name, None)) is not None:
                row["data"] = body
                row.setdefault("ext", name)
        wanted = self._fields.columns
        return row if wanted is None else {name: row.get(name) for name in wanted}

    def _row(self, number: int) -> dict[str, Any]:
        """The columns of a sample as the file has them."""
        place = self._rows[number]
        group = bisect_right(self._ends, place)
        at = place - (self._ends[group - 1] if group else 0)
        found = self._groups.get(self, group, self._read)
        row = {name: values[at] for name, values in found.values.items()}
        for name in found.nested:
            row[name] = _copied(row[name])
        for name, bodies in found.bodies.items():
            row[name] = bodies[at].as_py()
        return row

    def _read(self, group: int) -> RowGroup:
        with self._lock, _damage(f"row group {group}: "):
            if not self._data.is_local:
                self._raw.hold(*self._span(group))  # else each column is a request of its own
            table = self._file.read_row_group(group, columns=self._columns)
            self._raw.hold(0, 0)
            found, key = RowGroup(table, self._bodies), str(table["key"][0]) if self._data.key_start else ""
        check_key(self._data, key)
        return found

    @cached_property
    def _footer(self) -> Footer:
        return Footer(self._file.metadata, self._data.size)

    def _span(self, group: int) -> tuple[int, int]:
        """Start and size of what is read of a row group."""
        own = self._footer.chunks(group, self._columns)
        starts = [each.dictionary_page_offset or each.data_page_offset for each in own]
        stop = max(start + each.total_compressed_size for start, each in zip(starts, own, strict=True))
        return min(starts), stop - min(starts)


@contextmanager
def _damage(where: str = "") -> Iterator[None]:
    """Makes DamagedShard of whatever Arrow and the system raise where bytes are garbled."""
    try:
        yield
    except Exception as error:
        raise DamagedShard(f"{where}{error_text(error)}") from error


class ParquetWriter(ShardWriter):
    """A row group ends before it would hold more than `row_group_bytes` of files, which is what stays in memory."""

    extension = "parquet"
    holds_metadata = True
    most_bytes = 2**31 - (1 << 16)  # the size of a page, which a large file has for itself, is 32 bits with a sign
    shard = ParquetShard

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        self._metadata, self._members = metadata, metadata.members
        self._has_paths = options.parquet_data != "binary"
        own = options.data_column
        kind = DATA.with_type(_huggingface.STORAGE if self._has_paths else DATA.type)
        self._fields = [kind.with_name(name) for name in self._members or (own,)]
        schema, names = metadata.schema_in_sight, metadata.schema_in_sight.names
        for field in self._fields:
            schema = schema.append(field)
        if self._has_paths:
            schema = _huggingface.with_feature(schema, own, options.parquet_data)
        if self._members:
            schema = schema.with_metadata({**(schema.metadata or {}), _NAMES_OF_MEMBERS: ",".join(self._members)})
        elif own != DATA.name:
            schema = schema.with_metadata({**(schema.metadata or {}), _NAME_OF_DATA: own})
        uncompressed = [field.name for field in self._fields] if self._members else [own, f"{own}.bytes"]
        self._file = pq.ParquetWriter(
            path,
            schema,
            # Media are compressed already; trying again costs time and saves nothing.
            compression={**dict.fromkeys(names, "snappy"), **dict.fromkeys(uncompressed, "none")},
            use_dictionary=[name for name in names if name not in _UNIQUE],
            write_statistics=names,  # the first and the last image in the order of their bytes are of no use
            write_page_index=True,
            data_page_size=_PAGE_BYTES,
            write_batch_size=1,
            sorting_columns=[pq.SortingColumn(names.index("key"))],
        )
        self._row_group_bytes = options.row_group_bytes
        self._start = 0  # first row of the metadata that is not in a row group yet
        self._files: dict[str, _Files] = {name: {} for name in self._members or (own,)}  # of each column
        self._paths: dict[int, str] = {}
        self.held = 0

    def write(self, sample: Sample) -> None:
        body = sample.body
        if body is None:
            return
        row = len(self._metadata) - 1
        files = files_of(sample, self._members) if self._members else {self._fields[0].name: body}
        size = sum(file.size for file in files.values()) + self._metadata.added
        if self.held and self.held + size > self._row_group_bytes:
            self._write_group(row)
        for name, file in files.items():
            self._files[name][row] = file.size, [bytes(chunk) for chunk in file.chunks()]
        if self._has_paths:
            self._paths[row] = f"{sample.key}.{sample.ext}"
        self.held += size
        if self.held >= self._row_group_bytes:
            self.flush()

    def close(self) -> None:
        with self._file:
            self.flush()

    def flush(self) -> None:
        self._write_group(len(self._metadata))

    def _write_group(self, stop: int) -> None:
        """The rows up to `stop`, if there are any; in several groups if the list has much text for them."""
        for rows in self._metadata.parts(self._start, stop) if stop > self._start else ():
            table = self._metadata.table_in_sight(rows.start, rows.stop)
            for field in self._fields:
                table = table.append_column(field, self._column(rows, self._files[field.name]))
            self._file.write_table(table)
        self._start = stop
        self.held = 0

    def _column(self, rows: range, files: _Files) -> pa.Array:
        """The files of these rows, which are let go of: each is copied once, into the memory that Arrow writes from."""
        is_there = pa.array([row in files for row in rows], pa.bool_())
        found = [files.pop(row, (0, [])) for row in rows]
        ends = pa.array(accumulate((size for size, _ in found), initial=0), pa.int32())
        content = pa.py_buffer(b"".join(chunk for _, chunks in found for chunk in chunks))
        data = pa.Array.from_buffers(pa.binary(), len(rows), [is_there.buffers()[1], ends.buffers()[1], content])
        if not self._has_paths:
            return data
        paths = pa.array([self._paths.pop(row, None) for row in rows], pa.string())
        return pa.StructArray.from_arrays([data, paths], fields=list(_huggingface.STORAGE), mask=pc.invert(is_there))


class RowGroup:
    """Rows in memory: files as Arrow has them, all else as values of Python, which are made much faster at once."""

    def __init__(self, table: pa.Table, bodies: Sequence[str]) -> None:
        columns = {name: table[name] for name in table.column_names}
        self.bodies = {name: _plain(column.combine_chunks()) for name, column in columns.items() if name in bodies}
        self.values = {name: values(column) for name, column in columns.items() if name not in bodies}
        self.nested = [name for name in self.values if pa.types.is_nested(columns[name].type)]  # samples get copies
        described = table.drop_columns(list(self.bodies)).nbytes
        self.nbytes = table.nbytes + described * (_BYTES_OF_PYTHON - 1)


def _copied(value: Any) -> Any:
    """Copy of lists and dicts, which the owner of a sample may change."""
    if type(value) is list:
        return [_copied(each) if type(each) in (list, dict, tuple) else each for each in value]
    if type(value) is dict:
        return {name: _copied(each) for name, each in value.items()}
    return tuple(map(_copied, value)) if type(value) is tuple else value


_TOKENS = count()  # for each shard that is opened
_RECENT_BYTES = 64 << 20
_BYTES_OF_PYTHON = 4  # that a value takes, for one of Arrow


class RecentGroups:
    """The row groups that this process has read last: all of them together have at most `_RECENT_BYTES`."""

    _instance: RecentGroups | None = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], RowGroup] = {}
        self._bytes = 0

    @classmethod
    def of_this_process(cls) -> RecentGroups:
        if cls._instance is None or cls._instance._pid != os.getpid():
            cls._instance = cls()
        return cls._instance

    def get(self, shard: ParquetShard, group: int, read: Callable[[int], RowGroup]) -> RowGroup:
        key = (shard.token, group)
        if (found := self._held.get(key)) is None:
            found = read(group)
            with self._lock:
                if key in self._held:  # another thread has read it meanwhile
                    return self._held[key]
                self._held[key] = found
                self._bytes += found.nbytes
                while self._bytes > _RECENT_BYTES and len(self._held) > 1:
                    self._bytes -= self._held.pop(next(iter(self._held))).nbytes
        return found


def data_column(schema: pa.Schema) -> str | None:
    """The column of the files in a parquet shard of ours; None if it is none."""
    if DATA.name in schema.names:
        return str(DATA.name)
    found = str((schema.metadata or {}).get(_NAME_OF_DATA, b""), "utf-8", "replace")
    return found if found in schema.names else None


def member_columns(schema: pa.Schema) -> list[str]:
    """The columns of the files of a sample that has several, see `core.members`."""
    found = str((schema.metadata or {}).get(_NAMES_OF_MEMBERS, b""), "utf-8", "replace").split(",")
    return [name for name in found if name in schema.names]


def _ext_columns(schema: pa.Schema) -> list[str]:
    """The columns of extensions: that of the only file, or of each of several; none where the name of the column of
    files is their extension, as in shards of other tools."""
    is_ours = data_column(schema) and ("ext" in schema.names or DATA.name in schema.names)
    return ["ext"] if is_ours else [f"{name}_ext" for name in member_columns(schema)]


def body_columns(schema: pa.Schema) -> list[str]:
    """The columns of files in a parquet shard; in those of others they are called as the files' extension."""
    if WITHOUT_FILES.items() <= (schema.metadata or {}).items():
        return []
    if members := member_columns(schema):
        return members
    if (own := data_column(schema)) is not None:
        return [own]
    return [field.name for field in schema if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type)]


def _plain(column: pa.Array) -> pa.Array:
    """The bytes of a column of files, null where there is no file."""
    return pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column


PART = ParquetWriter
