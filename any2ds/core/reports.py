"""What workers and runs report: the statistics of shards, their errors, progress, and the sum of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from any2ds.core.errors import RunError
from any2ds.core.metrics import WorkerMetrics
from any2ds.core.samples import LONGEST_REASON
from any2ds.core.version import __version__

OTHER_REASONS = "other kinds of files"


@dataclass(frozen=True, slots=True)
class RobotsCost:
    """What asking for robots.txt took. The rows that it excluded are counted by their failure codes."""

    files: int = 0  # asked for, each once, however often it was tried
    bytes: int = 0  # of those that there were
    seconds: float = 0.0  # for which rows waited for each, added up; other hosts went on meanwhile

    def __add__(self, other: RobotsCost) -> RobotsCost:
        return RobotsCost(self.files + other.files, self.bytes + other.bytes, self.seconds + other.seconds)


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The figures of a finished shard; `_stats.json` is its JSON."""

    shard_id: int
    count: int = 0  # rows
    successes: int = 0
    failed_to_download: int = 0
    failed_to_subsample: int = 0
    dropped: int = 0  # fetched, and not stored because of their hash
    filtered: int = 0  # fetched, and not wanted by a step of the user's own
    duplicates: int = 0  # rows that point at an earlier one; with the five above they make `count`
    samples: int = 0  # stored: a row that succeeded has one, or several
    bytes: int = 0  # of the files stored
    start_time: float = 0.0  # Unix seconds
    end_time: float = 0.0
    status_dict: Mapping[str, int] = field(default_factory=dict)  # outcome code -> rows
    robots: RobotsCost = RobotsCost()  # since the process finished its shard before
    urls_sha256: str = ""  # the fingerprint of its rows, which tells when the list has changed
    exts: Mapping[str, int] = field(default_factory=dict)  # extension -> files stored with it
    data_bytes: int = 0  # of the data file; 0 where it is a folder, or there is none
    not_processed: Mapping[str, int] = field(default_factory=dict)  # reason -> files that a step left as they came
    attempts: int = 0  # transfers that were made for its rows
    examples: Mapping[str, str] = field(default_factory=dict)  # failure code -> URL of a row with it, no credentials
    latencies: Mapping[int, int] = field(default_factory=dict)  # of a Histogram: seconds of transfers that succeeded

    @classmethod
    def from_json(cls, stats: Mapping[str, Any]) -> ShardReport:
        """What `to_json` was made from. Raises KeyError, TypeError or ValueError for what is no such thing."""
        counts: dict[str, Any] = {name: int(stats[name]) for name in _COUNTS}
        robots = RobotsCost(int(stats["robots_files"]), int(stats["robots_bytes"]), float(stats["robots_seconds"]))
        return cls(
            **counts,
            start_time=float(stats["start_time"]),
            end_time=float(stats["end_time"]),
            status_dict=dict(stats["status_dict"]),
            robots=robots,
            urls_sha256=str(stats["urls_sha256"]),
            exts=dict(stats["exts"]),
            data_bytes=int(stats["data_bytes"]),
            not_processed=not_processed_in(stats),
            attempts=int(stats.get("attempts", 0)),  # the next three are younger than the rest
            examples=dict(stats.get("examples", {})),
            latencies={int(bucket): int(count) for bucket, count in stats.get("latencies", {}).items()},
        )

    @property
    def duration(self) -> float:
        return max(0.0, self.end_time - self.start_time)

    def to_json(self) -> dict[str, Any]:
        return {
            "any2ds": __version__,
            "shard_id": self.shard_id,
            "count": self.count,
            "successes": self.successes,
            "failed_to_download": self.failed_to_download,
            "failed_to_subsample": self.failed_to_subsample,
            "dropped": self.dropped,
            "filtered": self.filtered,
            "duplicates": self.duplicates,
            "samples": self.samples,
            "bytes": self.bytes,
            "duration": self.duration,
            "start_time": self.start_time,
            "end_time": self.end_time,
            "status_dict": dict(self.status_dict),
            "robots_files": self.robots.files,
            "robots_bytes": self.robots.bytes,
            "robots_seconds": self.robots.seconds,
            "urls_sha256": self.urls_sha256,
            "exts": dict(self.exts),
            "data_bytes": self.data_bytes,
            "not_processed": dict(self.not_processed),
            "attempts": self.attempts,
            "examples": dict(self.examples),
            "latencies": {str(bucket): count for bucket, count in sorted(self.latencies.items())},
        }


def not_processed_in(stats: Mapping[str, Any]) -> dict[str, int]:
    """Reason -> files, as the stats of a shard have it; an earlier version counted by the extra that was missing."""
    before = {f"any2ds[{extra}] was not installed": count for extra, count in (stats.get("lacking") or {}).items()}
    reported = {**before, **(stats.get("not_processed") or {})}
    return {str(reason)[:LONGEST_REASON]: int(count) for reason, count in reported.items()}


def most_frequent(reasons: Mapping[str, int], most: int = 20) -> dict[str, int]:
    """Those, and the others in one: servers may call files whatever they like."""
    ordered = sorted(reasons.items(), key=lambda item: (item[0] == OTHER_REASONS, -item[1], item[0]))
    if len(ordered) <= most:
        return dict(ordered)
    return {**dict(ordered[:most]), OTHER_REASONS: sum(count for _, count in ordered[most:])}


_COUNTS = (
    "shard_id",
    "count",
    "successes",
    "failed_to_download",
    "failed_to_subsample",
    "dropped",
    "filtered",
    "duplicates",
    "samples",
    "bytes",
)


@dataclass(frozen=True, slots=True)
class ShardError:
    """A shard that could not be made; its rows have no outcome yet."""

    shard_id: int
    reason: str
    traceback: str = ""
    attempt: int = 0  # of the job that failed
    again: bool = False  # it is going to be tried again; `run` knows, nobody else has to say


@dataclass(frozen=True, slots=True)
class Progress:
    """What has happened in one worker since its last Progress, for people who watch."""

    # success, dropped, filtered, duplicate or failure code -> rows; fewer than none where a shard failed whose rows had
    # been told
    outcomes: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0  # of successes
    metrics: WorkerMetrics | None = None  # of that worker, if known


Event = Progress | ShardReport | ShardError


@dataclass(frozen=True, slots=True)
class RunReport:
    """The sum of a run. `status_dict` counts rows by outcome over the shards made in this run."""

    shards: int = 0
    count: int = 0
    successes: int = 0
    failed_to_download: int = 0
    failed_to_subsample: int = 0
    dropped: int = 0
    filtered: int = 0
    duplicates: int = 0
    samples: int = 0
    bytes: int = 0
    seconds: float = 0.0
    status_dict: Mapping[str, int] = field(default_factory=dict)
    skipped_shards: int = 0  # finished by an earlier run
    failed_shards: tuple[ShardError, ...] = ()
    left_shards: int = 0  # open when the run was stopped or broken off, and left to another one
    robots: RobotsCost = RobotsCost()
    not_processed: Mapping[str, int] = field(default_factory=dict)  # reason -> files
    attempts: int = 0
    examples: Mapping[str, str] = field(default_factory=dict)  # failure code -> URL of a row with it

    def __add__(self, shard: ShardReport) -> RunReport:
        return replace(
            self,
            shards=self.shards + 1,
            count=self.count + shard.count,
            successes=self.successes + shard.successes,
            failed_to_download=self.failed_to_download + shard.failed_to_download,
            failed_to_subsample=self.failed_to_subsample + shard.failed_to_subsample,
            dropped=self.dropped + shard.dropped,
            filtered=self.filtered + shard.filtered,
            duplicates=self.duplicates + shard.duplicates,
            samples=self.samples + shard.samples,
            bytes=self.bytes + shard.bytes,
            status_dict=dict(Counter(self.status_dict) + Counter(shard.status_dict)),
            robots=self.robots + shard.robots,
            not_processed=most_frequent(Counter(self.not_processed) + Counter(shard.not_processed)),
            attempts=self.attempts + shard.attempts,
            examples={**shard.examples, **self.examples},
        )


class IncompleteRun(RunError):
    """Shards are missing; `report` says what was done."""

    def __init__(self, message: str, report: RunReport) -> None:
        super().__init__(message)
        self.report = report
