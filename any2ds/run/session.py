"""What download, retry and finish share: checks before anything is created, the distributor, what reporters know."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from any2ds.config.media import MediaOptions
from any2ds.config.options import FetchOptions, OutputOptions, RunOptions, StorageOptions, public
from any2ds.config.watch import WatchOptions
from any2ds.core import plugins
from any2ds.core.errors import OutputError, UsageError
from any2ds.core.processes import quieting
from any2ds.core.processes.signals import is_own_process
from any2ds.distributors._contract import Distributor
from any2ds.fetch.routes import check
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporting import check_reporters
from any2ds.storage.folders import OutputFolder
from any2ds.storage.stores import Stores

if TYPE_CHECKING:
    from any2ds.dataset.thumbnails import Thumbnail

log = logging.getLogger(__name__)


def check_parts(fetch: FetchOptions, running: RunOptions, watch: WatchOptions) -> None:
    """Set the log level, then check reporters, distributor and fetcher before anything is created.

    Raises UsageError if one of them is not available, or cannot do what the options ask for.
    """
    logging.getLogger("any2ds").setLevel(running.log_level.upper())
    check_reporters(watch)
    if running.distributor != "multiprocessing" and is_own_process() and quieting.is_wanted():
        quieting.be_quiet()  # child processes always are; clusters log much
    distributor = plugins.load("distributors", running.distributor)
    if hasattr(distributor, "check"):
        distributor.check(running)
    check(fetch)


def check_private(output: OutputFolder, running: RunOptions) -> None:
    """Raises OutputError if worker processes could not see `output`."""
    if output.is_private and running.distributor != "inline":
        raise OutputError(f"{output.url!r} exists in this process only: it needs --distributor=inline")


def check_user_steps(media: MediaOptions, running: RunOptions) -> None:
    """Raises OptionError for a step of the user that cannot be created. On a cluster only its workers can check."""
    if media.files.transform and running.is_on_this_machine:
        from any2ds.transforms.steps.user import check_made

        check_made(media.files.transform, running.transform_timeout, running.distributor == "inline")


@contextmanager
def distributing(running: RunOptions) -> Iterator[Distributor]:
    """The distributor that the options ask for."""
    distributor: Distributor = plugins.load("distributors", running.distributor)(running)
    try:
        yield distributor
    finally:
        if hasattr(distributor, "close"):
            distributor.close()


def run_info(
    command: Literal["download", "retry", "finish"],
    output: OutputFolder,
    options: Mapping[str, Any],
    storage: StorageOptions,
    made: OutputOptions,
) -> RunInfo:
    """What reporters know of the run before it begins; `made` says how the dataset is made."""
    return RunInfo(
        command,
        output,
        public(options),
        storage,
        output.identity,
        made,
        samples=_samples(output, storage),
        from_shell=is_own_process(),
    )


def _samples(output: OutputFolder, storage: StorageOptions) -> Callable[[int], Sequence[Thumbnail]]:
    """`RunInfo.samples`."""

    def samples(count: int) -> Sequence[Thumbnail]:
        from any2ds.dataset.shard_sample import ShardSample
        from any2ds.dataset.thumbnails import thumbnails

        try:
            return thumbnails(ShardSample.of(output.url, Stores(storage.storage_options)), count)
        except UsageError as error:
            log.debug("there are no samples to show: %s", error)
            return ()

    return samples
