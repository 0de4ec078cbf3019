"""Finds the segments of a dataset that hold the rows of a list, and refuses a list or options that do not fit.

A shard number means the same rows for ever. So a list that has grown goes on in a segment of its own behind all others,
as does another list, and whatever differs is refused before anything is written.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa

from any2ds.config import presets
from any2ds.config.media import MEDIA_GROUPS
from any2ds.config.options import Config
from any2ds.core import layout
from any2ds.core.errors import OutputError
from any2ds.core.manifest import Beginning, Cutting, Manifest, Segment, columns_of, key_format, with_versions
from any2ds.dataset.own_code import signature
from any2ds.dataset.run_file import begin_segment, read_manifest, warn_of_versions
from any2ds.readers.sources import Source
from any2ds.run.compare import Comparison, Difference, changed_options, read_stats, way_back
from any2ds.run.lost_files import lost_files
from any2ds.run.overwrite import overwrite
from any2ds.run.place import Place
from any2ds.run.ranks import rank_of
from any2ds.run.user_files import ShardNames, refuse_users_files
from any2ds.storage.folders import OutputFolder
from any2ds.transforms.chain import Pipeline, step_records

log = logging.getLogger(__name__)

# The options that decide which row is in which shard, what its key is, and what is stored of it.
_DECIDING = (
    "preset",
    "url_col",
    "require",
    "caption_col",
    "save_additional_columns",
    "shuffle",
    "column_types",
    "on_bad_row",
    "output_format",
    "metadata_format",
    "row_group_bytes",
    "parquet_data",
    "data_column",
    "tfrecord_compression",
    "number_sample_per_shard",
    "oom_shard_count",
    "file_ext",
    "compute_md5",
    "compute_hash",
    "verify_hash",
    "on_hash_mismatch",
    "dedupe",
    *(field.name for group in MEDIA_GROUPS for field in fields(group)),
)
_ANEW = "--incremental_mode=overwrite starts anew, and another output_folder holds another dataset"
_WAYS_OUT = (
    "Nothing was changed. Go on with the list as it was; or --incremental_mode=extend puts this one behind the shards "
    f"that are there, {_ANEW}"
)
_WAYS_OUT_SHUFFLED = (
    "A shuffled list that has grown or changed comes in another order. Nothing was changed. Go on with the list as it "
    f"was, and put new rows into a list of their own with --incremental_mode=extend; or {_ANEW}"
)


def prepare(config: Config, source: Source, output: OutputFolder) -> Place:
    """Make `output` ready for the run, and find the place of its list.

    What the folder holds must have been made with the same options from the same list; otherwise `incremental_mode`
    puts the list behind it, or removes it. If the list may have changed, it is read up to the last finished shard and
    compared. Raises OutputError if the run cannot be; nothing was changed then.
    """
    is_overwriting = config.output.incremental_mode == "overwrite"
    if is_overwriting and rank_of(config.share) is not None:
        raise OutputError(
            "incremental_mode=overwrite: runs that make a dataset together cannot each begin it anew; remove the "
            "folder before, or choose another output_folder"
        )
    names = output.names()
    before, now = read_manifest(output) if names else None, _manifest_of(config, source)
    finished = layout.finished_shards(names)
    if before is None and finished:
        raise OutputError(
            f"{output.url!r} holds shards, and no {layout.RUN_FILE} that says how any2ds made them: nothing was "
            "changed; choose another output_folder, or empty this one yourself"
        )
    own, new = ShardNames.of(before.options) if before is not None else None, ShardNames.of(now.options)
    refuse_users_files(output, names, own, new, before.end if before is not None else None, finished)
    finder = _Finder(config, source, output, finished)
    output.create()
    if before is not None and (is_overwriting or finder.may_begin_anew(before, now)):
        overwrite(output, before, [*names, *output.state_files()], source.input_files)
        names, before, finder = output.names(), None, _Finder(config, source, output, frozenset())
    if before is None:
        before = _begin(output, now)
    place = finder.find(before, now)
    return _without_broken_shards(config, output, place, names, finder.unreadable)


def deciding_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run that `.any2ds/run` records."""
    deciding = {name: options[name] for name in _DECIDING}
    deciding["save_additional_columns"] = list(deciding["save_additional_columns"] or [])
    deciding["metadata_format"] = list(deciding["metadata_format"])
    deciding["verify_hash"] = deciding["verify_hash"] and str(deciding["verify_hash"])
    deciding["transform"] = _step_names(deciding["transform"] or [])
    return deciding


def _step_names(steps: Sequence[Any]) -> list[str] | None:
    """The names of the user's steps, if there are any."""
    if not steps:
        return None
    from any2ds.transforms.steps.user import name_of

    return [name_of(step) for step in steps]


def _manifest_of(config: Config, source: Source) -> Manifest:
    """What `.any2ds/run` says of a new dataset."""
    deciding = deciding_options(config.to_options())
    keys = key_format(config.output.layout)
    further = tuple(sorted(Pipeline(config.media, presets.set_by(config.output.preset)).further))
    return Manifest(deciding, keys, columns_of(source.schema), (), step_records(config.media), further)


def _begin(output: OutputFolder, now: Manifest) -> Manifest:
    """Write `.any2ds/run`, unless another rank has done so; what it says then."""
    signed = replace(now, signature=signature(output.identity, now.options["transform"] or ()))
    if output.put_if_absent(layout.RUN_FILE, signed.to_json()):
        return signed
    there = read_manifest(output)
    assert there is not None
    return there


def _without_broken_shards(
    config: Config, output: OutputFolder, place: Place, names: Sequence[str], unreadable: Collection[int]
) -> Place:
    """The place without finished shards that have lost a file, or have `unreadable` statistics: they are made again.

    Of a list that was not compared, the statistics of the last shard are read: a power failure may have damaged it.
    Their statistics are removed before: they never lie beside the data of another shard.
    """
    names_of, own = config.output.layout, place.finished_of_list
    lost = lost_files(output, config.output, place.finished, names)
    reasons = {n: f"shard {n} has lost {name}" for n, name in lost.items() if n in own}
    if own and not unreadable and read_stats(output, names_of, [last := max(own)])[last] is None:
        unreadable = [last]
    reasons |= {n: f"{names_of.stats_name(n)} cannot be read" for n in unreadable}
    if (rank := rank_of(config.share)) is not None:  # each rank sees to its own shards
        reasons = {n: reason for n, reason in reasons.items() if rank.makes(n)}
    if of_others := [n for n in lost if n not in own]:
        log.warning(
            "shard %d has lost %s: the command with the list that it was made from, or any2ds retry, makes it again",
            of_others[0],
            lost[of_others[0]],
        )
    if reasons:
        output.remove(layout.SHARDS_FILE)
    for shard_id, reason in sorted(reasons.items()):
        log.warning("%s: its shard is made again", reason)
        output.remove(names_of.stats_name(shard_id))
    return replace(place, finished=place.finished - reasons.keys())


class _Finder:
    """Finds where in a dataset a list belongs. Its methods raise OutputError if it belongs nowhere."""

    def __init__(self, config: Config, source: Source, output: OutputFolder, finished: Collection[int]) -> None:
        # Lists are compared beyond the limit of the run.
        self._config = replace(config, input=replace(config.input, limit=None))
        self._source, self._output = source, output
        self._finished = frozenset(finished)
        assert source.first_rows is not None  # no rows were read yet
        self._first_rows = source.first_rows
        self._files = source.list_files
        self._extends = config.output.incremental_mode == "extend"
        self._is_rank = rank_of(config.share) is not None
        self._is_shuffled = config.input.shuffle is not None
        self.unreadable: list[int] = []  # finished shards of the list, if it was compared, whose statistics are broken

    def may_begin_anew(self, before: Manifest, now: Manifest) -> bool:
        """Whether the dataset has no shard yet, and is of another list or of other options: nothing is lost then."""
        if self._finished or self._is_rank or self._extends:
            return False
        return bool(changed_options(before, now)) or not any(map(self._begins_as, before.lists))

    def find(self, manifest: Manifest, now: Manifest) -> Place:
        """The place of the list, which is recorded if it is a new one. `now` is how the run makes shards."""
        changed = changed_options(manifest, now)
        if changed and self._is_rank:
            raise OutputError(
                f"{self._output.url!r} is being made by others with other options ({'; '.join(changed)}): give each "
                "the same, choose another output_folder, or remove this one when no rank is at work"
            )
        if changed:
            back = way_back(manifest, now)
            raise OutputError(
                f"{self._output.url!r} holds shards made with other options ({'; '.join(changed)}). Nothing was "
                "changed. " + (f"To go on, run the same command {back}; or {_ANEW}" if back else f"{_ANEW}")
            )
        _, changes = with_versions(manifest.steps, now.first_steps)
        if changes:
            warn_of_versions(self._output.url, changes)
        first = self._match(manifest.lists)
        if first is None:
            return self._new_list(manifest, now)
        place = Place(manifest, manifest.parts_of(first.number), self._finished)
        last = place.parts[-1]
        # Where shuffled files have further ones behind them, the rows of all are in another order.
        if last.is_made_of(self._files) and (self._files == last.files or not self._is_shuffled):
            return place
        try:
            return self._compared(place)
        except Difference as difference:
            what = "is being made by others from" if self._is_rank else "holds shards of"
            raise OutputError(
                f"{self._output.url!r} {what} another url list: {difference}. "
                + (_WAYS_OUT_SHUFFLED if self._is_shuffled else _WAYS_OUT)
            ) from difference

    def _new_list(self, manifest: Manifest, now: Manifest) -> Place:
        """Record a list that is the first one, or comes behind the others."""
        if manifest.segments and not self._extends:
            raise OutputError(
                f"{self._output.url!r} holds shards of {len(manifest.lists)} url lists, and this one is none of them: "
                "go on with one of those, or put it behind them with --incremental_mode=extend"
            )
        if (first_shard := manifest.end) is None:
            open_one = next(each for each in manifest.segments if each.end is None)
            which = ", ".join(file.name for file in open_one.files[:3]) or "rows that were given directly"
            raise OutputError(
                f"{self._output.url!r} cannot be extended yet, because no run has come to the end of its list "
                f"({which}): finish that one first, by the same command as before"
            )
        preset = presets.find(self._config.output.preset)
        cut: Cutting = "file" if preset is not None and preset.cuts_by_file else "list"
        beginning = Beginning.of(self._first_rows, columns=self._config.url_columns)
        number = len(manifest.segments)
        steps = now.first_steps if manifest.segments else ()
        segment = Segment(number, first_shard, self._files, beginning, "list", cut, number, steps=steps)
        begin_segment(self._output, segment)
        return Place(manifest.with_segment(segment), (segment,), self._finished)

    # --- which list it is ---

    def _match(self, lists: Sequence[Segment]) -> Segment | None:
        """The list of the dataset that this one is: made of the same files, or beginning with the same rows."""
        lists = [each for each in lists if each.kind == "list"]
        if found := [each for each in lists if each.is_made_of(self._files)]:
            return found[-1]
        if found := [each for each in lists if self._begins_as(each)]:
            return found[-1]
        if self._extends:
            return None
        names = [file.name for file in self._files]
        if found := [each for each in lists if names and [file.name for file in each.files] == names]:
            return found[-1]
        return lists[0] if len(lists) == 1 else None  # where they differ is to be shown

    def _begins_as(self, segment: Segment) -> bool:
        rows = segment.beginning.rows
        return Beginning.of(self._rows(rows), rows, self._config.url_columns) == segment.beginning

    def _rows(self, count: int) -> pa.RecordBatch:
        """The first `count` rows, or as many as there are; of a list that can be read once those that are at hand."""
        if self._first_rows.num_rows < count and self._source.can_be_read_again:
            batches, rows = [], 0
            with closing(Source.of(self._config, in_list_order=True)) as source:
                for batch in source.batches():
                    batches.append(batch.select(self._config.url_columns))
                    rows += batch.num_rows
                    if rows >= count:
                        break
            self._first_rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return self._first_rows

    # --- whether its rows are those of the finished shards ---

    def _compared(self, place: Place) -> Place:
        """The place after the list was compared, or with a comparison to do while planning. Raises Difference."""
        names, first = place.manifest.layout, place.parts[0]
        own = place.finished_of_list
        stats = read_stats(self._output, names, own)
        known = {shard_id: found for shard_id, found in stats.items() if found is not None}
        self.unreadable = sorted(stats.keys() - known.keys())
        comparison = Comparison(self._output, names, known)
        if not self._source.can_be_read_again:
            if len(self._first_rows) >= first.beginning.rows and not self._begins_as(first):
                raise Difference("its first rows were others")
            return replace(place, comparison=comparison)
        if known:
            self._compare(place, comparison)
        if not self._begins_as(first):
            raise Difference("its first rows were others")
        return place

    def _compare(self, place: Place, comparison: Comparison) -> None:
        """Read the list up to its last finished shard. Raises Difference."""
        row = 0
        with closing(Source.of(self._config)) as source:
            for cut in place.cuts(place.divided(source.batches(place.by_file)), self._config.url_columns):
                comparison.check(cut)
                row = cut.start + cut.rows
                if cut.shard_id >= comparison.last:
                    return
        name = place.manifest.layout.shard_name(comparison.last)
        raise Difference(f"the list ends with row {row:,}, and shard {name} was made from rows behind it")
