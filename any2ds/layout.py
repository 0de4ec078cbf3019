"""What things are called in the output folder: shards, keys, marks of completion. Pure functions of numbers.

_run.json                what decides which row is in which shard
00000.tar                data (or 00000/, 00000.parquet)
00000.parquet            metadata, one row per outcome
00000_stats.json         figures; its presence alone means that the shard is finished
_tmp/<run>/              shards being written; renamed into place when they are whole
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

RUN_FILE = "_run.json"
TEMPORARY_FOLDER = "_tmp"

_STATS = re.compile(r"(\d+)_stats\.json")


@dataclass(frozen=True, slots=True)
class Layout:
    """Names for shards of `rows_per_shard` rows, numbered with at least `shard_digits` digits."""

    rows_per_shard: int
    shard_digits: int

    @property
    def position_digits(self) -> int:
        """As many as the last position in a full shard has."""
        return len(str(max(1, self.rows_per_shard - 1)))

    def shard_name(self, shard_id: int) -> str:
        return f"{shard_id:0{self.shard_digits}d}"

    def key(self, shard_id: int, position: int) -> str:
        """Shard number and position, zero-padded: `000010005` is row 5 of shard 00001.

        The position's width is fixed, so that keys stay unique when the shard number outgrows its digits.
        """
        return f"{shard_id:0{self.shard_digits}d}{position:0{self.position_digits}d}"

    def metadata_name(self, shard_id: int) -> str:
        return f"{self.shard_name(shard_id)}.parquet"

    def stats_name(self, shard_id: int) -> str:
        return f"{self.shard_name(shard_id)}_stats.json"


def finished_shards(names: Iterable[str]) -> frozenset[int]:
    """The shards whose stats file is among the file `names` of an output folder."""
    matches = (_STATS.fullmatch(name) for name in names)
    return frozenset(int(match[1]) for match in matches if match)
