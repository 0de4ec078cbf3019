"""Which shards a dataset should have, and of how many rows, by what its run file says of its lists. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from any2ds.dataset.dataset import Dataset, UrlList


@dataclass(frozen=True, slots=True)
class Census:
    """`lists` in the order of their shards; the shards that are `present`, of which some may be none of theirs.

    `rows_per_shard` is None where nothing tells it.
    """

    lists: Sequence[UrlList]
    present: Collection[int]
    rows_per_shard: int | None

    @classmethod
    def of(cls, dataset: Dataset) -> Census:
        present = frozenset(dataset.shards)
        if dataset.run is None:
            return cls((UrlList(),), present, None)
        names = dataset.layout
        lists = dataset.run.lists or (UrlList(),)
        if names is None:
            return cls(lists, present, None)
        return cls([_with_shards(found, names.rows_per_shard) for found in lists], present, names.rows_per_shard)

    @property
    def unread(self) -> list[UrlList]:
        """The lists that no run has read to their end."""
        return [found for found in self.lists if found.rows is None or found.shards is None]

    @property
    def missing(self) -> list[int]:
        return sorted(set(self._numbers()) - set(self.present))

    @property
    def beyond(self) -> list[int]:
        """Shards that no list has rows for."""
        return sorted(set(self.present) - set(self._numbers()))

    def rows(self, shard_id: int) -> int | None:
        """How many the list has for it; None where that is not known, or where it is no shard of a list."""
        spans = self._spans()
        for found, span in zip(self.lists, spans, strict=True):
            if shard_id in span and self.rows_per_shard is not None and not found.is_cut_by_file:
                if shard_id < span[-1]:
                    return self.rows_per_shard
                if found.rows is not None and found.shards is not None:
                    return found.rows - self.rows_per_shard * (found.shards - 1)
                return None
        return None

    def _numbers(self) -> Iterable[int]:
        for span in self._spans():
            yield from span

    def _spans(self) -> list[range]:
        """The numbers of the shards of each list; up to the last one that is there, of a list of unknown length."""
        last = max(self.present, default=-1)
        starts = [found.first_shard for found in self.lists]
        ends = [*starts[1:], last + 1]
        return [
            range(start, max(start, end) if found.shards is None else start + found.shards)
            for found, start, end in zip(self.lists, starts, ends, strict=True)
        ]


def _with_shards(found: UrlList, rows_per_shard: int) -> UrlList:
    if found.rows is None or found.shards is not None:
        return found
    return replace(found, shards=-(-found.rows // rows_per_shard))


def in_words(numbers: Sequence[int], most: int = 10) -> str:
    """Sorted numbers as people write them: `3, 7-9, 12 … and 4 more`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:most])
    more = sum(last - first + 1 for first, last in runs[most:])
    return shown + (f" … and {more:,} more" if more else "")
