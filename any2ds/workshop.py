"""Where shards are made: which files a shard has, and where they lie until they are published."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from any2ds import recipes, tables
from any2ds.config import OutputOptions
from any2ds.layout import Layout
from any2ds.mediaoptions import MediaOptions
from any2ds.metadata import MetadataTable
from any2ds.protocols import ShardWriter
from any2ds.storage.staging import remove
from any2ds.types import ShardReport


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all shards of a process are made with."""

    layout: Layout
    options: OutputOptions
    hashes: tuple[str, ...]  # columns of the metadata
    writer: type[ShardWriter]
    folder: Path  # for files that are not published yet
    media: MediaOptions = field(default_factory=MediaOptions)
    columns: Mapping[str, pa.DataType] = field(default_factory=dict)  # of the metadata, that transforms add

    def metadata(self, rows: pa.Table) -> MetadataTable:
        """To be filled with the outcomes of `rows`."""
        return MetadataTable(
            rows,
            self.hashes,
            self.columns,
            explains=self.options.preset is not None,
            has_members=self.writer.has_members,
            folder=self.folder,
        )

    def figures(self, report: ShardReport) -> dict[str, Any]:
        """What the stats of a shard say; with a preset, the same in its words as well."""
        told = report.to_json()
        recipe = recipes.find(self.options.preset)
        return {**told, **{theirs: told[ours] for theirs, ours in recipe.figures.items()}} if recipe else told


class StagedFiles:
    """The files of one shard, under the names that they are going to have, in the workshop's folder."""

    def __init__(self, workshop: Workshop, shard_id: int) -> None:
        layout, self._writer, self._options = workshop.layout, workshop.writer, workshop.options
        self._folder = workshop.folder
        self.data_name = layout.data_name(shard_id, self._writer.extension)
        self._data = self._folder / (self.data_name or f"{layout.shard_name(shard_id)}.none")
        self._sidecars = [f"{layout.shard_name(shard_id)}{end}" for end in self._writer.sidecars]
        formats = [name for name in self._options.metadata_format if not (name == "parquet" and self.holds_metadata)]
        self._tables = {layout.metadata_name(shard_id, name): tables.WRITERS[name] for name in formats}
        self._stats = layout.stats_name(shard_id)

    @property
    def holds_metadata(self) -> bool:
        return self._writer.holds_metadata

    def open(self, metadata: MetadataTable) -> ShardWriter:
        return self._writer(self._data, metadata, self._options)

    def data(self) -> dict[str, Path]:
        """What the writer made, once it is closed: final name -> file or folder, in the order of publishing."""
        if self.data_name is None:
            return {}
        return {self.data_name: self._data, **{name: self._folder / name for name in self._sidecars}}

    @property
    def data_bytes(self) -> int:
        """The size of the data file; 0 where it is a folder, or there is none."""
        return os.path.getsize(self._data) if self._data.is_file() else 0

    def write_metadata(self, metadata: MetadataTable) -> dict[str, Path]:
        """In each format that is asked for and not in the data file, after which these are published."""
        made = {name: self._folder / name for name in self._tables}
        for name, path in made.items():
            self._tables[name](metadata.schema, metadata.pieces(), path)
        return made

    def write_stats(self, stats: Mapping[str, object]) -> dict[str, Path]:
        """The last one, which means `done`."""
        staged = self._folder / self._stats
        staged.write_bytes(stats_json(stats))
        return {self._stats: staged}

    def discard(self) -> None:
        """Remove the files that are still there."""
        remove(self._data)
        for name in (*self._sidecars, *self._tables, self._stats):
            remove(self._folder / name)


def stats_json(stats: Mapping[str, object]) -> bytes:
    return orjson.dumps(stats, option=orjson.OPT_INDENT_2)
