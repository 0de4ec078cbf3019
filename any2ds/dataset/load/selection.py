"""Which samples of a dataset a source has: a range of their numbers, or those that a mask names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Selection:
    """Small where it is pickled: one bit for each sample of the dataset, or nothing."""

    ranges: tuple[range, ...]  # of numbers of samples, in this order
    mask: pa.BooleanArray | None = None  # of all samples of shards that have the ranges; None: those of the ranges
    where: pc.Expression | None = None  # the condition that is a part of the mask
    first: int = 0  # number of the sample with which the mask begins

    def __reduce__(self) -> tuple[type[Selection], tuple[Any, ...]]:
        return Selection, (self.ranges, self.mask, self.where, self.first)

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The samples, by their numbers in the dataset: a range, or 8 bytes a sample."""
        if self.mask is None and len(self.ranges) == 1:
            return self.ranges[0]
        parts = [pa.array([], pa.uint64())]
        for span in self.ranges:
            if self.mask is None:
                parts.append(pa.array(span, pa.uint64()))
            else:
                inside = pc.indices_nonzero(self.mask.slice(span.start - self.first, len(span)))
                parts.append(pc.add(inside, pa.scalar(span.start, pa.uint64())))
        joined = pa.concat_arrays(parts)
        if not len(joined):
            return range(0)
        return cast("Sequence[int]", memoryview(joined.buffers()[1]).cast("Q")[: len(joined)])

    def within(self, span: range) -> Selection:
        """Its samples among these numbers, which are a part of the dataset."""
        shared = (range(max(own.start, span.start), min(own.stop, span.stop)) for own in self.ranges)
        ranges = tuple(own for own in shared if own)  # else the mask may be one of other shards
        if self.mask is None or not ranges:
            return Selection(ranges, first=span.start)
        mask = pa.concat_arrays([self.mask.slice(span.start - self.first, len(span))])
        return Selection(ranges, mask, first=span.start)


def mask_of(span: range, total: int) -> pa.BooleanArray:
    """Which of `total` samples are those of a range."""
    if not span:
        span = range(0)
    parts = ((False, span.start), (True, len(span)), (False, total - span.stop))
    return pa.concat_arrays([pa.repeat(pa.scalar(value), count) for value, count in parts])
