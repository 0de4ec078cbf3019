"""A dataset in its folder, finished or not: its shards and their files, and how it was made."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.parsers import METADATA_FORMATS
from any2ds.core import layout, plugins
from any2ds.core.errors import Any2dsError, OutputError, Unreachable, access_text, error_text
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.core.members import Members
from any2ds.core.stats import Stats
from any2ds.dataset import tfds
from any2ds.dataset.listing import STATS_END, Entry, Listing, ShardFiles, Shards
from any2ds.dataset.run_file import segment_files
from any2ds.dataset.shards import ShardTable
from any2ds.storage.lists import similar_beside
from any2ds.storage.opening import open_folder
from any2ds.storage.patience import is_permanent
from any2ds.storage.stores import Stores
from any2ds.writers.contract import ShardWriter
from any2ds.writers.formats.parquet import THRIFTY, body_columns

_FORMATS = {"": "files", ".tar": "webdataset", ".tfrecord": "tfrecord", ".arrayrecord": "arrayrecord"}
_READS_AT_ONCE = 32  # small files, most of the time of which is waiting for a store
_STATS_AT_ONCE = 1000
_SHARDS_TRIED = 20  # until one can be read


class Dataset:
    """A folder, listed once; contents are read when they are asked for.

    With the `table` of its finished shards, whose files have names that follow from their numbers, it is not listed.
    Raises OutputError if it cannot be listed, or holds no dataset, and for one that is being built, unless it may be
    `unfinished`.
    """

    def __init__(
        self,
        url: str,
        stores: Stores | None = None,
        table: ShardTable | None = None,
        unfinished: bool = False,
    ) -> None:
        self.folder = open_folder(url, stores=stores)
        self.listing = Listing(self._listed() if table is None else [Entry(layout.RUN_FILE, 0, False)])
        self.entries = self.listing.others
        self.run_problem: str | None = None  # why `run` is None though the file is there
        self.run = self._run_file()
        if layout.BUILDING_FILE in self.entries and not unfinished:
            raise OutputError(f"{url!r} is being built: the same any2ds build command goes on with it")
        self.listing.settle(self.run.layout.shard_digits if self.run else None)
        # img2dataset writes no run file, and no number into its stats.
        self.is_img2dataset = layout.RUN_FILE not in self.entries and not self._has_own_stats()
        self.output_format = self._format()
        self.writer = self._writer()
        extension = self.writer.extension if self.writer else None
        data_end = f".{extension}" if extension else extension
        if table is None:
            self.shards = self.listing.shards(data_end, self.extra_ends)
        else:
            self.shards = Shards.finished_by(
                self.listing.digits, table.ids, data_end, self._with_own_metadata(table.ids)
            )
            names = tfds.names_of(self.run.options if self.run else {})
            self.entries.update({name: Entry(name, 0, False) for name in names if self.folder.exists(name)})
        if not self.shards and self.run is None:
            raise OutputError(f"{url!r} holds no dataset of any2ds or img2dataset")

    @property
    def made_by(self) -> str:
        """The tool that has made it, for a person."""
        if self.is_img2dataset:
            return "img2dataset or any2dataset"
        return f"any2ds {self.run.version}" if self.run else "any2ds"

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
    def finished(self) -> Shards:
        return self.shards.finished()

    @cached_property
    def layout(self) -> Layout | None:
        """Names and keys. Without a run file, by the metadata; `rows_per_shard` is only an upper bound then."""
        if self.run is not None:
            return self.run.layout
        for files in self.finished[:_SHARDS_TRIED]:
            with suppress(Exception), self.metadata_file(files) as file:  # a broken one is reported by others
                key = next(iter(file.iter_batches(1, columns=["key"]))).column("key")[0].as_py()
                return Layout(10 ** (len(key) - self.listing.digits), self.listing.digits)
        return None

    def others(self) -> list[Entry]:
        """Files and folders that belong to no shard, without those of any2ds and of the system."""
        own = {*layout.FOLDER_FILES, *tfds.names_of(self.run.options if self.run else {})}
        if layout.RECIPE_FILE in self.entries:
            own.update(name for name in self.entries if name.endswith(tfds.LABELS_END))
        others = [*self.entries.values()]
        for end in self.listing.ends.keys() - self.shards.ends:
            others += self.listing.entries(end)
        return [entry for entry in others if entry.name not in own and entry.name[:1] not in ("_", ".")]

    def read(self, name: str) -> bytes:
        """Raises OSError, or any exception of the file system."""
        if (content := self.folder.read(name)) is None:
            raise FileNotFoundError(name)
        return content

    def stats(self, shards: Sequence[ShardFiles]) -> Iterator[tuple[ShardFiles, Stats | Exception]]:
        """The statistics of finished shards, in order; many at once where that is faster."""
        for start in range(0, len(shards), _STATS_AT_ONCE):
            some = shards[start : start + _STATS_AT_ONCE]
            for files, content in zip(some, self._contents([files.stats or "" for files in some]), strict=True):
                try:
                    yield files, content if isinstance(content, Exception) else Stats.parse(content)
                except ValueError as error:
                    yield files, error

    def _contents(self, names: Sequence[str]) -> list[bytes | Exception]:
        try:
            found = dict(self.folder.read_many(names))
            return [FileNotFoundError(name) if (content := found[name]) is None else content for name in names]
        except Exception:  # of one of them: which one it is shows when they are read one by one
            with ThreadPoolExecutor(_READS_AT_ONCE) as threads:
                return list(threads.map(self._content, names))

    def _content(self, name: str) -> bytes | Exception:
        try:
            return self.read(name)
        except Exception as error:  # every file system has exceptions of its own
            return error

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
        """The files of a sample, where the rows of its list have several URLs."""
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
                folder = stack.enter_context(self.folder.staging())
            yield self.folder.local_copy(name, folder, is_folder=name.isdecimal() or None)

    # --- what is in the folder ---

    def _listed(self) -> Iterator[Entry]:
        folder = self.folder
        try:
            has_state = False
            for entry in self._in(""):
                has_state |= entry.name == layout.STATE_FOLDER
                yield entry
            if not has_state:
                return
            has_metadata = False
            with suppress(FileNotFoundError):  # a run that was refused has just removed it
                for entry in self._in(layout.STATE_FOLDER):
                    has_metadata |= entry.name == layout.METADATA_FOLDER
                    yield entry
                if has_metadata:
                    yield from self._in(layout.METADATA_FOLDER)
        except OutputError:
            raise
        except FileNotFoundError:
            raise OutputError(f"{folder.url!r}: no such folder{similar_beside(folder.url)}") from None
        except Exception as error:  # every file system has exceptions of its own
            raise Unreachable(f"{folder.url!r} cannot be listed: {access_text(error)}") from error

    def _with_own_metadata(self, shard_ids: Sequence[int]) -> list[int]:
        """The shards that have metadata out of sight: those of other tools in the same dataset have none."""
        if self.run is None or not self.hides:
            return []
        own = {f"{layout.METADATA_FOLDER}/{name}" for name in self.folder.names(layout.METADATA_FOLDER)}
        return [shard_id for shard_id in shard_ids if self.run.layout.own_metadata_name(shard_id) in own]

    def _in(self, inner: str) -> Iterator[Entry]:
        """Entries directly in the folder, or in a folder of it. Raises whatever the file system raises."""
        folder = self.folder
        root = folder.path.rstrip("/")
        is_file = has_others = False
        for info in folder.listed(inner):
            path = str(info["name"]).rstrip("/")
            if path == root:  # maybe the marker of a folder in an object store
                is_file = info["type"] == "file"
                continue
            has_others = True
            is_folder = info["type"] == "directory" or (
                folder.is_local and info["type"] != "file" and os.path.isdir(path)  # a link to one
            )
            size = 0 if is_folder else int(info.get("size") or 0)
            is_link = stat.S_ISLNK(int(info.get("mode") or 0))  # a broken one, which fails at once when it is opened
            is_odd = info["type"] == "other" and not is_folder and not is_link
            yield Entry(path.removeprefix(f"{root}/"), size, is_folder, is_odd)
        if is_file and not has_others:
            raise OutputError(f"{folder.url!r} is a file, not the folder of a dataset")

    def _run_file(self) -> Manifest | None:
        """Raises Unreachable if a store fails, of which nothing can be said then."""
        if layout.RUN_FILE not in self.entries or self.entries[layout.RUN_FILE].is_odd:
            return None
        try:
            content, segments = self.read(layout.RUN_FILE), segment_files(self.folder)
        except Exception as error:  # every file system has exceptions of its own
            if not self.folder.is_local and not is_permanent(error.__cause__ or error):
                raise Unreachable(f"{self.folder.url!r} cannot be opened: {access_text(error)}") from error
            self.run_problem = error_text(error)
            return None
        try:
            run = Manifest.parse(content, segments)
            _ = run.layout  # raises ValueError if the options do not decide it
            formats = run.options.get("metadata_format") or []
            if not isinstance(formats, list) or not all(isinstance(name, str) for name in formats):
                raise ValueError("metadata_format is no list of formats")
            return run
        except Exception as error:
            self.run_problem = error_text(error)
            return None

    def _has_own_stats(self) -> bool:
        """Whether the first readable stats are of any2ds."""
        for entry in islice(self.listing.entries(STATS_END), _SHARDS_TRIED):
            with suppress(Exception):  # a broken one is reported by others
                return Stats.parse(self.read(entry.name)).shard_id is not None
        return False

    def _format(self) -> str | None:
        """By the run file, else by the most frequent files; None if it is unknown."""
        if self.run is not None:
            return str(self.run.options.get("output_format"))
        other_ends = (STATS_END, ".parquet", ".tar.idx", ".tfrecord.idx", layout.METADATA_END)  # of any format
        counts = Counter({end: files for end, files in self.listing.ends.items() if end not in other_ends})
        if counts:
            return _FORMATS.get(counts.most_common(1)[0][0])
        for entry in islice(self.listing.entries(".parquet"), _SHARDS_TRIED):
            with suppress(Exception), self.metadata_file(ShardFiles(0, metadata=entry.name)) as file:
                return "parquet" if body_columns(file.schema_arrow) else "dummy"
        return None

    def _writer(self) -> type[ShardWriter] | None:
        try:
            return cast("type[ShardWriter]", plugins.load("writers", self.output_format or ""))
        except Any2dsError:
            return None
