"""`retry()`: fetch again what failed in a dataset."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from any2ds.config import presets
from any2ds.config.hashes import hash_columns, outcome_fields
from any2ds.config.media import MediaOptions
from any2ds.config.options import RETRY_GROUPS, ParsedOptions, flat
from any2ds.config.signature import command
from any2ds.core import plugins
from any2ds.core.errors import MissingExtra, OptionError
from any2ds.core.reports import RunReport
from any2ds.dataset.catalogue import Catalogue
from any2ds.dataset.own_code import is_own
from any2ds.dataset.places import located
from any2ds.dataset.run_file import options_of, record_versions, signature_of
from any2ds.run.failed import FailedRows
from any2ds.run.last_report import LastReport
from any2ds.run.ledger import Ledger
from any2ds.run.loop import run
from any2ds.run.reporters._contract import ShardListener
from any2ds.run.reporting import reporters
from any2ds.run.session import check_parts, check_private, check_user_steps, distributing, run_info
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.stores import Stores
from any2ds.storage.swap import no_swap_left
from any2ds.transforms.chain import Pipeline, options_by_step, step_records
from any2ds.worker.worker import ShardWorker

log = logging.getLogger(__name__)


@command(
    RETRY_GROUPS,
    "Returns the figures of the rows that were tried again; `skipped_shards` had none. Raises UsageError if it cannot",
    "start, and IncompleteRun, with the figures, if shards could not be read or written: they are as they were.",
)
def retry(options: ParsedOptions) -> RunReport:
    """Fetch failed rows of the dataset in `output_folder` again, and store what arrives in their place."""
    asked, storage, fetch, running, watch = options.groups
    check_parts(fetch, running, watch)
    asked = located(asked, Stores(storage.storage_options))
    output = OutputFolder.at(asked.output_folder, storage)
    check_private(output, running)
    made, media = options_of(output)
    media = _with_steps(output, media, asked.transform)
    writer = plugins.load("writers", made.output_format)
    columns = _pipeline_of(media).metadata(writer.has_members)
    if media.members is not None:
        columns |= media.members.prefixed({**outcome_fields(made, media.members), **columns})
    check_user_steps(media, running)
    info = run_info("retry", output, flat(options.groups), storage, made, options.config_file)
    with (
        distributing(running) as distributor,
        locked(output, "retry") as lock,
        LastReport(watch, info) as last_report,
        Catalogue(output, made) as catalogue,
        no_swap_left(output),
    ):
        plan = FailedRows(output, made.layout, asked.codes, columns, hash_columns(made), media.members)
        plan.warn_of_unfinished()
        worker = ShardWorker(
            made,
            fetch,
            locks=lock.locks,
            storage=storage,
            media=media,
            limits=running.transform_limits,
            grace=running.grace,
        )
        record_versions(output, step_records(media))
        catalogue.start(plan.shards)
        steps = options_by_step(media, presets.set_by(made.preset))
        info = replace(info, finished=plan.shards, stored_exts=catalogue.stored_exts, steps=steps)
        watching = [*reporters(watch, info, running.quiet), ShardListener(catalogue.on_shard)]
        ledger = Ledger(plan, lock, running.max_shard_retry, catalogue.begin)
        last_report.total = run(worker, distributor, watching, ledger, running.grace)
    return last_report.total


def _with_steps(output: OutputFolder, media: MediaOptions, named: Sequence[Any] | None) -> MediaOptions:
    """The options with the steps that are code of a user: those that the command names, or that this user has recorded.

    Raises OptionError for recorded steps that somebody else may have written, and for other steps than the recorded.
    """
    from any2ds.transforms.steps.user import name_of

    recorded = [name_of(step) for step in media.files.transform or ()]
    if named is None:
        if recorded and not is_own(signature_of(output), output.identity, recorded):
            steps = ",".join(recorded)
            raise OptionError(
                f"{output.url!r} was made with code, {steps}, and you did not make it here, on this machine:"
                f" if you know that code, name it to have it run: --transform={steps}"
            )
        return media
    if (given := [name_of(step) for step in named]) != recorded:
        made = f"with transform={','.join(recorded)}" if recorded else "without steps of your own"
        raise OptionError(f"transform={','.join(given)}: the dataset was made {made}, which a retry cannot change")
    return replace(media, files=replace(media.files, transform=tuple(named)))


def _pipeline_of(media: MediaOptions) -> Pipeline:
    """The steps that the dataset was made with.

    Raises MissingExtra if one of their libraries is not installed, OptionError if a step of the user is missing.
    """
    try:
        return Pipeline(media)
    except MissingExtra as error:
        raise MissingExtra(f"the dataset was made with {error.wanted}, which", error.extra) from error
    except OptionError as error:
        raise OptionError(
            f"the dataset was made with steps that are needed again: {error} (the current folder is {os.getcwd()!r})"
        ) from error
