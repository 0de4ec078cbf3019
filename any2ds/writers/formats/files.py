"""Writes shards as folders of plain files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, error_text
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample, StoredSample
from any2ds.writers.formats._members import in_samples, members


class FilesWriter:
    extension = ""
    holds_metadata = False
    has_members = True
    sidecars = ()
    held = 0

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
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

    @staticmethod
    def read(path: Path) -> Iterator[StoredSample]:
        try:
            names = sorted(name for name in os.listdir(path) if not name.startswith("."))  # those are the system's
        except OSError as error:
            raise DamagedShard(error_text(error)) from error
        yield from in_samples((name, _stored(path / name)) for name in names)


def _stored(path: Path) -> StoredBody:
    def read_at(offset: int, size: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    try:
        found = path.stat()
    except OSError as error:
        raise DamagedShard(f"{path.name}: {error_text(error)}") from error
    if not stat.S_ISREG(found.st_mode):  # to open a pipe would wait for ever
        raise DamagedShard(f"{path.name} is no file")
    return StoredBody(found.st_size, read_at)


PART = FilesWriter
