"""Random blocks of a large text list, where all of it would take minutes: `RandomPart` reads these alone."""

from __future__ import annotations

import codecs
import csv
import dataclasses
import io
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from any2ds.config.options import InputOptions
from any2ds.core.compression import PieceFile
from any2ds.readers.inputs import File, Input
from any2ds.readers.sources import Source
from any2ds.storage.lists import InputFile, stamps
from any2ds.storage.stores import Stores

BLOCK = 128 << 10  # bytes in which the rows of a block begin
_ROW = 32 << 10  # bytes of a row that are read if it ends behind its block; of longer rows some are missing
_BLOCKS = 2000
_AT_ONCE = 64  # blocks that are asked for together
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_LINES = frozenset({"txt", "jsonl", *_DELIMITERS})
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # which begin those of UTF-32, too, or are in them
_HEADER_LINES = 100


def can_be_read_in_blocks(inputs: Sequence[Input]) -> bool:
    """Whether they are files of lines, not compressed, whose places can read any part of them."""
    return all(isinstance(part, File) and _has_blocks(part) for part in inputs) and not _is_wide(inputs[0])


def _has_blocks(part: File) -> bool:
    return part.format in _LINES and part.compression is None and part.file is not None and part.file.has_ranges


def _is_wide(part: Any) -> bool:
    head: bytes = part.file.ranges([0], [4])[0]
    return head.startswith(_WIDE) or not head[:2].strip(b"\0")


class RandomPart(Source):
    """Of a list that `can_be_read_in_blocks` the first rows, and those of blocks at random places, in their order.

    `options.shuffle` is the seed of the places. `share_of` says which part of the list the rows are, by bytes.
    """

    def _found_inputs(self, options: InputOptions, stores: Stores) -> list[Input]:
        files: list[Any] = super()._found_inputs(options, stores)
        sizes = [each.size or 0 for each in stamps([part.file for part in files])]
        places = _places(sizes, random.Random(options.shuffle))
        return [
            dataclasses.replace(part, part=BlocksOfFile(part.file, part.format, size, own, is_first=not number))
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
    each = sum(sizes) / _BLOCKS
    places: list[list[int]] = [[] for _ in sizes]
    ends = list(itertools.accumulate(sizes))
    file = 0
    for number in range(_BLOCKS):
        at = int((number + rng.random()) * each)
        while at >= ends[file]:
            file += 1
        places[file].append(at - (ends[file] - sizes[file]))
    return places


class BlocksOfFile:
    """Makes the streams of whole lines that stand for a file."""

    def __init__(self, file: InputFile, format: str, size: int, places: Sequence[int], is_first: bool) -> None:
        self._file, self._size, self._places, self._is_first = file, size, places, is_first
        self._delimiter = _DELIMITERS.get(format)

    def open(self) -> BlockStream:
        return BlockStream(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        if not (self._places or self._is_first):
            return
        width = 1
        if self._is_first or self._delimiter:
            head = self._file.ranges([0], [min(self._size, BLOCK)])[0]
            end, width = self._header(head) if self._delimiter else (0, 1)
            yield head[: self._end(head, end) if self._is_first else end]
        for start in range(0, len(self._places), _AT_ONCE):
            places = self._places[start : start + _AT_ONCE]
            ends = [min(self._size, place + BLOCK + _ROW) for place in places]
            for block in self._file.ranges(places, ends):
                begin = self._begin(block, width)
                yield block[begin : self._end(block, begin)]

    def _header(self, head: bytes) -> tuple[int, int]:
        """Where the header ends, and its number of columns."""
        lines = io.StringIO(head.decode("utf-8", "surrogateescape").removeprefix("\ufeff"), newline="")
        rows = csv.reader(itertools.islice(lines, _HEADER_LINES), delimiter=self._delimiter or ",")
        width = len(next((row for row in rows if row), [""]))
        end = 0
        for _ in range(rows.line_num):
            end = head.find(b"\n", end) + 1
        return end, width

    def _begin(self, block: bytes, width: int) -> int:
        """The beginning of the first row: with quoted values, in which lines may end, of the first line that has all
        columns."""
        begin = block.find(b"\n") + 1 or len(block)
        if self._delimiter is None or b'"' not in block:
            return begin
        while begin < len(block):
            end = block.find(b"\n", begin) + 1 or len(block)
            line = block[begin:end].decode("utf-8", "replace")
            # With an odd number of quotes, it begins or ends within a value.
            if line.count('"') % 2 == 0 and self._width(line) == width:
                return begin
            begin = end
        return begin

    def _width(self, line: str) -> int:
        """The number of its values; 0 if it is malformed."""
        try:
            return len(next(csv.reader([line], delimiter=self._delimiter or ",", strict=True), []))
        except csv.Error:
            return 0

    def _end(self, block: bytes, begin: int) -> int:
        """The end of the last row that begins within BLOCK bytes."""
        end = block.find(b"\n", max(begin, BLOCK - 1)) + 1 or block.rfind(b"\n") + 1
        if self._delimiter is not None:
            while end > begin and block.count(b'"', begin, end) % 2:
                end = block.rfind(b"\n", begin, end - 1) + 1
        return max(begin, end)


class BlockStream(PieceFile):
    """`tell` is the number of bytes that were read."""

    _given = 0

    def read(self, size: int = -1) -> bytes:
        data = super().read(size)
        self._given += len(data)
        return data

    def tell(self) -> int:
        return self._given
