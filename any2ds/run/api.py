"""`download()`: the way from a url list to a dataset, as a flow; and `retry()`, from a dataset to a better one."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import MISSING, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from any2ds.config import presets
from any2ds.config.hashes import hash_columns
from any2ds.config.media import MediaOptions
from any2ds.config.options import (
    GROUPS,
    RETRY_GROUPS,
    Config,
    FinishOptions,
    OutputOptions,
    RunOptions,
    StorageOptions,
    flat,
    parse_options,
    public,
)
from any2ds.config.signature import document
from any2ds.config.watch import WatchOptions
from any2ds.core import plugins
from any2ds.core.errors import MissingExtra, OptionError, ReadError, UsageError, shard_count
from any2ds.core.layout import Layout
from any2ds.core.processes import quieting
from any2ds.core.processes.signals import is_own_process
from any2ds.core.reports import IncompleteRun, RunReport, ShardError
from any2ds.core.rows import ShardJob
from any2ds.core.samples import METADATA, taken_extensions
from any2ds.dataset.catalogue import Catalogue, is_closed, rebuild, reopen
from any2ds.dataset.run_file import options_of, record_versions
from any2ds.distributors._contract import Distributor
from any2ds.fetch.routes import check
from any2ds.readers.dedupe import mark_duplicates
from any2ds.readers.plan import Cut, State, plan
from any2ds.readers.sources import Source
from any2ds.run.claims import Claims, is_claiming
from any2ds.run.completion import Completion
from any2ds.run.failed import Failed
from any2ds.run.fenced import FencedDistributor
from any2ds.run.last_report import LastPage
from any2ds.run.loop import run
from any2ds.run.ranks import Member, is_alone, joined, rank_of, whole
from any2ds.run.reporters._contract import Reporter, RunInfo
from any2ds.run.reporting import check_reporters, reporters
from any2ds.run.resume.resume import Finished, prepare, refuse_private
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.run_lock import Guard, RunLock, locked
from any2ds.storage.stores import Stores
from any2ds.storage.swap import finish_swaps, no_swap_left
from any2ds.transforms.chain import Pipeline, step_records
from any2ds.transforms.steps.user import check_made, check_travels
from any2ds.worker.worker import ShardWorker

if TYPE_CHECKING:
    from any2ds.dataset.thumbnails import Thumbnail

log = logging.getLogger(__name__)


def download(url_list: Any = None, output_folder: Any = MISSING, **options: Any) -> RunReport:
    """Fetch every row of `url_list` and pack the files into shards in `output_folder`.

    `url_list` is
        a Path or one text: files, which are a path, a folder, a glob, or the URL of a list
        a list of texts: URLs, one row each; None, NaN and what is no URL are rows that fail
        … which all exist here or end as lists do (.txt, .csv.gz …), none of them http(s): files
        a list with a Path in it, or any list with input_format: files
        a Series, or an Arrow or NumPy array of texts: URLs, as above
        an Arrow table or stream, a DataFrame, a list of dicts: rows
    """
    given = options if url_list is None else {"url_list": url_list, **options}
    config = Config.from_options(given if output_folder is MISSING else {"output_folder": output_folder, **given})
    member = rank_of(config.share)
    claiming = is_claiming(config.share, config.run)
    with _opened(config) as (source, output), _distributing(config.run) as distributor:
        told = _told("download", output, config.to_options(), config.storage, config.output)
        claims = Claims(output, config) if claiming else None
        if claims is not None:
            member = claims.member
        if member is not None:
            return _take_part(config, source, output, distributor, member, told, claims)
        with (
            locked(output, "download") as lock,
            LastPage(config.watch, told) as page,
            Catalogue(output, config.output) as catalogue,
            no_swap_left(output),
        ):
            finished = prepare(output, config, source)
            jobs = catalogue.begun(_jobs(config, source, finished), finished.before)
            return _make(config, source, finished, jobs, distributor, lock, told, [catalogue, page])


def _take_part(
    config: Config,
    source: Source,
    output: OutputFolder,
    distributor: Distributor,
    member: Member,
    told: RunInfo,
    claims: Claims | None = None,
) -> RunReport:
    """`download` by one of several that make the dataset together; the last of them sees to what tells of the whole."""
    refuse_private(output, config.run)
    owns = member.owns or (lambda shard_id: False)
    told = replace(told, member=member.name)
    with joined(output, member) as lock, closing(claims) if claims is not None else nullcontext():
        with whole(output, lock, "join", member):
            finish_swaps(output, owns)
            if claims is not None:
                claims.begin(lock)
            finished = prepare(output, config, source, member, lambda: is_alone(output, member))
            reopen(output, config.output)
        output.guard = Guard(output, lock.holds)
        try:
            with no_swap_left(output, owns):
                report = _make_share(config, source, finished, distributor, lock, told, claims)
        except IncompleteRun:
            _record(output, lock, member, finished)
            raise
        _record(output, lock, member, finished)
        if missing := finished.missing():
            log.info("%s left to others, and so is the end", shard_count(len(missing), "is", "are"))
            return report
        with whole(output, lock, "finish", member):
            if is_closed(output, config.output):
                log.info("another one has finished the dataset")
            else:
                _tell_of_all(output, config.output, config.watch, told)
                log.info("the dataset is finished: all of its shards are there")
            if claims is not None:
                claims.clear(finished.all)
        return report


def _make_share(
    config: Config,
    source: Source,
    finished: Finished,
    distributor: Distributor,
    lock: RunLock,
    told: RunInfo,
    claims: Claims | None,
) -> RunReport:
    """The shards of a rank; or, with `claims`, those that others do not have, and what they leave."""
    if claims is None:
        return _make(config, source, finished, _jobs(config, source, finished), distributor, lock, told)

    def again(state: Callable[[int, int], State]) -> Iterator[ShardJob]:
        with closing(Source.of(config)) as anew:
            if anew.list_files != source.list_files:
                raise ReadError("its first row", "the url list has changed since the run began")
            yield from _planned(config, anew, finished, state)

    rest = partial(claims.rest, again=again if source.can_be_read_again else None)
    jobs = claims.paced(_jobs(config, source, finished, claims.asked(finished)), lambda: finished.outlook(source))
    return _make(config, source, finished, jobs, claims.told(distributor), lock, told, rest=rest)


def _record(output: OutputFolder, lock: RunLock, member: Member, finished: Finished) -> None:
    """Tell others where the list ends."""
    if not finished.is_recorded:
        with whole(output, lock, "finish", member):
            finished.record()


def _jobs(
    config: Config, source: Source, finished: Finished, state: Callable[[int, int], State] | None = None
) -> Iterator[ShardJob]:
    """What is to be made of the list; `state` is asked instead of `finished`, which it asks."""
    return finished.noted(_planned(config, source, finished, state or finished, finished.check))


def _planned(
    config: Config,
    source: Source,
    finished: Finished,
    state: Callable[[int, int], State],
    check: Callable[[Cut], object] | None = None,
) -> Iterator[ShardJob]:
    names = Layout(config.output.number_sample_per_shard, config.output.oom_shard_count)
    rows, schema = source.batches(ends=finished.by_file), source.schema
    first, by_file = finished.first_shard, finished.by_file
    if config.output.dedupe == "run":
        rows, schema = mark_duplicates(rows, schema, names, first, config.media)
    return plan(rows, schema, names.rows_per_shard, state, first, by_file, check)


def _make(
    config: Config,
    source: Source,
    finished: Finished,
    jobs: Iterator[ShardJob],
    distributor: Distributor,
    lock: RunLock,
    told: RunInfo,
    more: Sequence[Reporter] = (),
    rest: Callable[[Sequence[ShardError]], Iterator[ShardJob] | None] | None = None,
) -> RunReport:
    """Run the jobs; `more` are told of it, besides those that the options ask for; `rest` are jobs behind them."""
    worker = ShardWorker(
        config.output,
        config.fetch,
        holds=lock.holds,
        storage=config.storage,
        media=config.media,
        limits=config.run.transform_limits,
    )
    told = replace(told, finished=finished.before, missing=finished.missing)
    tell = [*reporters(config.watch, told, config.run.quiet), *more]
    watched = FencedDistributor(distributor, lock)
    return run(worker, jobs, watched, tell, finished, config.run, lambda: finished.outlook(source), rest)


def _tell_of_all(output: OutputFolder, made: OutputOptions, watch: WatchOptions, told: RunInfo) -> None:
    """Write what tells of the dataset as a whole."""
    with LastPage(watch, told) as page:
        rebuild(output, made)
        page.on_finish(RunReport(shards=1))


def finish(output_folder: Any = None, **options: Any) -> Completion:
    """Write the files that tell of a dataset as a whole, which runs that make it together leave to the last of them."""
    given = options if output_folder is None else {"output_folder": output_folder, **options}
    (asked,) = parse_options(given, [FinishOptions]).groups
    storage = StorageOptions(storage_options=asked.storage_options)
    output = OutputFolder.at(asked.output_folder, storage)
    made, _ = options_of(output)
    told = _told("finish", output, flat([asked]), storage, made)
    with locked(output, "finish"), no_swap_left(output):
        _tell_of_all(output, made, WatchOptions(report=asked.report), told)
        return Completion.of(output)


def retry(output_folder: Any = None, **options: Any) -> RunReport:
    """Fetch rows of the dataset in `output_folder` again that have failed, and put what arrives in its place there."""
    given = options if output_folder is None else {"output_folder": output_folder, **options}
    groups = parse_options(given, RETRY_GROUPS).groups
    asked, storage, fetch, running, watch = groups
    logging.getLogger("any2ds").setLevel(running.log_level.upper())
    check(fetch)
    output = OutputFolder.at(asked.output_folder, storage)
    refuse_private(output, running)
    made_with, media = options_of(output)
    writer = plugins.load("writers", made_with.output_format)
    columns = _pipeline_again(media).metadata(writer.has_members)
    check_reporters(watch)
    _check_distributor(running)
    _check_made(media, running)
    told = _told("retry", output, flat(groups), storage, made_with)
    with (
        _distributing(running) as distributor,
        locked(output, "retry") as lock,
        LastPage(watch, told) as page,
        Catalogue(output, made_with) as catalogue,
        no_swap_left(output),
    ):
        names = Layout(made_with.number_sample_per_shard, made_with.oom_shard_count, made_with.preset is not None)
        failed = Failed(output, names, asked.codes, columns, hash_columns(made_with))
        if failed.unfinished:
            count, first = len(failed.unfinished), min(failed.unfinished)
            log.warning(
                "%d shards are not finished, the first is %d: the command that began them makes them", count, first
            )
        worker = ShardWorker(
            made_with, fetch, holds=lock.holds, storage=storage, media=media, limits=running.transform_limits
        )
        record_versions(output, step_records(media))
        jobs = catalogue.begun(failed.jobs(), failed.shards)
        told = replace(told, finished=failed.shards)
        tell = [*reporters(watch, told, running.quiet), catalogue, page]
        return run(worker, jobs, FencedDistributor(distributor, lock), tell, failed, running, failed.outlook)


@contextmanager
def _opened(config: Config) -> Iterator[tuple[Source, OutputFolder]]:
    """Both ends of the way."""
    logging.getLogger("any2ds").setLevel(config.run.log_level.upper())
    # So that a missing extra, or step, is told before anything is made:
    writer = plugins.load("writers", config.output.output_format)
    check_reporters(config.watch)
    _check_distributor(config.run)
    pipeline = Pipeline(config.media, presets.set_by(config.output.preset))
    _check_file_ext(config, writer.has_members, pipeline)
    if config.run.distributor != "inline":
        check_travels(config.files.transform or ())
    check(config.fetch)
    output = OutputFolder.at(config.output.output_folder, config.storage)
    source = Source.of(config)
    for hint in source.hints:
        log.warning(hint)
    try:
        of_files = config.output.data_column if config.output.output_format == "parquet" else None
        pipeline.refuse_clashes(source.schema.names, writer.has_members, of_files)
        _check_made(config.media, config.run)
        yield source, output
    finally:
        with contextlib.suppress(ValueError):  # it is being read at this moment, in a thread that ends with us
            source.close()


def _samples(output: OutputFolder, storage: StorageOptions) -> Callable[[int], Sequence[Thumbnail]]:
    """`RunInfo.samples`."""

    def samples(count: int) -> Sequence[Thumbnail]:
        from any2ds.dataset.shard_sample import Survey
        from any2ds.dataset.thumbnails import thumbnails

        try:
            return thumbnails(Survey.of(output.url, Stores(storage.storage_options)), count)
        except UsageError as error:
            log.debug("there are no samples to show: %s", error)
            return ()

    return samples


def _told(
    command: Literal["download", "retry", "finish"],
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
    """The steps that a dataset was made with. Raises MissingExtra if a library of theirs is not installed, OptionError
    if one of the user's own is not there any more."""
    try:
        return Pipeline(media)
    except MissingExtra as error:
        raise MissingExtra(f"the dataset was made with {error.wanted}, which", error.extra) from error
    except OptionError as error:
        raise OptionError(
            f"the dataset was made with steps that are needed again: {error} (the folder at hand is {os.getcwd()!r})"
        ) from error


def _check_file_ext(config: Config, has_members: bool, pipeline: Pipeline) -> None:
    """Raises OptionError if all files are to have an extension that other members of a sample have."""
    ext, has_captions = config.output.file_ext, config.input.caption_col is not None
    if ext.lower() not in taken_extensions(has_members, has_captions, pipeline.further):
        return
    whose = "metadata" if ext.lower() == METADATA else "caption" if has_captions else "text that a step adds"
    raise OptionError(
        f"file_ext={ext}: with output_format={config.output.output_format} .{ext.lower()} is the extension of the"
        f" {whose}: choose another one"
    )


def _check_made(media: MediaOptions, running: RunOptions) -> None:
    """Raises OptionError for a step that is a class that cannot be made. Only workers of a cluster can tell theirs."""
    if running.is_on_this_machine:
        check_made(media.files.transform or (), running.transform_timeout, running.distributor == "inline")


def _check_distributor(running: RunOptions) -> None:
    """Raises UsageError if the part cannot be had, or cannot do what the options ask for."""
    if running.distributor != "multiprocessing" and is_own_process() and quieting.is_wanted():
        quieting.be_quiet()  # its child processes are anyway; those of clusters have much to say
    part = plugins.load("distributors", running.distributor)
    if hasattr(part, "check"):
        part.check(running)


@contextmanager
def _distributing(running: RunOptions) -> Iterator[Distributor]:
    distributor: Distributor = plugins.load("distributors", running.distributor)(running)
    try:
        yield distributor
    finally:
        if hasattr(distributor, "close"):
            distributor.close()


document(
    download,
    GROUPS,
    RunReport,
    "Returns the figures of the run. Raises UsageError if it cannot start (nothing was created), and",
    "IncompleteRun, with the figures, if shards could not be written or the list broke off.",
)
document(
    finish,
    [FinishOptions],
    Completion,
    "Returns which shards are finished. Raises UsageError if there is no dataset, or others are at work in it.",
)
document(
    retry,
    RETRY_GROUPS,
    RunReport,
    "Returns the figures of the rows that were tried again; `skipped_shards` had none. Raises UsageError if it cannot",
    "start, and IncompleteRun, with the figures, if shards could not be read or written: they are as they were.",
)
