"""The samples of a dataset that a source has: their numbers, as a range where they follow each other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

Numbers: TypeAlias = "range | Any"
"""A range, or an array of Arrow of type uint64."""


@dataclass(frozen=True)
class Selection:
    """The samples of parts, one part after the other; each part is in ascending order."""

    parts: tuple[Numbers, ...]
    where: pc.Expression | None = None  # the condition that the samples meet

    @classmethod
    def of(cls, parts: Iterable[Numbers], where: pc.Expression | None = None) -> Selection:
        """Parts that follow each other are one."""
        found: list[Numbers] = []
        for part in map(_as_range, parts):
            if found and isinstance(part, range) and isinstance(found[-1], range) and found[-1].stop == part.start:
                found[-1] = range(found[-1].start, part.stop)
            elif len(part):
                found.append(part)
        return cls(tuple(found), where)

    def __reduce__(self) -> tuple[Any, ...]:
        return Selection, (self.parts, self.where)

    @cached_property
    def numbers(self) -> Sequence[int]:
        """The samples, by their numbers in the dataset: a range where they follow each other, or 8 bytes a sample."""
        if len(self.parts) < 2 and all(isinstance(part, range) for part in self.parts):
            return cast(range, self.parts[0]) if self.parts else range(0)
        joined = pa.concat_arrays([pa.array(part, pa.uint64()) for part in self.parts])
        return cast("Sequence[int]", memoryview(joined.buffers()[1]).cast("Q")[joined.offset :][: len(joined)])

    def digest(self) -> bytes:
        """A hash of the numbers of all samples; 10,000,000 that do not follow each other take 60 ms."""
        numbers = self.numbers
        return sha256(repr(numbers).encode() if isinstance(numbers, range) else cast(Any, numbers)).digest()

    @property
    def last(self) -> int:
        """The greatest number of a sample. Raises ValueError if there is none."""
        return max(_number(part, -1) for part in self.parts)

    def within(self, numbers: range) -> Selection:
        """Its samples among these numbers."""
        return Selection.of(_among(part, numbers) for part in self.parts)


def meeting(part: Numbers, mask: pa.BooleanArray, first: int = 0) -> Numbers:
    """The samples of a part for which a mask is true, which begins with the sample of the number `first`."""
    if isinstance(part, range):
        found = pc.indices_nonzero(mask.slice(part.start - first, len(part)))
        return pc.add(found.cast(pa.uint64()), pa.scalar(part.start, pa.uint64()))
    return part.filter(mask.take(pc.subtract(part, pa.scalar(first, pa.uint64()))))


def _as_range(part: Numbers) -> Numbers:
    if isinstance(part, range) or not len(part):
        return part if isinstance(part, range) else range(0)
    first, last = _number(part, 0), _number(part, -1)
    return range(first, last + 1) if last - first + 1 == len(part) else part


def _number(part: Numbers, place: int) -> int:
    return part[place] if isinstance(part, range) else int(part[place].as_py())


def _among(part: Numbers, numbers: range) -> Numbers:
    if isinstance(part, range):
        return range(max(part.start, numbers.start), min(part.stop, numbers.stop))
    own = memoryview(part.buffers()[1]).cast("Q")[part.offset :][: len(part)]
    start, stop = bisect_left(own, numbers.start), bisect_left(own, numbers.stop)
    return pa.concat_arrays([part.slice(start, stop - start)])  # a copy: a slice would hold all of it
