"""Records runs in the folder of the dataset: an object per line for each event, with the whole snapshot."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

import orjson

from any2ds.config.options import WatchOptions
from any2ds.core import layout
from any2ds.core.errors import redacted
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.core.version import __version__
from any2ds.run.reporters._contract import PeriodicReporter, RunInfo

_PIECE_BYTES, _PIECE_SECONDS = 1 << 20, 600.0  # after which the next object of a store begins


class Jsonl(PeriodicReporter):
    """Each run has a file of its own: of a killed run only the last line may be incomplete.

    Objects of a store cannot be appended to: there a run writes one after the other, of ten minutes or 1 MiB each.
    """

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch.log_interval)
        self._run = run
        began = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
        self._name = f"{layout.PROGRESS_FOLDER}/{began}-{run.member or os.getpid()}"
        self._file: IO[bytes] | None = None
        self._lines: list[bytes] = []  # for the next object of a store
        self._pieces, self._held, self._since = 0, 0, time.monotonic()
        if run.output.is_local:
            run.output.create_folder(layout.PROGRESS_FOLDER)
            self._file = open(Path(run.output.path) / f"{self._name}.log", "ab")  # noqa: SIM115 - until the end

    def on_start(self, finished_shards: int) -> None:
        self._write(
            "start",
            any2ds=__version__,
            command=self._run.command,
            finished_shards=finished_shards,
            **({"member": self._run.member} if self._run.member else {}),
            options=dict(self._run.options),
        )

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if isinstance(event, ShardReport):
            self._write("shard", **event.to_json())
        else:
            self._write("shard_error", shard_id=event.shard_id, reason=redacted(event.reason), again=event.again)

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._write("stopping", open_shards=open_shards, grace=grace)

    def on_finish(self, total: RunReport) -> None:
        self.record(self.now or Snapshot())
        failed = [{"shard_id": error.shard_id, "reason": redacted(error.reason)} for error in total.failed_shards]
        self._write("finish", **{**asdict(total), "failed_shards": failed})
        self._put()
        if self._file is not None:
            self._file.close()

    def record(self, now: Snapshot) -> None:
        self._write("progress", **asdict(now))

    def _write(self, event: str, **content: Any) -> None:
        record: Mapping[str, Any] = {"event": event, "time": time.time(), **content}
        line = orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE, default=str)
        if self._file is not None:
            self._file.write(line)
            self._file.flush()
            return
        self._lines.append(line)
        self._held += len(line)
        if self._held >= _PIECE_BYTES or time.monotonic() - self._since >= _PIECE_SECONDS:
            self._put()

    def _put(self) -> None:
        self._since = time.monotonic()
        if self._lines:
            self._run.output.write(f"{self._name}-{self._pieces:04d}.jsonl", b"".join(self._lines))
            self._pieces += 1
            self._lines, self._held = [], 0


PART = Jsonl
