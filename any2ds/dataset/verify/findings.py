"""What can be wrong with a dataset, in words; and which of it is put right by making a shard again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_NAMED = 3  # keys that a finding names


@dataclass(frozen=True, slots=True)
class Kind:
    meaning: str
    is_broken: bool = False  # the shard is to be made again


KINDS: Mapping[str, Kind] = {
    "stats": Kind("the figures of a shard are absent, unreadable or do not agree with its rows", is_broken=True),
    "metadata": Kind("the metadata of a shard is absent, unreadable or contradicts itself", is_broken=True),
    "keys": Kind("keys are not the ones that belong to the shard and the position", is_broken=True),
    "data": Kind("the data file of a shard is absent, or cannot be read to its end", is_broken=True),
    "samples": Kind("data and metadata do not agree one to one", is_broken=True),
    "hash": Kind("the bytes of a file are not those that were fetched", is_broken=True),
    "unfinished": Kind("files of a shard that was never finished", is_broken=True),
    "beside": Kind(
        "a file that goes with a shard beside data, metadata and stats is absent, or is not that of its data"
    ),
    "shard_list": Kind(".any2ds/shards is absent, or does not say what the shards are; --repair writes it anew"),
    "unreadable": Kind("the system or the store does not let a file be read, so nothing is known of it"),
    "missing": Kind("shards that are not there; the same download command makes them"),
    "list": Kind("the shards do not hold the rows of the url list"),
    "run_file": Kind(".any2ds/run is absent or unreadable, so that no run can go on in this folder"),
    "leftover": Kind("what a run left behind that was killed"),
    "stray": Kind("a file that readers would take for one of the dataset's, and that belongs to no shard"),
}
"""The closed list."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    kind: str  # of KINDS
    message: str
    shard_id: int | None = None  # None: it concerns the whole

    @property
    def is_broken(self) -> bool:
        return KINDS[self.kind].is_broken

    def to_json(self) -> dict[str, object]:
        return {"kind": self.kind, "shard": self.shard_id, "words": self.message}


@dataclass(slots=True)
class Findings:
    """Those of one shard, in the making: the same trouble with many samples is one finding, which names a few."""

    shard_id: int
    _found: list[Finding] = field(default_factory=list)
    _counts: dict[tuple[str, str], list[str]] = field(default_factory=dict)  # the first keys
    _totals: dict[tuple[str, str], int] = field(default_factory=dict)

    def add(self, kind: str, message: str) -> None:
        self._found.append(Finding(kind, message, self.shard_id))

    def about(self, kind: str, key: str | None, message: str) -> None:
        """Something is wrong with the sample or row called `key`."""
        of_kind = (kind, message)
        self._totals[of_kind] = self._totals.get(of_kind, 0) + 1
        named = self._counts.setdefault(of_kind, [])
        if len(named) < _NAMED:
            named.append("null" if key is None else key[:100])

    def __iter__(self) -> Iterator[Finding]:
        yield from self._found
        for (kind, message), named in self._counts.items():
            total = self._totals[kind, message]
            keys = ", ".join(named) + (f" … and {total - len(named):,} more" if total > len(named) else "")
            yield Finding(kind, f"{message}: {keys}", self.shard_id)

    def __bool__(self) -> bool:
        return bool(self._found or self._counts)
