"""What can be wrong with a dataset, as text, and which of it is repaired by making a shard again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

_MOST_KEYS = 3  # that a finding names

KINDS = {
    "stats": "the statistics of a shard are missing or unreadable, or do not agree with its rows",
    "metadata": "the metadata of a shard is missing or unreadable, or contradicts itself",
    "keys": "keys are not the ones that belong to the shard and the position",
    "data": "the data file of a shard is missing, or cannot be read to its end",
    "samples": "data and metadata do not agree one to one",
    "hash": "the bytes of a file are not those that were fetched",
    "unfinished": "files of a shard that was never finished",
    "beside": "an extra file of a shard, such as an index, is missing or does not belong to its data",
    "shard_list": ".any2ds/shards is missing or does not describe the shards; --repair writes it",
    "compacted": "the compacted metadata are not those of the shards; any2ds compact renews them",
    "unreadable": "the system or the store does not let a file be read, so it is not checked",
    "missing": "shards that are not there; the same download command makes them",
    "unread": "no run has read the url list to its end; the same download command continues",
    "list": "the shards do not hold the rows of the url list",
    "run_file": ".any2ds/run is missing or unreadable, so no run can continue in this folder",
    "leftover": "what a killed run left behind",
    "stray": "a file that readers would take for one of the dataset, and that belongs to no shard",
}
"""The closed list."""
_BROKEN = {"stats", "metadata", "keys", "data", "samples", "hash", "unfinished"}  # the shard has to be made again


_INCOMPLETE = {"missing", "unread", "unfinished", "leftover", "shard_list"}  # as a stopped run leaves a dataset


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    kind: str  # of KINDS
    message: str
    shard_id: int | None = None  # None: it concerns the whole dataset

    @property
    def is_broken(self) -> bool:
        """Whether the shard has to be made again."""
        return self.kind in _BROKEN

    @property
    def is_damage(self) -> bool:
        """Whether it is more than what the same download command completes, as after a run that was stopped."""
        return self.kind not in _INCOMPLETE

    def to_json(self) -> dict[str, object]:
        return {"kind": self.kind, "shard": self.shard_id, "words": self.message}


class Findings:
    """Collects those of one shard; the same problem of many samples is one finding, which names a few keys."""

    def __init__(self, shard_id: int) -> None:
        self._shard_id = shard_id
        self._found: list[Finding] = []
        self._keys: dict[tuple[str, str], list[str]] = {}  # kind and message -> the first keys
        self._totals: dict[tuple[str, str], int] = {}

    def add(self, kind: str, message: str) -> None:
        self._found.append(Finding(kind, message, self._shard_id))

    def about(self, kind: str, key: str | None, message: str) -> None:
        """Add a problem with the sample or row called `key`."""
        problem = (kind, message)
        self._totals[problem] = self._totals.get(problem, 0) + 1
        keys = self._keys.setdefault(problem, [])
        if len(keys) < _MOST_KEYS:
            keys.append("null" if key is None else key[:100])

    def __iter__(self) -> Iterator[Finding]:
        yield from self._found
        for (kind, message), keys in self._keys.items():
            more = self._totals[kind, message] - len(keys)
            named = ", ".join(keys) + (f" … and {more:,} more" if more else "")
            yield Finding(kind, f"{message}: {named}", self._shard_id)
