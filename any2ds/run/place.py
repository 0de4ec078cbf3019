"""Where the rows of a list have their shards: in one segment of the dataset, or in several. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from any2ds.core.manifest import Manifest, Segment
from any2ds.readers.plan import Cut, cuts
from any2ds.run.compare import ShardRows


@dataclass(frozen=True)
class Place:
    """Where the rows of a list have their shards."""

    manifest: Manifest
    parts: tuple[Segment, ...]  # of the list so far, in the order of its rows; the last one may have no end yet
    finished: frozenset[int]  # shards, of all lists
    broken: Mapping[int, str] = field(default_factory=dict)  # shards to be made again -> why
    to_compare: Mapping[int, ShardRows] = field(default_factory=dict)  # finished shards of a list that may have changed

    @property
    def by_file(self) -> bool:
        """Whether no shard holds rows of two files."""
        return self.parts[0].cut == "file"

    @property
    def next_part(self) -> Segment | None:
        """The segment for rows of the list behind its last one; None while another list has no end."""
        first_shard = self.manifest.end
        if first_shard is None:
            return None
        last, number = self.parts[-1], len(self.manifest.segments)
        return replace(last, number=number, first_shard=first_shard, start_row=last.end_row or 0, ending=None)

    def shard_at(self, index: int) -> int:
        """The number of a shard of the list, counted from 0 over all of its segments."""
        for part in self.parts:
            if part.shards is None or index < part.shards:
                return part.first_shard + index
            index -= part.shards
        return (self.manifest.end or 0) + index

    def part_of(self, shard_id: int) -> Segment | None:
        """The segment of the list that has a shard; None if it is to be begun."""
        segment = self.manifest.segment_of(shard_id)
        return segment if segment in self.parts else None

    def spans(self, end: int) -> list[range]:
        """The shards of each segment of the list; those of an open one end before `end`."""
        return [range(part.first_shard, end if part.end is None else part.end) for part in self.parts]

    @property
    def finished_of_list(self) -> frozenset[int]:
        """The finished shards that are of the list."""
        spans = self.spans(max(self.finished, default=-1) + 1)
        return frozenset().union(*map(self.finished.intersection, spans))

    def cuts(self, batches: Iterable[pa.RecordBatch], url_columns: Sequence[str]) -> Iterator[Cut]:
        """The shards of the list, from rows that are `divided`."""
        for cut in cuts(batches, self.manifest.layout.rows_per_shard, by_marker=True, url_columns=url_columns):
            yield replace(cut, shard_id=self.shard_at(cut.shard_id))

    def divided(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the list, with an empty batch at the end of each segment, where a shard ends too."""
        ends = [part.end_row for part in self.parts if part.end_row is not None]
        row = 0
        for batch in batches:
            is_marker = not batch.num_rows  # the end of a file
            while ends and row + batch.num_rows >= ends[0]:
                inside = ends.pop(0) - row
                yield batch.slice(0, inside)
                if inside:
                    yield batch.slice(0, 0)
                row, batch = row + inside, batch.slice(inside)
            if batch.num_rows or is_marker:
                row += batch.num_rows
                yield batch

    def with_segment(self, segment: Segment) -> Place:
        """The place when a segment of the list is new, or has an end now."""
        manifest = self.manifest.with_segment(segment)
        return replace(self, manifest=manifest, parts=manifest.parts_of(segment.list_number))
