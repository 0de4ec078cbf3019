"""Writes shards as folders of plain files, and reads them."""

from __future__ import annotations

import os
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from any2ds.config.options import OutputOptions
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard, access_text, error_text
from any2ds.core.metadata import MetadataTable
from any2ds.core.samples import Sample, row_key
from any2ds.storage.disk.regular import open_regular
from any2ds.writers.contract import ALL_FIELDS, Fields, ShardData, ShardWriter
from any2ds.writers.formats._members import MemberDecoder, members
from any2ds.writers.formats._shard import BaseShard, check_count, check_key, decoder_of


class FilesShard(BaseShard):
    """Samples of a folder by number, in the order of their keys. Of each file its name is in memory."""

    def __init__(self, data: ShardData, fields: Fields = ALL_FIELDS) -> None:
        self._folder, self._decoder = data.local(), decoder_of(MemberDecoder, fields)
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            raise DamagedShard(access_text(error)) from error
        named = sorted((name for name in names if not name.startswith(".")), key=_place)  # hidden ones are the system's
        self._names = ["\n".join(own) for _, own in groupby(named, key=lambda name: name.partition(".")[0])]
        check_count(data, len(self._names))
        if self._names:
            check_key(data, self._names[0].partition(".")[0])

    def __len__(self) -> int:
        return len(self._names)

    def keys(self) -> list[str]:
        return [names.partition(".")[0] for names in self._names]

    def files(self, number: int) -> tuple[str, dict[str, StoredBody]]:
        found, key = {}, ""
        for name in self._names[number].split("\n"):
            key, _, ext = name.partition(".")
            path = self._folder / name
            try:
                found[ext] = StoredBody(path.stat().st_size, partial(_read_at, path))
            except OSError as error:
                raise DamagedShard(f"{name!r}: {error_text(error)}") from error
        return key, found

    def row(self, number: int) -> dict[str, Any]:
        key, files = self.files(number)
        return self._decoder.row(key, {ext: file.read() for ext, file in files.items()})


def _read_at(path: Path, offset: int, size: int) -> bytes:
    """A part of a file. Raises DamagedShard."""
    try:
        with open_regular(path) as file:
            file.seek(offset)
            return file.read(size)
    except OSError as error:
        raise DamagedShard(f"{path.name!r}: {error_text(error)}") from error


def _place(name: str) -> tuple[str, str]:
    """The key of the row, then the name, by which files are sorted: `-` and `%` come before the dot of an extension."""
    return row_key(name.partition(".")[0]), name


class FilesWriter(ShardWriter):
    extension = ""
    has_members = True
    shard = FilesShard

    def __init__(self, path: Path, metadata: MetadataTable, options: OutputOptions) -> None:
        self._folder = path
        self._metadata = metadata
        path.mkdir()

    def write(self, sample: Sample) -> None:
        for name, _, chunks in members(sample, self._metadata):
            with open(self._folder / name, "wb") as file:
                file.writelines(chunks)


PART = FilesWriter
