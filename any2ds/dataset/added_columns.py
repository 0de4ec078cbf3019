"""Metadata columns that were added to a finished dataset: `.any2ds/columns/`.

    .any2ds/columns/0000              record: which shards have which columns; it is written last, and once
    .any2ds/columns/SET/00000.parquet the metadata of shard 00000, row by row, with the added columns

A record names the folder of its set. The newest record counts: its set has the columns of those before as well. Nothing
else in the dataset changes, so a set that was begun and not ended is seen by nobody. A shard that was made anew since,
as after `verify --repair` or an overwriting run, differs from what the record says of it, and has none of its columns.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pyarrow as pa

from any2ds.core.layout import COLUMNS_FOLDER, segment_file
from any2ds.dataset.shards import ShardEntry, ShardTable
from any2ds.storage.folders import OutputFolder

_GARBLED = (ValueError, KeyError, TypeError, AttributeError, IsADirectoryError, pa.ArrowException)
_FOLDER = re.compile("[0-9a-f]{16}")  # of a set
_MARKS = ("count", "samples", "bytes", "data_bytes")


@dataclass(frozen=True)
class AddedColumns:
    """The columns that the newest record of a dataset names."""

    number: int  # of the record
    folder: str  # of the set, in the folder of the dataset
    request: Mapping[str, Any]  # what was asked for, as `add_columns` compares it
    schema: pa.Schema  # of the added columns
    marks: Mapping[int, list[int]]  # shard -> its figures when the columns were added
    dataset: str  # its `dataset_id` then
    matched: int = 0  # rows that the list says something of
    repeated: int = 0  # rows of the list whose key stood there before

    @classmethod
    def of(cls, output: OutputFolder) -> AddedColumns | None:
        """The newest columns; None where there are none. Raises whatever the file system raises."""
        for name in sorted((name for name in output.names(COLUMNS_FOLDER) if name.isdecimal()), reverse=True):
            with suppress(*_GARBLED):
                found = cls._parse(int(name), output.read(f"{COLUMNS_FOLDER}/{name}") or b"")
                return found if found.dataset == dataset_id(output) else replace(found, schema=pa.schema([]), marks={})
        return None

    @classmethod
    def _parse(cls, number: int, content: bytes) -> AddedColumns:
        found = orjson.loads(content)
        if not _FOLDER.fullmatch(found["folder"]):
            raise ValueError("the folder of a set cannot be called so")
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(found["schema"])))
        marks = {int(shard_id): list(mark) for shard_id, mark in found["shards"].items()}
        about = str(found["dataset"]), int(found["matched"]), int(found["repeated"])
        return cls(number, str(found["folder"]), dict(found["request"]), schema, marks, *about)

    def to_json(self) -> bytes:
        content = {
            "folder": self.folder,
            "request": self.request,
            "schema": self.schema.remove_metadata().serialize().to_pybytes().hex(),
            "dataset": self.dataset,
            "matched": self.matched,
            "repeated": self.repeated,
            "shards": {str(shard_id): mark for shard_id, mark in self.marks.items()},
        }
        return orjson.dumps(content)

    def table(self, shard_id: int) -> AddedTable | None:
        """The table of a shard, which counts if the shard has the same figures still; None for a shard made later."""
        if (mark := self.marks.get(shard_id)) is None:
            return None
        return AddedTable(table_name(self.folder, shard_id), mark, tuple(self.schema.names))

    def tables(self, shards: ShardTable) -> dict[int, str]:
        """Shard -> its metadata with the added columns, for shards that are still the same."""
        same = (shard_id for shard_id, mark in marks_of(shards).items() if self.marks.get(shard_id) == mark)
        return {shard_id: table_name(self.folder, shard_id) for shard_id in same}


@dataclass(frozen=True, slots=True)
class AddedTable:
    """The metadata of one shard with the added columns."""

    name: str
    mark: Sequence[int]  # see `mark_of`
    columns: tuple[str, ...]  # that were added


def dataset_id(output: OutputFolder) -> str:
    """A text that differs after the dataset was overwritten with another list: a digest of its first segment."""
    return hashlib.sha256(output.read(segment_file(0)) or b"").hexdigest()


def table_name(folder: str, shard_id: int) -> str:
    """The metadata of a shard with the added columns, of the set in a folder."""
    return f"{COLUMNS_FOLDER}/{folder}/{shard_id}.parquet"


def marks_of(shards: ShardTable) -> dict[int, list[int]]:
    """Shard -> figures that differ after it was made anew, unless it is the same again."""
    columns = zip(*(shards.column(name) for name in _MARKS), strict=True)
    return {shard_id: list(mark) for shard_id, mark in zip(shards.ids, columns, strict=True)}


def mark_of(shard: ShardEntry) -> list[int]:
    """The figures of one shard, as `marks_of` has them."""
    return [getattr(shard, name) for name in _MARKS]
