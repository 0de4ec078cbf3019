"""The shards that a dataset should have, by its segments. Pure."""

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

    @classmethod
    def of(cls, dataset: Dataset, present: Collection[int]) -> ExpectedShards:
        if dataset.run is None:
            return cls([Segment(0, 0, (), Beginning(0, ""))], present)
        return cls(dataset.run.segments, present)

    @property
    def has_unread_list(self) -> bool:
        """Whether no run has read one of the lists to its end."""
        return any(segment.end is None for segment in self.segments)

    @cached_property
    def missing(self) -> list[int]:
        """In order; no more than _MOST_MISSING of them, whatever number a run file has."""
        present = frozenset(self.present)
        absent = (shard_id for span in self._spans for shard_id in span if shard_id not in present)
        return sorted(set(islice(absent, _MOST_MISSING)))

    @cached_property
    def beyond(self) -> list[int]:
        """Present shards for which no list has rows."""
        return sorted(shard_id for shard_id in self.present if not any(shard_id in span for span in self._spans))

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
