"""Finds the segments of a dataset that hold the rows of a list, and refuses options and lists that do not fit.

A shard number means the same rows for ever. So a list that has grown goes on in a segment of its own behind all others,
as does another list, and whatever differs is refused before anything is written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pyarrow as pa

from any2ds.config import presets
from any2ds.config.options import Config, deciding_names
from any2ds.core import layout
from any2ds.core.errors import OutputError, shard_count
from any2ds.core.manifest import Beginning, Manifest, Segment, columns_of, key_format, with_versions
from any2ds.dataset.own_code import signature
from any2ds.dataset.run_file import begin_segment, read_manifest, warn_of_versions
from any2ds.readers.sources import Source
from any2ds.run.compare import ShardRows, another_list, changed_options, read_stats
from any2ds.run.lost_files import lost_files
from any2ds.run.overwrite import overwrite
from any2ds.run.place import Place
from any2ds.run.ranks import rank_of
from any2ds.run.user_files import refuse_users_files
from any2ds.storage.folders import OutputFolder
from any2ds.transforms.chain import Pipeline, step_records

log = logging.getLogger(__name__)


def prepare(config: Config, source: Source, output: OutputFolder) -> Place:
    """Make `output` ready for the run, and find the place of its list, which is recorded if it is a new one.

    What the folder holds must have been made with the same options from the same list; otherwise `incremental_mode`
    puts the list behind it, or removes it. Raises OutputError if the run cannot be; nothing was changed then.
    """
    mode, is_rank = config.output.incremental_mode, not rank_of(config.share).is_alone
    if mode == "overwrite" and is_rank:
        raise OutputError(
            "incremental_mode=overwrite: ranks that make a dataset together cannot each begin it anew; remove the "
            "folder before, or choose another output_folder"
        )
    names, url_list, now = output.names(), _List(config, source), _manifest_of(config, source)
    before, finished = read_manifest(output) if names else None, layout.finished_shards(names)
    if before is None and finished:
        raise OutputError(
            f"{output.url!r} holds shards, and no {layout.RUN_FILE} that says how any2ds made them: nothing was "
            "changed; choose another output_folder, or empty this one yourself"
        )
    refuse_users_files(output, names, before, now.options, finished)
    output.create()
    if before is not None:
        is_empty = not (finished or is_rank or mode == "extend")  # nothing is lost then
        if mode == "overwrite" or (
            is_empty and (changed_options(before, now) or not any(map(url_list.begins, before.lists)))
        ):
            overwrite(output, before, [*names, *output.state_files()], source.input_files)
            names, before, finished = output.names(), None, frozenset()
    manifest = before or _begin(output, now)
    if changed := changed_options(manifest, now):
        raise OutputError(
            f"{output.url!r} is made with other options ({'; '.join(changed)}). Nothing was changed. Go on with the "
            "options as they were; or --incremental_mode=overwrite starts anew, and another output_folder holds "
            "another dataset"
        )
    _, versions = with_versions(manifest.steps, now.first_steps)
    if versions:
        warn_of_versions(output.url, versions)
    first = url_list.match(manifest.lists)
    if first is None:
        first = url_list.segment(output, manifest, now)
        begin_segment(output, first)
        manifest = manifest.with_segment(first)
    place = Place(manifest, manifest.parts_of(first.number), finished)
    return _checked(config, output, place, names, url_list)


def deciding_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run that `.any2ds/run` records."""
    # As JSON gives them back.
    deciding = {n: list(options[n]) if isinstance(options[n], tuple) else options[n] for n in deciding_names()}
    deciding["save_additional_columns"] = deciding["save_additional_columns"] or []
    deciding["verify_hash"] = deciding["verify_hash"] and str(deciding["verify_hash"])
    if deciding["transform"]:
        from any2ds.transforms.steps.user import name_of

        deciding["transform"] = [name_of(step) for step in deciding["transform"]]
    return deciding


def _manifest_of(config: Config, source: Source) -> Manifest:
    """The manifest of a new dataset, for `.any2ds/run`."""
    deciding = deciding_options(config.to_options())
    keys = key_format(config.output.layout)
    further = tuple(sorted(Pipeline(config.media, presets.set_by(config.output.preset)).further))
    return Manifest(deciding, keys, columns_of(source.schema), (), step_records(config.media), further, config.written)


def _begin(output: OutputFolder, now: Manifest) -> Manifest:
    """Write `.any2ds/run`, unless another rank has done so; what it says then."""
    signed = replace(now, signature=signature(output.identity, now.options["transform"] or ()))
    if output.put_if_absent(layout.RUN_FILE, signed.to_json()):
        return signed
    there = read_manifest(output)
    assert there is not None
    return there


class _List:
    """The list of the run, which is told from other lists by its files, or by its first rows."""

    def __init__(self, config: Config, source: Source) -> None:
        assert source.first_rows is not None  # no rows were read yet
        self._source, self._first_rows = source, source.first_rows
        self._files, self._columns = source.list_files, config.url_columns
        self._config = replace(config, input=replace(config.input, limit=None))  # the limit is no part of the list

    def match(self, lists: Sequence[Segment]) -> Segment | None:
        """The list of the dataset that this one is: made of the same files, or beginning with the same rows; or, for
        want of that, the one whose difference is to be shown."""
        lists = [each for each in lists if each.kind == "list"]
        names = [file.name for file in self._files]
        found = [each for each in lists if each.is_made_of(self._files)] or [*filter(self.begins, lists)]
        if not found and self._config.output.incremental_mode != "extend":
            found = [each for each in lists if names and [file.name for file in each.files] == names]
            found = found or (lists if len(lists) == 1 else [])
        return found[-1] if found else None

    def begins(self, segment: Segment) -> bool:
        """Whether its first rows are those of the list with which `segment` begins."""
        rows = self._rows(segment.beginning.rows)
        return Beginning.of(rows, segment.beginning.rows, self._columns) == segment.beginning

    def is_surely(self, segment: Segment) -> bool:
        """Whether it is the list of `segment`, or a longer one, by the versions of its files."""
        # Where shuffled files have further ones behind them, the rows of all are in another order.
        is_in_order = self._config.input.shuffle is None or self._files == segment.files
        return is_in_order and segment.is_made_of(self._files)

    def segment(self, output: OutputFolder, manifest: Manifest, now: Manifest) -> Segment:
        """The segment for this list, behind the others. Raises OutputError if it cannot be."""
        if manifest.segments and self._config.output.incremental_mode != "extend":
            raise OutputError(
                f"{output.url!r} holds shards of {len(manifest.lists)} url lists, and this one is none of them: go on "
                "with one of those, or put it behind them with --incremental_mode=extend"
            )
        if (first_shard := manifest.end) is None:
            unread = next(each for each in manifest.segments if each.end is None)
            which = ", ".join(file.name for file in unread.files[:3]) or "rows that were given directly"
            raise OutputError(
                f"{output.url!r} cannot be extended yet, because no run has come to the end of its list ({which}): "
                "finish that one first, by the same command as before"
            )
        if manifest.segments and manifest.layout.has_names:
            raise OutputError(
                f"{output.url!r} has the keys of one list (key_col), and those of another could be the same: put the "
                "rows behind those of the list, or make another dataset"
            )
        preset, number = presets.find(self._config.output.preset), len(manifest.segments)
        return Segment(
            number,
            first_shard,
            self._files,
            Beginning.of(self._first_rows, columns=self._columns),
            cut="file" if preset is not None and preset.cuts_by_file else "list",
            list_number=number,
            steps=now.first_steps if manifest.segments else (),
        )

    def _rows(self, count: int) -> pa.RecordBatch:
        """The first `count` rows, or as many as there are; of a list that can be read once those that are at hand."""
        if self._first_rows.num_rows < count and self._source.can_be_read_again:
            batches, rows = [], 0
            with closing(Source.of(self._config, in_list_order=True, is_looked_at=True)) as source:
                for batch in source.batches():
                    batches.append(batch.select(self._columns))
                    rows += batch.num_rows
                    if rows >= count:
                        break
            self._first_rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return self._first_rows


def _checked(config: Config, output: OutputFolder, place: Place, names: Sequence[str], url_list: _List) -> Place:
    """The place with the statistics that a list that may have changed is compared with, and without finished shards
    that have lost a file, or have statistics that cannot be read: these are made again.

    Of a list that is not compared, the statistics of the last shard are read: a power failure may have damaged it.
    """
    own, names_of = place.finished_of_list, config.output.layout
    is_compared = not url_list.is_surely(place.parts[-1])
    known, broken = dict[int, ShardRows](), dict[int, str]()
    for n, stats in read_stats(output, names_of, own if is_compared else sorted(own)[-1:]):
        if stats is None:
            broken[n] = f"{names_of.stats_name(n)} cannot be read"
        else:
            known[n] = ShardRows(stats.count, stats.urls_sha256)
    if is_compared and not known and not url_list.begins(place.parts[0]):
        raise another_list(output, "its first rows were others", config.input.shuffle is not None)
    lost = lost_files(output, config.output, place.finished, names)
    broken |= {n: f"shard {n} has lost {name}" for n, name in lost.items() if n in own}
    if others := sorted(lost.keys() - own):
        log.warning(
            "%s of other lists: the commands with these lists, or any2ds retry, make again what has lost a file, first "
            "shard %d, of which %s is gone",
            shard_count(len(others), "is broken", "are broken"),
            others[0],
            lost[others[0]],
        )
    rank = rank_of(config.share)
    broken = {n: why for n, why in broken.items() if rank.makes(n)}  # each rank sees to its own shards
    to_compare = {n: rows for n, rows in known.items() if n not in broken} if is_compared else {}
    return replace(place, finished=place.finished - broken.keys(), broken=broken, to_compare=to_compare)
