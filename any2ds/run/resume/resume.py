"""Finds what a run adds to its output folder, and refuses to mix two datasets in one folder."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa

from any2ds.config import presets
from any2ds.config.command_line import flag
from any2ds.config.media import MEDIA_GROUPS
from any2ds.config.options import Config, InputOptions, OutputOptions
from any2ds.core import layout
from any2ds.core.errors import OutputError, error_text, shard_count
from any2ds.core.layout import Layout
from any2ds.core.manifest import Beginning, Cutting, Manifest, Segment, columns_of, key_format, with_versions
from any2ds.core.stats import ANY2DS, Stats
from any2ds.dataset.own_code import signature
from any2ds.dataset.run_file import warn_of_versions
from any2ds.readers.plan import cuts
from any2ds.readers.sources import Source
from any2ds.run.ranks import is_alone, rank_of
from any2ds.run.resume.compare import Comparison, Difference, check_growth, incomplete, read_known
from any2ds.run.resume.img2dataset import check_options, hint, makers
from any2ds.run.resume.lost_files import lost_files
from any2ds.run.resume.overwrite import overwrite
from any2ds.run.resume.plan import FinishedShards, ShardPlan
from any2ds.run.resume.user_files import ShardNames, refuse_users_files
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


def resume(config: Config, source: Source, output: OutputFolder) -> ShardPlan:
    """Make `output` ready for the run, and plan what it adds.

    What the folder holds must have been made with the same options from the same list; otherwise `incremental_mode`
    puts the list behind it, or removes it. If the list may have changed, it is read up to the last finished shard and
    compared. Raises OutputError if the run cannot be; nothing was changed then. A rank calls this while joining.
    """
    options = config.output
    is_overwriting = options.incremental_mode == "overwrite"
    if is_overwriting and rank_of(config.share) is not None:
        raise OutputError(
            "incremental_mode=overwrite: runs that make a dataset together cannot each begin it anew; remove the "
            "folder before, or choose another output_folder"
        )
    names = output.names()
    before = _read_manifest(output, names)
    now = _manifest_of(config, source)
    own, new = ShardNames.of(before.options) if before is not None else None, ShardNames.of(now.options)
    completes_other_tool = before is None and bool(layout.finished_shards(names))
    end = before.end if before is not None else None
    refuse_users_files(output, new.of_all.intersection(names) if completes_other_tool else names, own, new, end)
    if is_overwriting and names:
        if before is not None:
            output.create()
            overwrite(output, before, [*names, *output.names_like(f"{layout.STATE_FOLDER}/")], source.input_files)
        elif layout.finished_shards(names):
            raise OutputError(
                f"{output.url!r} holds shards, and no {layout.RUN_FILE} that says they are any2ds's own: nothing was "
                "removed; choose another output_folder, or empty this one yourself"
            )
        names, before = output.names(), None
    # The command names the steps, whoever made the dataset before.
    now = replace(now, signature=signature(output.identity, now.options["transform"] or ()))
    found = _Finder(config, source, output, names, now).find(before)
    manifest = now
    if before is not None and found.goes_on:
        steps, changes = with_versions(before.steps, now.steps)
        manifest = replace(before, steps=steps, further=now.further, signature=now.signature)
        if changes:
            warn_of_versions(output.url, changes)
    manifest = manifest.with_list(found.segment)
    all_finished, behind = layout.finished_shards(names), manifest.behind(found.segment)
    lost = lost_files(output, options, all_finished, names) if before is not None else {}
    of_list = _shards_of(found.segment, behind, all_finished)
    reasons = {n: f"{options.layout.stats_name(n)} cannot be read" for n in found.unreadable}
    reasons |= {n: f"shard {n} has lost {name}" for n, name in lost.items() if n in of_list}
    if of_others := [n for n in lost if n not in of_list]:
        log.warning(
            "shard %d has lost %s: the command with the list that it was made from makes it again",
            of_others[0],
            lost[of_others[0]],
        )
    output.create()
    for shard_id, reason in sorted(reasons.items()):
        # Removed before the shard is made again: statistics never lie beside the data of another shard.
        log.warning("%s: its shard is made again", reason)
        output.remove(options.layout.stats_name(shard_id))
    output.write(layout.RUN_FILE, manifest.to_json())
    finished, of_list = all_finished - reasons.keys(), of_list - reasons.keys()
    state = FinishedShards(manifest, found.segment, of_list, finished, found.counts, found.comparison)
    return ShardPlan(config, source, output, state)


def deciding_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options of a run that `.any2ds/run` records."""
    deciding = {name: options[name] for name in _DECIDING}
    deciding["save_additional_columns"] = list(deciding["save_additional_columns"] or [])
    deciding["metadata_format"] = list(deciding["metadata_format"])
    deciding["verify_hash"] = deciding["verify_hash"] and str(deciding["verify_hash"])
    deciding["transform"] = _step_names(deciding["transform"] or [])
    return deciding


def _manifest_of(config: Config, source: Source) -> Manifest:
    """What `.any2ds/run` would say of a new dataset."""
    deciding = deciding_options(config.to_options())
    assert source.first_rows is not None  # no rows were read yet
    preset = presets.find(config.output.preset)
    cutting: Cutting = "file" if preset is not None and preset.cuts_by_file else "list"
    segment = Segment(0, source.list_files, Beginning.of(source.first_rows, columns=config.url_columns), cutting)
    keys = key_format(config.output.layout)
    further = tuple(sorted(Pipeline(config.media, presets.set_by(config.output.preset)).further))
    return Manifest(deciding, keys, columns_of(source.schema), (segment,), step_records(config.media), further)


def _step_names(steps: Sequence[Any]) -> list[str] | None:
    """Those of the user's steps, if there are any."""
    if not steps:
        return None
    from any2ds.transforms.steps.user import name_of

    return [name_of(step) for step in steps]


def _read_manifest(output: OutputFolder, names: Sequence[str]) -> Manifest | None:
    try:
        content = output.read(layout.RUN_FILE) if names else None
    except OSError as error:
        raise OutputError(f"{output.url!r}: {layout.RUN_FILE} cannot be read: {error_text(error)}") from error
    if content is None:
        return None
    try:
        return Manifest.parse(content)
    except ValueError as error:
        if not layout.finished_shards(names):
            return None
        raise OutputError(f"{output.url!r}: its {layout.RUN_FILE} cannot be read, so it is not touched") from error


def _shards_of(segment: Segment, behind: int | None, finished: Collection[int]) -> frozenset[int]:
    """The finished shards of a list, which ends where the list `behind` it begins."""
    return frozenset(
        shard_id for shard_id in finished if shard_id >= segment.first_shard and (behind is None or shard_id < behind)
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a list in a dataset."""

    segment: Segment  # as `.any2ds/run` is to have it
    counts: Mapping[int, int] = field(default_factory=dict)  # finished shard -> its rows, where they may be too few
    unreadable: Collection[int] = ()  # shards whose statistics cannot be read: they are made again
    comparison: Comparison | None = None  # to do while planning, because the list can be read only once
    goes_on: bool = False  # with a dataset that exists


@dataclass(frozen=True, slots=True)
class _Compared:
    """What a first reading of the list has shown."""

    counts: dict[int, int]  # finished shard -> its rows
    short: set[int]  # those that have got further rows since


class _Finder:
    """Finds where in a dataset a list belongs. Its methods raise OutputError if it belongs nowhere."""

    def __init__(
        self, config: Config, source: Source, output: OutputFolder, names: Sequence[str], now: Manifest
    ) -> None:
        """`now` is what `.any2ds/run` would say of a new dataset."""
        self._limit = config.input.limit  # of the run; lists are compared beyond it
        config = replace(config, input=replace(config.input, limit=None))
        self._config, self._source, self._output, self._names, self._now = config, source, output, names, now
        self._this = now.lists[0]
        self._layout = config.output.layout
        self._finished = layout.finished_shards(names)
        assert source.first_rows is not None
        self._first_rows = source.first_rows
        self._extends = config.output.incremental_mode == "extend"
        self._is_shuffled = config.input.shuffle is not None

    def find(self, before: Manifest | None) -> _Place:
        """`before` is what `.any2ds/run` says, if there is a dataset of any2ds."""
        if before is None:
            return self._complete_others() if self._finished else _Place(self._this)
        match, changed = self._match(before.lists), _changed(before, self._now)
        if self._is_at_odds(match, changed):
            what = f"with other options ({'; '.join(changed)})" if changed else "from another url list"
            raise OutputError(
                f"{self._output.url!r} is being made by others {what}: give each the same, or another output_folder"
            )
        if not self._finished and (match is not None or not self._extends):
            return _Place(self._this)  # starting anew loses nothing
        if changed:
            back = _way_back(before, self._now)
            raise OutputError(
                f"{self._output.url!r} holds shards made with other options ({'; '.join(changed)}). Nothing was "
                "changed. " + (f"To go on, run the same command {back}; or {_ANEW}" if back else f"{_ANEW}")
            )
        if match is not None:
            return replace(self._resumed(match, before.behind(match)), goes_on=True)
        if self._extends:
            return replace(self._extend(before.lists), goes_on=True)
        raise OutputError(
            f"{self._output.url!r} holds shards of {len(before.lists)} url lists, and this one is none of them: go on "
            "with one of those, or put it behind them with --incremental_mode=extend"
        )

    def _is_at_odds(self, match: Segment | None, changed: Sequence[str]) -> bool:
        """Whether other ranks are at work on something else. Copies of the list may have other dates."""
        rank = rank_of(self._config.share)
        if rank is None or (match is None and self._extends):
            return False
        if match is not None and not changed and self._begins_as(match):
            sizes = [[file.size for file in files] for files in (match.files, self._this.files)]
            if any(None in each for each in sizes) or sizes[0] == sizes[1]:
                return False
        return not is_alone(self._output, rank)

    # --- which list it is ---

    def _match(self, lists: Sequence[Segment]) -> Segment | None:
        """The list of the dataset that this one is: made of the same files, or beginning with the same rows."""
        if found := [segment for segment in lists if segment.is_made_of(self._this.files)]:
            return found[-1]
        if found := [segment for segment in lists if self._begins_as(segment)]:
            return found[-1]
        if self._extends:
            return None
        names = [file.name for file in self._this.files]
        if found := [segment for segment in lists if names and [file.name for file in segment.files] == names]:
            return found[-1]
        return lists[0] if len(lists) == 1 else None  # where they differ is to be shown

    def _begins_as(self, segment: Segment) -> bool:
        rows = segment.beginning.rows
        return Beginning.of(self._rows(rows), rows, self._config.url_columns) == segment.beginning

    def _rows(self, count: int) -> pa.RecordBatch:
        """The first `count` rows, or as many as there are; of a list that can be read once those that are at hand."""
        if self._first_rows.num_rows < count and self._source.can_be_read_again:
            batches, rows = [], 0
            with Source.of(self._config, in_list_order=True) as source:
                for batch in source.batches():
                    batches.append(batch.select(self._config.url_columns))
                    rows += batch.num_rows
                    if rows >= count:
                        break
            self._first_rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return self._first_rows

    # --- going on with a list ---

    def _resumed(self, segment: Segment, behind: int | None) -> _Place:
        reopened = segment.reopened(self._limit)
        if reopened != segment and behind is not None:
            raise OutputError(
                f"{self._output.url!r} holds the first {segment.rows:,} rows of this list and another list behind: "
                f"further rows have no place; go on with --limit={segment.limit}, or use another output_folder"
            )
        segment = reopened
        own = _shards_of(segment, behind, self._finished)
        files = self._this.files
        # Where shuffled files have further ones behind them, the rows of all are in another order.
        unchanged = segment.is_made_of(files) and (files == segment.files or not self._is_shuffled)
        doubtful = {shard_id for shard_id in {*segment.short, max(own, default=-1)} if shard_id in own}
        known = read_known(self._output, self._layout, doubtful)
        kept = any(found.maker != ANY2DS and self._has_room(found) for found in known.values() if found)
        if unchanged and not (len(files) > len(segment.files) and (behind is not None or kept)):
            same = segment if files == segment.files else replace(segment, rows=None, shards=None)
            return self._place(replace(same, files=files), known)
        known = read_known(self._output, self._layout, own)
        try:
            compared: _Compared | None
            if self._source.can_be_read_again:
                compared = self._compare(segment, known, behind)
            else:
                if len(self._first_rows) >= segment.beginning.rows and not self._begins_as(segment):
                    raise Difference("its first rows were others")
                compared = None
        except Difference as difference:
            raise OutputError(
                f"{self._output.url!r} holds shards of another url list: {difference}. "
                + (_WAYS_OUT_SHUFFLED if self._is_shuffled else _WAYS_OUT)
            ) from difference
        if behind is None:
            segment = replace(segment, rows=None, shards=None)
        if compared is not None:
            return self._place(replace(segment, files=files, beginning=self._this.beginning), known, compared)
        found = self._place(replace(segment, files=files), known)
        return replace(found, comparison=Comparison(self._output, self._layout, _readable(known)))

    def _has_room(self, found: Stats) -> bool:
        return found.count < self._layout.rows_per_shard

    def _place(self, segment: Segment, known: Mapping[int, Stats | None], compared: _Compared | None = None) -> _Place:
        """`known` are those of its shards that may be short."""
        readable = _readable(known)
        if compared is not None:
            counts, short = compared.counts, compared.short
        else:
            counts = {shard_id: found.count for shard_id, found in readable.items()}
            short = {shard_id for shard_id, found in readable.items() if self._may_grow(segment, shard_id, found)}
        last = max(readable, default=None)
        if last is not None and self._may_grow(segment, last, readable[last]):
            short = {*short, last}
        unreadable = [shard_id for shard_id, found in known.items() if found is None]
        return _Place(replace(segment, short=tuple(sorted(short))), counts, unreadable)

    def _may_grow(self, segment: Segment, shard_id: int, found: Stats) -> bool:
        """Whether further rows of the list may belong into it."""
        return self._has_room(found) and found.count != segment.rows_in(shard_id, self._layout.rows_per_shard)

    def _compare(self, segment: Segment, known: Mapping[int, Stats | None], behind: int | None) -> _Compared:
        """Read the list up to its last finished shard, or to its end if another list follows. Raises Difference."""
        comparison = Comparison(self._output, self._layout, _readable(known))
        counts: dict[int, int] = {}
        short: set[int] = set()
        by_file = segment.cut == "file"
        next_shard, rows = segment.first_shard, 0
        with closing(Source.of(self._config)) as source:
            for cut in cuts(
                source.batches(by_file), self._layout.rows_per_shard, next_shard, by_file, self._config.url_columns
            ):
                found, state = known.get(cut.shard_id), comparison(cut)
                if found is not None:
                    counts[cut.shard_id] = found.count if state == "short" else cut.rows
                if state == "short":
                    short.add(cut.shard_id)
                next_shard, rows = cut.shard_id + 1, rows + cut.rows
                if behind is not None:
                    check_growth(segment, rows)
                elif cut.shard_id >= comparison.last:
                    return _Compared(counts, short)
        comparison.ended(next_shard, rows)
        return _Compared(counts, short)

    # --- another list behind ---

    def _extend(self, lists: Sequence[Segment]) -> _Place:
        for number, segment in enumerate(lists):
            behind = lists[number + 1].first_shard if number + 1 < len(lists) else None
            if lacks := self._lacks(segment, behind):
                which = ", ".join(file.name for file in segment.files[:3]) or "rows that were given directly"
                raise OutputError(
                    f"{self._output.url!r} cannot be extended yet, because {lacks} of its list ({which}): finish that "
                    "one first, by the same command as before"
                )
        first = lists[-1].end
        assert first is not None
        if strays := [shard_id for shard_id in self._finished if shard_id >= first]:
            raise OutputError(
                f"{self._output.url!r} holds shards that are not recorded in {layout.RUN_FILE}, from "
                f"{self._layout.shard_name(min(strays))} on: choose another output_folder"
            )
        return _Place(replace(self._this, first_shard=first))

    def _lacks(self, segment: Segment, behind: int | None) -> str:
        """What the dataset lacks of a list; empty if it has all."""
        if segment.end is None:
            return "no run has come to the end"
        own = _shards_of(segment, behind, self._finished)
        missing = [shard_id for shard_id in range(segment.first_shard, segment.end) if shard_id not in own]
        if not missing:
            expected = {n: segment.rows_in(n, self._layout.rows_per_shard) for n in segment.short if n in own}
            missing = sorted(incomplete(self._output, self._layout, expected))
        if not missing:
            return ""
        shown = ", ".join(map(self._layout.shard_name, missing[:3])) + (" …" if len(missing) > 3 else "")
        return f"{shard_count(len(missing), 'is', 'are')} missing ({shown})"

    # --- folders of others ---

    def _complete_others(self) -> _Place:
        known = read_known(self._output, self._layout_of_names(), self._finished)
        options, url = self._config.output, self._output.url
        check_options(self._output, self._names, options, self._config.media, known)
        who = makers(known)
        if self._extends:
            raise OutputError(f"{url!r} was begun by {who}: complete it first, with its list and without extend")
        if self._is_shuffled:
            raise OutputError(f"{url!r} was begun by {who}, in the order of the list: complete it without shuffle")
        if not self._source.can_be_read_again:
            raise OutputError(
                f"{url!r} was begun by {who}: to complete it, its list must be readable twice, such as a file"
            )
        reasons = []
        ways: tuple[Cutting, ...] = ("file", "list") if len(self._this.files) > 1 else ("file",)
        for cut in ways:
            segment = replace(self._this, cut=cut)
            try:
                compared = self._compare(segment, known, None)
            except Difference as difference:
                reasons.append(str(difference))
                continue
            kept = sum(found is not None for found in known.values())
            log.warning("%d shards in %s were made by %s and are kept as they are", kept, url, who)
            return self._place(segment, known, compared)
        raise OutputError(
            f"{url!r} holds shards that {who} made from another url list, or with other options: "
            f"{reasons[0]}{hint(options, known)}. Nothing was changed"
        )

    def _layout_of_names(self) -> Layout:
        digits = min(len(name.removesuffix("_stats.json")) for name in self._names if layout.finished_shards([name]))
        return replace(self._layout, shard_digits=digits)


def _readable(known: Mapping[int, Stats | None]) -> dict[int, Stats]:
    return {shard_id: found for shard_id, found in known.items() if found is not None}


def _steps_of(manifest: Manifest) -> str:
    """The steps that files go through, as text."""
    # Archive and text have one option each, which is compared.
    names = [step.name for step in manifest.steps if step.name not in ("archive", "text")]
    return f"the steps {', '.join(names)}" if names else "no step for images, sound or video"


def _alike(name: str, before: Any, now: Any) -> bool:
    """Whether shards made with either value of an option may be in one dataset."""
    return bool(before == now or name == "row_group_bytes" or (name == "dedupe" and "run" not in (before, now)))


def _defaults(preset: str | None) -> dict[str, Any]:
    """The defaults of the options, as `.any2ds/run` has them, with those of a preset."""
    groups = (InputOptions, OutputOptions, *MEDIA_GROUPS)
    own = {f.name: f.default for group in groups for f in dataclasses.fields(group)}
    part = presets.find(preset)
    defaults = {**own, **(part.defaults if part else {})}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}


def _other_options(before: Manifest, now: Manifest) -> dict[str, tuple[Any, Any]]:
    """Option -> its value before and now, for those that differ; a preset stands for all that it sets."""
    # Of an option that came later, the dataset was made with what is its default now.
    options = {**_defaults(None), **before.options}
    others = {
        name: (options.get(name), value)
        for name, value in now.options.items()
        if not _alike(name, options.get(name), value)
    }
    return {"preset": others["preset"]} if "preset" in others else others


def _way_back(before: Manifest, now: Manifest) -> str:
    """How to give the options of the dataset: `with --file_ext=jpg, without --preset, --dedupe`; empty if none differs.

    An option that had its default value is left out: given with it, it may need others, and would be refused.
    """
    others = _other_options(before, now)
    defaults = _defaults(before.options.get("preset"))
    kept = {name: was for name, (was, _) in others.items() if was is not None and was != defaults[name]}
    given = " ".join(flag(name, was) for name, was in kept.items())
    left_out = ", ".join(f"--{name}" for name in others if name not in kept)
    return ", ".join([f"with {given}"] * bool(given) + [f"without {left_out}"] * bool(left_out))


def _changed(before: Manifest, now: Manifest) -> list[str]:
    """What decides about shards and differs now, as text."""
    if others := _other_options(before, now):  # which also decide about keys and columns
        return [f"{name} was {was!r}, now {value!r}" for name, (was, value) in others.items()]
    changed = []
    if (were := _steps_of(before)) != (are := _steps_of(now)):
        changed.append(f"its files went through {were}, and would now go through {are}")
    if before.key_format != now.key_format:
        changed.append(f"keys were made as {before.key_format}, now {now.key_format}")
    for name in {**before.columns, **now.columns}:
        was, became = before.columns.get(name), now.columns.get(name)
        if was != became:
            changed.append(f"column {name!r} was {was or 'not there'}, now {became or 'not there'}")
    return changed
