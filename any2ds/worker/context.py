"""Where shards are made: which files a shard has, and where they lie until they are published."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from any2ds.config import presets
from any2ds.config.hashes import hash_columns, outcome_fields
from any2ds.config.media import MediaOptions
from any2ds.config.options import OutputOptions
from any2ds.core import tables
from any2ds.core.layout import Layout
from any2ds.core.members import Members
from any2ds.core.metadata import MetadataTable, shown_urls
from any2ds.core.reports import ShardReport
from any2ds.core.samples import Sample, Samples, free_extension, release, taken_extensions
from any2ds.storage.disk.staging import remove
from any2ds.writers.contract import ShardWriter
from any2ds.writers.formats.parquet import WITHOUT_FILES


@dataclass(frozen=True)
class ShardContext:
    """Options, writer and staging folder, which all shards of a process share."""

    options: OutputOptions
    writer: type[ShardWriter]
    folder: Path  # for files that are not published yet
    media: MediaOptions = field(default_factory=MediaOptions)
    columns: Mapping[str, pa.DataType] = field(default_factory=dict)  # of the metadata, that transforms add
    further: frozenset[str] = frozenset()  # extensions of files that transforms add

    @cached_property
    def layout(self) -> Layout:
        return self.options.layout

    def metadata(self, rows: pa.Table) -> MetadataTable:
        """To be filled with the outcomes of `rows`."""
        columns, members = self.columns, self.media.members
        if members is not None:
            rows, columns = _shown(rows, members), {**columns, **members.prefixed(dict(self.own_columns))}
        table = MetadataTable(
            rows,
            hash_columns(self.options),
            columns,
            explains=self.options.preset is not None,
            has_members=self.writer.has_members,
            folder=self.folder,
            in_sight=self._in_sight if self.options.preset is not None else None,
            short=members.prefixed(outcome_fields(self.options, members)) if members is not None else (),
        )
        table.members = members.names if members is not None else ()
        return table

    @cached_property
    def own_columns(self) -> Mapping[str, pa.DataType]:
        """Columns that say what became of a row, or of each of its members."""
        return {**outcome_fields(self.options, self.media.members), **self.columns}

    def taken(self, rows: pa.Table) -> frozenset[str]:
        """Extensions that files of these rows cannot have."""
        if self.options.file_ext != "auto":  # it was checked before the run
            return frozenset()
        return taken_extensions(self.writer.has_members, "caption" in rows.schema.names, self.further)

    @cached_property
    def bounds_files(self) -> bool:
        """Whether some files are too large for the format."""
        return self.writer.most_bytes is not None or self.writer.most_sample_bytes is not None

    def storable(self, samples: Samples) -> Samples:
        """The samples of a row; one with a file that the format cannot hold has failed, and its files are released."""
        return [self._refused(sample) or sample for sample in samples]

    def _refused(self, sample: Sample) -> Sample | None:
        """The failure of a sample that is too large for the format; None if it is not."""
        sizes = [body.size for body in sample.bodies]
        largest, total = max(sizes, default=0), sum(sizes)
        if largest > (self.writer.most_bytes or largest):
            message = f"a file of {largest:,} bytes; {self._format} holds at most {self.writer.most_bytes:,}"
        elif total > (self.writer.most_sample_bytes or total):
            message = f"{total:,} bytes; a sample of {self._format} has at most {self.writer.most_sample_bytes:,}"
        else:
            return None
        release((sample,))
        return sample.failed("too_large", f"{message}: --output_format=webdataset or files stores it")

    @property
    def _format(self) -> str:
        return f"--output_format={self.options.output_format}"

    def _in_sight(self, of_list: Sequence[str], own: Sequence[str]) -> Sequence[str]:
        """The columns in sight of a dataset that is to look like one of another tool."""
        preset, options = presets.find(self.options.preset), self.options
        assert preset is not None
        columns = preset.columns(of_list, own)
        # A file that is a column, or in a record, has its extension from the name of that; else a column must tell it.
        is_told = self.writer.has_members or self.writer.extension is None or options.data_column == options.file_ext
        return columns if is_told else (*columns, "ext")

    def figures(self, report: ShardReport) -> dict[str, Any]:
        """Contents of the stats of a shard; with a preset, also under the names of the other tool."""
        stats = report.to_json()
        preset = presets.find(self.options.preset)
        return {**stats, **{theirs: stats[ours] for theirs, ours in preset.figures.items()}} if preset else stats


def _shown(rows: pa.Table, members: Members) -> pa.Table:
    """`rows` without user names and passwords in the URLs of members; `MetadataTable` sees to that of `url`."""
    for name in members.url_columns:
        number = rows.schema.get_field_index(name)
        rows = rows.set_column(number, rows.schema.field(number), shown_urls(rows.column(number)))
    return rows


def named(samples: Samples, taken: frozenset[str]) -> Samples:
    """The samples of a row with extensions that are none of those `taken`."""
    for sample in samples:
        if sample.ext.lower() in taken:
            exts = [free_extension(sample.ext, taken) for sample in samples]
            pairs = zip(samples, exts, strict=True)
            return [
                sample if sample.ext == ext else replace(sample, ext=ext, fields={**sample.fields, "ext": ext})
                for sample, ext in pairs
            ]
    return samples


class StagedFiles:
    """The files of one shard, in a folder of its own until they are published."""

    def __init__(self, context: ShardContext, shard_id: int) -> None:
        layout, self._writer, self._options = context.layout, context.writer, context.options
        self._folder = context.folder / layout.shard_name(shard_id)
        self._folder.mkdir()
        self.data_name = layout.data_name(shard_id, self._writer.extension)
        self._data = self._folder / (self.data_name or f"{layout.shard_name(shard_id)}.none")
        self._hides = self._options.preset is not None  # what other tools do not write, indexes among it
        self._sidecars = [f"{layout.shard_name(shard_id)}{end}" for end in self._writer.sidecars]
        has_table = not (self._writer.holds_metadata or (self._hides and self._writer.extension is None))
        formats = [name for name in self._options.metadata_format if name != "parquet" or has_table]
        self._tables = {layout.metadata_name(shard_id, name): tables.WRITERS[name] for name in formats}
        self._own_table = layout.own_metadata_name(shard_id) if self._hides else None

    def open(self, metadata: MetadataTable) -> ShardWriter:
        return self._writer(self._data, metadata, self._options)

    def data(self) -> dict[str, Path]:
        """Files of the writer, once it is closed: final name -> file or folder, in the order of publishing."""
        if self.data_name is None:
            return {}
        extra_files = {} if self._hides else {name: self._folder / name for name in self._sidecars}
        return {self.data_name: self._data, **extra_files}

    @property
    def data_bytes(self) -> int:
        """The size of the data file; 0 where it is a folder, or there is none."""
        return os.path.getsize(self._data) if self._data.is_file() else 0

    def write_metadata(self, metadata: MetadataTable) -> dict[str, Path]:
        """In each format that is asked for and not in the data file, after which these are published."""
        made = {name: self._folder / name for name in self._tables}
        for name, path in made.items():
            self._tables[name](metadata.schema_in_sight, metadata.pieces_in_sight(), path)
        if self._own_table is not None:
            made[self._own_table] = path = self._folder / self._own_table.rpartition("/")[2]
            tables.WRITERS["parquet"](metadata.schema.with_metadata(WITHOUT_FILES), metadata.pieces(), path)
        return made

    def discard(self) -> None:
        """Remove the files that are still there."""
        remove(self._folder)


def stats_json(stats: Mapping[str, object]) -> bytes:
    return orjson.dumps(stats, option=orjson.OPT_INDENT_2)
