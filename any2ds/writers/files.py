"""Writes shards as folders of plain files."""

from __future__ import annotations

from pathlib import Path

from any2ds.metadata import MetadataTable
from any2ds.types import Sample
from any2ds.writers._members import members


class FilesWriter:
    extension = ""
    holds_metadata = False
    held = 0

    def __init__(self, path: Path, metadata: MetadataTable) -> None:
        self._folder = path
        self._metadata = metadata
        path.mkdir()

    def write(self, sample: Sample) -> None:
        for name, _, chunks in members(sample, self._metadata):
            with open(self._folder / name, "wb") as file:
                file.writelines(chunks)

    def flush(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Every file is complete already."""


PART = FilesWriter
