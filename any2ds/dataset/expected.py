"""Which shards a dataset should have, and of how many rows, by its segments. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from any2ds.core.manifest import Beginning, Segment
from any2ds.dataset.dataset import Dataset

_MOST_MISSING = 1 << 17  # numbers


@dataclass(frozen=True)
class ExpectedShards:
    """The shards of `segments`, in order, compared with those that are `present`."""

    segments: Sequence[Segment]
    present: Collection[int]
    rows_per_shard: int | None  # None if unknown

    @classmethod
    def of(cls, dataset: Dataset, present: Collection[int]) -> ExpectedShards:
        if dataset.run is None:
            return cls([Segment(0, 0, (), Beginning(0, ""))], present, None)
        return cls(dataset.run.segments, present, dataset.run.layout.rows_per_shard)

    @property
    def has_unread_list(self) -> bool:
        """Whether no run has read one of the lists to its end."""
        return any(segment.end is None for segment in self.segments)

    @property
    def missing(self) -> list[int]:
        """In order; no more than _MOST_MISSING of them, whatever number a run file has."""
        present = frozenset(self.present)
        absent = (shard_id for span in self._spans for shard_id in span if shard_id not in present)
        return sorted(set(islice(absent, _MOST_MISSING)))

    @property
    def beyond(self) -> list[int]:
        """Present shards for which no list has rows."""
        return sorted(shard_id for shard_id in self.present if self._list_of(shard_id) is None)

    def rows(self, shard_id: int) -> int | None:
        """How many rows the list has for a shard; None if that is unknown, or if no list has the shard."""
        number = self._list_of(shard_id)
        if number is None or self.rows_per_shard is None or self.segments[number].cut != "list":
            return None
        if self.segments[number].rows is not None:
            return self.segments[number].rows_in(shard_id, self.rows_per_shard)
        return self.rows_per_shard if shard_id < self._spans[number][-1] else None

    def _list_of(self, shard_id: int) -> int | None:
        """The number of the list that has rows for a shard."""
        return next((number for number, span in enumerate(self._spans) if shard_id in span), None)

    @cached_property
    def _spans(self) -> list[range]:
        """The shard numbers of each list; up to the last shard that is present for a list of unknown length."""
        last = max(self.present, default=-1)
        starts = [segment.first_shard for segment in self.segments]
        ends = [*starts[1:], last + 1]
        return [
            range(segment.first_shard, max(segment.first_shard, end) if segment.end is None else segment.end)
            for segment, end in zip(self.segments, ends, strict=True)
        ]
