"""Standard error as JSON lines, an object each, for `--log_format=json`."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from any2ds.core.errors import redacted
from any2ds.core.failures import SUCCESS
from any2ds.core.metrics import Snapshot
from any2ds.run.reporters._figures import success_ratio

_lock = threading.Lock()  # lines are written whole


def write(event: str, /, **fields: Any) -> None:
    """One line, in ASCII, so that any stream takes it. It is lost if nobody reads any more."""
    line = json.dumps(_without_secrets({"event": event, "time": _now(), **fields}))
    with _lock, contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{line}\n")
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


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def progress(now: Snapshot) -> Mapping[str, Any]:
    """The fields of `progress`: those of the Snapshot, null where unknown, and some computed from them."""
    fields = asdict(now)
    verdict, ratio = fields.pop("verdict"), success_ratio(now)
    return {
        **{name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()},
        "share": now.share,
        "rows": sum(now.outcomes.values()),
        "stored": now.outcomes.get(SUCCESS, 0),
        "success_ratio": round(ratio, 6) if ratio is not None else None,
        "limit": verdict["limit"] if verdict else None,
        "limit_words": verdict["message"] if verdict else None,
    }


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
