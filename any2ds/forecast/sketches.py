"""Counts of a stream with too many different values to keep them all: the most frequent, and a sample of the others.

Both are exact while there are few values. A library for this (Apache's datasketches) needs NumPy, which any2ds does
without.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from functools import cache

import pyarrow as pa
import pyarrow.compute as pc

_MOST_HOSTS = 200_000
_MOST_DISTINCT = 100_000
_WORDS = 16  # of a text that count for its hash
_RANDOM = random.Random(0)  # so that an estimate says the same twice
_FACTOR_OF_LENGTH = pa.scalar(_RANDOM.getrandbits(64) | 1, pa.uint64())
_FINISH = [
    (pa.scalar(shift, pa.uint64()), pa.scalar(factor, pa.uint64()))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
]
_PIECE = 4096  # texts that are hashed at once


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
        self._most, self._bits = most, 0

    @property
    def part(self) -> float:
        """The share of all distinct values that is here."""
        return 2.0**-self._bits

    def add(self, values: pa.StringArray) -> None:
        """Each as often as it occurs."""
        self.counts.update(self._wanted(values).to_pylist())
        self._shrink()

    def add_counts(self, counts: Mapping[str, int]) -> None:
        wanted = self._wanted(pa.array(counts, pa.string())).to_pylist()
        self.counts.update({value: counts[value] for value in wanted})
        self._shrink()

    def _shrink(self) -> None:
        while len(self.counts) > self._most:
            self._bits += 1
            wanted = self._wanted(pa.array(self.counts, pa.string())).to_pylist()
            self.counts = Counter({value: self.counts[value] for value in wanted})

    def _wanted(self, values: pa.StringArray) -> pa.StringArray:
        """Those whose first bits of the hash are zeros."""
        return (
            values.filter(pc.less(_hashes(values), pa.scalar(1 << (64 - self._bits), pa.uint64())))
            if self._bits
            else values
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


def _hashes(texts: pa.StringArray) -> pa.ChunkedArray:
    """64 bits of each, of which the first are random, by the last `_WORDS` words of 8 bytes of a text and its length:
    the sum of the words, each times a random number, and then the last steps of SplitMix. Arrow has no function for
    it."""
    starts = range(0, len(texts), _PIECE)
    return pa.chunked_array([_hashes_of_piece(texts.slice(start, _PIECE)) for start in starts], pa.uint64())


def _hashes_of_piece(texts: pa.StringArray) -> pa.UInt64Array:
    count, size = len(texts), 8 * _WORDS
    ends = pc.binary_slice(texts.cast(pa.binary()), -size).cast(pa.string(), safe=False)  # maybe half a character
    padded = pc.ascii_lpad(ends, size, "\0")
    words = pa.Array.from_buffers(pa.uint64(), count * _WORDS, [None, padded.buffers()[2]])
    # Of all texts one after the other; what is added from the last word of one to that of the next is its sum.
    sums = pc.cumulative_sum(pc.multiply(words, _factors().slice(0, len(words))))
    ends_of_sums = pc.list_element(pa.FixedSizeListArray.from_arrays(sums, _WORDS), _WORDS - 1)
    before = pa.concat_arrays([pa.array([0], pa.uint64()), ends_of_sums.slice(0, count - 1)])
    lengths = pc.multiply(pc.binary_length(texts).cast(pa.uint64()), _FACTOR_OF_LENGTH)
    found = pc.add(pc.subtract(ends_of_sums, before), lengths)
    for shift, factor in _FINISH:
        found = pc.multiply(pc.bit_wise_xor(found, pc.shift_right(found, shift)), factor)
    return found


@cache
def _factors() -> pa.UInt64Array:
    """Those of the words of a text, for a piece of them."""
    return pa.array([_RANDOM.getrandbits(64) | 1 for _ in range(_WORDS)] * _PIECE, pa.uint64())
