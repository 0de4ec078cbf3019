"""Writes `.any2ds/shards`, the list of the finished shards, and the files for TensorFlow Datasets, when a run ends.

The list is a cache: shards never change, so that its entries stay true. Whoever removes the statistics of a shard
removes the list before. While a run makes shards it is marked as open: it may lack some.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.options import OutputOptions
from any2ds.core import layout
from any2ds.core.errors import LockLost, error_text
from any2ds.core.reports import IncompleteRun, ShardReport
from any2ds.core.stats import Stats
from any2ds.dataset import shards, tfds
from any2ds.dataset.shards import ShardEntry, ShardList, ShardTable
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT = 5.0  # seconds that a run which was broken off may take for it on a remote store


class ShardListFile:
    """A context around a run, inside of the lock. `begin` is called before each job, `on_shard` with each shard made.

    Nothing is written if no job was begun and the files are up to date. A file that cannot be written is logged, and
    fails nothing.
    """

    def __init__(self, output: OutputFolder, options: OutputOptions) -> None:
        self._output, self._options = output, options
        self._names = options.layout
        self.finished_before: Collection[int] | None = None  # to list a store again takes minutes for a million
        self._before: ShardTable | None = None  # what the list has that is there; None: it was not read, or is broken
        self._new: dict[int, ShardEntry] = {}  # of this run
        self._has_begun = self._was_open = False

    def __enter__(self) -> ShardListFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, IncompleteRun) or (self._has_begun and self._output.is_local):
            self.write()
        elif self._has_begun:  # a store that does not answer must not keep who wants to stop
            last = threading.Thread(target=self.write, name="any2ds-shard-list", daemon=True)
            last.start()
            last.join(_CLOSE_TIMEOUT)

    def begin(self) -> None:
        """Mark the list as open before the first shard is made."""
        if not self._has_begun:
            self._has_begun = True
            with self._logging_errors():
                self.mark_open()

    def mark_open(self) -> None:
        """Mark the list as open, if there is one. Raises whatever the file system raises."""
        content = self._read()
        if content is not None and not self._was_open:
            self._output.write(layout.SHARDS_FILE, shards.opened(content))

    def on_shard(self, event: ShardReport) -> None:
        self._new[event.shard_id] = ShardEntry.of(event)

    def write(self) -> None:
        """Write the files, unless they are up to date."""
        with self._logging_errors():
            table = self._now()
            is_listed = self._before is not None and self._before.ids == table.ids
            is_unchanged = is_listed and not (self._was_open or self._has_begun)
            if is_unchanged and all(map(self._output.exists, tfds.names_for(self._options) if table else ())):
                return
            if not table and self._before is None:
                return
            self._write_tfds_files(table)
            self._output.write(layout.SHARDS_FILE, shards.to_json(table, self._options, is_open=False))

    def _read(self) -> bytes | None:
        """The content of the list, whose rows are known from then on."""
        content = self._output.read(layout.SHARDS_FILE)
        with contextlib.suppress(ValueError):  # no list of shards: it is made anew
            if content is not None:
                listed = ShardList.read(io.BytesIO(content))
                self._before, self._was_open = listed.table, listed.is_open
        return content

    def _now(self) -> ShardTable:
        """The finished shards; those that are in no list are read."""
        if self._before is None:
            self._read()
        if self.finished_before is None or self._output.is_local:
            finished = self._output.finished_shards()
        else:
            finished = frozenset((*self.finished_before, *self._new))
        before = self._before or ShardTable.of(())
        new = [entry for shard_id, entry in self._new.items() if shard_id in finished]
        unknown = sorted(finished.difference(before.ids, self._new))
        return before.only(finished.difference(self._new)).with_rows(ShardTable.of([*new, *self._read_stats(unknown)]))

    def _read_stats(self, shard_ids: Sequence[int]) -> Iterator[ShardEntry]:
        """The entries of shards, as far as their statistics can be understood."""
        contents = self._output.read_many([self._names.stats_name(shard_id) for shard_id in shard_ids])
        for shard_id, (_, content) in zip(shard_ids, contents, strict=True):
            with contextlib.suppress(ValueError):  # it counts as missing, as for whoever goes on
                yield ShardEntry.of_stats(shard_id, Stats.parse(content or b""))

    def _write_tfds_files(self, table: ShardTable) -> None:
        wanted = tfds.names_for(self._options)
        if not table:
            self._output.remove_many(sorted(set(wanted).intersection(self._output.names())))
        elif wanted:
            for name, content in self._tfds_files([*table.entries()]).items():
                self._output.write(name, content)

    def _tfds_files(self, entries: Sequence[ShardEntry]) -> Mapping[str, bytes]:
        from any2ds.dataset.recipe_file import RecipeFile  # which most datasets do without

        if (recipe := RecipeFile.of(self._output)) is not None:
            return recipe.tfds_files(entries, self._options)
        return tfds.files(entries, self._options, self._schema(entries[-1].shard_id))

    def _schema(self, shard_id: int) -> pa.Schema | None:
        """The columns of a shard's metadata."""
        with contextlib.suppress(Exception):  # of any file system, and of Arrow: whoever needs it does without
            with self._output.open(self._names.metadata_name(shard_id)) as stream:
                schema = pq.read_schema(stream)
            return pa.schema([field.remove_metadata() for field in schema if field.name != "data"])
        return None

    @contextlib.contextmanager
    def _logging_errors(self) -> Iterator[None]:
        try:
            yield
        except LockLost:
            log.debug("%s is left to the run that has the folder now", layout.SHARDS_FILE)
        except Exception as error:  # every file system has exceptions of its own
            log.warning("%s cannot be kept up to date: %s", layout.SHARDS_FILE, error_text(error))


def rebuild(output: OutputFolder, options: OutputOptions) -> None:
    """Write the files anew from the statistics of all finished shards. By whoever has the folder for itself."""
    output.remove(layout.SHARDS_FILE)
    ShardListFile(output, options).write()


def is_complete(output: OutputFolder) -> bool:
    """Whether there is a list that has all shards that are finished now."""
    with contextlib.suppress(ValueError):
        listed = ShardList.read(io.BytesIO(output.read(layout.SHARDS_FILE) or b""))
        return not listed.is_open and output.finished_shards() <= {*listed.table.ids}
    return False
