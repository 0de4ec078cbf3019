"""Which samples of a dataset a source has: spans of their numbers, or those in them that masks name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Span:
    """Samples that follow each other in the dataset, or some of them."""

    numbers: range
    mask: pa.BooleanArray | None = None  # of these; None: all of them

    @classmethod
    def of_mask(cls, mask: pa.BooleanArray) -> Span:
        """Those that a mask of the whole dataset names."""
        return cls(range(len(mask)), mask)

    def part(self, numbers: range) -> Span:
        """Its samples among these numbers."""
        own = self.numbers
        shared = range(max(own.start, numbers.start), min(own.stop, numbers.stop)) or range(0)
        if self.mask is None or not shared or shared == own:
            return Span(shared, self.mask if shared == own else None)
        # A copy: a slice would be pickled with all that it is a part of.
        return Span(shared, pa.concat_arrays([self.mask.slice(shared.start - own.start, len(shared))]))

    def where(self, mask: pa.BooleanArray, first: int = 0) -> Span:
        """Its samples that meet a condition; `first` is the number of the sample with which the mask begins."""
        found = Span(range(first, first + len(mask)), mask).part(self.numbers)
        return found if self.mask is None or found.mask is None else Span(found.numbers, pc.and_(self.mask, found.mask))


@dataclass(frozen=True)
class Selection:
    """The samples of spans, one span after the other.

    Small where it is pickled: one bit for each sample of a span, or nothing.
    """

    spans: tuple[Span, ...]
    where: pc.Expression | None = None  # the condition that is a part of the masks

    @classmethod
    def of(cls, spans: Iterable[Span], where: pc.Expression | None = None) -> Selection:
        return cls(tuple(_joined(spans)), where)

    def __reduce__(self) -> tuple[type[Selection], tuple[Any, ...]]:
        return Selection, (self.spans, self.where)

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The samples, by their numbers in the dataset: a range where they follow each other, or 8 bytes a sample."""
        if len(self.spans) == 1 and self.spans[0].mask is None:
            return self.spans[0].numbers
        parts = [pa.array([], pa.uint64())]
        for span in self.spans:
            if span.mask is None:
                parts.append(pa.array(span.numbers, pa.uint64()))
            else:
                parts.append(pc.add(pc.indices_nonzero(span.mask), pa.scalar(span.numbers.start, pa.uint64())))
        joined = pa.concat_arrays(parts)
        if not len(joined):
            return range(0)
        found = cast("Sequence[int]", memoryview(joined.buffers()[1]).cast("Q")[: len(joined)])
        is_ascending = all(first.numbers.stop <= second.numbers.start for first, second in pairwise(self.spans))
        if is_ascending and found[-1] - found[0] + 1 == len(found):
            return range(found[0], found[-1] + 1)
        return found

    def digest(self) -> bytes:
        """A hash of the numbers of all samples; 10,000,000 that do not follow each other take 60 ms."""
        numbers = self.numbers
        return sha256(repr(numbers).encode() if isinstance(numbers, range) else cast(Any, numbers)).digest()

    @property
    def last(self) -> int:
        """The greatest number of a sample. Raises ValueError if there is none."""
        numbers = self.numbers
        if isinstance(numbers, range):
            return max(numbers[-1:])
        return int(pc.max(pa.Array.from_buffers(pa.uint64(), len(numbers), [None, pa.py_buffer(numbers)])).as_py())

    def within(self, numbers: range) -> Selection:
        """Its samples among these numbers."""
        return Selection.of(span.part(numbers) for span in self.spans)


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Without empty ones; those that follow each other are one, as far as they have no masks."""
    last: Span | None = None
    for span in spans:
        if not span.numbers:
            continue
        if last is not None and last.mask is None and span.mask is None and last.numbers.stop == span.numbers.start:
            last = Span(range(last.numbers.start, span.numbers.stop))
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last
