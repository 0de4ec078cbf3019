"""`retry()`: fetch again what failed in a dataset. The failed rows are a list of their own, made into new shards."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from any2ds.config.datasets import RETRY_GROUPS, RetryOptions
from any2ds.config.media import MediaOptions
from any2ds.config.options import Config, InputOptions, ParsedOptions, ShareOptions, flat
from any2ds.config.signature import command
from any2ds.core import layout
from any2ds.core.errors import DamagedShard, OptionError, OutputError, shard_count
from any2ds.core.manifest import URLS, Beginning, Ending, Manifest, Segment, with_versions
from any2ds.core.members import Members
from any2ds.core.reports import RunReport
from any2ds.core.rows import JOB_COLUMNS, KEY_COLUMN, ShardJob
from any2ds.dataset.own_code import is_own
from any2ds.dataset.places import located
from any2ds.dataset.run_file import begin_segment, manifest_of, options_in, warn_of_versions
from any2ds.readers.plan import Cut
from any2ds.run.download import DatasetRun
from any2ds.run.monitor import Outlook
from any2ds.run.retried import FailedRows, RetriedRows, rows_of
from any2ds.run.session import check_parts, check_private, check_user_steps, checked_steps, distributing, run_info
from any2ds.storage.folders import OutputFolder
from any2ds.storage.opening import open_folder
from any2ds.storage.stores import Stores
from any2ds.transforms.chain import step_records

log = logging.getLogger(__name__)


@command(
    RETRY_GROUPS,
    "Returns the figures of the rows that were tried again. Raises UsageError if it cannot start, and IncompleteRun,",
    "with the figures, if shards could not be read or written.",
)
def retry(options: ParsedOptions) -> RunReport:
    """Fetch failed rows of the dataset in `output_folder` again, into new shards behind the others."""
    asked, storage, fetch, running, watch = options.groups
    asked = located(asked, Stores(storage.storage_options))
    output = open_folder(asked.output_folder, storage)
    check_private(output, running)
    manifest = manifest_of(output)
    made, media = options_in(manifest, output)
    media = _with_steps(output, manifest, media, asked)
    url_list = InputOptions([], url_col=manifest.options["url_col"], require=manifest.options["require"])
    given, words, share = media.given, options.written, ShareOptions()
    config = Config(url_list, made, storage, *media.groups(), fetch, running, share, watch, given, words)
    check_parts(config)
    checked_steps(config)
    check_user_steps(config)
    info = run_info("retry", output, config, flat(options.groups))
    with distributing(running) as distributor:
        return DatasetRun(config, output, distributor, info).make(lambda: _planned(output, media, asked.codes))


class RetryPlan:
    """Makes jobs of the shards of retries that are not finished."""

    def __init__(
        self,
        output: OutputFolder,
        manifest: Manifest,
        finished: Collection[int],
        damaged: Sequence[tuple[int, str]] = (),
    ) -> None:
        """`damaged` are shards whose failed rows are unknown, and why."""
        self._output, self._damaged = output, damaged
        members = Members.of(manifest.options)
        self._url_columns = members.url_columns if members is not None else URLS
        self._retried = RetriedRows(output, manifest)
        self.finished = self.shards = finished
        self.skipped = 0
        self._missing: list[tuple[Segment, int]] = []  # retry, and the group of its rows that a shard is made of
        self._rows = self._planned = 0
        for segment in (each for each in manifest.segments if each.kind == "retry"):
            if any(shard not in finished for shard in range(segment.first_shard, segment.end or 0)):
                with rows_of(output, segment) as file:  # which says how many there are: a number may be absurd
                    groups = [n for n in range(file.num_row_groups) if segment.first_shard + n not in finished]
                    self._missing += [(segment, group) for group in groups]
                    self._rows += sum(file.metadata.row_group(group).num_rows for group in groups)

    @property
    def is_done(self) -> bool:
        """Whether all retries are finished."""
        return not self._missing

    def jobs(self) -> Iterator[ShardJob]:
        """Raises DamagedShard at the end if there are damaged shards; these are left as they are."""
        for segment, group in self._missing:
            with rows_of(self._output, segment) as file:
                rows = file.read_row_group(group)
            self._planned += rows.num_rows
            settled = self._retried.among(rows[KEY_COLUMN].to_pylist(), segment.number)
            schema = pa.schema([field for field in rows.schema if field.name not in JOB_COLUMNS])
            batches = tuple(rows.combine_chunks().to_batches())
            cut = Cut(segment.first_shard + group, 0, rows.num_rows, batches, url_columns=self._url_columns)
            yield cut.job(schema, settled)
        if self._damaged:
            first, why = self._damaged[0]
            count = shard_count(len(self._damaged), "was", "were")
            raise DamagedShard(
                f"{count} left alone, the first ({first}): {why}: any2ds verify --repair puts it back to be made"
            )

    def outlook(self) -> Outlook:
        """How much there is to do. Called from any thread."""
        return Outlook(self._rows, self._planned)


def _planned(output: OutputFolder, media: MediaOptions, codes: Collection[str]) -> RetryPlan:
    """Go on with retries that are not finished, or begin one of the rows that have failed with one of `codes`.

    Raises OutputError if no shard is finished, or where the dataset may still get shards of its list.
    """
    manifest, finished = manifest_of(output), output.finished_shards()
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
    interrupted = RetryPlan(output, manifest, finished)
    if not interrupted.is_done:
        log.info("going on with the retry that was interrupted")
        return interrupted
    if missing := end - sum(n < end for n in finished):
        log.warning(
            "%s: run the original download command to complete them", shard_count(missing, "is not finished", "are not")
        )
    failed, number = FailedRows(output, manifest, codes), len(manifest.segments)
    with output.staging() as folder:
        rows = failed.write(finished, folder / "rows")
        if rows:
            output.publish({layout.segment_file(number, layout.SEGMENT_ROWS): folder / "rows"})
    if rows:
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
    return RetryPlan(output, manifest, finished, failed.damaged)


def _with_steps(output: OutputFolder, manifest: Manifest, media: MediaOptions, asked: RetryOptions) -> MediaOptions:
    """The options with the steps that are code of a user: those that the command names, or that this user has recorded.

    Raises OptionError for recorded steps that somebody else may have written, and for other steps than the recorded.
    """
    from any2ds.transforms.steps.user import name_of

    recorded = [name_of(step) for step in media.files.transform or ()]
    if asked.transform is None:
        if recorded and not is_own(manifest.signature, output.identity, recorded):
            steps = ",".join(recorded)
            raise OptionError(
                f"{output.url!r} was made with code, {steps}, and you did not make it here, on this machine: if you "
                f"know that code, name it to have it run: --transform={steps}"
            )
        return media
    if (given := [name_of(step) for step in asked.transform]) != recorded:
        made = f"with transform={','.join(recorded)}" if recorded else "without steps of your own"
        raise OptionError(f"transform={','.join(given)}: the dataset was made {made}, which a retry cannot change")
    return replace(media, files=replace(media.files, transform=tuple(asked.transform)))
