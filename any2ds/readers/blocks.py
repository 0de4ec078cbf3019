"""Random blocks of a large text list, where all of it would take minutes: `RandomPart` reads these alone."""

from __future__ import annotations

import codecs
import dataclasses
import itertools
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from any2ds.config.options import InputOptions
from any2ds.readers.inputs import File, Input
from any2ds.readers.sources import Source
from any2ds.storage.lists import stamps
from any2ds.storage.stores import Stores

BLOCK = 128 << 10  # bytes of a block, of which the whole lines are used
_BLOCKS = 2000
_AT_ONCE = 64  # blocks that are asked for together
_LINES = frozenset({"txt", "jsonl", "csv", "tsv"})
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # which begin those of UTF-32, too, or are in them


def can_be_read_in_blocks(inputs: Sequence[Input]) -> bool:
    """Whether they are files of lines, not compressed, whose places can read any part of them."""
    return all(isinstance(part, File) and _has_blocks(part) for part in inputs) and not _is_wide(inputs[0])


def _has_blocks(part: File) -> bool:
    return part.format in _LINES and part.compression is None and part.file is not None and part.file.has_ranges


def _is_wide(part: Any) -> bool:
    head: bytes = part.file.ranges([0], [4])[0]
    return head.startswith(_WIDE) or not head[:2].strip(b"\0")


class RandomPart(Source):
    """The first rows of a list that `can_be_read_in_blocks`, and rows of blocks at random places, in their order.

    `options.shuffle` is the seed of the places. `share_of` says which part of the list the rows are, by bytes.
    """

    def _found_inputs(self, options: InputOptions, stores: Stores) -> list[Input]:
        files: list[Any] = super()._found_inputs(options, stores)
        sizes = [each.size or 0 for each in stamps([part.file for part in files])]
        places = _places(sizes, random.Random(options.shuffle))
        return [
            dataclasses.replace(part, pieces=partial(_lines, part, size, own, is_first=not number))
            for number, (part, size, own) in enumerate(zip(files, sizes, places, strict=True))
        ]

    @property
    def rows(self) -> None:
        """Nobody has counted them."""
        return None

    @property
    def is_in_order(self) -> bool:
        return True


def _places(sizes: Sequence[int], rng: random.Random) -> list[list[int]]:
    """Where blocks begin in each file: one at random in each of as many equal parts of all bytes."""
    length = sum(sizes) / _BLOCKS
    places: list[list[int]] = [[] for _ in sizes]
    starts = list(itertools.accumulate(sizes, initial=0))
    for number in range(_BLOCKS):
        at = int((number + rng.random()) * length)
        file = bisect_right(starts, at) - 1
        places[file].append(at - starts[file])
    return places


def _lines(part: Any, size: int, places: Sequence[int], is_first: bool) -> Iterator[bytes]:
    """Whole lines in place of a file. Where a value spans lines, a row at the edge of a block may be a bad one."""
    has_header = part.is_separated and part.form.columns is None
    if is_first or (places and has_header):
        head = part.file.ranges([0], [min(size, BLOCK)])[0]
        yield head[: head.rfind(b"\n") + 1] if is_first else _header(head, (part.form.comment or "").encode())
    for start in range(0, len(places), _AT_ONCE):
        some = places[start : start + _AT_ONCE]
        for block in part.file.ranges(some, [min(size, place + BLOCK) for place in some]):
            yield block[block.find(b"\n") + 1 : block.rfind(b"\n") + 1]


def _header(head: bytes, comment: bytes) -> bytes:
    """The lines up to the first that is neither blank nor a comment."""
    lines = head.splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if line.strip() and not (comment and line.startswith(comment)):
            return b"".join(lines[:number])
    return b""
