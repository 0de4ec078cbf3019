"""`retry()`: fetch again what failed in a dataset. The failed rows are a list of their own, made into new shards."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from any2ds.config import presets
from any2ds.config.hashes import hash_columns, outcome_fields
from any2ds.config.media import MediaOptions
from any2ds.config.options import RETRY_GROUPS, OutputOptions, ParsedOptions, flat
from any2ds.config.signature import command
from any2ds.core import layout, plugins
from any2ds.core.errors import DamagedShard, MissingExtra, OptionError, OutputError, shard_count
from any2ds.core.manifest import URLS, Beginning, Ending, Manifest, Segment, row_urls, urls_sha256, with_versions
from any2ds.core.reports import RunReport
from any2ds.core.rows import JOB_COLUMNS, KEY_COLUMN, ShardJob
from any2ds.dataset.own_code import is_own
from any2ds.dataset.places import located
from any2ds.dataset.run_file import begin_segment, manifest_of, options_in, warn_of_versions
from any2ds.dataset.shard_list_file import ShardListFile
from any2ds.readers.plan import job_of
from any2ds.run.last_report import LastReport
from any2ds.run.ledger import Ledger
from any2ds.run.loop import run
from any2ds.run.monitor import Outlook
from any2ds.run.reporting import Reporters
from any2ds.run.retried import FailedRows, RetriedRows, rows_of
from any2ds.run.session import check_parts, check_private, check_user_steps, distributing, run_info
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.opening import open_folder
from any2ds.storage.stores import Stores
from any2ds.transforms.chain import Pipeline, step_records, steps_by_option
from any2ds.worker.worker import ShardWorker

log = logging.getLogger(__name__)


@command(
    RETRY_GROUPS,
    "Returns the figures of the rows that were tried again. Raises UsageError if it cannot start, and IncompleteRun,",
    "with the figures, if shards could not be read or written.",
)
def retry(options: ParsedOptions) -> RunReport:
    """Fetch failed rows of the dataset in `output_folder` again, into new shards behind the others."""
    asked, storage, fetch, running, watch = options.groups
    check_parts(fetch, running, watch)
    asked = located(asked, Stores(storage.storage_options))
    output = open_folder(asked.output_folder, storage)
    check_private(output, running)
    manifest = manifest_of(output)
    made, media = options_in(manifest, output)
    media = _with_steps(output, manifest, media, asked.transform)
    columns = _own_columns(made, media)
    check_user_steps(media, running)
    info = run_info("retry", output, flat(options.groups), storage, made, options.config_file)
    with (
        distributing(running) as distributor,
        locked(output, "retry") as lock,
        LastReport(watch, info) as last_report,
        ShardListFile(output, made) as shard_list,
    ):
        plan = _planned(output, media, asked.codes, columns)
        worker = ShardWorker(
            made,
            fetch,
            locks=lock.locks,
            storage=storage,
            media=media,
            limits=running.transform_limits,
        )
        shard_list.finished_before = plan.finished
        steps = steps_by_option(media, presets.set_by(made.preset))
        info = replace(info, finished=plan.finished, stored_exts=shard_list.stored_exts, steps=steps)
        watching = Reporters(watch, info, running.quiet, on_shard=shard_list.on_shard)
        ledger = Ledger(plan, lock, running.max_shard_retry, shard_list.begin)
        last_report.total = run(worker, distributor, watching, ledger, running.grace)
    return last_report.total


class RetryPlan:
    """Makes jobs of the shards of retries that are not finished."""

    def __init__(
        self,
        output: OutputFolder,
        manifest: Manifest,
        segments: Sequence[Segment],
        url_columns: Sequence[str],
        damaged: Sequence[tuple[int, str]] = (),
    ) -> None:
        """`damaged` are shards whose failed rows are unknown, and why."""
        self._output, self._damaged = output, damaged
        self._url_columns = url_columns
        self._retried = RetriedRows(output, manifest)
        self.finished = output.finished_shards()
        self.shards: Collection[int] = self.finished
        self.skipped = 0
        self._spans = [(each, range(each.first_shard, each.end or 0)) for each in segments]
        rows_per_shard = manifest.layout.rows_per_shard
        done = (each.rows_in(n, rows_per_shard) or 0 for each, span in self._spans for n in self.finished if n in span)
        self._rows = sum(each.rows or 0 for each in segments) - sum(done)
        self._planned = 0  # rows

    def jobs(self) -> Iterator[ShardJob]:
        """Raises DamagedShard at the end if there are damaged shards; these are left as they are."""
        missing = ((each, n) for each, span in self._spans for n in span if n not in self.finished)
        for segment, shard_id in missing:
            with rows_of(self._output, segment) as file:
                rows = file.read_row_group(shard_id - segment.first_shard)
            self._planned += rows.num_rows
            settled = self._retried.taken_from(segment.number, rows[KEY_COLUMN].to_pylist())
            batches = rows.combine_chunks().to_batches()
            schema = pa.schema([field for field in rows.schema if field.name not in JOB_COLUMNS])
            fingerprint = urls_sha256(row_urls(batch, self._url_columns) for batch in batches)
            yield job_of(shard_id, batches, schema, fingerprint, settled)
        if self._damaged:
            first, why = self._damaged[0]
            count = shard_count(len(self._damaged), "was", "were")
            raise DamagedShard(f"{count} left alone, the first ({first}): {why}")

    def outlook(self) -> Outlook:
        """How much there is to do. Called from any thread."""
        return Outlook(self._rows, self._planned)


def _planned(
    output: OutputFolder, media: MediaOptions, codes: Collection[str], own_columns: Collection[str]
) -> RetryPlan:
    """Go on with retries that are not finished, or begin one of the rows that have failed with one of `codes`.

    Raises OutputError if no shard is finished, or where the dataset may still get shards of its list.
    """
    manifest, finished = manifest_of(output), output.finished_shards()
    members = media.members
    url_columns = members.url_columns if members is not None else URLS
    if not finished:
        raise OutputError(f"{output.url!r} holds no finished shard")
    if (end := manifest.end) is None:
        raise OutputError(
            f"{output.url!r} is not finished: run the original download command to complete it, then retry. Nothing "
            "was changed"
        )
    _, changes = with_versions(manifest.steps, step_records(media))
    if changes:
        warn_of_versions(output.url, changes)
    retries = [each for each in manifest.segments if each.kind == "retry"]
    if any(n not in finished for each in retries for n in range(each.first_shard, each.end or 0)):
        log.info("going on with the retry that was interrupted")
        return RetryPlan(output, manifest, retries, url_columns)
    if missing := end - sum(n < end for n in finished):
        log.warning(
            "%s: run the original download command to complete them", shard_count(missing, "is not finished", "are not")
        )
    failed = FailedRows(output, manifest, codes, own_columns)
    with output.staging() as folder:
        path = folder / "rows"
        rows = failed.write(finished, path)
        if not rows:
            return RetryPlan(output, manifest, (), url_columns, failed.damaged)
        number = len(manifest.segments)
        output.publish({layout.segment_file(number, layout.SEGMENT_ROWS): path})
    are_full = all(count == manifest.layout.rows_per_shard for count in rows[:-1])
    segment = Segment(
        number,
        end,
        (),
        Beginning(0, ""),
        kind="retry",
        cut="list" if are_full else "file",
        list_number=number,
        steps=step_records(media),
        ending=Ending(sum(rows), len(rows)),
    )
    begin_segment(output, segment)
    manifest = manifest.with_segment(segment)
    return RetryPlan(output, manifest, (segment,), url_columns, failed.damaged)


def _own_columns(made: OutputOptions, media: MediaOptions) -> set[str]:
    """The columns of the metadata that hashes and steps fill, besides those of every dataset."""
    writer = plugins.load("writers", made.output_format)
    columns = _pipeline_of(media).metadata(writer.has_members)
    if media.members is not None:
        columns |= media.members.prefixed({**outcome_fields(made, media.members), **columns})
    return {*columns, *hash_columns(made)}


def _with_steps(
    output: OutputFolder, manifest: Manifest, media: MediaOptions, named: Sequence[Any] | None
) -> MediaOptions:
    """The options with the steps that are code of a user: those that the command names, or that this user has recorded.

    Raises OptionError for recorded steps that somebody else may have written, and for other steps than the recorded.
    """
    from any2ds.transforms.steps.user import name_of

    recorded = [name_of(step) for step in media.files.transform or ()]
    if named is None:
        if recorded and not is_own(manifest.signature, output.identity, recorded):
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
