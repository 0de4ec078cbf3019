"""Files of failed rows that have arrived while another URL of their row failed: a retry needs not fetch them again.

They lie in `.any2ds/kept/`, a tar file for each shard that has any, with the names that they have in shards. Where
steps have left some as they came, a JSON file has the reasons, by member. Nothing else depends on it: what it lacks is
fetched.
"""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson

from any2ds.core.bodies.buffer import Body
from any2ds.core.bodies.stored import StoredBody
from any2ds.core.errors import DamagedShard
from any2ds.core.samples import Sample
from any2ds.storage.disk.staging import remove
from any2ds.storage.folders import OutputFolder
from any2ds.writers.formats.webdataset import WebdatasetWriter, header

KEPT = "kept"
NOT_PROCESSED = "json"  # extension of the reasons; those of files have a member and a dot
_PIECE = 1 << 20  # bytes read at once


class KeptFiles:
    """Writes one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0  # rows
        self._file = path.open("wb", buffering=1 << 18)

    def add(self, sample: Sample) -> None:
        """Add the files of a sample that has failed."""
        reasons = {NOT_PROCESSED: StoredBody.of(orjson.dumps(sample.not_processed))} if sample.not_processed else {}
        self.add_files(sample.key, {**sample.extra_files, **reasons})

    def add_files(self, key: str, files: Mapping[str, Body | StoredBody]) -> None:
        """`files` by extension."""
        self.count += 1
        for ext, body in files.items():
            self._file.write(header(f"{key}.{ext}", body.size))
            self._file.writelines(body.chunks())
            self._file.write(bytes(-body.size % tarfile.BLOCKSIZE))

    def close(self) -> None:
        if not self._file.closed:
            self._file.write(bytes(2 * tarfile.BLOCKSIZE))
            self._file.close()

    def discard(self) -> None:
        self._file.close()
        remove(self.path)


def kept_files(kept: KeptFiles | None, output: OutputFolder, name: str) -> dict[str, Path]:
    """What is to be published of them, under `name`; if there are none, those of an earlier attempt are removed."""
    if kept is None:
        output.remove(name)
        return {}
    kept.close()
    return {name: kept.path}


def read_kept(output: OutputFolder, name: str, folder: Path) -> Iterator[tuple[str, Mapping[str, StoredBody]]]:
    """Key and files of each row, as far as they can be read; each until the next one is asked for. `folder` is for a
    copy of what lies in a store."""
    path = folder / f"previous-{name.rpartition('/')[2]}"
    try:
        with output.open(name) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, _PIECE)
        for sample in WebdatasetWriter.read(path):
            yield sample.key, sample.members
    except (FileNotFoundError, DamagedShard):
        return
    finally:
        remove(path)
