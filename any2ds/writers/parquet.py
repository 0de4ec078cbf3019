"""Writes shards as parquet files that hold metadata and bytes together, failed rows with null bytes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.metadata import MetadataTable
from any2ds.types import Sample

DATA = pa.field("data", pa.binary())
_ROW_GROUP_BYTES = 64 << 20  # of bodies in a row group, which is what stays in memory


class ParquetWriter:
    extension = "parquet"
    holds_metadata = True

    def __init__(self, path: Path, metadata: MetadataTable) -> None:
        self._metadata = metadata
        schema = metadata.schema
        # Media are compressed already; trying again costs time and saves nothing.
        codecs = {name: "none" if name == DATA.name else "snappy" for name in [*schema.names, DATA.name]}
        self._file = pq.ParquetWriter(path, schema.append(DATA), compression=codecs, use_dictionary=schema.names)
        self._start = 0  # first row of the metadata that is not in a row group yet
        self._data: dict[int, bytes] = {}
        self.held = 0

    def write(self, sample: Sample) -> None:
        if sample.body is not None:
            self._data[len(self._metadata) - 1] = sample.body.read()
            self.held += sample.body.size
            if self.held >= _ROW_GROUP_BYTES:
                self.flush()

    def close(self) -> None:
        with self._file:
            self.flush()

    def flush(self) -> None:
        stop = len(self._metadata)
        if stop > self._start:
            data = pa.array([self._data.get(row) for row in range(self._start, stop)], DATA.type)
            self._file.write_table(self._metadata.table(self._start, stop).append_column(DATA, data))
        self._start = stop
        self._data.clear()
        self.held = 0


PART = ParquetWriter
