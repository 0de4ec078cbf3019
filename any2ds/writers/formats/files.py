"""Writes shards as folders of plain files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, access_text, error_text
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample, StoredSample
from any2ds.storage.disk.regular import open_regular
from any2ds.writers.contract import Fields, ShardData
from any2ds.writers.formats._builder import check_key
from any2ds.writers.formats._members import SampleBuilder, in_samples, members


class FilesWriter:
    extension = ""
    holds_metadata = False
    has_members = True
    sidecars = ()
    most_bytes = most_sample_bytes = None
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
            raise DamagedShard(access_text(error)) from error
        yield from in_samples((name, _stored(path / name)) for name in names)

    @staticmethod
    def indexed(data: ShardData, fields: Fields) -> FolderShard:
        return FolderShard(data, fields)


class FolderShard:
    """Samples of a folder by number, in the order of their keys. Of each file its name is in memory."""

    def __init__(self, data: ShardData, fields: Fields) -> None:
        self._folder, self._build = data.local(), SampleBuilder.of(fields)
        try:
            names = sorted(name for name in os.listdir(self._folder) if not name.startswith("."))
        except OSError as error:
            raise DamagedShard(error_text(error)) from error
        found = groupby(names, key=lambda name: name.partition(".")[0])
        self._names = ["\n".join(own) for _, own in found]
        if data.samples is not None and len(self._names) != data.samples:
            raise DamagedShard(f"it has {len(self._names):,} samples, its statistics say {data.samples:,}")
        if self._names:
            check_key(data, self._names[0].partition(".")[0])

    def __len__(self) -> int:
        return len(self._names)

    def keys(self) -> list[str]:
        return [names.partition(".")[0] for names in self._names]

    def get(self, number: int) -> dict[str, Any]:
        found, key = {}, ""
        for name in self._names[number].split("\n"):
            key, _, ext = name.partition(".")
            try:
                with open_regular(self._folder / name) as file:
                    found[ext] = file.read()
            except OSError as error:
                raise DamagedShard(f"{key!r}: {error_text(error)}") from error
        return self._build(key, found)

    def get_many(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [self.get(number) for number in numbers]


def _stored(path: Path) -> StoredBody:
    def read_at(offset: int, size: int) -> bytes:
        with open_regular(path) as file:
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
