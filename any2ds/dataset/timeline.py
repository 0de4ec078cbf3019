"""What was done when, from the figures of shards: each has a beginning and an end, and many are open at the same time.

Pure. Pauses in which no shard was open, between a run and the next that goes on with it, are left out.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

_MOST_BINS = 48
_LEAST_PAUSE = 5.0  # seconds
_LEAST_SECONDS = 0.1  # of a bin


@dataclass(frozen=True, slots=True)
class Work:
    """A shard, as far as it matters here."""

    start: float  # Unix seconds
    end: float
    outcomes: Mapping[str, int]  # code -> rows
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Spell:
    """What was done in a stretch of time. Of a shard that was open for longer it has its share."""

    start: float  # seconds at work since the beginning
    seconds: float
    rows: float = 0.0
    successes: float = 0.0
    bytes: float = 0.0
    outcomes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Timeline:
    seconds: float = 0.0  # at work
    pauses: int = 0
    spells: tuple[Spell, ...] = ()  # of equal length


def timeline(works: Iterable[Work], success: str = "success") -> Timeline:
    """Of what has a time that can be believed."""
    known = sorted((work for work in works if 0 < work.start <= work.end < 1e11), key=lambda work: work.start)
    if not known:
        return Timeline()
    groups = _groups(known)
    seconds = sum(end - start for start, end in groups)
    bins = max(1, min(_MOST_BINS, int(seconds / _LEAST_SECONDS), 4 * len(known)))
    width = seconds / bins or 1.0
    rows, successes, sizes = [0.0] * bins, [0.0] * bins, [0.0] * bins
    outcomes: list[Counter[str]] = [Counter() for _ in range(bins)]
    place = _Clock(groups)
    for work in known:
        start, end = place(work.start), place(work.end)
        first, last = min(bins - 1, int(start / width)), min(bins - 1, int(end / width))
        for number in range(first, last + 1):
            overlap = min(end, (number + 1) * width) - max(start, number * width)
            share = overlap / (end - start) if end > start else 1.0 / (last - first + 1)
            for code, count in work.outcomes.items():
                outcomes[number][code] += count * share  # type: ignore[assignment]
                rows[number] += count * share
            successes[number] += work.outcomes.get(success, 0) * share
            sizes[number] += work.bytes * share
    spells = tuple(
        Spell(number * width, width, rows[number], successes[number], sizes[number], dict(outcomes[number]))
        for number in range(bins)
    )
    return Timeline(seconds, len(groups) - 1, spells)


def _groups(works: Sequence[Work]) -> list[tuple[float, float]]:
    """When at least one shard was open; `works` by their start."""
    # The shards in between may not be known; and one begins a moment after the other has ended.
    idle = max(_LEAST_PAUSE, 2 * statistics.median(work.end - work.start for work in works))
    found = [(works[0].start, works[0].end)]
    for work in works[1:]:
        start, end = found[-1]
        if work.start <= end + idle:
            found[-1] = start, max(end, work.end)
        else:
            found.append((work.start, work.end))
    return found


class _Clock:
    """Seconds at work until a moment; to be asked for moments whose beginnings never go back."""

    def __init__(self, groups: Sequence[tuple[float, float]]) -> None:
        self._groups, self._number, self._before = groups, 0, 0.0

    def __call__(self, moment: float) -> float:
        while self._number + 1 < len(self._groups) and moment >= self._groups[self._number + 1][0]:
            start, end = self._groups[self._number]
            self._before += end - start
            self._number += 1
        return self._before + moment - self._groups[self._number][0]
