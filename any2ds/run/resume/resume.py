"""Says what an output folder already holds, what this run adds to it, and refuses to mix two datasets in one folder."""

from __future__ import annotations

import dataclasses
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa

from any2ds.config import presets
from any2ds.config.media import MEDIA_GROUPS, as_made
from any2ds.config.options import Config, InputOptions, OutputOptions, RunOptions
from any2ds.core import layout
from any2ds.core.errors import ChangedList, OutputError, ReadError, shard_count, words_of
from any2ds.core.layout import Layout
from any2ds.core.manifest import Beginning, Cutting, Manifest, Segment, columns_of, key_format, with_versions
from any2ds.core.rows import ShardJob
from any2ds.dataset import tfds
from any2ds.dataset.run_file import warn_of_versions
from any2ds.readers.plan import Cut, State, cuts
from any2ds.readers.sources import Source
from any2ds.run.monitor import Outlook
from any2ds.run.ranks import Member
from any2ds.run.resume.compare import ANY2DS, Comparison, Difference, Known, read_known
from any2ds.run.resume.img2dataset import hint, makers, refuse_misfits
from any2ds.run.resume.overwrite import overwrite
from any2ds.storage.folders import OutputFolder
from any2ds.transforms.chain import step_records
from any2ds.transforms.steps.user import name_of

log = logging.getLogger(__name__)

# What decides which row is in which shard, what its key is, and what is stored of it.
_DECIDING = (
    "preset",
    "url_col",
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
_MOST_HELD = 64 << 20  # bytes of rows that wait until what stands behind them is compared
_WAYS_OUT = (
    "Nothing was changed. Go on with the list as it was; or --incremental_mode=extend puts this one behind the shards "
    "that are there, --incremental_mode=overwrite starts anew, and another output_folder holds another dataset"
)
_WAYS_OUT_SHUFFLED = (
    "A shuffled list that has grown or changed comes in another order. Nothing was changed. Go on with the list as it "
    "was, and put new rows into a list of their own with --incremental_mode=extend; or --incremental_mode=overwrite "
    "starts anew, and another output_folder holds another dataset"
)


@dataclass(frozen=True, slots=True)
class _Going:
    """Where a run goes on."""

    segment: Segment  # as `.any2ds/run` is to have it
    counts: Mapping[int, int] = field(default_factory=dict)  # finished shard -> its rows, where that may be asked
    unreadable: Collection[int] = ()  # shards whose stats cannot be read, which are made again
    comparison: Comparison | None = None  # while planning, because the list can be read only once


@dataclass(frozen=True, slots=True)
class _Compared:
    """What a first reading of the list has shown."""

    counts: dict[int, int]  # finished shard -> its rows
    short: set[int]  # those that have got further rows since


class Finished:
    """The finished shards of the list of a run; called with a shard's number and its rows, says which it is.

    It keeps account of the list: `check` is to see every cut of it, and what `noted` lets through is to be made.
    """

    def __init__(
        self,
        output: OutputFolder,
        manifest: Manifest,
        going: _Going,
        shards: Iterable[int],
        behind: int | None,
        before: frozenset[int],
        names_of: Layout,
        member: Member | None = None,
    ) -> None:
        """`member` makes some of the shards, and others the others."""
        self._names_of, self._rows_per_shard = names_of, names_of.rows_per_shard
        self.before = before  # the finished shards of all lists
        self.skipped = 0  # shards that were asked for and found finished
        self.shards = set(shards)
        self.first_shard = going.segment.first_shard
        self._output, self._manifest, self._segment = output, manifest, going.segment
        self._counts, self._comparison, self._behind = going.counts, going.comparison, behind
        self._member, self._owns = member, member.owns if member is not None else None
        self._rows, self._next = 0, self.first_shard
        self._passed_over = 0  # rows that have come by and are not to be made
        # Finished shards that have not come by; of a member that knows which are its own, these.
        self._to_come = sum(self._owns is None or self._owns(shard_id) for shard_id in self.shards)
        self._short: dict[int, int] = {}  # found so -> the rows that it is to have
        self._is_read = False  # the list, to its end

    @property
    def by_file(self) -> bool:
        """Whether no shard holds rows of two files."""
        return self._segment.cut == "file"

    def __call__(self, shard_id: int, rows: int) -> State:
        if shard_id in self.shards:
            self._to_come -= self._owns is None or self._owns(shard_id)
            if rows <= self._counts.get(shard_id, rows):
                self.skipped += 1
                self._passed_over += rows
                return "done"
            self.shards.discard(shard_id)
            self._short[shard_id] = rows
            if not self._is_of_others(shard_id, rows):
                self._passed_over += self._counts[shard_id]
                return "short"
            return "done"
        return "done" if self._is_of_others(shard_id, rows) else "missing"

    def _is_of_others(self, shard_id: int, rows: int) -> bool:
        if self._member is None or self._member.makes(shard_id):
            return False
        self._passed_over += rows
        return True

    @property
    def all(self) -> range:
        """The shards of the list; once it was read to its end."""
        return range(self.first_shard, self._next)

    def missing(self) -> list[int]:
        """The shards of the list that are not finished now, whoever is to make them; once it was read to its end."""
        there = layout.finished_shards(self._output.names())
        missing = [shard_id for shard_id in range(self.first_shard, self._next) if shard_id not in there]
        now = read_known(self._output, self._names_of, [shard_id for shard_id in self._short if shard_id in there])
        return sorted([*missing, *(n for n, found in now.items() if found is None or found.count < self._short[n])])

    def outlook(self, source: Source) -> Outlook:
        """How much there is to do of its rows. May be asked for in any thread."""
        rows = source.rows if self._segment.rows is None else self._segment.rows
        planned, share = self._rows, source.share_of(self._rows)
        to_come = 0 if self.by_file else max(0, self._to_come) * self._rows_per_shard
        if self._member is not None:
            whole = rows if rows is not None else planned / share if share else planned
            of_all = max(0.0, whole - planned - (to_come if self._owns is None else 0))
            to_come += round(of_all * (1 - self._member.share))
        passed_over = self._passed_over + to_come
        return Outlook(rows, planned, share, passed_over if rows is None else min(passed_over, rows))

    def check(self, cut: Cut) -> None:
        """Raises ChangedList if finished shards were made from another list."""
        self._rows += cut.rows
        self._next = cut.shard_id + 1
        try:
            if self._behind is not None:
                _refuse_growth(self._segment, self._rows)
            if self._comparison is not None:
                self._comparison(cut)
        except Difference as difference:
            raise self._changed(difference) from difference
        is_ours = self._owns is None or self._owns(cut.shard_id)
        if cut.is_broken_off and is_ours and cut.shard_id not in self._segment.short:
            # Before it is made: it need not be the last one, and the others of an unchanged list are not looked at.
            short = tuple(sorted({*self._segment.short, cut.shard_id}))
            self._segment = replace(self._segment, short=short)
            self._manifest = self._manifest if self._member is None else self._there()
            self._write()

    def noted(self, jobs: Iterable[ShardJob]) -> Iterator[ShardJob]:
        """The jobs, each as soon as the finished shards behind it are known to fit, and the end of the list recorded.

        No more than 64 MiB of rows wait for that.
        """
        held: deque[ShardJob] = deque()
        size = 0
        try:
            for job in jobs:
                held.append(job)
                size += len(job.rows)
                while held and (size > _MOST_HELD or self._fits(held[0].shard_id)):
                    size -= len(held[0].rows)
                    yield held.popleft()
            if self._comparison is not None:
                self._comparison.ended(self._next, self._rows)
        except Difference as difference:
            raise self._changed(difference) from difference
        except ChangedList:
            raise
        except ReadError:  # the rows before are as good as ever
            yield from held
            raise
        yield from held
        shards, short = self._next - self.first_shard, tuple(self._short)
        whole = replace(self._segment, rows=self._rows, shards=shards, short=short)
        has_changed, self._segment, self._is_read = whole != self._segment, whole, True
        if has_changed and self._member is None:
            self._record()

    def _fits(self, shard_id: int) -> bool:
        comparison = self._comparison
        return comparison is None or comparison.compared > shard_id or shard_id > comparison.last

    def _changed(self, difference: Difference) -> ChangedList:
        return ChangedList(
            f"{self._output.url!r} holds shards of another url list: {difference}. It was read up to there"
        )

    @property
    def is_recorded(self) -> bool:
        """Whether there is nothing to tell others of the list: of a member, which tells them once it has ended."""
        there, own = self._recorded(), self._segment
        ends = there is not None and (there.rows, there.shards) == (own.rows, own.shards)
        return not self._is_read or (there is not None and ends and {*there.short} >= {*own.short})

    def record(self) -> None:
        """By a member, which has the folder for the moment: where the list ends. Raises ChangedList if others have
        found that elsewhere."""
        there = self._recorded()
        if there is not None and there.rows not in (None, self._rows):
            raise ChangedList(
                f"{self._output.url!r} is being made from lists that are not the same: one has {there.rows:,} rows, "
                f"and that of this run {self._rows:,}. Give each the same, and run the same command again"
            )
        if there is not None:  # what others have left short is no news to whoever came after
            self._segment = replace(self._segment, short=tuple(sorted({*there.short, *self._segment.short})))
        self._manifest = self._there()
        self._record()

    def _recorded(self) -> Segment | None:
        return next((segment for segment in self._there().lists if segment.first_shard == self.first_shard), None)

    def _there(self) -> Manifest:
        """What `.any2ds/run` says by now."""
        try:
            return Manifest.parse(self._output.read(layout.RUN_FILE) or b"")
        except ValueError:  # it was whole when we joined
            return self._manifest

    def _record(self) -> None:
        try:
            self._write()
        except OSError as error:  # the shards are what matters; another run records it
            log.warning("%s could not be written: %s", layout.RUN_FILE, words_of(error))

    def _write(self) -> None:
        self._output.write(layout.RUN_FILE, self._manifest.with_list(self._segment).to_json())


def prepare(
    output: OutputFolder,
    config: Config,
    source: Source,
    member: Member | None = None,
    is_alone: Callable[[], bool] | None = None,
) -> Finished:
    """Make `output` ready for a run: it exists, can be written, and what is in it was made with the same options from
    the same list, or it is another list that goes behind, or is removed, as `incremental_mode` says.

    Reads the list up to the last finished shard, a first time, if it is not surely the same as before. Raises
    OutputError if this cannot be; nothing was changed then. With a `member` others may be at work in it; `is_alone`,
    which may take its time, says whether none is.
    """
    options = config.output
    refuse_private(output, config.run)
    if member is not None and options.incremental_mode == "overwrite":
        raise OutputError(
            "incremental_mode=overwrite: runs that make a dataset together cannot each begin it anew; remove the "
            "folder before, or choose another output_folder"
        )
    names_of = Layout(options.number_sample_per_shard, options.oom_shard_count)
    names = output.names()
    before = _read_manifest(output, names)
    _refuse_names(output, config, before, names)
    if options.incremental_mode == "overwrite" and names:
        if before is not None:
            output.create()
            overwrite(output, before, [*names, *output.state_names()], source.files)
        elif layout.finished_shards(names):
            raise OutputError(
                f"{output.url!r} holds shards, and no {layout.RUN_FILE} that says they are any2ds's own: nothing was "
                "removed; choose another output_folder, or empty this one yourself"
            )
        names, before = output.names(), None
    deciding = {name: config.to_options()[name] for name in _DECIDING}
    deciding["save_additional_columns"] = list(deciding["save_additional_columns"] or [])
    deciding["metadata_format"] = list(deciding["metadata_format"])
    deciding["verify_hash"] = deciding["verify_hash"] and str(deciding["verify_hash"])
    deciding["transform"] = [name_of(step) for step in deciding["transform"] or []] or None
    first_rows = source.first_rows
    assert first_rows is not None  # nobody has asked for the rows yet
    recipe = presets.find(options.preset)
    cutting: Cutting = "file" if recipe is not None and recipe.cuts_by_file else "list"
    this = Segment(0, source.list_files, Beginning.of(first_rows), cutting)
    steps = step_records(config.media)
    now = Manifest(deciding, key_format(names_of), columns_of(source.schema), (this,), steps)
    chooser = _Chooser(output, config, source, names_of, names, now, is_alone)
    going = chooser.going(before)
    manifest = now
    if before is not None and chooser.goes_on:
        steps, changes = with_versions(before.steps or steps, steps)
        manifest = replace(before, steps=steps)
        if changes:
            warn_of_versions(output.url, changes)
    manifest = manifest.with_list(going.segment)
    behind = manifest.behind(going.segment)
    own = chooser.own(going.segment, behind) - set(going.unreadable)
    output.create()
    for shard_id in sorted(going.unreadable):
        # Its mark goes before its data is replaced: at no time does a mark stand beside data of another making.
        log.warning("%s cannot be read: its shard is made again", names_of.stats_name(shard_id))
        output.remove(names_of.stats_name(shard_id))
    output.write(layout.RUN_FILE, manifest.to_json())
    finished = layout.finished_shards(names) - set(going.unreadable)
    return Finished(output, manifest, going, own, behind, finished, names_of, member)


def _refuse_names(output: OutputFolder, config: Config, before: Manifest | None, names: Sequence[str]) -> None:
    """Raises OutputError if files of others have the names of those that are about to be written for TFDS."""
    own = tfds.names_of(before.options) if before is not None else ()
    if others := [name for name in tfds.names_of(config.to_options()) if name in names and name not in own]:
        raise OutputError(
            f"{output.url!r} holds {' and '.join(others)}, which any2ds did not write and would write over: "
            "move that away, or choose another output_folder"
        )


def refuse_private(output: OutputFolder, options: RunOptions) -> None:
    """Raises OutputError if worker processes could not see `output`."""
    if output.is_private and options.distributor != "inline":
        raise OutputError(f"{output.url!r} exists in this process only: it needs --distributor=inline")


def _read_manifest(output: OutputFolder, names: Sequence[str]) -> Manifest | None:
    content = output.read(layout.RUN_FILE) if names else None
    if content is None:
        layout.refuse_earlier(output.url, names)
        return None
    try:
        return Manifest.parse(content)
    except ValueError as error:
        if not layout.finished_shards(names):
            return None
        raise OutputError(f"{output.url!r}: its {layout.RUN_FILE} cannot be read, so it is not touched") from error


class _Chooser:
    """Finds where in a dataset a list belongs."""

    def __init__(
        self,
        output: OutputFolder,
        config: Config,
        source: Source,
        names_of: Layout,
        names: Sequence[str],
        now: Manifest,
        is_alone: Callable[[], bool] | None,
    ) -> None:
        self._output, self._config, self._source, self._layout = output, config, source, names_of
        self._names, self._now, self._is_alone = names, now, is_alone
        self._this = now.lists[0]
        self._finished = layout.finished_shards(names)
        self._first_rows: pa.RecordBatch = source.first_rows
        self._extends = config.output.incremental_mode == "extend"
        self._is_shuffled = config.input.shuffle is not None
        self.goes_on = False  # with a dataset that there is

    def own(self, segment: Segment, behind: int | None) -> set[int]:
        """The finished shards of a list, which ends where the one `behind` it begins."""
        return {
            shard_id
            for shard_id in self._finished
            if shard_id >= segment.first_shard and (behind is None or shard_id < behind)
        }

    def going(self, before: Manifest | None) -> _Going:
        """Raises OutputError."""
        if before is None:
            return self._complete_others() if self._finished else _Going(self._this)
        match, changed = self._match(before.lists), _changed(before, self._now)
        if self._is_at_odds(match, changed):
            what = f"with other options ({'; '.join(changed)})" if changed else "from another url list"
            raise OutputError(
                f"{self._output.url!r} is being made by others {what}: give each the same, or another output_folder"
            )
        if not self._finished and (match is not None or not self._extends):
            return _Going(self._this)  # nothing is lost by beginning anew
        self.goes_on = True
        if changed:
            raise OutputError(
                f"{self._output.url!r} holds shards made with other options ({'; '.join(changed)}): "
                "use the same options to go on, or another output_folder"
            )
        if match is not None:
            return self._go_on(match, before.behind(match))
        if self._extends:
            return self._extend(before.lists)
        raise OutputError(
            f"{self._output.url!r} holds shards of {len(before.lists)} url lists, and this one is none of them: go on "
            "with one of those, or put it behind them with --incremental_mode=extend"
        )

    def _is_at_odds(self, match: Segment | None, changed: Sequence[str]) -> bool:
        """Whether others are at work, and on something else. Files may be copies, which have dates of their own."""
        if self._is_alone is None or (match is None and self._extends):
            return False
        if match is not None and not changed and self._begins_as(match):
            sizes = [[file.size for file in files] for files in (match.files, self._this.files)]
            if any(None in each for each in sizes) or sizes[0] == sizes[1]:
                return False
        return not self._is_alone()

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
        return Beginning.of(self._rows(segment.beginning.rows), segment.beginning.rows) == segment.beginning

    def _rows(self, count: int) -> pa.RecordBatch:
        """The first `count` rows, or as many as there are; of a list that can be read once those that are at hand."""
        if self._first_rows.num_rows < count and self._source.can_be_read_again:
            batches, rows = [], 0
            with Source.of(self._config, in_list_order=True) as source:
                for batch in source.batches():
                    batches.append(batch.select(["url"]))
                    rows += batch.num_rows
                    if rows >= count:
                        break
            self._first_rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
        return self._first_rows

    # --- going on with a list ---

    def _go_on(self, segment: Segment, behind: int | None) -> _Going:
        own = self.own(segment, behind)
        files = self._this.files
        # Where shuffled files have further ones behind them, the rows of all are in another order.
        unchanged = segment.is_made_of(files) and (files == segment.files or not self._is_shuffled)
        doubtful = {shard_id for shard_id in {*segment.short, max(own, default=-1)} if shard_id in own}
        known = read_known(self._output, self._layout, doubtful)
        kept = any(found.maker != ANY2DS and self._has_room(found) for found in known.values() if found)
        if unchanged and not (len(files) > len(segment.files) and (behind is not None or kept)):
            same = segment if files == segment.files else replace(segment, rows=None, shards=None)
            return self._going(replace(same, files=files), known)
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
            return self._going(replace(segment, files=files, beginning=self._this.beginning), known, compared)
        going = self._going(replace(segment, files=files), known)
        return replace(going, comparison=Comparison(self._output, self._layout, _readable(known)))

    def _has_room(self, found: Known) -> bool:
        return found.count < self._layout.rows_per_shard

    def _going(self, segment: Segment, known: Mapping[int, Known | None], compared: _Compared | None = None) -> _Going:
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
        return _Going(replace(segment, short=tuple(sorted(short))), counts, unreadable)

    def _may_grow(self, segment: Segment, shard_id: int, found: Known) -> bool:
        """Whether further rows of the list may belong into it."""
        return self._has_room(found) and found.count != segment.rows_in(shard_id, self._layout.rows_per_shard)

    def _compare(self, segment: Segment, known: Mapping[int, Known | None], behind: int | None) -> _Compared:
        """Read the list up to its last finished shard, or whole if another one stands behind. Raises Difference."""
        comparison = Comparison(self._output, self._layout, _readable(known))
        counts: dict[int, int] = {}
        short: set[int] = set()
        by_file = segment.cut == "file"
        next_shard, rows = segment.first_shard, 0
        with closing(Source.of(self._config)) as source:
            for cut in cuts(source.batches(by_file), self._layout.rows_per_shard, next_shard, by_file):
                found, state = known.get(cut.shard_id), comparison(cut)
                if found is not None:
                    counts[cut.shard_id] = found.count if state == "short" else cut.rows
                if state == "short":
                    short.add(cut.shard_id)
                next_shard, rows = cut.shard_id + 1, rows + cut.rows
                if behind is not None:
                    _refuse_growth(segment, rows)
                elif cut.shard_id >= comparison.last:
                    return _Compared(counts, short)
        comparison.ended(next_shard, rows)
        return _Compared(counts, short)

    # --- another list behind ---

    def _extend(self, lists: Sequence[Segment]) -> _Going:
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
                f"{self._output.url!r} holds shards that {layout.RUN_FILE} knows nothing of, from "
                f"{self._layout.shard_name(min(strays))} on: choose another output_folder"
            )
        return _Going(replace(self._this, first_shard=first))

    def _lacks(self, segment: Segment, behind: int | None) -> str:
        """What of a list is not in the dataset, in words; empty if it is whole."""
        if segment.end is None:
            return "no run has come to the end"
        own = self.own(segment, behind)
        missing = [shard_id for shard_id in range(segment.first_shard, segment.end) if shard_id not in own]
        if not missing:
            known = read_known(self._output, self._layout, [shard_id for shard_id in segment.short if shard_id in own])
            for shard_id, found in known.items():
                expected = segment.rows_in(shard_id, self._layout.rows_per_shard)
                if found is None or (expected is not None and found.count < expected):
                    missing.append(shard_id)
        shown = ", ".join(self._layout.shard_name(shard_id) for shard_id in missing[:3])
        more = " …" * (len(missing) > 3)
        return f"{shard_count(len(missing), 'is', 'are')} missing ({shown}{more})" if missing else ""

    # --- folders of others ---

    def _complete_others(self) -> _Going:
        known = read_known(self._output, self._layout_of_names(), self._finished)
        options, url = self._config.output, self._output.url
        refuse_misfits(self._output, self._names, options, self._config.media, known)
        who = makers(known)
        if self._extends:
            raise OutputError(f"{url!r} was begun by {who}: complete it first, with its list and without extend")
        if self._is_shuffled:
            raise OutputError(f"{url!r} was begun by {who}, in the order of the list: complete it without shuffle")
        if not self._source.can_be_read_again:
            raise OutputError(f"{url!r} was begun by {who}: to complete it, its list must be a file or so, read twice")
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
            return self._going(segment, known, compared)
        raise OutputError(
            f"{url!r} holds shards that {who} made from another url list, or with other options: "
            f"{reasons[0]}{hint(options, known)}. Nothing was changed"
        )

    def _layout_of_names(self) -> Layout:
        digits = min(len(name.removesuffix("_stats.json")) for name in self._names if layout.finished_shards([name]))
        return replace(self._layout, shard_digits=digits)


def _readable(known: Mapping[int, Known | None]) -> dict[int, Known]:
    return {shard_id: found for shard_id, found in known.items() if found is not None}


def _refuse_growth(segment: Segment, rows: int) -> None:
    if segment.rows is not None and rows > segment.rows:
        raise Difference(
            f"it had {segment.rows:,} rows and has more now, which would have to come where another list goes on; put "
            "them into a list of their own"
        )


def _steps_of(manifest: Manifest) -> str:
    """The steps that files go through, as text."""
    if manifest.steps is not None:
        names = [step.name for step in manifest.steps]
    elif manifest.options.get("disable_all_reencoding", True):
        names = []
    else:  # an earlier version had these in every run
        names = ["image", "audio", "video"]
    names = [name for name in names if name not in ("archive", "text")]  # by one option each, which is compared
    return f"the steps {', '.join(names)}" if names else "no step for images, sound or video"


def _alike(name: str, before: Any, now: Any) -> bool:
    """Whether shards made with either value of an option may be in one dataset."""
    return bool(before == now or name == "row_group_bytes" or (name == "dedupe" and "run" not in (before, now)))


def _changed(before: Manifest, now: Manifest) -> list[str]:
    """What decides about shards and is another one now, in words."""
    # Of an option that came later, the dataset was made with what is its default now.
    defaults = {f.name: f.default for group in (InputOptions, OutputOptions) for f in dataclasses.fields(group)}
    options = {**defaults, "metadata_format": ["parquet"], **as_made(before.options)}
    changed = [
        f"{name} was {options.get(name)!r}, now {value!r}"
        for name, value in now.options.items()
        if not _alike(name, options.get(name), value)
    ]
    if changed:  # which also decide about keys and columns
        return changed
    if (were := _steps_of(before)) != (are := _steps_of(now)):
        changed.append(f"its files went through {were}, and would now go through {are}")
    if before.key_format != now.key_format:
        changed.append(f"keys were made as {before.key_format}, now {now.key_format}")
    for name in {**before.columns, **now.columns}:
        was, became = before.columns.get(name), now.columns.get(name)
        if was != became:
            changed.append(f"column {name!r} was {was or 'not there'}, now {became or 'not there'}")
    return changed
