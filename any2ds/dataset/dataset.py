"""A dataset as it lies in its folder, finished or not: its shards and their files, figures, and what made it."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.parsers import METADATA_FORMATS
from any2ds.core import layout, plugins
from any2ds.core.errors import Any2dsError, OutputError, error_text
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.core.stats import Stats
from any2ds.dataset import tfds
from any2ds.storage.folders import OutputFolder
from any2ds.storage.stores import Stores
from any2ds.writers.contract import ShardWriter
from any2ds.writers.formats.parquet import THRIFTY, body_columns

_READS_AT_ONCE = 32  # small files, most of the time of which is waiting for a store
_FILES_OF_SHARD = re.compile(r"(\d+)(_stats\.json|\.[A-Za-z0-9_.]+|)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """What lies directly in the folder, or in that for the state: `.any2ds/run`."""

    name: str
    size: int  # bytes; 0 for a folder
    is_folder: bool
    is_odd: bool = False  # a pipe, a device: to open it may take for ever


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """Names of the files of one shard; None for what is not there."""

    shard_id: int
    stats: str | None = None
    metadata: str | None = None  # with all columns
    data: str | None = None  # the same as `metadata` where one file holds both; a folder for the format files
    extra_files: tuple[str, ...] = ()  # sidecars of the data, and metadata in further formats
    shown: str | None = None  # the metadata in sight, if these are not `metadata`; maybe in one file with the data

    @property
    def present(self) -> tuple[str, ...]:
        """Each once: the stats, which say that the others count, first."""
        names = (self.stats, self.metadata, self.shown, self.data, *self.extra_files)
        return tuple(dict.fromkeys(name for name in names if name))


class Dataset:
    """A folder, looked at once, by names alone; contents are read when they are asked for.

    `entries` are those that count, where somebody knows them already. Raises OutputError if it cannot be listed, or
    holds no dataset.
    """

    def __init__(self, url: str, stores: Stores | None = None, entries: Iterable[Entry] | None = None) -> None:
        self.folder = OutputFolder(url, stores=stores)
        self.entries = {entry.name: entry for entry in (self._listed() if entries is None else entries)}
        self.run_problem: str | None = None  # why `run` is None though the file is there
        self.run = self._run_file()
        by_number, self._digits = _by_number(self.entries, self.run.layout if self.run else None)
        first = self._any_stats(by_number)
        # Theirs have no number in their stats, and no run file.
        self.is_foreign = self.run is None and layout.RUN_FILE not in self.entries and first.shard_id is None
        self.output_format = self._format(by_number)
        self.writer = self._writer()
        extension = self.writer.extension if self.writer else None
        data = {"": "", None: None}.get(extension, f".{extension}")
        extra_files = self.ends_beside
        self.shards = {number: _files(number, found, data, extra_files) for number, found in sorted(by_number.items())}
        self.shards = {number: files for number, files in self.shards.items() if files.present}
        if not self.shards and self.run is None:
            raise OutputError(f"{url!r} holds no dataset of any2ds or img2dataset")

    @property
    def made_by(self) -> str:
        """Which tool, for a person."""
        if self.is_foreign:
            return "img2dataset or any2dataset"
        return f"any2ds {self.run.version}" if self.run else "any2ds"

    @property
    def problems(self) -> list[str]:
        """Why `run` is None though the file is there."""
        return [f"{layout.RUN_FILE} cannot be understood: {self.run_problem}"] if self.run_problem else []

    @property
    def hides(self) -> bool:
        """Whether it is to look like one of another tool."""
        return self.run is not None and bool(self.run.options.get("preset"))

    @property
    def ends_beside(self) -> tuple[str, ...]:
        """Of the names of files that a shard has beside data, metadata and stats."""
        sidecars = self.writer.sidecars if self.writer and self.run and not self.hides else ()
        formats = self.run.options.get("metadata_format") or () if self.run else ()
        return (*sidecars, *(f".{name}" for name in formats if name in METADATA_FORMATS and name != "parquet"))

    @property
    def finished(self) -> list[ShardFiles]:
        return [files for files in self.shards.values() if files.stats]

    @cached_property
    def layout(self) -> Layout | None:
        """Names and keys. Where no run file tells, from the metadata that is there; `rows_per_shard` is none then."""
        if self.run is not None:
            return self.run.layout
        for files in self.finished[:20]:
            try:
                with self.metadata_file(files) as file:
                    keys = next(iter(file.iter_batches(1, columns=["key"]))).column("key").to_pylist()
                return Layout(10 ** (len(keys[0]) - self._digits), self._digits)
            except Exception:  # it is broken, as others will tell
                continue
        return None

    def others(self) -> list[Entry]:
        """What belongs to no shard, but for what any2ds and the system keep for themselves."""
        own = {name for files in self.shards.values() for name in files.present}
        own.update(layout.FOLDER_FILES, tfds.names_of(self.run.options if self.run else {}))
        return [entry for name, entry in self.entries.items() if name not in own and name[:1] not in ("_", ".")]

    def read(self, name: str) -> bytes:
        """Raises OSError, or whatever the file system raises."""
        if (content := self.folder.read(name)) is None:
            raise FileNotFoundError(name)
        return content

    def stats(self, shards: Iterable[ShardFiles]) -> Iterator[tuple[ShardFiles, Stats | Exception]]:
        """The figures of finished shards, read at the same time; in order."""

        def read(files: ShardFiles) -> Stats | Exception:
            try:
                return Stats.parse(self.read(files.stats or ""))
            except Exception as error:  # every file system has exceptions of its own
                return error

        todo = list(shards)
        threads = ThreadPoolExecutor(_READS_AT_ONCE if len(todo) > 1 else 1)
        try:
            yield from zip(todo, threads.map(read, todo), strict=True)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def metadata_file(self, files: ShardFiles) -> Iterator[pq.ParquetFile]:
        """The metadata table of a shard, of which only what is asked for is read, also from remote."""
        with self.folder.open(files.metadata or "") as stream, pq.ParquetFile(stream, **THRIFTY) as file:
            yield file

    @contextmanager
    def file_in_sight(self, files: ShardFiles) -> Iterator[pq.ParquetFile]:
        """The same as others read it; in formats that hold both, it is the file of the data."""
        with self.metadata_file(replace(files, metadata=files.shown or files.metadata)) as file:
            yield file

    def metadata_columns(self, schema: pa.Schema) -> list[str]:
        """All of them but those of the files themselves."""
        if not (self.writer and self.writer.holds_metadata):
            return list(schema.names)
        bodies = body_columns(schema)
        return [name for name in schema.names if name not in bodies]

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """A file or folder as a local path; what is remote is there for as long as the context."""
        with ExitStack() as stack:
            folder = Path()
            if not self.folder.is_local:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="any2ds-verify-")))
            yield self.folder.local_copy(name, folder)

    def _listed(self) -> Iterator[Entry]:
        folder = self.folder
        try:
            found = list(folder.listed())
            if any(str(info["name"]).rstrip("/").endswith(f"/{layout.STATE_FOLDER}") for info in found):
                with suppress(FileNotFoundError):  # a run that was refused has just removed it
                    state = folder.listed(layout.STATE_FOLDER)
                    found += state
                    if any(str(info["name"]).rstrip("/").endswith(f"/{layout.METADATA_FOLDER}") for info in state):
                        found += folder.listed(layout.METADATA_FOLDER)
        except FileNotFoundError as error:
            raise OutputError(f"{folder.url!r}: no such folder") from error
        except Exception as error:  # every file system has exceptions of its own
            raise OutputError(f"{folder.url!r} cannot be listed: {error_text(error)}") from error
        root = folder.path.rstrip("/")
        for info in found:
            path = str(info["name"]).rstrip("/")
            if path == root:
                if info["type"] == "file" and len(found) == 1:
                    raise OutputError(f"{folder.url!r} is a file, not the folder of a dataset")
                continue  # the marker of a folder in an object store
            is_folder = info["type"] == "directory" or (folder.is_local and os.path.isdir(path))
            size = 0 if is_folder else int(info.get("size") or 0)
            leads_nowhere = stat.S_ISLNK(int(info.get("mode") or 0))  # to open it fails at once
            is_odd = info["type"] == "other" and not is_folder and not leads_nowhere
            yield Entry(path.removeprefix(f"{root}/"), size, is_folder, is_odd)

    def _run_file(self) -> Manifest | None:
        if layout.RUN_FILE not in self.entries:
            return None
        if self.entries[layout.RUN_FILE].is_odd:
            return None
        try:
            run = Manifest.parse(self.read(layout.RUN_FILE))
            _ = run.layout  # or it says too little
            return run
        except Exception as error:
            self.run_problem = error_text(error)
            return None

    def _any_stats(self, by_number: Mapping[int, Mapping[str, Entry]]) -> Stats:
        marks = [found["_stats.json"].name for _, found in sorted(by_number.items()) if "_stats.json" in found]
        for name in marks[:20]:
            try:
                return Stats.parse(self.read(name))
            except Exception:  # it is broken, as others will tell
                continue
        return Stats()

    def _format(self, by_number: Mapping[int, Mapping[str, Entry]]) -> str | None:
        """As the run file says, else by the files that there are most of; None for one that nobody here knows."""
        if self.run is not None:
            return str(self.run.options.get("output_format"))
        extra_files = ("_stats.json", ".parquet", ".tar.idx", layout.METADATA_END)  # of whatever format
        ends = Counter(end for found in by_number.values() for end in found if end not in extra_files)
        if ends:
            return {"": "files", ".tar": "webdataset"}.get(ends.most_common(1)[0][0])
        for _, found in sorted(by_number.items())[:20]:
            try:
                with self.metadata_file(ShardFiles(0, metadata=found[".parquet"].name)) as file:
                    schema = file.schema_arrow
                    return "parquet" if body_columns(schema) else "dummy"
            except Exception:  # it is broken, as others will tell
                continue
        return None

    def _writer(self) -> type[ShardWriter] | None:
        try:
            return cast("type[ShardWriter]", plugins.load("writers", self.output_format or ""))
        except Any2dsError:
            return None


def _by_number(entries: Mapping[str, Entry], names: Layout | None) -> tuple[dict[int, dict[str, Entry]], int]:
    """Number of each shard -> what of its names follows the number -> the file. And the digits of a number.

    Only names with as many digits as the others count; nothing else could have been written by the same run.
    """
    matches = list(_of_shards(entries))
    if names is not None:
        digits = names.shard_digits
    else:  # more digits are for numbers that need them
        digits = min((len(number) for number, end, _ in matches if end == "_stats.json"), default=0)
    found: dict[int, dict[str, Entry]] = {}
    for number, end, entry in matches:
        if number == f"{int(number):0{digits}d}" and entry.is_folder == (end == "") and not entry.is_odd:
            found.setdefault(int(number), {})[end] = entry
    return found, digits


def _of_shards(entries: Mapping[str, Entry]) -> Iterator[tuple[str, str, Entry]]:
    """Number, what follows it in the name, and the file."""
    folder = f"{layout.METADATA_FOLDER}/"
    for name, entry in entries.items():
        inside = name.removeprefix(folder)
        match = _FILES_OF_SHARD.fullmatch(inside)
        if match and (match[2] == layout.METADATA_END) == (inside != name):
            yield match[1], match[2], entry


def _files(number: int, found: Mapping[str, Entry], data: str | None, extra_files: Iterable[str]) -> ShardFiles:
    def name(end: str | None) -> str | None:
        return found[end].name if end is not None and end in found else None

    others = tuple(found[end].name for end in extra_files if end in found)
    own, table = name(layout.METADATA_END), name(".parquet")
    return ShardFiles(number, name("_stats.json"), own or table, name(data), others, table if own else None)
