"""The metadata of the samples of a dataset, in the order of the data."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

from any2ds.core.errors import DamagedShard, MissingColumns, UsageError, access_text, error_text, redacted
from any2ds.core.failures import SUCCESS
from any2ds.load.shards import ShardSet
from any2ds.storage.folders import OutputFolder
from any2ds.storage.patience import is_permanent
from any2ds.writers.formats.parquet import THRIFTY, body_columns

if TYPE_CHECKING:
    from any2ds.load.foreign import ForeignColumns
    from any2ds.load.opened import OpenShards

_SHARDS_AT_ONCE = 1000
_IS_STORED = pc.field("status") == SUCCESS


def schema_of(shards: ShardSet, is_lenient: bool = False) -> pa.Schema | None:
    """The columns, without those of the files, of the first and the last shard; None if there are no metadata.

    Raises DamagedShard; if `is_lenient`, for the metadata of all shards only: the next ones are read.
    """
    if not shards.names or not all(shards.tables[number] for number in (0, -1)):
        return None
    numbers = range(len(shards))
    schemas = [_first_schema(shards, order, is_lenient) for order in (numbers, numbers[::-1])[: len(shards)]]
    if shards.added is not None:  # neither of these shards may have them
        schemas.append(shards.added)
    try:
        return pa.unify_schemas(schemas, promote_options="permissive")
    except pa.ArrowException as error:
        raise DamagedShard(f"the metadata of {redacted(shards.folder.url)!r} disagree: {error_text(error)}") from error


def _first_schema(shards: ShardSet, order: range, is_lenient: bool) -> pa.Schema:
    """The columns of the first of these shards, or the first whose metadata can be read. Raises DamagedShard."""
    for number in order:
        try:
            with translated(shards, number), shards.folder.open(shards.tables[number]) as file:
                schema = pq.read_schema(file)
        except DamagedShard:
            if not is_lenient or number == order[-1]:
                raise
        else:
            bodies = body_columns(schema) if shards.tables[number] == shards.names[number] else []
            return pa.schema([field for field in schema if field.name not in bodies])
    raise AssertionError


def dataset_of(shards: ShardSet, schema: pa.Schema, numbers: range | None = None) -> pads.FileSystemDataset:
    """The metadata of all finished shards, or of those with these places; nothing is read yet."""
    folder = shards.in_this_process().folder
    tables = shards.tables if numbers is None else shards.tables[numbers.start : numbers.stop]
    paths = [f"{folder.path.rstrip('/')}/{table}" for table in tables]
    filesystem = LocalFileSystem() if folder.is_local else PyFileSystem(_PatientFiles(folder))
    parquet = pads.ParquetFileFormat()
    return pads.FileSystemDataset(
        [parquet.make_fragment(path, filesystem) for path in paths], schema, parquet, filesystem
    )


class _PatientFiles(FSSpecHandler):  # type: ignore[misc]
    """The files of a folder in a store, for Arrow, with retries."""

    def __init__(self, folder: OutputFolder) -> None:
        super().__init__(folder.fs)
        self._folder = folder

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(self._folder.open(path.removeprefix(f"{self._folder.path.rstrip('/')}/")), mode="r")


class Rows:
    """The rows of the metadata that have samples: all or some of their columns, in the order of the data."""

    def __init__(
        self,
        shards: ShardSet,
        schema: pa.Schema | None,
        opened: OpenShards,
        foreign: ForeignColumns | None = None,
    ) -> None:
        """`foreign` has the columns of other tools' tar files, where there is no `schema`."""
        self._shards, self._schema, self._opened = shards.in_this_process(), schema, opened
        self._foreign = foreign

    def around(self, spans: Sequence[range]) -> range:
        """The places of the shards that have the samples with these numbers; all where the order of the data is another
        one than that of the metadata."""
        shards = self._shards
        if not shards.is_own or self._schema is None or not any(spans):
            return range(len(shards))
        first = bisect_right(shards.starts, min(span.start for span in spans if span)) - 1
        return range(first, bisect_left(shards.starts, max(span.stop for span in spans if span)))

    def has(self, column: str) -> bool:
        return self._schema is not None and column in self._schema.names

    def mask(self, condition: pc.Expression, shards: range | None = None) -> pa.BooleanArray:
        """A mask of the samples of these shards, or of all, that meet a condition on the metadata. Raises UsageError,
        DamagedShard."""
        is_own, parts = self._shards.is_own, [pa.array([], pa.bool_())]
        if self._schema is None and self._foreign is not None:
            there = [shard for shard in range(len(self._shards)) if self._shards.samples(shard)]
            tables = [self._foreign.schema.empty_table(), *map(self._foreign.table, there)]
            with _translated_condition(self._foreign.schema.names):
                table = pads.dataset(pa.concat_tables(tables)).to_table(columns={"found": condition})
            return _truth(table["found"])
        columns = {"found": condition} if is_own else {"found": condition, "key": pc.field("key")}
        for numbers, table in self._tables(columns, shards):
            found = _truth(table["found"])
            if not is_own:
                wanted = set(table["key"].filter(found).to_pylist())
                found = pa.array([key in wanted for key in self._keys_in_data(numbers)], pa.bool_())
            parts.append(found)
        return pa.concat_arrays(parts)

    def keys(self) -> pa.ChunkedArray:
        """The key of each sample of the dataset. Raises DamagedShard."""
        chunks = [chunk for part in self.each_keys() for chunk in part.chunks]
        return pa.chunked_array(chunks, None if chunks else pa.string())

    def each_keys(self) -> Iterator[pa.ChunkedArray]:
        """The keys, of some shards at a time."""
        if self._schema is None or not self._shards.is_own:
            for numbers in self._groups():
                yield pa.chunked_array([pa.array(self._keys_in_data(numbers), pa.string())])
        else:
            yield from self.each_column("key")

    def each_column(self, name: str) -> Iterator[pa.ChunkedArray]:
        """The values of a column, of some shards at a time. Raises DamagedShard."""
        return (table[name] for _, table in self._tables({name: pc.field(name)}))

    def _keys_in_data(self, shards: range) -> Iterator[str]:
        for shard in shards:
            yield from self._opened.keys(shard)

    def _groups(self, shards: range | None = None) -> Iterator[range]:
        """The places of some shards at a time: Arrow keeps the footer of each file that it reads."""
        shards = range(len(self._shards)) if shards is None else shards
        return (shards[start : start + _SHARDS_AT_ONCE] for start in range(0, len(shards), _SHARDS_AT_ONCE))

    def _tables(
        self, columns: dict[str, pc.Expression], shards: range | None = None
    ) -> Iterator[tuple[range, pa.Table]]:
        return ((numbers, self._read(columns, numbers)) for numbers in self._groups(shards))

    def _read(self, columns: dict[str, pc.Expression], numbers: range) -> pa.Table:
        """The columns of these shards, which are few."""
        shards = self._shards
        dataset = dataset_of(shards, self._schema, numbers)
        try:
            with _translated_condition(dataset.schema.names):
                table = dataset.to_table(columns=columns, filter=_IS_STORED)
        except UsageError:
            self._look_for_damage(numbers)
            raise
        except (pa.ArrowException, OSError) as error:
            if shards.folder.is_local or is_permanent(error):
                self._look_for_damage(numbers)
            raise DamagedShard(f"metadata of {redacted(shards.folder.url)!r}: {access_text(error)}") from error
        if table.num_rows != shards.starts[numbers.stop] - shards.starts[numbers.start]:
            self._look_for_damage(numbers)
        return table

    def _look_for_damage(self, numbers: range) -> None:
        """Raises DamagedShard for the first shard whose metadata cannot be read, or have another number of samples."""
        for shard in numbers:
            table = self._shards.tables[shard]
            with translated(self._shards, shard), self._shards.folder.open(table) as file:
                with pq.ParquetFile(file, **THRIFTY) as parquet:
                    statuses = parquet.read(["status"])["status"]
                found, wanted = pc.sum(pc.equal(statuses, SUCCESS)).as_py() or 0, self._shards.samples(shard)
                if found != wanted:
                    raise DamagedShard(f"{table} has {found:,} samples, its statistics say {wanted:,}")


def _truth(found: pa.ChunkedArray) -> pa.BooleanArray:
    """The result of a condition, unknown being false. Raises UsageError."""
    if not pa.types.is_boolean(found.type):
        raise UsageError(f"where: the condition is neither true nor false, but {found.type}")
    return pa.concat_arrays([pa.array([], pa.bool_()), *pc.fill_null(found, False).chunks])


@contextmanager
def _translated_condition(columns: Sequence[str]) -> Iterator[None]:
    """Raises UsageError for a condition that Arrow does not understand."""
    try:
        yield
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise _wrong_condition(error, columns) from error


def _wrong_condition(error: Exception, columns: Sequence[str]) -> UsageError:
    if match := re.match(r"No match for FieldRef\.Name\((.*?)\) in ", str(error)):
        return MissingColumns([match[1]], list(columns), "where")
    return UsageError(f"where: {_in_plain_words(error_text(error))}")


def _in_plain_words(text: str) -> str:
    """Arrow names one of its functions where an operator does not take the types of its operands."""
    match = re.match(r"Function '\w+' has no kernel matching input types \((.*)\)", text)
    types = re.sub(r",(?![^<]*>)", " and", match[1]) if match else ""
    return f"values of these types cannot be compared or combined: {types}" if match else text


@contextmanager
def translated(shards: ShardSet, shard: int) -> Iterator[None]:
    """Raises DamagedShard, which names the shard, for what goes wrong with its metadata inside of the block."""
    try:
        yield
    except (DamagedShard, UsageError):
        raise
    except Exception as error:  # of Arrow, or any file system
        raise DamagedShard(f"metadata of {shards.describe(shard)}: {access_text(error)}") from error
