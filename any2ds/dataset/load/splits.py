"""Parts of a dataset by their names, percentages or numbers, in the grammar of TensorFlow Datasets.

    split  = part { "+" part }
    part   = name [ "[" [ bound ] ":" [ bound ] "]" ]
    bound  = number | percentage "%"            negative ones count from the end

`all` are all samples, in the order of the list. `hash[:80%]` are the samples whose key has a hash in the first 80 of
100 parts: it is the same in every format and order, and samples of one row stay together. Any other name is a value of
the column `split` of the metadata; without such a column, `train` is the same as `all`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from any2ds.core.errors import UsageError

ALL, TRAIN = "all", "train"
HASH = "hash"
COLUMN = "split"
_PART = re.compile(
    r"\s*(?P<name>[\w.-]+)\s*(?:\[\s*(?P<start>-?[\d.]+\s*%?)?\s*(?P<colon>:)\s*(?P<stop>-?[\d.]+\s*%?)?\s*\])?\s*"
)
_HASHES = 1 << 64


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a split."""

    name: str
    start: str = ""  # as written: "", "10%", "-5"
    stop: str = ""

    def span(self, count: int) -> range:
        """The numbers of its samples among `count`. Raises UsageError."""
        return range(count)[slice(self._place(self.start, count, 0), self._place(self.stop, count, count))]

    def hashes(self) -> range:
        """The hashes that it takes. Raises UsageError."""
        bounds = [bound for bound in (self.start, self.stop) if bound]
        if not all(bound.endswith("%") for bound in bounds):
            raise UsageError(f"split: {HASH} takes percentages, as in {HASH}[:80%]")
        return range(_HASHES)[slice(self._place(self.start, _HASHES, 0), self._place(self.stop, _HASHES, _HASHES))]

    def _place(self, bound: str, count: int, default: int) -> int:
        if not bound:
            return default
        try:
            if not bound.endswith("%"):
                return int(bound)
            percent = float(bound[:-1])
        except ValueError:
            raise UsageError(f"split: {bound!r} is neither a number nor a percentage") from None
        if not -100 <= percent <= 100:
            raise UsageError(f"split: {bound} is not between -100% and 100%")
        return round(count * percent / 100)


def parse(split: str) -> list[Part]:
    """Raises UsageError."""
    found = []
    for text in split.split("+"):
        if (match := _PART.fullmatch(text)) is None:
            raise UsageError(
                f"split: invalid part {text.strip()!r}: expected for example train, train[:80%] or hash[:80%]"
            )
        bounds = (match[name] or "" for name in ("start", "stop"))
        found.append(Part(match["name"], *("".join(bound.split()) for bound in bounds)))
    return found


def hash_of(key: str) -> int:
    """A number below 2^64 that will never change for a key."""
    return int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big")


def in_hashes(keys: Iterable[str], wanted: range) -> bytearray:
    """1 for each of the keys whose hash is one of `wanted`, and 0 for the others."""
    first, stop = wanted.start, wanted.stop
    return bytearray(first <= hash_of(key) < stop for key in keys)
