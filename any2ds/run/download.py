"""`download()`: from a URL list to a dataset."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from any2ds.config.options import GROUPS, Config, FetchOptions, ParsedOptions
from any2ds.config.signature import command
from any2ds.core.errors import shard_count
from any2ds.core.reports import RunReport
from any2ds.dataset.shard_list_file import ShardListFile, is_complete
from any2ds.distributors._contract import Distributor
from any2ds.readers.sources import Source
from any2ds.run.last_report import LastReport, write_dataset_files
from any2ds.run.ledger import Ledger, Plan
from any2ds.run.loop import run
from any2ds.run.plan import ShardPlan
from any2ds.run.ranks import Rank, joined, rank_of
from any2ds.run.reporters._contract import Reporter, RunInfo
from any2ds.run.reporting import Reporters
from any2ds.run.segments import prepare
from any2ds.run.session import (
    check_parts,
    check_private,
    check_user_steps,
    checked_steps,
    distributing,
    refuse_clashes,
    run_info,
)
from any2ds.run.user_files import ShardNames, refuse_lists_in_the_way
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.lease import RunLock
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.opening import open_folder
from any2ds.worker.worker import ShardWorker

if TYPE_CHECKING:
    from any2ds.core.bodies.buffer import Buffer
    from any2ds.fetch.contract import Fetcher

log = logging.getLogger(__name__)


@command(
    GROUPS,
    "Returns the figures of the run. Raises UsageError if it cannot start (nothing was created), and",
    "IncompleteRun, with the figures, if shards could not be written or the list broke off.",
    positional=("url_list", "output_folder"),
)
def download(options: ParsedOptions) -> RunReport:
    """Fetch every row of `url_list` and pack the files into shards in `output_folder`.

    `url_list` is
        a Path or one text: files, which are a path, a folder, a glob, or the URL of a list
        a list of texts: URLs, one row each; None, NaN and what is no URL are rows that fail
        … which all exist here or end as lists do (.txt, .csv.gz …), none of them http(s): files
        a list with a Path in it, or any list with input_format: files
        a Series, or an Arrow or NumPy array of texts: URLs, as above
        an Arrow table or stream, a DataFrame, a list of dicts: rows
    """
    return make_dataset(Config.of(options))


def make_dataset(
    config: Config,
    new_fetcher: Callable[[FetchOptions, Buffer], Fetcher] | None = None,
    more: Sequence[Reporter] = (),
) -> RunReport:
    """Run a download with options that are checked. `new_fetcher` makes other fetchers than the usual ones;
    `more` are reporters besides those that the options ask for."""
    rank = rank_of(config.share)
    with _opened(config) as (source, output), distributing(config.run) as distributor:
        info = run_info("download", output, config, config.to_options())
        info = replace(info, member="" if rank.is_alone else rank.name, left_out=source.left_out)
        check_private(output, config.run)
        making = DatasetRun(config, output, distributor, info, new_fetcher, tuple(more))

        def new_plan() -> ShardPlan:
            return ShardPlan(config, source, output, prepare(config, source, output))

        return making.make(new_plan) if rank.is_alone else making.make_share(rank, new_plan)


@contextmanager
def _opened(config: Config) -> Iterator[tuple[Source, OutputFolder]]:
    """The URL list and the output folder, after all that can be checked before anything is created."""
    check_parts(config)
    steps = checked_steps(config)
    output = open_folder(config.output.output_folder, config.storage)
    source = Source.of(config)
    for hint in source.hints:
        log.warning(hint)
    try:
        refuse_clashes(config, steps, source.schema.names)
        check_user_steps(config)
        refuse_lists_in_the_way(output, source, ShardNames.of(config.to_options()))
        yield source, output
    finally:
        with contextlib.suppress(ValueError):  # a thread that ends with us is reading from it
            source.close()


@dataclass(frozen=True, slots=True)
class DatasetRun:
    """The options of a run, the folder of its dataset, and who makes the shards."""

    config: Config
    output: OutputFolder
    distributor: Distributor
    info: RunInfo
    new_fetcher: Callable[[FetchOptions, Buffer], Fetcher] | None = None
    more: tuple[Reporter, ...] = ()

    def make(self, new_plan: Callable[[], Plan]) -> RunReport:
        """Make the shards of a plan, which is made once the folder is locked, and the files about the whole dataset."""
        with (
            locked(self.output, self.info.command) as lock,
            LastReport(self.config.watch, self.info) as last_report,
            ShardListFile(self.output, self.config.output) as shard_list,
        ):
            plan = new_plan()
            shard_list.finished_before = plan.finished
            info = replace(self.info, finished=plan.finished)
            last_report.total = self._run(info, plan, lock, self._worker(lock), shard_list)
        return last_report.total

    def make_share(self, rank: Rank, new_plan: Callable[[], ShardPlan]) -> RunReport:
        """Make the shards of `rank`; the last rank to end with the list writes the files about the whole dataset.

        Shards that another list of the dataset lacks are not waited for: no rank of this list makes them.
        """
        output = self.output
        with joined(output, rank) as lock:
            plan = new_plan()
            ShardListFile(output, self.config.output).mark_open()
            info = replace(self.info, finished=plan.finished, missing=plan.missing)
            report = self._run(info, plan, lock, self._worker(lock).among(rank.world_size))
            if missing := plan.missing():
                log.info("%s left to other ranks, which finish the dataset", shard_count(missing, "is", "are"))
            elif is_complete(output):
                log.info("another rank has finished the dataset")
            else:
                write_dataset_files(self.config.watch, self.info)
                log.info("the list is finished: all of its shards exist")
            return report

    def _worker(self, lock: RunLock) -> ShardWorker:
        return ShardWorker.of(self.config, lock.locks, self.new_fetcher)

    def _run(
        self,
        info: RunInfo,
        plan: Plan,
        lock: RunLock,
        worker: ShardWorker,
        shard_list: ShardListFile | None = None,
    ) -> RunReport:
        running = self.config.run
        watching = Reporters(self.config.watch, info, running.quiet, self.more)
        ledger = Ledger(plan, lock, running.max_shard_retry, shard_list)
        return run(worker, self.distributor, watching, ledger, running.grace)
