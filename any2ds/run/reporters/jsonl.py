"""Events of a run as JSON, a line for each: for `--log_format=json`, and a file for the reporter jsonl."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from any2ds.config.options import WatchOptions
from any2ds.core import layout
from any2ds.core.errors import redacted
from any2ds.run.reporters._contract import Facts, Reporter, RunInfo

_PIECE_SECONDS = 600.0  # between two objects of a store
_lock = threading.Lock()  # lines are written whole


def line(event: str, fields: Mapping[str, Any]) -> str:
    """In ASCII, so that any stream takes it."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return json.dumps(_without_secrets({"event": event, "time": now, **fields}))


def write(event: str, /, **fields: Any) -> None:
    """One line on standard error. It is lost if nobody reads any more."""
    with _lock, contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{line(event, fields)}\n")
        sys.stderr.flush()


def _without_secrets(value: Any) -> Any:
    """Redacted before JSON escapes the text, after which credentials would not be recognized."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {redacted(str(name)): _without_secrets(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_secrets(each) for each in value]
    return redacted(str(value))


class JsonLines(Reporter):
    """Calls `write` for each event of a run, for progress every `log_interval` seconds and at the end."""

    _now: Facts | None = None  # the newest progress

    def report(self, event: str, facts: Facts) -> None:
        if event == "progress":
            self._now = facts
            if not self.is_due():
                return
        if event == "finish" and self._now is not None:
            self.write("progress", **self._now)
        self.write(event, **facts)

    def write(self, event: str, /, **fields: Any) -> None:
        write(event, **fields)


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


class JsonHandler(logging.Handler):
    """Log records as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a message that does not fit its arguments is no reason to fail
            fields = {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
            if record.exc_info and record.exc_info[0] is not None:
                fields["traceback"] = "".join(traceback.format_exception(*record.exc_info))
            write("log", **fields)


def log_as_json() -> None:
    """Write Python's warnings and uncaught exceptions of threads as lines too. Only for a process of our own."""
    logging.captureWarnings(True)
    for name in ("py.warnings", "threading"):
        logger = logging.getLogger(name)
        logger.addHandler(JsonHandler())
        logger.propagate = False

    def log_uncaught(thrown: threading.ExceptHookArgs) -> None:
        if thrown.exc_value is not None and thrown.exc_type is not SystemExit:
            logging.getLogger("threading").error("%s", thrown.exc_value, exc_info=thrown.exc_value)

    threading.excepthook = log_uncaught


PART = Jsonl
