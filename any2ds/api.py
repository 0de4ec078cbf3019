"""`download()`: the way from a url list to a dataset, as a flow; and `retry()`, from a dataset to a better one."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from any2ds import quieting, recipes, registry
from any2ds.catalogue import Catalogue
from any2ds.config import (
    GROUPS,
    RETRY_GROUPS,
    Config,
    OutputOptions,
    RunOptions,
    StorageOptions,
    flat,
    parse_groups,
    public,
)
from any2ds.dedupe import mark_duplicates
from any2ds.errors import OptionError, UsageError
from any2ds.failed import Failed, options_of
from any2ds.fetch.routes import check
from any2ds.layout import Layout
from any2ds.lock import locked
from any2ds.mediaoptions import MediaOptions
from any2ds.plan import plan
from any2ds.protocols import Distributor, RunInfo
from any2ds.remake.swap import no_swap_left
from any2ds.reporting import check_reporters, reporters
from any2ds.reportpage import LastPage
from any2ds.resume import prepare, refuse_private
from any2ds.run import run
from any2ds.signature import document
from any2ds.sources import Source
from any2ds.stopping import is_own_process
from any2ds.storage import OutputFolder
from any2ds.storage.stores import Stores
from any2ds.transforms import Pipeline
from any2ds.transforms.user import check_travels
from any2ds.types import RunReport
from any2ds.worker import ShardWorker

if TYPE_CHECKING:
    from any2ds.thumbnails import Thumbnail

log = logging.getLogger(__name__)


def download(url_list: Any = None, **options: Any) -> RunReport:
    """Fetch every row of `url_list` and pack the files into shards."""
    config = Config.from_options(options if url_list is None else {"url_list": url_list, **options})
    shown = config.to_options()
    with (
        _opened(config) as (source, output),
        locked(output, "download") as lock,
        LastPage(config.watch, told := _told("download", output, shown, config.storage, config.output)) as page,
        Catalogue(output, config.output) as catalogue,
        no_swap_left(output),
    ):
        finished = prepare(output, config, source)
        names = Layout(config.output.number_sample_per_shard, config.output.oom_shard_count)
        rows, schema = source.batches(ends=finished.by_file), source.schema
        if config.output.dedupe == "run":
            rows, schema = mark_duplicates(rows, schema, names, finished.first_shard, config.media)
        first, by_file = finished.first_shard, finished.by_file
        jobs = plan(rows, schema, names.rows_per_shard, finished, first, by_file, finished.check)
        worker = ShardWorker(
            config.output,
            config.fetch,
            run=lock.run,
            storage=config.storage,
            media=config.media,
            limits=config.run.transform_limits,
        )
        distributor = lock.watched(_distributor(config.run))
        told = replace(told, finished=finished.before)
        return run(
            worker,
            catalogue.begun(finished.noted(jobs), finished.before),
            distributor,
            [*reporters(config.watch, told, config.run.quiet), catalogue, page],
            finished,
            config.run,
            lambda: finished.outlook(source),
        )


def retry(output_folder: Any = None, **options: Any) -> RunReport:
    """Fetch rows of the dataset in `output_folder` again that have failed, and put what arrives in its place there."""
    given = options if output_folder is None else {"output_folder": output_folder, **options}
    groups = parse_groups(given, RETRY_GROUPS)
    asked, storage, fetch, running, watch = groups
    logging.getLogger("any2ds").setLevel(running.log_level.upper())
    check(fetch)
    output = OutputFolder.at(asked.output_folder, storage)
    refuse_private(output, running)
    made_with, media = options_of(output)
    writer = registry.load("writers", made_with.output_format)
    columns = _pipeline_again(media).metadata(writer.has_members)
    check_reporters(watch)
    told = _told("retry", output, flat(groups), storage, made_with)
    with (
        locked(output, "retry") as lock,
        LastPage(watch, told) as page,
        Catalogue(output, made_with) as catalogue,
        no_swap_left(output),
    ):
        failed = Failed(
            output, Layout(made_with.number_sample_per_shard, made_with.oom_shard_count), asked.codes, columns
        )
        if failed.unfinished:
            count, first = len(failed.unfinished), min(failed.unfinished)
            log.warning(
                "%d shards are not finished, the first is %d: the command that began them makes them", count, first
            )
        worker = ShardWorker(
            made_with, fetch, run=lock.run, storage=storage, media=media, limits=running.transform_limits
        )
        distributor = lock.watched(_distributor(running))
        jobs = catalogue.begun(failed.jobs(), failed.shards)
        told = replace(told, finished=failed.shards)
        tell = [*reporters(watch, told, running.quiet), catalogue, page]
        return run(worker, jobs, distributor, tell, failed, running, failed.outlook)


@contextmanager
def _opened(config: Config) -> Iterator[tuple[Source, OutputFolder]]:
    """Both ends of the way."""
    logging.getLogger("any2ds").setLevel(config.run.log_level.upper())
    # So that a missing extra, or step, is told before anything is made:
    writer = registry.load("writers", config.output.output_format)
    check_reporters(config.watch)
    pipeline = Pipeline(config.media, recipes.set_by(config.output.preset))
    if config.run.distributor != "inline":
        check_travels(config.files.transform or ())
    check(config.fetch)
    output = OutputFolder.at(config.output.output_folder, config.storage)
    source = Source.of(config)
    try:
        of_files = config.output.data_column if config.output.output_format == "parquet" else None
        pipeline.refuse_clashes(source.schema.names, writer.has_members, of_files)
        yield source, output
    finally:
        with contextlib.suppress(ValueError):  # it is being read at this moment, in a thread that ends with us
            source.close()


def _samples(output: OutputFolder, storage: StorageOptions) -> Callable[[int], Sequence[Thumbnail]]:
    """`RunInfo.samples`."""

    def samples(count: int) -> Sequence[Thumbnail]:
        from any2ds.survey import Survey
        from any2ds.thumbnails import thumbnails

        try:
            return thumbnails(Survey.of(output.url, Stores(storage.storage_options)), count)
        except UsageError as error:
            log.debug("there are no samples to show: %s", error)
            return ()

    return samples


def _told(
    command: Literal["download", "retry"],
    output: OutputFolder,
    options: Mapping[str, Any],
    storage: StorageOptions,
    made: OutputOptions,
) -> RunInfo:
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


def _pipeline_again(media: MediaOptions) -> Pipeline:
    """The steps that a dataset was made with. Raises OptionError if one of the user's own is not there any more."""
    try:
        return Pipeline(media)
    except OptionError as error:
        raise OptionError(
            f"the dataset was made with steps that are needed again: {error} (the folder at hand is {os.getcwd()!r})"
        ) from error


def _distributor(running: RunOptions) -> Distributor:
    if running.distributor == "inline" and is_own_process() and quieting.is_wanted():
        quieting.be_quiet()  # child processes are anyway
    distributor: Distributor = registry.load("distributors", running.distributor)(running)
    return distributor


document(
    download,
    GROUPS,
    RunReport,
    "Returns the figures of the run. Raises UsageError if it cannot start (nothing was created), and",
    "IncompleteRun, with the figures, if shards could not be written or the list broke off.",
)
document(
    retry,
    RETRY_GROUPS,
    RunReport,
    "Returns the figures of the rows that were tried again; `skipped_shards` had none. Raises UsageError if it cannot",
    "start, and IncompleteRun, with the figures, if shards could not be read or written: they are as they were.",
)
