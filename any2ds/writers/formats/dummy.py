"""Writes no data: for measuring a list or a network. Metadata and stats are as for every other format."""

from __future__ import annotations

from pathlib import Path

from any2ds.config.options import OutputOptions
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample


class DummyWriter:
    extension = None
    holds_metadata = False
    has_members = False
    sidecars = ()
    most_bytes = most_sample_bytes = None
    held = 0
    shard = None

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        """Nothing to open."""

    def write(self, sample: Sample) -> None:
        """Nothing to keep."""

    def flush(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing to complete."""


PART = DummyWriter
