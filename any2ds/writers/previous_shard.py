"""Reads a previous shard: the metadata of its rows, its statistics, and the samples in its data."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.bodies.stored import SpoolFile
from any2ds.core.errors import DamagedShard, error_text
from any2ds.core.layout import Layout
from any2ds.core.metadata import HASH_MATCHES, OUTCOME_FIELDS, without_credentials
from any2ds.core.samples import StoredSample, first_of, row_key
from any2ds.core.stats import as_written
from any2ds.core.tables import take
from any2ds.storage.folders import OutputFolder
from any2ds.writers.formats.parquet import data_column, member_columns

_OF_LIST = "url"

REPAIR = "any2ds verify --repair puts it back to be made"


def column_names(schema: pa.Schema) -> list[str]:
    """The columns of the metadata, without that of the bytes."""
    bytes_in = {*member_columns(schema), data_column(schema)}
    return [name for name in schema.names if name not in bytes_in]


def list_columns(names: Sequence[str], of_transforms: Collection[str], hashes: Collection[str]) -> list[str]:
    """Of the columns of the metadata those that came with the list (and `duplicate_of`, which comes with the rows);
    `hashes` are those that are computed."""
    ours = {"key", *OUTCOME_FIELDS, HASH_MATCHES.name, *hashes, *of_transforms}
    return [name for name in names if name not in ours]


@contextmanager
def opened(output: OutputFolder, *names: str) -> Iterator[pq.ParquetFile]:
    """The metadata of a shard, in the first file of these names that is there.

    Raises DamagedShard for whatever goes wrong with them, also inside of the block."""
    *fuller, name = names
    try:
        with _first(output, fuller, name) as file, pq.ParquetFile(file, pre_buffer=True) as metadata:
            missing = {"key", _OF_LIST, "status"} - set(metadata.schema_arrow.names)
            if missing:
                raise DamagedShard(f"{name}: it has no column {', '.join(sorted(missing))}: {REPAIR}")
            yield metadata
    except FileNotFoundError as error:
        raise DamagedShard(f"{name} is missing: {REPAIR}") from error
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DamagedShard(f"{name} cannot be read: {error_text(error)}; {REPAIR}") from error


def _first(output: OutputFolder, fuller: Sequence[str], name: str) -> BinaryIO:
    for other in fuller:
        with contextlib.suppress(FileNotFoundError):
            return output.open(other)
    return output.open(name)


def without_field_metadata(table: pa.Table) -> pa.Table:
    """What parquet has noted about its fields would be written again, and is wrong in another file."""
    return pa.Table.from_arrays(table.columns, schema=pa.schema([pa.field(f.name, f.type) for f in table.schema]))


def places(keys: list[str | None], layout: Layout, shard_id: int, count: int) -> list[int]:
    """The position of the row of each key among the `count` of a shard; a row may have several samples.

    Raises DamagedShard for keys that are not of them.
    """
    expected = [layout.key(shard_id, position) for position in range(count)]
    if keys == expected:
        return list(range(count))
    position_of = {key: position for position, key in enumerate(expected)}
    found: list[int] = []
    seen = set[str | None]()
    for key in keys:
        position = position_of.get(row_key(key or ""))
        if position is None or key in seen:
            raise DamagedShard(f"its key {key!r} is not of this shard, or stands there twice: {REPAIR}")
        seen.add(key)
        found.append(position)
    return found


def by_row(positions: Sequence[int]) -> dict[int, list[int]]:
    """Position of a row -> the rows of the table that tell of it, one for each of its samples."""
    found: dict[int, list[int]] = {}
    for number, position in enumerate(positions):
        found.setdefault(position, []).append(number)
    return found


@dataclass(frozen=True, slots=True)
class PreviousShard:
    """A shard as it was. `table` are its metadata without the bytes."""

    table: pa.Table
    rows_of: Mapping[int, Sequence[int]]  # position in the shard -> rows of the table, one for each sample
    stats: Mapping[str, Any]

    @classmethod
    def read(cls, output: OutputFolder, layout: Layout, shard_id: int, urls: list[str | None]) -> PreviousShard:
        """Raises DamagedShard unless it is one of rows with these URLs; there may be more of them now."""
        name = layout.metadata_name(shard_id)
        with opened(output, *layout.metadata_names(shard_id)) as file:
            names = column_names(file.schema_arrow)
            table = without_field_metadata(file.read(names).select(names))
        try:
            positions = places(table["key"].to_pylist(), layout, shard_id, len(urls))
        except DamagedShard as error:
            raise DamagedShard(f"{name}: {error}") from None
        for position, url in zip(positions, table[_OF_LIST].to_pylist(), strict=True):
            now = urls[position]
            if url != now and (url is None or now is None or without_credentials(url) != without_credentials(now)):
                raise DamagedShard(f"{name}: row {position} is one of another list: its URL was {url!r}, now {now!r}")
        return cls(table, by_row(positions), as_written(output.read(layout.stats_name(shard_id))))

    @property
    def outcomes(self) -> dict[int, tuple[str | None, str | None]]:
        """Status and code of each row of the shard, by position."""
        return outcomes_of(self.table, self.rows_of)

    def values(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """What each row of the table has in those of the columns `names` that there are."""
        return list(self.table.select([name for name in names if name in self.table.schema.names]).to_pylist())

    def beneath(self, rows: pa.Table, kept: frozenset[int], own: Sequence[str]) -> pa.Table:
        """The `rows` of a job, with what the previous shard has of the rows at the positions `kept`, and with the
        columns that it has besides; `own` are those that are written anew."""
        numbers = range(rows.num_rows)
        first = {position: rows[0] for position, rows in self.rows_of.items()}
        from_either = [first[n] if n in kept else self.table.num_rows + n for n in numbers]
        from_previous = [first.get(n) for n in numbers]
        columns: dict[str, pa.ChunkedArray] = {}
        for field in rows.schema:
            column = rows.column(field.name)
            if field.name in self.table.schema.names:
                with contextlib.suppress(pa.ArrowException):  # of another type by now: then as the list says it
                    before = self.table.column(field.name).cast(field.type)
                    column = take(pa.chunked_array([*before.chunks, *column.chunks], field.type), from_either)
            columns[field.name] = column
        for name in self.table.schema.names:
            if name not in columns and name not in own:
                columns[name] = take(self.table.column(name), from_previous)
        fields = [pa.field(name, column.type) for name, column in columns.items()]
        return pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))


def outcomes_of(table: pa.Table, rows_of: Mapping[int, Sequence[int]]) -> dict[int, tuple[str | None, str | None]]:
    """Status and code by position."""
    statuses = table["status"].to_pylist()
    codes = table["error_code"].to_pylist() if "error_code" in table.schema.names else [None] * len(statuses)
    firsts = {position: rows[first_of([statuses[row] for row in rows])] for position, rows in rows_of.items()}
    return {position: (statuses[row], codes[row]) for position, row in firsts.items()}


class SamplesByKey:
    """The samples of the data file `name`, by key: `keys` are those that it has to have.

    They are asked for in the order of the keys. Other tools write in another one: what comes before its turn waits.
    """

    def __init__(self, name: str, samples: Iterator[StoredSample], keys: set[str], spool: SpoolFile) -> None:
        self._name, self._samples, self._missing, self._spool = name, samples, keys, spool
        self._early: dict[str, StoredSample] = {}

    def get(self, key: str) -> StoredSample:
        """Its bodies can be read until the next call. Raises DamagedShard if it is not there."""
        if key in self._early:
            return self._early.pop(key)
        for sample in self._samples:
            if sample.key not in self._missing:
                raise self._disagree(sample.key)
            self._missing.discard(sample.key)
            if sample.key == key:
                return sample
            kept = {ext: self._spool.add(body.chunks()) for ext, body in sample.members.items()}
            self._early[sample.key] = StoredSample(sample.key, kept)
        raise self._disagree(key)

    def expect_end(self) -> None:
        """Raises DamagedShard if there is more."""
        for sample in self._samples:
            raise self._disagree(sample.key)

    def close(self) -> None:
        if isinstance(self._samples, Generator):
            self._samples.close()

    def _disagree(self, key: str) -> DamagedShard:
        return DamagedShard(f"{self._name} and its metadata disagree on {key!r}: {REPAIR}")
