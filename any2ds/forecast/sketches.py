"""Counts of a stream with too many different values to keep them all: the most frequent, and a sample of the others.

Both are exact while there are few values. A library for this (Apache's datasketches) needs NumPy, which any2ds does
without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

_MOST_HOSTS = 200_000
_MOST_DISTINCT = 100_000
_BITS = 60


class FrequentItems:
    """Counts of the most frequent values (Misra and Gries): a value is counted short by at most `error`."""

    def __init__(self, most: int = _MOST_HOSTS) -> None:
        self.counts: Counter[str] = Counter()
        self.error = 0
        self._most = most

    def add(self, counts: Mapping[str, int]) -> None:
        self.counts.update(counts)
        if len(self.counts) > 2 * self._most:
            least = sorted(self.counts.values(), reverse=True)[self._most]
            self.error += least
            self.counts = Counter({value: count - least for value, count in self.counts.items() if count > least})


class DistinctSample:
    """The values whose hash lies in a part of all hashes that shrinks as they become many, with their exact counts
    (Gibbons): a random sample of the distinct values, however often each occurs."""

    def __init__(self, most: int = _MOST_DISTINCT) -> None:
        self.counts: Counter[str] = Counter()
        self._most, self._mask = most, 0

    @property
    def part(self) -> float:
        """The share of all distinct values that is here."""
        return 1.0 / (self._mask + 1)

    def add(self, values: Iterable[str]) -> None:
        """Each as often as it occurs."""
        mask = self._mask
        self.counts.update([value for value in values if not _mixed(value) & mask] if mask else values)
        self._shrink()

    def add_counts(self, counts: Mapping[str, int]) -> None:
        mask = self._mask
        self.counts.update({value: count for value, count in counts.items() if not _mixed(value) & mask})
        self._shrink()

    def _shrink(self) -> None:
        while len(self.counts) > self._most:
            self._mask = 2 * self._mask + 1
            self.counts = Counter(
                {value: count for value, count in self.counts.items() if not _mixed(value) & self._mask}
            )

    @property
    def distinct(self) -> int:
        """Estimated number of distinct values: within 1 % if there are more than fit."""
        return round(len(self.counts) / self.part)

    @property
    def repeated_share(self) -> float:
        """Share of the occurrences that are not the first of their value."""
        total = self.counts.total()
        return (total - len(self.counts)) / total if total else 0.0


_mixed = hash  # SipHash, with a key that is random in each process
