"""Reads `_stats.json`, the statistics of a finished shard, as any2ds, img2dataset and any2dataset write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from any2ds.core.counts import count
from any2ds.core.errors import error_text
from any2ds.core.reports import ProcessCost, RobotsCost, figures_in

ANY2DS = "any2ds"


@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of a finished shard, as far as they were written."""

    count: int = 0  # rows
    successes: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)  # failed_to_download and the like
    dropped: int = 0
    filtered: int = 0
    duplicates: int = 0
    samples: int = 0  # stored; other tools store one for each success
    size: int | None = None  # bytes of the files stored
    data_bytes: int | None = None  # of the data file
    exts: Mapping[str, int] = field(default_factory=dict)  # extension -> files
    splits: Mapping[str, int] = field(default_factory=dict)  # value of the column `split` -> samples, "" for null
    status_dict: Mapping[str, int] = field(default_factory=dict)
    start_time: float = 0.0  # Unix seconds
    end_time: float = 0.0
    shard_id: int | None = None  # None in those of img2dataset and any2dataset
    maker: str = ""  # any2ds, img2dataset or any2dataset; empty if unknown
    urls_sha256: str = ""  # fingerprint of its rows; empty if there is none
    attempts: int = 0
    examples: Mapping[str, str] = field(default_factory=dict)  # failure code -> URL
    latencies: Mapping[int, int] = field(default_factory=dict)  # of a Histogram, in seconds
    not_processed: Mapping[str, int] = field(default_factory=dict)  # reason -> files
    members: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # member -> outcome -> files
    replaces: Mapping[str, int] = field(default_factory=dict)  # failure code -> rows of earlier shards made again here
    replaced_members: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # of these rows, as in `members`
    duration: float = 0.0  # seconds for which the shard was open, retries included; 0 if unknown
    process: ProcessCost = field(default_factory=ProcessCost)
    robots: RobotsCost = field(default_factory=RobotsCost)

    @property
    def has_times(self) -> bool:
        """Whether start and end are plausible."""
        return 0 < self.start_time <= self.end_time < 1e11

    @property
    def seconds(self) -> float:
        """How long the shard was open. A retry moves the end, maybe by days in which nothing was done."""
        span = self.end_time - self.start_time
        return min(span, self.duration) if self.duration > 0 else span

    @classmethod
    def parse(cls, content: bytes) -> Stats:
        """Raises ValueError if `content` is not the statistics of a shard."""
        try:
            found = orjson.loads(content)
            return cls(
                count=count(found["count"], "count"),
                successes=count(found["successes"], "successes"),
                failed=_failed(found),
                dropped=count(found.get("dropped", 0), "dropped"),
                filtered=count(found.get("filtered", 0), "filtered"),
                duplicates=count(found.get("duplicates", 0), "duplicates"),
                samples=count(found.get("samples", found["successes"]), "samples"),
                size=_optional_count(found, "bytes"),
                data_bytes=_optional_count(found, "data_bytes"),
                shard_id=_optional_count(found, "shard_id"),
                maker=_maker(found),
                attempts=count(found.get("attempts") or 0, "attempts"),
                duration=float(found.get("duration") or 0),
                **figures_in(found),
            )
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"it lacks {error}" if isinstance(error, KeyError) else error_text(error)) from error


def as_written(content: bytes | None) -> dict[str, Any]:
    """Everything that statistics say, also what only other tools know; nothing where they are no JSON object."""
    try:
        found = orjson.loads(content or b"")
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _optional_count(stats: Mapping[str, Any], name: str) -> int | None:
    return None if stats.get(name) is None else count(stats[name], name)


def _failed(stats: Mapping[str, Any]) -> dict[str, int]:
    """By status. A preset writes one status under the name of the other tool, too: it counts once."""
    found = {name: count(value, name) for name, value in stats.items() if name.startswith("failed_to_")}
    if "failed_to_subsample" in found:
        found.pop("failed_to_resize", None)
    return found


def _maker(stats: Mapping[str, Any]) -> str:
    if "any2ds" in stats or "shard_id" in stats:
        return ANY2DS
    if "failed_to_resize" in stats:
        return "img2dataset"
    return "any2dataset" if "failed_to_subsample" in stats else ""
