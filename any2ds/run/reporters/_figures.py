"""The metrics of a run, by the names that reporters record them under."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from any2ds.core.failures import DUPLICATE, SUCCESS
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import ShardReport


def rows_tried(now: Snapshot) -> int:
    """The rows that are done and no duplicates: those that the share of successes is of."""
    return max(0, sum(now.outcomes.values()) - now.outcomes.get(DUPLICATE, 0))


def success_ratio(now: Snapshot) -> float | None:
    """Of the rows tried; None while there are none."""
    rows = rows_tried(now)
    return now.outcomes.get(SUCCESS, 0) / rows if rows else None


def live_metrics(now: Snapshot) -> dict[str, float]:
    """Of the run now, rows of open shards included. Times in seconds, sizes in MB (10^6 bytes)."""
    figures: dict[str, float | None] = {
        "rows": sum(now.outcomes.values()),
        "successes": now.outcomes.get(SUCCESS, 0),
        "success_ratio": success_ratio(now),
        "rows_per_sec": now.rows_per_second,
        "successes_per_sec": now.successes_per_second,
        "attempts_per_sec": now.attempts_per_second,
        "attempts": now.attempts,
        "mb": now.bytes / 1e6,
        "mb_per_sec": now.bytes_per_second / 1e6,
        "latency_p50": now.latency_p50,
        "latency_p95": now.latency_p95,
        "in_flight": now.in_flight,
        "window": now.window,
        "queued": now.queued,
        "hosts_waited_for": len(now.hosts),
        "workers": now.workers,
        "memory_mb": now.memory / 1e6,
        "shards_open": now.shards_open,
        "shards_done": now.shards_done,
        "shards_failed": now.shards_failed,
        "share_done": now.share,
        "seconds_left": now.eta,
    }
    return {name: value for name, value in figures.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Rows:
    """The outcomes of the rows of finished shards."""

    count: int = 0
    successes: int = 0
    failed_to_download: int = 0
    failed_to_subsample: int = 0

    def __add__(self, shard: ShardReport) -> Rows:
        return Rows(
            self.count + shard.count,
            self.successes + shard.successes,
            self.failed_to_download + shard.failed_to_download,
            self.failed_to_subsample + shard.failed_to_subsample,
        )

    def as_img2dataset(self, seconds: float) -> Mapping[str, float]:
        """The five metrics on img2dataset's charts: shares of `count`; its images per second are rows."""
        if not self.count:
            return {}
        return {
            "img_per_sec": self.count / max(seconds, 1e-3),
            "success": self.successes / self.count,
            "failed_to_download": self.failed_to_download / self.count,
            "failed_to_resize": self.failed_to_subsample / self.count,
            "count": self.count,
        }
