"""A distributor for the case `planning`: it reports each job as soon as it has it, as any2ds's workers would."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from any2ds.config.options import RunOptions
from any2ds.core.reports import Event, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._contract import Worker

_CODES = ("http_404", "connect", "dns", "timeout_total")


class Scripted:
    """Writes what it saw to the file that the environment names."""

    def __init__(self, options: RunOptions) -> None:
        """Takes no option."""
        self._jobs = self._rows = 0
        self._cpu = 0.0

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        places = json.loads(os.environ["ANY2DS_BENCHMARK"])
        for job in jobs:
            began = time.thread_time()
            report = report_of(job)
            stats = json.dumps(report.to_json()).encode()
            Path(places["output"], f"{job.shard_id:05d}_stats.json").write_bytes(stats)
            self._jobs, self._rows = self._jobs + 1, self._rows + job.count
            self._cpu += time.thread_time() - began
            yield report
        said = {"jobs": self._jobs, "rows": self._rows, "workers_cpu": self._cpu}
        Path(places["said"]).write_text(json.dumps(said), encoding="utf-8")

    def stop(self, grace: float) -> None:
        """It does not take long."""


def report_of(job: ShardJob) -> ShardReport:
    """As of a list of which a tenth fails, in some ways."""
    each = job.count // 10 // len(_CODES)
    statuses = {"success": job.count - each * len(_CODES), **dict.fromkeys(_CODES, each)}
    return ShardReport(
        shard_id=job.shard_id,
        count=job.count,
        successes=statuses["success"],
        failed_to_download=job.count - statuses["success"],
        samples=statuses["success"],
        bytes=100_000 * statuses["success"],
        start_time=time.time() - 60,
        end_time=time.time(),
        status_dict=statuses,
        urls_sha256=job.fingerprint,
    )


PART = Scripted
