"""Writes no data: for measuring a list or a network. Metadata and stats are as for every other format."""

from __future__ import annotations

from pathlib import Path

from any2ds.config.options import OutputOptions
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample
from any2ds.writers.contract import ShardWriter


class DummyWriter(ShardWriter):
    extension = None

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        """Nothing to open."""

    def write(self, sample: Sample) -> None:
        """Nothing to keep."""


PART = DummyWriter
