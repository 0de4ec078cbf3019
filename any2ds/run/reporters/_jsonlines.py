"""What happens in a run as JSON, a line for each event: for `--log_format=json` and the reporter jsonl."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import traceback
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from any2ds.core.errors import redacted
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.core.version import __version__
from any2ds.run.reporters._contract import PeriodicReporter
from any2ds.run.reporters._facts import finish, progress

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


class JsonLines(PeriodicReporter):
    """Calls `write` for each event of a run."""

    def write(self, event: str, /, **fields: Any) -> None:
        write(event, **fields)

    def on_start(self, finished_shards: int) -> None:
        run = self.run
        self.write(
            "start",
            any2ds=__version__,
            command=run.command,
            output_folder=run.output.url,
            shards_before=finished_shards,
            columns_left_out=run.left_out,
            options=run.options,
            member=run.member or None,
        )

    def record(self) -> None:
        self.write("progress", **progress(self.now))

    def on_shard(self, event: ShardReport | ShardError) -> None:
        super().on_shard(event)
        if isinstance(event, ShardError):
            fields = {"reason": event.reason, "attempt": event.attempt, "again": event.again}
            self.write("shard_failed", shard_id=event.shard_id, **fields)

    def on_stopping(self, open_shards: int, grace: float) -> None:
        super().on_stopping(open_shards, grace)
        self.write("stopping", shards_open=open_shards, grace=grace)

    def on_finish(self, total: RunReport) -> None:
        self.record()
        self.write("finish", **finish(total, self))


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
    warned = logging.getLogger("py.warnings")
    warned.addHandler(JsonHandler())
    warned.propagate = False

    def log_uncaught(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            lines = traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback)
            write("log", level="error", logger="threading", message=lines[-1].strip(), traceback="".join(lines))

    threading.excepthook = log_uncaught
