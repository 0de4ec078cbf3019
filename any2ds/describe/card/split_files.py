"""The files of each split of a dataset, as patterns that Hugging Face's `datasets` and Hub expand."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from any2ds.core.layout import Layout
from any2ds.core.metadata import MOST_SPLITS
from any2ds.dataset.recipe_file import RecipeFile
from any2ds.dataset.shards import ShardEntry
from any2ds.dataset.tfds import split_of

TRAIN = "train"
_NAME = re.compile(r"(?!all$)\w+(\.\w+)*")  # which `datasets` takes
_MOST_PATTERNS = 1000  # splits of more runs of shards are not told apart

Runs = Mapping[str, list[tuple[int, int]]]  # split -> first and last shard of each of its runs


def of_rows(recipe: RecipeFile, entries: Iterable[ShardEntry]) -> Runs:
    """The shards of splits that have any, with or without samples that are stored; those of retries have one split."""
    retried = _runs(entry for entry in entries if entry.shard_id >= recipe.end and entry.splits)
    return {
        split.name: [(split.numbers[0], split.numbers[-1]), *retried.get(split.name, ())]
        for split in recipe.splits
        if split.shards
    }


def of_samples(entries: Iterable[ShardEntry]) -> Runs:
    """The shards of splits that have samples, by `entries` in the order of their numbers, if each shard has one value
    in its column `split`; else none."""
    return _runs(entry for entry in entries if entry.samples)


def _runs(entries: Iterable[ShardEntry]) -> Runs:
    found: dict[str, list[tuple[int, int]]] = {}
    try:
        named = ((split_of(entry, _NAME), entry.shard_id) for entry in entries)
        for count, (name, group) in enumerate(groupby(named, key=lambda each: each[0]), start=1):
            numbers = [shard_id for _, shard_id in group]
            found.setdefault(name, []).append((numbers[0], numbers[-1]))
            if count > _MOST_PATTERNS or len(found) > MOST_SPLITS:
                return {}
    except ValueError:
        return {}
    return found


def data_files(runs: Runs, layout: Layout | None, shards: Sequence[int], extension: str) -> list[dict[str, Any]]:
    """The splits with their patterns, as `data_files` has them; all is `train` without splits, or where nobody knows
    the `layout`.

    `shards` are the sorted numbers of those that there are. Names of shards begin with a digit, unlike those of all
    other files in the folder.
    """
    found = [] if layout is None else [*_named(runs, layout, shards, extension)]
    return found or [{"split": TRAIN, "path": f"[0-9]*.{extension}"}]


def _named(runs: Runs, layout: Layout, shards: Sequence[int], extension: str) -> Iterator[dict[str, Any]]:
    for name, own in runs.items():
        paths = []
        for first, last in own:
            there = shards[bisect_left(shards, first) : bisect_right(shards, last)]
            if there:  # a pattern that is a name has to be that of a file
                paths += [f"{path}.{extension}" for path in _patterns(there[0], there[-1], layout)]
        if paths:
            yield {"split": name, "path": paths if len(paths) > 1 else paths[0]}


def _patterns(first: int, last: int, layout: Layout) -> Iterator[str]:
    """Patterns of the names of shards with these numbers, in a range for each length."""
    while first <= last:
        name = layout.shard_name(first)
        end = min(last, 10 ** len(name) - 1)
        yield from _between(name, layout.shard_name(end))
        first = end + 1


def _between(first: str, last: str) -> Iterator[str]:
    """Patterns of all numbers from one to another, which have as many digits: `0000[3-9]`, `000[1-3][0-9]`, `00040`."""
    if first == last:
        yield first
        return
    place = next(place for place, (one, other) in enumerate(zip(first, last, strict=True)) if one != other)
    same, rest = first[:place], len(first) - place - 1
    lowest, highest = int(first[place]), int(last[place])
    if first[place + 1 :] != "0" * rest:
        yield from _between(first, first[: place + 1] + "9" * rest)
        lowest += 1
    has_end = last[place + 1 :] != "9" * rest
    if has_end:
        highest -= 1
    if lowest <= highest:
        digit = str(lowest) if lowest == highest else f"[{lowest}-{highest}]"
        yield same + digit + "[0-9]" * rest
    if has_end:
        yield from _between(last[: place + 1] + "0" * rest, last)
