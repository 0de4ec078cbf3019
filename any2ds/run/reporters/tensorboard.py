"""Writes figures over time for TensorBoard, whose own library says what an event looks like; TensorFlow is not needed.

Of that library only the messages and the records are used: whatever else is in it imports TensorFlow where that is
installed, which takes seconds and cannot be had in one process with libcurl.
"""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from any2ds.config.options import WatchOptions
from any2ds.core import layout
from any2ds.core.errors import redacted
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporters._figures import live

_FORMAT = "brain.Event:2"  # what the first event of a file says
_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\..*")


class TensorBoard:
    """A Reporter. The steps of its charts are milliseconds since the first run on the dataset, so that runs follow
    each other whatever became of the one before; each run has a file of its own."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        folder = folder_of(watch, run)
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        before = [int(match[1]) for name in os.listdir(folder) if (match := _NAME.fullmatch(name))]
        self._began = min([int(now), *before])
        self._step = -1
        self._of = "live" if run.command == "download" else run.command
        self._interval = watch.log_interval
        self._now, self._logged = Snapshot(), time.monotonic()
        owner = f"{socket.gethostname()}.{os.getpid()}.{int(now % 1 * 1e6):06d}"
        name = f"events.out.tfevents.{int(now):010d}.{owner}.any2ds"
        self._file: Any = RecordWriter(open(folder / name, "ab"))  # noqa: SIM115 - until the end
        self._write(Event(wall_time=now, file_version=_FORMAT))

    def on_start(self, finished_shards: int) -> None:
        """There are no figures yet."""

    def on_progress(self, now: Snapshot) -> None:
        self._now = now
        if time.monotonic() - self._logged >= self._interval:
            self._record()

    def on_shard(self, event: ShardReport | ShardError) -> None:
        """The next figures tell of it."""

    def on_stopping(self, open_shards: int, grace: float) -> None:
        """It ends as any other."""

    def on_finish(self, total: RunReport) -> None:
        self._record()
        self._file.close()

    def _record(self) -> None:
        self._logged = time.monotonic()
        now = time.time()
        self._step = max(self._step + 1, int((now - self._began) * 1000))  # the clock may have been put back
        figures = {f"{self._of}/{name}": value for name, value in live(self._now).items()}
        figures |= {f"outcomes/{code}": rows for code, rows in self._now.outcomes.items()}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
        self._write(Event(wall_time=now, step=self._step, summary=Summary(value=values)))

    def _write(self, event: Any) -> None:
        self._file.write(event.SerializeToString())
        self._file.flush()


def folder_of(watch: WatchOptions, run: RunInfo) -> Path:
    """Those of several that make the dataset together are runs of their own there, each in a folder below."""
    return _folder_of_all(watch, run) / run.member


def _folder_of_all(watch: WatchOptions, run: RunInfo) -> Path:
    if watch.tensorboard_dir is not None:
        return Path(watch.tensorboard_dir).expanduser()
    if run.output.is_local:
        return Path(run.output.path) / layout.TENSORBOARD_FOLDER
    name = redacted(run.output.url).rstrip("/").rsplit("/", 1)[-1]
    return Path("tensorboard") / (re.sub(r"[^\w.-]+", "_", name) or "any2ds")


PART = TensorBoard
