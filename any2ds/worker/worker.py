"""The worker that every distributor runs: a stream of shard jobs in, a stream of events out.

    jobs ─▶ rows ─▶ fetch ─▶ describe ─▶ transform ─▶ add (order, write) ─▶ publish ─▶ reports

Shards overlap: when the last rows of one wait for slow hosts, rows of the next ones are in flight already.
"""

from __future__ import annotations

import copy
import logging
import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from any2ds.config.media import MediaOptions, TransformLimits
from any2ds.config.options import Config, FetchOptions, OutputOptions, StorageOptions
from any2ds.core import plugins
from any2ds.core.errors import UnfitWorker, UsageError, is_full
from any2ds.core.manifest import with_versions
from any2ds.core.processes import open_files
from any2ds.core.reports import Event
from any2ds.core.rows import ShardJob
from any2ds.fetch.policy.hosts import UNLIMITED
from any2ds.fetch.policy.limits import process_limit, watchdog_limit
from any2ds.fetch.policy.schedule import transfers_within
from any2ds.storage.folders import OutputFolder
from any2ds.storage.opening import open_folder
from any2ds.storage.stores import Stores, absolute
from any2ds.transforms.chain import Pipeline, carried, step_records

# Modules that a working worker needs are imported in `__call__`: the run, which only sends it, does without.
if TYPE_CHECKING:
    from any2ds.core.bodies.buffer import Buffer
    from any2ds.core.layout import Layout
    from any2ds.fetch.contract import Fetcher
    from any2ds.storage.lock.lock_file import LockRef
    from any2ds.transforms.pipeline import PipelineRunner
    from any2ds.worker.open_shards import OpenShards

log = logging.getLogger(__name__)

_FEW_TRANSFERS = 256  # with thread_count=auto: fewer than this are worth a word
ROWS_PER_PROCESS = 1000  # that are stored as they come: they take the processor as long as a process takes to begin


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
    ) -> None:
        """`locks` are those of the `RunLock` without which it publishes nothing. Options come in whole groups."""
        self._locks = locks
        # A worker may be called in another working directory, on a machine of a cluster.
        self._options = replace(options, output_folder=absolute(options.output_folder))
        self._storage = storage or StorageOptions()
        self._fetch = fetch
        self._media, self._limits = carried(media or MediaOptions()), limits or TransformLimits()
        self._steps = step_records(self._media)
        changes_files = bool(self._media.asked() or self._media.files.transform)
        self.rows_per_process = 1 if changes_files else ROWS_PER_PROCESS
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
        """The worker of a run with these options."""
        return cls(
            config.output,
            config.fetch,
            new_fetcher,
            locks=locks,
            storage=config.storage,
            media=config.media,
            limits=config.run.transform_limits,
        )

    def _of_urls(self, fetch: FetchOptions, buffer: Buffer) -> Fetcher:
        from any2ds.fetch.fetcher import UrlFetcher

        return UrlFetcher(fetch, buffer, Stores(self._storage.storage_options), self._machines)

    @property
    def folder(self) -> OutputFolder:
        return open_folder(self._options.output_folder, self._storage)

    @property
    def layout(self) -> Layout:
        return self._options.layout

    def under(self, locks: tuple[LockRef, ...]) -> ShardWorker:
        worker = copy.copy(self)
        worker._locks = (*self._locks, *locks)
        return worker

    def among(self, machines: int) -> ShardWorker:
        of_hosts = [values.get("max_per_host", UNLIMITED) for values in (self._fetch.hosts or {}).values()]
        most = min(self._fetch.max_per_host, *of_hosts, UNLIMITED)
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
        return self._shards is not None and self._shards.is_writing

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
        from any2ds.storage.lock.run_lock import working
        from any2ds.worker.context import ShardContext
        from any2ds.worker.describe import Describe
        from any2ds.worker.fetching import Fetching
        from any2ds.worker.open_shards import OpenShards
        from any2ds.worker.steps import Steps
        from any2ds.worker.worker_metrics import MetricsCollector

        open_files.prepare()
        transfers = self._transfers()
        pipeline = self._pipeline()
        writer = plugins.load("writers", self._options.output_format)
        pa.array([])  # its first call imports pandas, if that is installed: 0.2 s, better now than between two turns
        with ExitStack() as stack:
            output = self.folder
            stack.enter_context(working(output, self._locks))
            room = output.staging_room
            with room.watched():
                room.check()
                folder = stack.enter_context(output.staging())
            buffer = stack.enter_context(closing(Buffer(self._fetch.max_buffered_bytes, transfers, str(folder))))
            fetcher = stack.enter_context(closing((self._new_fetcher or self._of_urls)(self._fetch, buffer)))
            self._fetcher = fetcher
            self.share(self._processes)
            columns = pipeline.metadata(writer.has_members)
            context = ShardContext(self._options, writer, folder, self._media, columns, pipeline.further)
            metrics = MetricsCollector(fetcher, buffer, is_remote=not output.is_local)
            bounds = {"most_open": open_files.open_shards(), "most_staged": self._storage.max_staging_bytes}
            shards = stack.enter_context(closing(OpenShards(context, output, buffer, metrics, **bounds)))
            self._shards = shards
            runner = self._transforming(pipeline, writer.has_members, stack)
            steps = Steps(Describe(self._options), runner, shards, buffer, lambda: getattr(fetcher, "queued", 0))
            limit = watchdog_limit(self._fetch)
            fetching = Fetching(fetcher, shards, steps, limit, lambda: self._stopping)
            try:
                yield from fetching.events(jobs)
                yield from shards.events(wait=True)
            except Exception as error:  # the run ends, or other processes make the shards that are open
                yield from shards.break_off()
                if is_full(error):
                    raise room.full(error) from error
                raise
            finally:
                self._shards = self._fetcher = None

    def _transfers(self) -> int:
        """Transfers that may be in flight: fewer than was asked for where not enough files may be open."""
        fetch = self._fetch
        transfers, wanted = transfers_within(fetch, open_files.connections()), fetch.most_transfers
        if transfers < (min(wanted, _FEW_TRANSFERS) if fetch.thread_count == "auto" else wanted):
            log.warning(
                "at most %d transfers in flight, because only %d files may be open (ulimit -n)",
                transfers,
                open_files.limit(),
            )
        return transfers

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
