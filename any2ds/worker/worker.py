"""What every distributor runs: a stream of shard jobs in, a stream of events out.

    jobs ─▶ rows ─▶ fetch ─▶ describe ─▶ transform ─▶ take (order, write) ─▶ publish ─▶ reports

Shards overlap: when the last rows of one wait for slow hosts, rows of the next ones are in flight already.
"""

from __future__ import annotations

import copy
import logging
import math
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from any2ds.config.media import MediaOptions, TransformLimits
from any2ds.config.options import Config, FetchOptions, OutputOptions, StorageOptions
from any2ds.core import plugins
from any2ds.core.errors import BrokenStep, UnfitWorker, UsageError, is_full
from any2ds.core.failures import Failure
from any2ds.core.manifest import with_versions
from any2ds.core.processes import open_files
from any2ds.core.processes.watchdog import LOOK_SECONDS, Watch
from any2ds.core.reports import Event
from any2ds.core.rows import Row, ShardJob
from any2ds.core.samples import Fetched
from any2ds.fetch.policy.limits import process_limit, watchdog_limit
from any2ds.fetch.policy.schedule import transfers_within
from any2ds.storage.folders import OutputFolder
from any2ds.storage.stores import Stores, absolute
from any2ds.transforms.chain import Pipeline, carried, step_records

# What it works with is imported where it works: the run, which only sends it, does without.
if TYPE_CHECKING:
    from any2ds.core.bodies.buffer import Buffer
    from any2ds.fetch.contract import Fetcher
    from any2ds.storage.lock.lock_file import LockRef
    from any2ds.transforms.pipeline import PipelineRunner
    from any2ds.worker.open_shards import OpenShards
    from any2ds.worker.rows import Rows
    from any2ds.worker.steps import Steps

log = logging.getLogger(__name__)

_FEW_TRANSFERS = 256  # with thread_count=auto: fewer than this are worth a word
_CLOSE_TIMEOUT = 5.0  # seconds that a fetcher may take to close
_SHORT_CLOSE_TIMEOUT = 0.5  # and when the run is being stopped
_ROWS_PER_PROCESS = 1000  # that are stored as they come: they take the processor as long as a process takes to begin
_FEW_ROWS = 64  # without an outcome with which a shard may always go on when the run is stopped
_NOT_TRIED = "not tried: the processes that made its shard were stuck"


class ShardWorker:
    """The `Worker` of a run; can be sent anywhere: it carries options, and the files of the user's steps."""

    def __init__(  # a group of options for each of its rooms, by keyword
        self,
        options: OutputOptions,
        fetch: FetchOptions,
        new_fetcher: Callable[[FetchOptions, Buffer], Fetcher] | None = None,
        *,
        locks: tuple[LockRef, ...] = (),
        storage: StorageOptions | None = None,
        media: MediaOptions | None = None,
        limits: TransformLimits | None = None,
        grace: float = math.inf,
    ) -> None:
        """`locks` are those of the `RunLock` without which it publishes nothing. Options come in whole groups.

        `grace`: seconds that it is going to have when it is stopped.
        """
        self._locks, self._grace = locks, grace
        # It may be called in another working directory, on a machine of a cluster.
        self._options = replace(options, output_folder=absolute(options.output_folder))
        self._storage = storage or StorageOptions()
        self._fetch = fetch
        self._media, self._limits = carried(media or MediaOptions()), limits or TransformLimits()
        self._steps = step_records(self._media)
        changes_files = bool(self._media.asked() or self._media.files.transform)
        self.rows_per_process = 1 if changes_files else _ROWS_PER_PROCESS
        self._new_fetcher = new_fetcher
        self._shards: OpenShards | None = None  # while it works
        self._processes = 1  # of its machine that have jobs
        self._machines = 1  # that fetch at the same time
        self._fetcher: Fetcher | None = None  # while it works
        self._stopping = False
        self.patience = process_limit(fetch)
        self.log_level = log.getEffectiveLevel()  # for whatever process it is sent to

    @classmethod
    def of(
        cls,
        config: Config,
        locks: tuple[LockRef, ...],
        new_fetcher: Callable[[FetchOptions, Buffer], Fetcher] | None = None,
    ) -> ShardWorker:
        """That of a run with these options."""
        return cls(
            config.output,
            config.fetch,
            new_fetcher,
            locks=locks,
            storage=config.storage,
            media=config.media,
            limits=config.run.transform_limits,
            grace=config.run.grace,
        )

    def _of_urls(self, fetch: FetchOptions, buffer: Buffer) -> Fetcher:
        from any2ds.fetch.fetcher import UrlFetcher

        return UrlFetcher(fetch, buffer, Stores(self._storage.storage_options), self._machines)

    @property
    def folder(self) -> OutputFolder:
        return OutputFolder.at(self._options.output_folder, self._storage)

    def under(self, locks: tuple[LockRef, ...]) -> ShardWorker:
        worker = copy.copy(self)
        worker._locks = (*self._locks, *locks)
        return worker

    def among(self, machines: int) -> ShardWorker:
        of_hosts = [values.get("max_per_host", math.inf) for values in (self._fetch.hosts or {}).values()]
        most = min(self._fetch.max_per_host, *of_hosts, math.inf)
        if machines > most:
            log.warning(
                "%d machines fetch at the same time, with at least one transfer each: a host may see more than"
                " --max_per_host=%d",
                machines,
                most,
            )
        worker = copy.copy(self)
        worker._machines *= max(1, machines)
        return worker

    @property
    def waiting(self) -> bool:
        return self._shards is not None and self._shards.writing

    def stop(self) -> None:
        self._stopping = True

    def share(self, processes: int) -> None:
        self._processes = processes
        if share := getattr(self._fetcher, "share", None):
            share(processes)

    def _threads(self) -> int:
        """How many are to take files through the steps, now."""
        limits = self._limits
        return -(-limits.threads // self._processes) if limits.is_shared else limits.threads

    def __call__(self, jobs: Iterable[ShardJob]) -> Iterator[Event]:
        from any2ds.core.bodies.buffer import Buffer
        from any2ds.storage.disk.staging import staging
        from any2ds.storage.lock.run_lock import working
        from any2ds.worker.context import ShardContext
        from any2ds.worker.describe import Describe
        from any2ds.worker.open_shards import OpenShards
        from any2ds.worker.rows import Rows
        from any2ds.worker.steps import Steps

        open_files.prepare()
        fetch = self._fetch
        transfers = transfers_within(fetch, open_files.connections())
        wanted = fetch.most_transfers
        if transfers < (min(wanted, _FEW_TRANSFERS) if fetch.thread_count == "auto" else wanted):
            log.warning(
                "at most %d transfers in flight, because only %d files may be open (ulimit -n)",
                transfers,
                open_files.limit(),
            )
        pipeline = self._pipeline()
        writer = plugins.load("writers", self._options.output_format)
        pa.array([])  # its first call imports pandas, if that is installed: 0.2 s, better now than between two turns
        with ExitStack() as stack:
            output = self.folder
            stack.enter_context(working(output, self._locks))
            room = output.staging_room
            with room.watched():
                room.check()
                folder = stack.enter_context(staging(output.staging_root))
            publisher = ThreadPoolExecutor(1, thread_name_prefix="any2ds-publisher")
            buffers = stack.enter_context(ExitStack())  # closed after the shards, which hold bodies
            columns = pipeline.metadata(writer.has_members)
            context = ShardContext(self._options, writer, folder, self._media, columns, pipeline.further)
            most_staged = self._storage.max_staging_bytes
            shards = stack.enter_context(
                closing(OpenShards(context, output, publisher, open_files.open_shards(), most_staged))
            )
            self._shards = shards
            stack.callback(setattr, self, "_shards", None)
            stack.callback(setattr, self, "_fetcher", None)
            rows = Rows(shards.open(jobs))
            new_fetcher = self._new_fetcher or self._of_urls
            steps = Steps(Describe(self._options), self._transforming(pipeline, writer.has_members, stack), shards)
            try:
                while not (rows.ended or self._stopping):
                    # That of a fetcher that was given up stays: copies of a row may still be made from it.
                    buffer = buffers.enter_context(closing(Buffer(fetch.max_buffered_bytes, transfers, str(folder))))
                    yield from self._fetch_with(new_fetcher(fetch, buffer), buffer, rows, shards, steps)
                yield from shards.events(wait=True)
            except Exception as error:
                if is_full(error):
                    yield from shards.break_off()
                    raise room.full(error) from error
                if isinstance(error, BrokenStep):  # it is nobody's shard that is wrong, and none is tried again
                    yield from shards.break_off()
                    raise
                yield from shards.lose(error)
                raise

    def _pipeline(self) -> Pipeline:
        """Raises UnfitWorker if this machine cannot make the steps that the run began with."""
        where = platform.node() or "a worker"
        try:
            pipeline = Pipeline(self._media)
            _, changes = with_versions(self._steps, step_records(self._media))
        except UsageError as error:
            raise UnfitWorker(f"the machine {where} cannot work on this dataset: {error}") from error
        if changes:
            log.warning(
                "%s has other versions of libraries than the run began with (%s): files may differ",
                where,
                "; ".join(changes),
            )
        return pipeline

    def _transforming(self, pipeline: Pipeline, has_members: bool, stack: ExitStack) -> PipelineRunner | None:
        if not pipeline:
            return None
        from any2ds.transforms.isolation import Isolation
        from any2ds.transforms.pipeline import PipelineRunner

        limits = self._limits
        ext = None if self._options.file_ext == "auto" else self._options.file_ext
        isolated = stack.enter_context(closing(Isolation(self._media, limits.timeout)))
        return stack.enter_context(
            closing(PipelineRunner(pipeline, limits, has_members, ext, isolated=isolated, threads=self._threads))
        )

    def _fetch_with(
        self, fetcher: Fetcher, buffer: Buffer, rows: Rows, shards: OpenShards, steps: Steps
    ) -> Iterator[Event]:
        """Fetch until there are no more rows, or `fetcher` is stuck; every row that it took has an outcome then."""
        began = rows.handed, shards.taken
        began_at = time.monotonic()
        self._fetcher = fetcher
        self.share(self._processes)
        watch = Watch(watchdog_limit(self._fetch), time.monotonic())
        next_look = 0.0
        shards.buffer = buffer
        shards.metrics.follow(fetcher, buffer)
        batches = fetcher.fetch(rows.lend())
        try:
            for batch in batches:
                shards.robots += fetcher.robots_cost()
                for fetched in batch:
                    steps.take(fetched, buffer)
                steps.turn(buffer)
                yield from shards.events()
                if shards.record_as_failed:
                    yield from self._fail(shards.rows_to_record_as_failed(), _NOT_TRIED, shards, steps)
                if self._stopping:
                    rows.end()
                    pace = (shards.taken - began[1]) / max(0.001, time.monotonic() - began_at)
                    shards.leave_unfinishable(most=_FEW_ROWS + 2 * pace * self._grace)
                    if not shards.any_open:
                        break
                if (now := time.monotonic()) >= next_look:
                    next_look = now + LOOK_SECONDS
                    activity = shards.taken + shards.activity + buffer.received + fetcher.activity + steps.activity
                    # If no shard is open it can only wait for the list, and is seen to pull.
                    if watch.look(now, activity, shards.any_open or not rows.pulling):
                        break
        finally:
            rows.requeue()
            shards.metrics.detach()
            _close(batches, fetcher, _SHORT_CLOSE_TIMEOUT if self._stopping else _CLOSE_TIMEOUT)
        while steps.pending and (shards.any_open or not self._stopping):
            steps.wait(buffer)
            yield from shards.events()
            if self._stopping:
                shards.leave_unfinishable()
        yield from self._fail(shards.rows_to_record_as_failed(), _NOT_TRIED, shards, steps)
        yield from shards.events()
        if self._stopping:  # what is still open is nobody's fault, and is left to another run
            return
        if rows.error is not None:
            raise rows.error
        if rows.ended and not shards.any_open:
            return
        message = f"nothing has moved for {watch.silent:.0f} s" if watch.silent else "the fetcher ended without it"
        lost = shards.lost_rows()
        log.warning("fetching is stuck: %d rows are recorded as failed (watchdog)", sum(map(len, lost)))
        yield from self._fail(lost, message, shards, steps)
        if (rows.handed, shards.taken) == began:  # it did nothing at all, and nor would the next one
            untouched = shards.lost_rows(fetched=False)
            if not untouched:
                raise RuntimeError("the fetcher takes no rows")
            yield from self._fail(untouched, message, shards, steps)

    def _fail(self, lost: list[list[Row]], message: str, shards: OpenShards, steps: Steps) -> Iterator[Event]:
        """Record rows, which come by shard, as given up."""
        failure = Failure("fetch", "watchdog", message)
        for rows in lost:
            for row in rows:
                steps.take(Fetched(row, failure, 0))
            yield from shards.events()
        while shards.unwritten:
            yield from shards.events()


def _close(batches: Iterator[Sequence[Fetched]], fetcher: Fetcher, close_timeout: float) -> None:
    """Close a fetcher, without waiting long for one that hangs in it: it is left behind then."""

    def close() -> None:
        try:
            if hasattr(batches, "close"):
                batches.close()
            fetcher.close()
        except Exception:
            log.warning("%s could not be closed", type(fetcher).__name__, exc_info=True)

    closer = threading.Thread(target=close, name="any2ds-fetcher-close", daemon=True)
    closer.start()
    closer.join(close_timeout)
    if closer.is_alive():
        log.warning("%s has not closed within %.1f s, and is left behind", type(fetcher).__name__, close_timeout)
