"""Which shards a dataset should have, and of how many rows, by the url lists in its run file. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from any2ds.core.manifest import Beginning, Segment
from any2ds.dataset.dataset import Dataset


@dataclass(frozen=True)
class ExpectedShards:
    """The shards of `lists`, in order, compared with those that are `present`."""

    lists: Sequence[Segment]
    present: Collection[int]
    rows_per_shard: int | None  # None if unknown

    @classmethod
    def of(cls, dataset: Dataset, present: Collection[int]) -> ExpectedShards:
        if dataset.run is None:
            return cls([Segment(0, (), Beginning(0, ""))], present, None)
        return cls(dataset.run.lists, present, dataset.run.layout.rows_per_shard)

    @property
    def has_unread_list(self) -> bool:
        """Whether no run has read one of the lists to its end."""
        return any(segment.end is None for segment in self.lists)

    @property
    def missing(self) -> list[int]:
        return sorted(set(chain.from_iterable(self._spans)) - set(self.present))

    @property
    def beyond(self) -> list[int]:
        """Present shards for which no list has rows."""
        return sorted(set(self.present) - set(chain.from_iterable(self._spans)))

    def rows(self, shard_id: int) -> int | None:
        """How many rows the list has for a shard; None if that is unknown, or if no list has the shard."""
        for segment, span in zip(self.lists, self._spans, strict=True):
            if shard_id in span and self.rows_per_shard is not None and segment.cut == "list":
                if segment.rows is not None:
                    return segment.rows_in(shard_id, self.rows_per_shard)
                return self.rows_per_shard if shard_id < span[-1] else None
        return None

    @cached_property
    def _spans(self) -> list[range]:
        """The shard numbers of each list; up to the last shard that is present for a list of unknown length."""
        last = max(self.present, default=-1)
        starts = [segment.first_shard for segment in self.lists]
        ends = [*starts[1:], last + 1]
        return [
            range(segment.first_shard, max(segment.first_shard, end) if segment.end is None else segment.end)
            for segment, end in zip(self.lists, ends, strict=True)
        ]
