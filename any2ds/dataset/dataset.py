"""A dataset in its folder, finished or not: its shards and their files, and how it was made."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.parsers import METADATA_FORMATS
from any2ds.core import layout, plugins
from any2ds.core.errors import Any2dsError, OutputError, error_text
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.core.members import Members
from any2ds.core.stats import Stats
from any2ds.dataset import tfds
from any2ds.dataset.recipe_file import RecipeFile
from any2ds.storage.folders import OutputFolder
from any2ds.storage.stores import Stores
from any2ds.writers.contract import ShardWriter
from any2ds.writers.formats.parquet import THRIFTY, body_columns

_READS_AT_ONCE = 32  # small files, most of the time of which is waiting for a store
_SHARDS_TRIED = 20  # until one can be read
_FILES_OF_SHARD = re.compile(r"(\d+)(_stats\.json|\.[A-Za-z0-9_.]+|)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or folder in the folder of the dataset, or in `.any2ds`."""

    name: str
    size: int  # bytes; 0 for a folder
    is_folder: bool
    is_odd: bool = False  # a pipe or device: opening it may block for ever


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """Names of the files of one shard; None for what is not there."""

    shard_id: int
    stats: str | None = None
    metadata: str | None = None  # with all columns
    data: str | None = None  # the same as `metadata` where one file holds both; a folder for the format files
    extra_files: tuple[str, ...] = ()  # sidecars of the data, and metadata in further formats
    visible: str | None = None  # the metadata for other tools, if it is another table; maybe in one file with the data

    @property
    def present(self) -> tuple[str, ...]:
        """Each once; the stats, which say that the others are complete, come first."""
        names = (self.stats, self.metadata, self.visible, self.data, *self.extra_files)
        return tuple(dict.fromkeys(name for name in names if name))


class Dataset:
    """A folder, listed once; contents are read when they are asked for.

    `entries` are its files, if they are known. Raises OutputError if it cannot be listed, or holds no dataset.
    """

    def __init__(self, url: str, stores: Stores | None = None, entries: Iterable[Entry] | None = None) -> None:
        self.folder = OutputFolder(url, stores=stores)
        self.entries = {entry.name: entry for entry in (self._listed() if entries is None else entries)}
        self.run_problem: str | None = None  # why `run` is None though the file is there
        self.run = self._run_file()
        if self.run is not None and self.run.is_being_built:
            raise OutputError(f"{url!r} is being built: the same any2ds build command goes on with it")
        files, self._digits = _by_shard(self.entries, self.run.layout if self.run else None)
        # img2dataset writes no run file, and no number into its stats.
        self.is_img2dataset = layout.RUN_FILE not in self.entries and not self._has_own_stats(files)
        self.output_format = self._format(files)
        self.writer = self._writer()
        self.shards = self._shards(files)
        if not self.shards and self.run is None:
            raise OutputError(f"{url!r} holds no dataset of any2ds or img2dataset")

    @property
    def made_by(self) -> str:
        """Which tool, for a person."""
        if self.is_img2dataset:
            return "img2dataset or any2dataset"
        return f"any2ds {self.run.version}" if self.run else "any2ds"

    @cached_property
    def recipe(self) -> RecipeFile | None:
        """What the recipe says that has made it, if one has."""
        if layout.RECIPE_FILE not in self.entries:
            return None
        with suppress(ValueError):
            return RecipeFile.of(self.folder)
        return None

    @property
    def problems(self) -> list[str]:
        """Why `run` is None though the file is there."""
        return [f"{layout.RUN_FILE} cannot be understood: {self.run_problem}"] if self.run_problem else []

    @property
    def hides(self) -> bool:
        """Whether it has to look like one of another tool."""
        return self.run is not None and self.run.layout.hides

    @property
    def extra_ends(self) -> tuple[str, ...]:
        """How the names of a shard's files other than data, metadata and stats end."""
        sidecars = self.writer.sidecars if self.writer and self.run and not self.hides else ()
        formats = self.run.options.get("metadata_format") or () if self.run else ()
        return (*sidecars, *(f".{name}" for name in formats if name in METADATA_FORMATS and name != "parquet"))

    @property
    def finished(self) -> list[ShardFiles]:
        return [files for files in self.shards.values() if files.stats]

    @cached_property
    def layout(self) -> Layout | None:
        """Names and keys. Without a run file, by the metadata; `rows_per_shard` is only an upper bound then."""
        if self.run is not None:
            return self.run.layout
        for files in self.finished[:_SHARDS_TRIED]:
            with suppress(Exception), self.metadata_file(files) as file:  # a broken one is reported by others
                key = next(iter(file.iter_batches(1, columns=["key"]))).column("key")[0].as_py()
                return Layout(10 ** (len(key) - self._digits), self._digits)
        return None

    def others(self) -> list[Entry]:
        """What belongs to no shard, without the files of any2ds and of the system."""
        own = {name for files in self.shards.values() for name in files.present}
        own.update(layout.FOLDER_FILES, tfds.names_of(self.run.options if self.run else {}))
        if layout.RECIPE_FILE in self.entries:
            own.update(name for name in self.entries if name.endswith(tfds.LABELS_END))
        return [entry for name, entry in self.entries.items() if name not in own and name[:1] not in ("_", ".")]

    def read(self, name: str) -> bytes:
        """Raises OSError, or any exception of the file system."""
        if (content := self.folder.read(name)) is None:
            raise FileNotFoundError(name)
        return content

    def stats(self, shards: Iterable[ShardFiles]) -> Iterator[tuple[ShardFiles, Stats | Exception]]:
        """The statistics of finished shards, in order; many at once where that is faster."""
        todo = list(shards)
        names = [files.stats or "" for files in todo]
        try:
            contents: Mapping[str, bytes | None] = dict(self.folder.read_many(names))
        except Exception:  # of one of them: which one it is shows when they are read one by one
            yield from self._stats_one_by_one(todo)
            return
        for files, name in zip(todo, names, strict=True):
            try:
                content = contents[name]
                yield files, FileNotFoundError(name) if content is None else Stats.parse(content)
            except ValueError as error:
                yield files, error

    def _stats_one_by_one(self, todo: Sequence[ShardFiles]) -> Iterator[tuple[ShardFiles, Stats | Exception]]:
        def read(files: ShardFiles) -> Stats | Exception:
            try:
                return Stats.parse(self.read(files.stats or ""))
            except Exception as error:  # every file system has exceptions of its own
                return error

        threads = ThreadPoolExecutor(_READS_AT_ONCE if len(todo) > 1 else 1)
        try:
            yield from zip(todo, threads.map(read, todo), strict=True)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def metadata_file(self, files: ShardFiles) -> Iterator[pq.ParquetFile]:
        """The metadata table of a shard, of which only the columns asked for are read, also from a store."""
        with self.folder.open(files.metadata or "") as stream, pq.ParquetFile(stream, **THRIFTY) as file:
            yield file

    @contextmanager
    def visible_file(self, files: ShardFiles) -> Iterator[pq.ParquetFile]:
        """The table that other tools read; in formats that hold both, it is the file of the data."""
        with self.metadata_file(replace(files, metadata=files.visible or files.metadata)) as file:
            yield file

    @property
    def members(self) -> Members | None:
        """What a sample consists of, where the rows of its list have several URLs."""
        return Members.of(self.run.options) if self.run else None

    def metadata_columns(self, schema: pa.Schema) -> list[str]:
        """All columns but those of the files themselves."""
        bodies = body_columns(schema) if self.writer and self.writer.holds_metadata else ()
        return [name for name in schema.names if name not in bodies]

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        """A file or folder as a local path; a remote one is copied for as long as the context."""
        with ExitStack() as stack:
            folder = Path()
            if not self.folder.is_local:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="any2ds-verify-")))
            yield self.folder.local_copy(name, folder)

    # --- what is in the folder ---

    def _listed(self) -> Iterator[Entry]:
        folder = self.folder
        try:
            found = folder.listed()
            if _has(found, layout.STATE_FOLDER):
                with suppress(FileNotFoundError):  # a run that was refused has just removed it
                    state = folder.listed(layout.STATE_FOLDER)
                    found = [*found, *state]
                    if _has(state, layout.METADATA_FOLDER):
                        found += folder.listed(layout.METADATA_FOLDER)
        except FileNotFoundError:
            raise OutputError(f"{folder.url!r}: no such folder") from None
        except Exception as error:  # every file system has exceptions of its own
            raise OutputError(f"{folder.url!r} cannot be listed: {error_text(error)}") from error
        root = folder.path.rstrip("/")
        for info in found:
            path = str(info["name"]).rstrip("/")
            if path == root:
                if info["type"] == "file" and len(found) == 1:
                    raise OutputError(f"{folder.url!r} is a file, not the folder of a dataset")
                continue  # the marker of a folder in an object store
            is_folder = info["type"] == "directory" or (
                folder.is_local and info["type"] != "file" and os.path.isdir(path)  # a link to one
            )
            size = 0 if is_folder else int(info.get("size") or 0)
            is_link = stat.S_ISLNK(int(info.get("mode") or 0))  # a broken one, which fails at once when it is opened
            is_odd = info["type"] == "other" and not is_folder and not is_link
            yield Entry(path.removeprefix(f"{root}/"), size, is_folder, is_odd)

    def _run_file(self) -> Manifest | None:
        if layout.RUN_FILE not in self.entries or self.entries[layout.RUN_FILE].is_odd:
            return None
        try:
            run = Manifest.parse(self.read(layout.RUN_FILE))
            _ = run.layout  # raises ValueError if the options do not decide it
            return run
        except Exception as error:
            self.run_problem = error_text(error)
            return None

    def _has_own_stats(self, by_shard: Mapping[int, Mapping[str, str]]) -> bool:
        """Whether the first readable stats are of any2ds."""
        names = [ends["_stats.json"] for _, ends in sorted(by_shard.items()) if "_stats.json" in ends]
        for name in names[:_SHARDS_TRIED]:
            with suppress(Exception):  # a broken one is reported by others
                return Stats.parse(self.read(name)).shard_id is not None
        return False

    def _format(self, by_shard: Mapping[int, Mapping[str, str]]) -> str | None:
        """By the run file, else by the most frequent files; None if it is unknown."""
        if self.run is not None:
            return str(self.run.options.get("output_format"))
        other_ends = ("_stats.json", ".parquet", ".tar.idx", layout.METADATA_END)  # of any format
        counts = Counter(end for ends in by_shard.values() for end in ends if end not in other_ends)
        if counts:
            return {"": "files", ".tar": "webdataset"}.get(counts.most_common(1)[0][0])
        tables = [ends[".parquet"] for _, ends in sorted(by_shard.items()) if ".parquet" in ends]
        for name in tables[:_SHARDS_TRIED]:
            with suppress(Exception), self.metadata_file(ShardFiles(0, metadata=name)) as file:
                return "parquet" if body_columns(file.schema_arrow) else "dummy"
        return None

    def _writer(self) -> type[ShardWriter] | None:
        try:
            return cast("type[ShardWriter]", plugins.load("writers", self.output_format or ""))
        except Any2dsError:
            return None

    def _shards(self, by_shard: Mapping[int, Mapping[str, str]]) -> dict[int, ShardFiles]:
        extension = self.writer.extension if self.writer else None
        data_end = f".{extension}" if extension else extension
        found = {}
        for shard_id, ends in sorted(by_shard.items()):
            own, table = ends.get(layout.METADATA_END), ends.get(".parquet")
            files = ShardFiles(
                shard_id,
                stats=ends.get("_stats.json"),
                metadata=own or table,
                data=None if data_end is None else ends.get(data_end),
                extra_files=tuple(ends[end] for end in self.extra_ends if end in ends),
                visible=table if own else None,
            )
            if files.present:
                found[shard_id] = files
        return found


def _has(listed: Iterable[Mapping[str, Any]], folder: str) -> bool:
    return any(str(info["name"]).rstrip("/").endswith(f"/{folder}") for info in listed)


def _by_shard(entries: Mapping[str, Entry], names: Layout | None) -> tuple[dict[int, dict[str, str]], int]:
    """For each shard, what follows its number in a name -> the name; and the number of digits.

    Only names with as many digits as the others count; nothing else could have been written by the same run.
    """
    matches = []
    for name, entry in entries.items():
        match = _FILES_OF_SHARD.fullmatch(name.removeprefix(f"{layout.METADATA_FOLDER}/"))
        if match is None or entry.is_odd or entry.is_folder != (match[2] == ""):
            continue
        if (match[2] == layout.METADATA_END) == name.startswith(layout.METADATA_FOLDER):
            matches.append((match[1], match[2], name))
    if names is not None:
        digits = names.shard_digits
    else:  # more digits are for numbers that need them
        digits = min((len(number) for number, end, _ in matches if end == "_stats.json"), default=0)
    found: dict[int, dict[str, str]] = {}
    for number, end, name in matches:
        if number == f"{int(number):0{digits}d}":
            found.setdefault(int(number), {})[end] = name
    return found, digits
