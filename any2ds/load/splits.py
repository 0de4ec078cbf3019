"""Parts of a dataset by their names, percentages or numbers, in the grammar of TensorFlow Datasets.

    split  = part { "+" part }
    part   = name [ "[" ( [ "hash" ] [ bound ] ":" [ bound ] | number "shard" ) "]" ]
    bound  = number | percentage "%" | number "shard"            negative ones count from the end

Parts follow each other as written, and samples of two of them come twice, as in TensorFlow Datasets.
A bound without a unit has that of the other one: `train[10:50%]` is `train[10%:50%]`. A number beyond the samples that
there are is refused, and one beyond the shards counts as all of them, as in TensorFlow Datasets.
`all` are all samples, in the order of the list. `hash[:80%]` are the samples whose key has a hash in the first 80 of
100 parts: it is the same in every format and order, and samples of one row stay together; so are the samples of
`train[hash :80%]`, of those that are `train`. Any other name is a value of
the column `split` of the metadata; without such a column, `train` is the same as `all`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from hashlib import blake2b

from any2ds.core.errors import UsageError

ALL, TRAIN = "all", "train"
HASH = "hash"
_SHARD = "shard"
_BOUND = rf"-?[\d._]+\s*(?:%|{_SHARD})?"
_PART = re.compile(
    rf"\s*(?P<name>[\w.-]+)\s*(?:\["
    rf"\s*(?:(?P<hash>hash\s+)?(?P<start>{_BOUND})?\s*:\s*(?P<stop>{_BOUND})?|(?P<one>-?\d+)\s*{_SHARD})\s*"
    rf"\])?\s*"
)
_NUMBER = "-._0123456789"
_HASHES = 1 << 64


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a split."""

    name: str
    start: str = ""  # as written: "", "10%", "-5", "2shard"
    stop: str = ""
    by_hash: bool = False  # of the keys, within a name

    def span(self, count: int, starts: Sequence[int] = ()) -> range:
        """The numbers of its samples among `count`; `starts` are those of the first of each shard, and at last `count`.

        Raises UsageError.
        """
        return range(count)[slice(self._place(self.start, count, starts), self._place(self.stop, count, starts))]

    def hashes(self) -> range:
        """The hashes that it takes. Raises UsageError."""
        bounds = [bound for bound in (self.start, self.stop) if bound]
        if not all(bound.endswith("%") for bound in bounds):
            raise UsageError(f"split: {HASH} takes percentages, as in {HASH}[:80%]")
        return self.span(_HASHES)

    def _place(self, bound: str, count: int, starts: Sequence[int]) -> int | None:
        """-10% is the same place as 90%, so that parts that meet there share the samples out."""
        if not bound:
            return None
        try:
            if bound.endswith("%"):
                percent = Fraction(Decimal(bound[:-1]))
                if not -100 <= percent <= 100:
                    raise UsageError(f"split: {bound} is not between -100% and 100%")
                return round(count * (percent + 100 if percent < 0 else percent) / 100)
            number = int(bound.removesuffix(_SHARD))
            if not bound.endswith(_SHARD) and abs(number) > count:
                raise UsageError(f"split: {self.name} has {count:,} samples, which {bound} goes beyond")
        except (ValueError, InvalidOperation):
            raise UsageError(f"split: {bound!r} is neither a number nor a percentage") from None
        if not bound.endswith(_SHARD):
            return number
        if not starts:
            raise UsageError(f"split: only {ALL} can be counted in shards, not {self.name}")
        shards = len(starts) - 1
        return starts[min(max(0, number + shards if number < 0 else number), shards)]


def parse(split: str) -> list[Part]:
    """Raises UsageError."""
    found = []
    for text in split.split("+"):
        if (match := _PART.fullmatch(text)) is None:
            raise UsageError(
                f"split: invalid part {text.strip()!r}: expected for example train, train[:80%] or hash[:80%]"
            )
        start, stop = ("".join((match[name] or "").split()) for name in ("start", "stop"))
        if match["one"]:
            start, stop = _shard(int(match["one"]))
        if start and stop:
            units = {start.lstrip(_NUMBER), stop.lstrip(_NUMBER)} - {""}
            if len(units) > 1:
                raise UsageError(f"split: {start} and {stop} in {text.strip()!r} are not of one kind")
            (unit,) = units or {""}
            start, stop = (f"{bound.removesuffix(unit)}{unit}" for bound in (start, stop))
        found.append(Part(match["name"], start, stop, bool(match["hash"])))
    return found


def _shard(number: int) -> tuple[str, str]:
    """From where to where it goes: the last one has no stop."""
    return f"{number}{_SHARD}", "" if number == -1 else f"{number + 1}{_SHARD}"


def in_hashes(keys: Iterable[str | None], wanted: range) -> bytearray:
    """1 for each of the keys whose hash is one of `wanted`, and 0 for the others, and for None.

    The hash of a key, a number below 2^64, will never change.
    """
    if not wanted:
        return bytearray(len(list(keys)))
    first, last = (number.to_bytes(8, "big") for number in (wanted[0], wanted[-1]))  # which compare as numbers do
    hashes = (None if key is None else blake2b(key.encode(), digest_size=8).digest() for key in keys)
    return bytearray([found is not None and first <= found <= last for found in hashes])


def split(name: str, *bounds: float) -> str:
    """The part of a split that a stable hash of its keys says, for the `split` of `any2ds.load`, between 0 and 1.

    `split("train", 0.8)` are the first 80 %, `split("train", 0.8, 1)` the others. It is the same on every machine, in
    every format and after samples were added. Raises UsageError for bounds that cannot be.
    """
    start, stop = (0.0, *bounds) if len(bounds) == 1 else bounds if len(bounds) == 2 else (1.0, 0.0)
    if not 0 <= start <= stop <= 1:
        raise UsageError(f"split: {', '.join(map(str, bounds)) or 'nothing'}: expected a share, or two, from 0 to 1")
    first, last = (f"{Decimal(str(bound)) * 100:f}%" for bound in (start, stop))
    found = f"{name}[{HASH} {first}:{last}]"
    parse(found)
    return found
