"""Work over time, by the times of shards, of which many are open at once. Pure.

Pauses in which no shard was open, between a run and the next that continues it, are left out.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_MOST_SPANS = 48
_LEAST_PAUSE = 5.0  # seconds
# Lengths of a span: round numbers in the unit that charts show it in, which grows with the time.
_SECONDS = (0.1, 0.2, 0.5, 1, 2, 5, 6, 12, 30, 60, 120, 300, 360, 720, 1800, 3600, 7200, 8640, 17_280, 43_200, 86_400)
_LONG = 7 * 86_400.0  # spans beyond the longest are multiples of it


@dataclass(frozen=True, slots=True)
class Work:
    """A shard: when it was open, and what became of its rows."""

    start: float  # Unix seconds
    end: float  # of the time in which it was made
    ended: float  # when it was changed last
    outcomes: Mapping[str, int]  # code -> rows
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Spell:
    """Work in a span of time, with a share of each shard that was open for longer."""

    start: float  # seconds at work since the beginning
    seconds: float
    outcomes: Mapping[str, float] = field(default_factory=dict)  # code -> rows
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """A dataset's time at work."""

    seconds: float = 0.0
    pauses: int = 0
    spells: tuple[Spell, ...] = ()  # of equal length, but for the last one


def timeline(works: Iterable[Work]) -> Timeline:
    """The time at work of shards whose times are plausible."""
    known = sorted((work for work in works if 0 < work.start <= work.end < 1e11), key=lambda work: work.start)
    if not known:
        return Timeline()
    groups = _groups(known)
    starts = [start for start, _ in groups]
    before = list(itertools.accumulate((end - start for start, end in groups), initial=0.0))
    seconds = before[-1]
    most = min(_MOST_SPANS, 4 * len(known))
    width = next((each for each in _SECONDS if seconds <= each * most), _LONG * math.ceil(seconds / most / _LONG))
    sizes = [0.0] * max(1, math.ceil(seconds / width - 1e-9))
    outcomes: list[Counter[str]] = [Counter() for _ in sizes]
    for work in known:
        number = bisect_right(starts, work.start) - 1
        start = before[number] + work.start - starts[number]
        end = start + work.end - work.start
        first, last = (min(len(sizes) - 1, int(moment / width)) for moment in (start, end))
        for span in range(first, last + 1):
            overlap = min(end, (span + 1) * width) - max(start, span * width)
            share = overlap / (end - start) if end > start else 1.0
            for code, count in work.outcomes.items():
                outcomes[span][code] += count * share  # type: ignore[assignment]
            sizes[span] += work.bytes * share
    spells = tuple(
        Spell(number * width, min(width, seconds - number * width) or width, dict(found), size)
        for number, (found, size) in enumerate(zip(outcomes, sizes, strict=True))
    )
    return Timeline(seconds, len(groups) - 1, spells)


def _groups(works: Sequence[Work]) -> list[tuple[float, float]]:
    """When at least one shard was open; `works` by their start."""
    # The shards in between may be unknown, and one begins a moment after another has ended.
    lengths = sorted(work.end - work.start for work in works)
    idle = max(_LEAST_PAUSE, lengths[(len(lengths) - 1) // 2] + lengths[len(lengths) // 2])  # twice the median
    found = [(works[0].start, works[0].end)]
    for work in works[1:]:
        start, end = found[-1]
        if work.start <= end + idle:
            found[-1] = start, max(end, work.end)
        else:
            found.append((work.start, work.end))
    return found
