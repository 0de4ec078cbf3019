"""Keeps the files about a dataset, `.any2ds/shards` first, in step with its shards while a run makes them.

A run marks the list as open before its first shard, and closes it at its end; a list that is closed is trusted by the
next run, as far as its shards are there. After a crash it is open, and the figures are read from the stats again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import TracebackType

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.options import OutputOptions
from any2ds.core import layout, plugins
from any2ds.core.errors import LockLost, OutputError, error_text
from any2ds.core.reports import IncompleteRun, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.dataset import shard_list, tfds
from any2ds.dataset.shard_list import ShardEntries, ShardList
from any2ds.dataset.shard_list import ShardEntry as ShardEntry
from any2ds.storage.folders import OutputFolder

log = logging.getLogger(__name__)

_SHARE = 0.01  # of the time, at most, that writing takes while a run is at work
_STATS_AT_ONCE = 1000
_CLOSE_TIMEOUT = 5.0  # seconds that a run which was broken off may take for it on a remote store


class Catalogue:
    """A reporter, and a context around a run: inside of the lock, and outside of whatever finishes shards.

    `begin` gets every job. Nothing is written if no job was begun and the files are up to date. A file that cannot be
    written is logged, and fails nothing.
    """

    def __init__(self, output: OutputFolder, options: OutputOptions) -> None:
        self._output, self._options = output, options
        self._names = options.layout
        self._lock = threading.Lock()  # for the four that follow
        self._entries = ShardEntries()
        self._uncertain: set[int] = set()  # shards that may have changed since their entry, if they have one
        self._rewriting: set[int] = set()  # those of them whose report is of a part of the shard
        self._touched: set[int] = set()  # shards begun since the stats of others were last looked at
        self._has_begun = False
        self._before: frozenset[int] | None = None  # the shards that were finished when it began; None: unknown
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()
        self._ending = threading.Event()
        self._has_file = False  # there was one, or is now
        self._has_warned = False
        # There were shards half replaced when it began: they are finished first, and a list from before lacks that.
        self._is_late = True

    def start(self, finished: Collection[int]) -> None:
        """`finished` are the shards that exist before the run: to list a store again takes minutes for a million."""
        self._before = frozenset(finished)

    def begin(self, job: ShardJob) -> None:
        """Note a job down, before a worker gets it."""
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        with self._lock:
            self._uncertain.add(job.shard_id)
            self._touched.add(job.shard_id)
            if job.redo is not None:
                self._rewriting.add(job.shard_id)

    def __enter__(self) -> Catalogue:
        with contextlib.suppress(Exception):  # of any file system; whoever needs the folder says so
            self._is_late = self._swaps_are_left()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._changed.set()
        if self._thread is not None:
            self._thread.join()
        ended = error is None or isinstance(error, IncompleteRun)
        if ended or (self._has_begun and self._output.is_local):
            self._finish()
        elif self._has_begun:  # a store that does not answer must not keep who wants to stop
            last = threading.Thread(target=self._finish, name="any2ds-catalogue", daemon=True)
            last.start()
            last.join(_CLOSE_TIMEOUT)

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if isinstance(event, ShardReport):
            with self._lock:
                self._uncertain.discard(event.shard_id)
                if event.shard_id in self._rewriting:
                    self._entries.pop(event.shard_id, None)  # it is read
                else:
                    self._entries[event.shard_id] = ShardEntry.of(event)
            self._changed.set()

    def stored_exts(self) -> Mapping[str, int] | None:
        """Extension -> files in all finished shards; None if they cannot be read. The statistics that are read for it
        need not be read when the run ends."""
        found: list[Mapping[str, int]] | None = None
        with self._logging_errors():
            if not self._has_begun:
                self._add_trusted()
            found = [entry.exts for entry in self._now().values()]
        return None if found is None else sum(map(Counter, found), Counter[str]())

    # --- while the run is at work ---

    def _begin(self) -> None:
        """Mark the list as open before a shard can change, or remove it. Raises OutputError if neither works."""
        content = previous = None
        _withdraw_compacted(self._output)
        with self._logging_errors():
            content = self._content()
            previous = self._trusted(_parsed(content))
        if content is not None and previous is not None:
            self._entries.add_all(previous.entries)
            try:
                self._output.write(layout.SHARDS_FILE, shard_list.opened(content))
            except LockLost:
                raise
            except Exception as error:  # every file system has exceptions of its own
                self._withdraw(error)
        if self._output.is_local:
            self._thread = threading.Thread(target=self._keep, name="any2ds-catalogue", daemon=True)
            self._thread.start()

    def _keep(self) -> None:
        """Write after each change, but for no more than a share of the time."""
        while True:
            self._changed.wait()
            if self._ending.is_set():
                return
            self._changed.clear()
            started = time.monotonic()
            with self._logging_errors():
                self._write(is_open=True)
            if self._ending.wait((time.monotonic() - started) / _SHARE):
                return

    def _withdraw(self, error: Exception) -> None:
        """Remove a list that cannot be marked as open."""
        try:
            self._output.remove(layout.SHARDS_FILE)
        except Exception:
            message = f"{layout.SHARDS_FILE}, which is about to be wrong, can be neither written nor removed"
            raise OutputError(f"{self._output.url!r}: {message}: {error_text(error)}") from error

    def _finish(self) -> None:
        with self._logging_errors():
            self._output.guard()
            if not self._has_begun:
                previous, finished = _parsed(self._content()), self._finished()
                if previous is None and not finished:
                    return
                if (trusted := self._trusted(previous)) is not None:
                    has_all = all(map(self._output.exists, tfds.names_for(self._options)))
                    if trusted.entries.keys() == finished and (has_all or not finished):
                        return
                    self._entries.add_all(trusted.entries)
            self._write(is_open=self._swaps_are_left())

    def _add_trusted(self) -> None:
        """Take over the entries of the list that an earlier run has closed."""
        if (trusted := self._trusted(_parsed(self._content()))) is not None:
            self._entries.add_all(trusted.entries)

    def _write(self, is_open: bool) -> None:
        entries = self._now()
        if not (entries or self._has_file):
            return
        self._has_file = True
        is_open = not self._write_files(entries) or is_open
        self._output.write(layout.SHARDS_FILE, shard_list.to_json(entries.values(), self._options, is_open))

    def _write_files(self, entries: ShardEntries) -> bool:
        """The other files, or none where there are no shards. False if one is missing, or may be an old one."""
        wanted, written = set(tfds.names_for(self._options)), set[str]()
        with self._logging_errors():
            if not entries:
                self._output.remove_many(sorted(wanted.intersection(self._output.names())))
                wanted.clear()
            elif wanted:
                for name, content in self._tfds_files([*entries.values()]).items():
                    self._output.write(name, content)
                    written.add(name)
        return written >= wanted

    def _tfds_files(self, entries: Sequence[ShardEntry]) -> Mapping[str, bytes]:
        from any2ds.dataset.recipe_file import RecipeFile  # which most datasets do without

        if (recipe := RecipeFile.of(self._output)) is not None:
            return recipe.tfds_files(entries, self._options)
        return tfds.files(entries, self._options, self._schema(entries))

    # --- the shards that exist ---

    def _swaps_are_left(self) -> bool:
        """Whether shards wait to be replaced, by a process that is gone or a thread that goes on."""
        return bool(self._output.names(layout.SWAP_FOLDER))

    def _trusted(self, previous: ShardList | None) -> ShardList | None:
        """`previous`, the list of an earlier run, if it was closed and nothing happened since."""
        return None if previous is None or previous.is_open or self._is_late else previous

    def _content(self) -> bytes | None:
        """That of the list of an earlier run."""
        content = self._output.read(layout.SHARDS_FILE)
        self._has_file = self._has_file or content is not None
        return content

    def _now(self) -> ShardEntries:
        """The finished shards, in order; those that are unknown or uncertain are read."""
        with self._lock:
            doubtful = set(self._uncertain)
            self._touched = set(doubtful)
        finished = self._finished()
        with self._lock:
            known = self._entries.only(lambda shard_id: shard_id in finished and shard_id not in doubtful)
        found = self._read([n for n in sorted(finished) if n not in known])
        with self._lock:
            self._entries.add_all(found.only(lambda n: n not in self._touched and n not in self._entries))
        known.add_all(found)
        return known.in_order()

    def _finished(self) -> frozenset[int]:
        """The shards that are finished now; uncertain ones are included."""
        if self._before is None or self._output.is_local:
            return self._output.finished_shards()
        with self._lock:
            return self._before.union(self._entries, self._uncertain)

    def _read(self, shards: Sequence[int]) -> ShardEntries:
        """From the stats of `shards`, as far as these can be understood."""
        sizes: Mapping[str, int] | None = None
        extension = plugins.load("writers", self._options.output_format).extension
        found = ShardEntries()
        for start in range(0, len(shards), _STATS_AT_ONCE):
            some = shards[start : start + _STATS_AT_ONCE]
            contents = self._output.read_many([self._names.stats_name(shard_id) for shard_id in some])
            for shard_id, (_, content) in zip(some, contents, strict=True):
                if sizes is None and content is not None and b'"data_bytes"' not in content:
                    sizes = self._output.sizes()  # stats of other tools, and of earlier versions
                with contextlib.suppress(ValueError):  # it counts as missing, as for whoever goes on
                    size = (sizes or {}).get(self._names.data_name(shard_id, extension) or "", 0)
                    found[shard_id] = shard_list.entry_of(shard_id, content, size)
        return found

    def _schema(self, entries: Sequence[ShardEntry]) -> pa.Schema | None:
        """That of the metadata of the last shard: those of other tools, which differ, are the first ones."""
        with contextlib.suppress(Exception):  # of any file system, and of Arrow: whoever needs it does without
            with self._output.open(self._names.metadata_name(entries[-1].shard_id)) as stream:
                schema = pq.read_schema(stream)
            return pa.schema([field.remove_metadata() for field in schema if field.name != "data"])
        return None

    @contextlib.contextmanager
    def _logging_errors(self) -> Iterator[None]:
        """Log whatever goes wrong, as a warning the first time."""
        try:
            yield
        except LockLost:
            log.debug("%s is left to the run that has the folder now", layout.SHARDS_FILE)
        except Exception as error:  # every file system has exceptions of its own
            level = logging.DEBUG if self._has_warned else logging.WARNING
            self._has_warned = True
            log.log(level, "%s cannot be kept up to date: %s", layout.SHARDS_FILE, error_text(error))


def rebuild(output: OutputFolder, options: OutputOptions) -> None:
    """Write the files anew from the stats of all finished shards. By whoever has the folder for itself."""
    catalogue = Catalogue(output, options)
    with catalogue._logging_errors():
        _remove_compacted(output)
        catalogue._content()  # to be replaced, be there shards or not
        catalogue._write(is_open=False)


def _withdraw_compacted(output: OutputFolder) -> None:
    """Remove compacted metadata, which are about to be wrong. Raises OutputError if that does not work."""
    try:
        _remove_compacted(output)
    except (LockLost, OutputError):
        raise
    except Exception as error:  # every file system has exceptions of its own
        message = f"{layout.COMPACT_FOLDER}, which is about to be wrong, cannot be removed: {error_text(error)}"
        raise OutputError(f"{output.url!r}: {message}") from error


def _remove_compacted(output: OutputFolder) -> None:
    """Raises whatever the file system raises."""
    if output.names(layout.COMPACT_FOLDER):
        output.remove(layout.COMPACT_INDEX)
        output.remove_tree(layout.COMPACT_FOLDER)


def _parsed(content: bytes | None) -> ShardList | None:
    """None for what is no list of shards."""
    with contextlib.suppress(ValueError):
        return ShardList.parse(content) if content is not None else None
    return None


def reopen(output: OutputFolder) -> None:
    """Mark the list as open, if there is one: others that make the dataset do not keep it true. Raises OutputError."""
    _withdraw_compacted(output)
    content = output.read(layout.SHARDS_FILE)
    previous = _parsed(content)
    if content is not None and previous is not None and not previous.is_open:
        output.write(layout.SHARDS_FILE, shard_list.opened(content))


def is_closed(output: OutputFolder) -> bool:
    """Whether there is a closed list that has all shards that are finished now."""
    previous = _parsed(output.read(layout.SHARDS_FILE))
    if previous is None or previous.is_open:
        return False
    return previous.entries.keys() >= output.finished_shards()
