"""Records a run in a file in the folder of the dataset: the lines that `--log_format=json` prints."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from any2ds.config.options import WatchOptions
from any2ds.core import layout
from any2ds.run.reporters._contract import RunInfo
from any2ds.run.reporters._jsonlines import JsonLines, line

_PIECE_SECONDS = 600.0


class Jsonl(JsonLines):
    """Each run has a file of its own. Objects of a store cannot be appended to: there it has one every ten minutes."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        super().__init__(watch, run)
        began = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
        self._name = f"{layout.PROGRESS_FOLDER}/{began}-{run.member or os.getpid()}"
        self._lines, self._put_at = "", time.monotonic()  # of the next object of a store, and when it is to be put
        self._pieces = 0
        if run.output.is_local:
            run.output.create_folder(layout.PROGRESS_FOLDER)

    def write(self, event: str, /, **fields: Any) -> None:
        new_line = f"{line(event, fields)}\n"
        if self.run.output.is_local:
            with open(Path(self.run.output.path) / f"{self._name}.log", "a", encoding="ascii") as file:
                file.write(new_line)
            return
        self._lines += new_line
        if event == "finish" or time.monotonic() - self._put_at >= _PIECE_SECONDS:
            self.run.output.write(f"{self._name}-{self._pieces:04d}.jsonl", self._lines.encode())
            self._lines, self._pieces, self._put_at = "", self._pieces + 1, time.monotonic()


PART = Jsonl
