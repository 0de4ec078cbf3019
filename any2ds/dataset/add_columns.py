"""`add_columns()`: joins further columns of a list to the metadata of a finished dataset, without fetching anything.

Shards are taken in groups of half a million rows, for each of which the list is read once: memory holds the keys of a
group and the rows of the list that belong to it, however long the list is.
"""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from any2ds.config.datasets import AddColumnsOptions
from any2ds.config.options import InputOptions, ParsedOptions, parse_options
from any2ds.config.signature import command
from any2ds.core import text
from any2ds.core.errors import (
    InputError,
    MissingColumns,
    OptionError,
    OutputError,
    ReadError,
    error_text,
    redacted,
    shard_count,
)
from any2ds.core.layout import COLUMNS_FOLDER
from any2ds.core.metadata import RESERVED_COLUMNS, shown_urls
from any2ds.core.rows import BAD_ROW_COLUMN, RENAMED
from any2ds.core.samples import member_column
from any2ds.dataset.added_columns import AddedColumns, dataset_id, marks_of, table_name
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.dataset.places import located
from any2ds.dataset.shard_sample import shard_table
from any2ds.readers.contract import Field, Wanted
from any2ds.readers.inputs import File, Input, inputs_of
from any2ds.readers.look import refuse_unreadable
from any2ds.readers.names import safe_names
from any2ds.readers.rows import TypedRows
from any2ds.storage.lists import stamps
from any2ds.storage.stores import Stores
from any2ds.writers.formats.parquet import THRIFTY

log = logging.getLogger(__name__)

_ROWS_AT_ONCE = 500_000  # of the dataset, for which the list is read once
_MATCHED, _REPEATED = b"any2ds_matched", b"any2ds_repeated"  # in the schema of a table with added columns


@dataclass(frozen=True, slots=True)
class ColumnsAdded:
    """Counts of the rows of the dataset that the list has, and has not."""

    columns: tuple[str, ...]  # as the dataset calls them
    shards: int
    rows: int  # of these shards; a row that was tried again stands in several
    matched: int  # rows to which the list says something
    repeated: int  # rows of the list whose key stands there before: the first one counts

    @property
    def text(self) -> str:
        """In words."""
        found = f"{', '.join(self.columns)}: added to {self.matched:,} of {text.rows(self.rows)}"
        parts = [f"{found} in {shard_count(self.shards)}"]
        if self.rows > self.matched:
            parts.append(f"{text.rows(self.rows - self.matched)} not in the list, with nulls")
        if self.repeated:
            parts.append(f"{text.rows(self.repeated)} of the list with a key that stands there before, left out")
        return "; ".join(parts)


@command(
    [AddColumnsOptions],
    "Returns how many rows have the columns. Raises UsageError for a folder that holds no dataset, a list that cannot",
    "be read, and columns that are not there.",
    positional=("output_folder", "url_list"),
)
def add_columns(options: ParsedOptions) -> ColumnsAdded:
    """Add columns of a list to the metadata of a finished dataset: a join by key or URL that fetches nothing."""
    (wanted,) = options.groups
    stores = Stores(wanted.storage_options)
    wanted = located(wanted, stores)
    dataset = Dataset(wanted.output_folder, stores)
    if dataset.run is None or dataset.is_img2dataset:
        raise OutputError(f"{wanted.output_folder!r}: columns are added to datasets that any2ds has made")
    if not dataset.finished:
        raise OutputError(f"{wanted.output_folder!r} has no finished shard")
    return _Join(dataset, wanted, stores).run()


class _Join:
    """One list and one dataset."""

    def __init__(self, dataset: Dataset, wanted: AddColumnsOptions, stores: Stores) -> None:
        self._dataset = dataset
        self._table = shard_table(dataset)
        self._before = AddedColumns.of(dataset.folder)
        self._own_column, _, of_list = wanted.on.partition(":")
        self._list_column = of_list or self._own_column
        # A column of the list that is called "key" holds keys of the dataset; any other, ids that keys were made of.
        has_names = dataset.layout is not None and dataset.layout.has_names
        self._on_names = has_names and self._own_column == "key" and self._list_column != "key"
        names = ("url_list", "input_format", "separator", "encoding", "rows")
        given = {name: value for name in names if (value := getattr(wanted, name)) is not None}
        self._options: InputOptions = parse_options(given, [InputOptions]).groups[0]
        self._stores = stores
        inputs = inputs_of(self._options, stores)
        if any(part.is_used_up for part in inputs):
            raise InputError("the list is read several times: give a file, not standard input, a pipe or a stream")
        parts = [part for part in inputs if isinstance(part, File)]
        files = [part.file for part in parts if part.file is not None]
        refuse_unreadable(parts, Wanted.only(self._list_column), ())
        self._names = self._columns(wanted.add)  # column of the list -> of the dataset
        self._request = {
            "on": wanted.on,
            "columns": self._names,
            "options": {name: given[name] for name in names[1:] if name in given},
            # Rows that were given from Python cannot be compared: they are joined anew each time.
            "files": [[each.name, each.size, each.version] for each in stamps(files)] or uuid.uuid4().hex,
        }
        self._warned_of: set[str] = set()  # columns
        self._tables_before = {} if self._before is None else self._before.tables(self._table)
        self._schema = pa.schema([])  # of the added columns, which the first rows of the list decide
        self._kept: list[pa.Field] = []  # columns that were added before and are not added again
        self._matched = self._repeated = 0

    def run(self) -> ColumnsAdded:
        """Write the metadata of all shards with the columns, and then the record by which they count."""
        before, marks, output = self._before, marks_of(self._table), self._dataset.folder
        if before is not None and (before.request, before.marks) == (self._request, marks):
            there = set(output.names(f"{COLUMNS_FOLDER}/{before.folder}"))
            if there.issuperset(f"{shard_id}.parquet" for shard_id in marks):
                return self._result(before)
        number = 0 if before is None else before.number + 1
        what = orjson.dumps([number, self._request, sorted(marks.items())])
        folder = hashlib.sha256(what).hexdigest()[:16]
        self._schema = self._schema_of_list()
        schema_before = pa.schema([]) if before is None else before.schema
        self._kept = [field for field in schema_before if field.name not in self._schema.names]
        there = set(output.names(f"{COLUMNS_FOLDER}/{folder}"))  # from a run that was killed
        done = [each for each in marks if f"{each}.parquet" in there and self._count(folder, each)]
        for group in self._groups(self._dataset.finished.only(marks.keys() - set(done))):
            for shard_id, table in self._joined(group):
                sink = pa.BufferOutputStream()
                pq.write_table(table, sink, compression="zstd")
                output.write(table_name(folder, shard_id), sink.getvalue().to_pybytes())
        schema = pa.schema([*self._kept, *self._schema])
        dataset = dataset_id(output)
        added = AddedColumns(number, folder, self._request, schema, marks, dataset, self._matched, self._repeated)
        if not output.put_if_absent(f"{COLUMNS_FOLDER}/{number:04d}", added.to_json()):
            raise OutputError(f"{output.url!r}: other columns were added meanwhile: run the same command again")
        return self._result(added)

    def _result(self, added: AddedColumns) -> ColumnsAdded:
        rows = sum(count for count, *_ in added.marks.values())
        return ColumnsAdded(tuple(self._names.values()), len(added.marks), rows, added.matched, added.repeated)

    def _count(self, folder: str, shard_id: int) -> bool:
        """Add the figures of a shard that is written. Returns whether it can be read: otherwise it is made again."""
        try:
            with self._dataset.folder.open(table_name(folder, shard_id)) as stream, pq.ParquetFile(stream) as file:
                found = file.schema_arrow.metadata
        except pa.ArrowException:
            return False
        self._matched += int(found[_MATCHED])
        self._repeated += int(found[_REPEATED])
        return True

    # --- the list ---

    def _columns(self, chosen: Sequence[str] | None) -> dict[str, str]:
        """Column of the list -> its name in the dataset. Raises MissingColumns, OptionError."""
        part = inputs_of(self._options, self._stores)[0]
        with closing(part.blocks(Wanted.only(self._list_column))) as blocks:
            if (first := next((block for block in blocks if block.rows), None)) is None:
                raise InputError("the list has no rows")
            existing = list(part.extent.names) or [*first.values]
        if missing := [name for name in (self._list_column, *(chosen or ())) if name not in existing]:
            raise MissingColumns(missing, existing, "on" if missing[0] == self._list_column else "add")
        names = [name for name in (chosen or existing) if name and name != self._list_column]
        if not names:
            raise OptionError("the list has no column to add")
        with self._dataset.metadata_file(self._dataset.finished[-1]) as file:
            own = file.schema_arrow.names
        if self._own_column not in own:
            raise MissingColumns([self._own_column], own, "on")
        members = self._dataset.members.names if self._dataset.members is not None else ()
        further = self._dataset.run.further if self._dataset.run is not None else ()
        taken = {*own, *RESERVED_COLUMNS, "ext", *members, *map(member_column, further)}
        found: dict[str, str] = {}
        for name in names:
            found[name] = name if name not in taken else f"{RENAMED}{name}"
            if found[name] in taken or found[name] in list(found.values())[:-1]:
                raise OptionError(f"there is a column {found[name]!r} already: rename that of the list")
            if found[name] != name:
                log.warning("the dataset has a column %r: that of the list is called %r there", name, found[name])
        return found

    def _read(self) -> Generator[pa.RecordBatch, None, None]:
        """The rows of the list; a table from Python is a stream, opened anew."""
        names = (self._list_column, *self._names)
        typed = TypedRows([Field(self._list_column, self._list_column, "key"), *(Field(n, n) for n in self._names)])
        for part in inputs_of(self._options, self._stores):
            rows = 0
            required = frozenset(names if typed.schema is None else names[:1])
            wanted = Wanted(names, required, names[:1], needs_types=typed.schema is None)
            try:
                with closing(part.blocks(wanted)) as blocks:
                    for batch in typed.batches(blocks):
                        self._warn_of(part, batch)
                        yield batch
                        rows += batch.num_rows
            except ReadError as error:
                raise error.in_file(part.name, f"row {rows}") from error.__cause__

    def _warn_of(self, part: Input, batch: pa.RecordBatch) -> None:
        """Say once for each subject what cannot be read, and is null or left out."""
        found = dict(part.extent.notes)
        if reasons := batch[BAD_ROW_COLUMN].drop_null():
            found[BAD_ROW_COLUMN] = f"{reasons[0]}. Rows with such a value lack it."
        for subject, reason in found.items():
            if subject not in self._warned_of:
                self._warned_of.add(subject)
                log.warning("%s: %s", redacted(part.name or "the list"), reason)

    def _schema_of_list(self) -> pa.Schema:
        """The added columns with the types of the first rows; a column without a value there is text."""
        with closing(self._read()) as batches:
            batch = next(batches)
        return pa.schema([(self._names[name], batch.schema.field(name).type) for name in self._names])

    def _batches(self) -> Iterator[tuple[pa.Array, pa.RecordBatch]]:
        """Keys, and the added columns."""
        for batch in self._read():
            columns = [batch[name] for name in self._names]
            values = batch[self._list_column]
            keys = safe_names(values.cast(pa.string())) if self._on_names else _comparable(values)
            yield keys, pa.RecordBatch.from_arrays(columns, schema=self._schema)

    # --- the dataset ---

    def _groups(self, shards: Sequence[ShardFiles]) -> Iterator[list[ShardFiles]]:
        """Shards for which the list is read once."""
        rows = dict(zip(self._table.ids, self._table.column("count"), strict=True))
        group: list[ShardFiles] = []
        size = 0
        for files in shards:
            if group and size + rows.get(files.shard_id, 0) > _ROWS_AT_ONCE:
                yield group
                group, size = [], 0
            group.append(files)
            size += rows.get(files.shard_id, 0)
        if group:
            yield group

    def _joined(self, group: Sequence[ShardFiles]) -> Iterator[tuple[int, pa.Table]]:
        """Shard, and its metadata with the columns."""
        keys = pa.chunked_array([chunk for files in group for chunk in self._keys(files).chunks], pa.string())
        wanted = pc.unique(keys).drop_null()
        found, first, repeated = self._found(wanted)
        rows = first.take(pc.index_in(keys, value_set=wanted).combine_chunks())  # null: not in the list
        start = 0
        for files in group:
            table = self._metadata(files)
            own = rows.slice(start, table.num_rows)
            start += table.num_rows
            for field in self._schema:
                table = table.append_column(field, found[field.name].take(own))
            matched = len(own) - own.null_count
            self._matched += matched
            self._repeated += repeated
            yield files.shard_id, table.replace_schema_metadata({_MATCHED: str(matched), _REPEATED: str(repeated)})
            repeated = 0  # of a group; its first shard has it

    def _found(self, wanted: pa.Array) -> tuple[pa.Table, pa.Array, int]:
        """The rows of the list whose keys are wanted, the number of the first one for each key, and how many others
        there are."""
        numbers: list[int | None] = [None] * len(wanted)
        batches: list[pa.RecordBatch] = []
        count = repeated = 0
        for keys, batch in self._batches():
            rows: list[int] = []
            for row, place in enumerate(pc.index_in(keys, value_set=wanted).to_pylist()):
                if place is not None and numbers[place] is None:
                    numbers[place] = count + len(rows)
                    rows.append(row)
                elif place is not None:
                    repeated += 1
            count += len(rows)
            batches.append(batch.take(pa.array(rows, pa.int64())))
        return pa.Table.from_batches(batches, self._schema), pa.array(numbers, pa.int64()), repeated

    def _keys(self, files: ShardFiles) -> pa.ChunkedArray:
        with self._dataset.metadata_file(files) as file:
            column = file.read([self._own_column])[self._own_column]
        try:
            return pa.chunked_array([_comparable(chunk) for chunk in column.chunks], pa.string())
        except pa.ArrowException as error:
            raise OptionError(f"on: values of {self._own_column!r} cannot be compared: {error_text(error)}") from error

    def _metadata(self, files: ShardFiles) -> pa.Table:
        """The metadata of a shard, with the columns that were added before and are not added again."""
        with self._dataset.metadata_file(files) as file:
            table = file.read(self._dataset.metadata_columns(file.schema_arrow)).replace_schema_metadata()
        former = None
        name = self._tables_before.get(files.shard_id)  # None: a shard that was made since then
        if self._kept and name is not None:
            with self._dataset.folder.open(name) as stream, pq.ParquetFile(stream, **THRIFTY) as file:
                former = file.read([field.name for field in self._kept])
        for field in self._kept:
            values = pa.nulls(table.num_rows, field.type) if former is None else former[field.name]
            table = table.append_column(field, values)
        return table


def _comparable(values: pa.Array) -> pa.Array:
    """Keys or URLs as text, without blanks around them and without credentials, which metadata do not have."""
    return shown_urls(pc.utf8_trim_whitespace(values.cast(pa.string())))
