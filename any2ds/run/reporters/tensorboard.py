"""Writes metrics over time for TensorBoard, with its own library and without TensorFlow.

Only its messages and records are used: the rest imports TensorFlow if that is installed, which takes seconds and
cannot be loaded in one process with libcurl.
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
from any2ds.core.paths import expanded
from any2ds.core.reports import RunReport
from any2ds.run.reporters._contract import PeriodicReporter, RunInfo
from any2ds.run.reporters._figures import live_metrics
from any2ds.storage.disk.regular import refuse_link

_FORMAT = "brain.Event:2"  # what the first event of a file says
_NAME = re.compile(r"events\.out\.tfevents\.(\d+)\..*")


class TensorBoard(PeriodicReporter):
    """Steps are milliseconds since the first run on the dataset, so that runs follow each other; each has a file."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch.log_interval)
        folder = _folder_of(watch, run)
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        before = [int(match[1]) for name in os.listdir(folder) if (match := _NAME.fullmatch(name))]
        self._began = min([int(now), *before])
        self._step = -1
        self._of = "live" if run.command == "download" else run.command
        owner = f"{socket.gethostname()}.{os.getpid()}.{int(now % 1 * 1e6):06d}"
        name = f"events.out.tfevents.{int(now):010d}.{owner}.any2ds"
        self._file: Any = RecordWriter(open(folder / name, "ab"))  # noqa: SIM115 - until the end
        self._write(Event(wall_time=now, file_version=_FORMAT))

    def on_finish(self, total: RunReport) -> None:
        self.record(self.now or Snapshot())
        self._file.close()

    def record(self, now: Snapshot) -> None:
        wall_time = time.time()
        self._step = max(self._step + 1, int((wall_time - self._began) * 1000))  # the clock may have been put back
        metrics = {f"{self._of}/{name}": value for name, value in live_metrics(now).items()}
        metrics |= {f"outcomes/{code}": rows for code, rows in now.outcomes.items()}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in metrics.items()]
        self._write(Event(wall_time=wall_time, step=self._step, summary=Summary(value=values)))

    def _write(self, event: Any) -> None:
        self._file.write(event.SerializeToString())
        self._file.flush()


def _folder_of(watch: WatchOptions, run: RunInfo) -> Path:
    """Each of several runs that make the dataset together has a folder of its own."""
    if watch.tensorboard_dir is not None:
        folder = expanded(watch.tensorboard_dir)
    elif run.output.is_local:
        folder = Path(run.output.path) / layout.TENSORBOARD_FOLDER
        refuse_link(folder)
    else:
        name = redacted(run.output.url).rstrip("/").rsplit("/", 1)[-1]
        folder = Path("tensorboard") / (re.sub(r"[^\w.-]+", "_", name) or "any2ds")
    return folder / run.member


PART = TensorBoard
