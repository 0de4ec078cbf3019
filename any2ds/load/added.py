"""Shards whose samples have columns that were added to the metadata later, see `dataset.added_columns`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.errors import DamagedShard
from any2ds.core.metadata import stored_rows
from any2ds.core.tables import values
from any2ds.storage.folders import OutputFolder
from any2ds.writers.contract import Fields, Shard
from any2ds.writers.formats.parquet import THRIFTY


class ShardWithColumns:
    """A shard with the added columns of its samples, which are in memory while it is open."""

    def __init__(
        self, shard: Shard, folder: OutputFolder, table: str, columns: Sequence[str], asked: Sequence[str] | None
    ) -> None:
        """`asked` are the columns that a sample has, None for all, and `columns` those of them that were added.

        `table` is the metadata with the columns, "" for a shard without them. Raises DamagedShard.
        """
        self._shard, self._columns, self._asked = shard, columns, asked
        self._added: pa.Table | None = None
        if table:
            with folder.open(table) as stream, pq.ParquetFile(stream, **THRIFTY) as file:
                found = file.read(["status", *columns])
            self._added = stored_rows(found).select(columns).combine_chunks()
            if self._added.num_rows != len(shard):
                raise DamagedShard(f"{table} has {self._added.num_rows:,} samples, the data {len(shard):,}")

    def __len__(self) -> int:
        return len(self._shard)

    def keys(self) -> list[str]:
        return self._shard.keys()

    def row(self, number: int) -> dict[str, Any]:
        return self._with_columns(self._shard.row(number), number)

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        samples = self._shard.rows(numbers)
        return [self._with_columns(sample, number) for sample, number in zip(samples, numbers, strict=True)]

    def _with_columns(self, sample: dict[str, Any], number: int) -> dict[str, Any]:
        for name in self._columns:
            sample[name] = None if self._added is None else values(self._added[name].slice(number, 1))[0]
        return sample if self._asked is None else {name: sample[name] for name in self._asked}


def split_fields(fields: Fields, added: Sequence[str]) -> tuple[Fields, list[str]]:
    """What the data files hold of the fields of a sample, and the added columns that are wanted."""
    wanted = [name for name in added if fields.columns is None or name in fields.columns]
    own = None if fields.columns is None else tuple(name for name in fields.columns if name not in added) or ("key",)
    schema = fields.schema and pa.schema([field for field in fields.schema if field.name not in added])
    return replace(fields, columns=own, schema=schema), wanted
