"""Writes no data: for measuring a list or a network. Metadata and stats are as for every other format."""

from __future__ import annotations

from pathlib import Path

from any2ds.metadata import MetadataTable
from any2ds.types import Sample


class DummyWriter:
    extension = None
    holds_metadata = False
    held = 0

    def __init__(self, path: Path, metadata: MetadataTable) -> None:
        """Nothing to open."""

    def write(self, sample: Sample) -> None:
        """Nothing to keep."""

    def flush(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing to complete."""


PART = DummyWriter
