"""Standard error as lines of JSON, an object each: what `--log_format=json` makes of everything that is said there."""

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

_lock = threading.Lock()  # a line is never between the parts of another


def say(event: str, /, **fields: Any) -> None:
    """One line, in ASCII, so that it can be written anywhere. It is lost where nobody reads any more."""
    line = json.dumps(_harmless({"event": event, "time": _now(), **fields}))
    with _lock, contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _harmless(value: Any) -> Any:
    """Without credentials, which are not to be found any more once JSON has escaped them."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {redacted(str(name)): _harmless(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_harmless(each) for each in value]
    return redacted(str(value))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def progress(now: Snapshot) -> Mapping[str, Any]:
    """The fields of `progress`: those of the Snapshot, by their names, null where nobody knows, and what follows from
    them."""
    fields = asdict(now)
    verdict, ratio = fields.pop("verdict"), success_ratio(now)
    return {
        **{name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()},
        "share": now.share,
        "rows": sum(now.outcomes.values()),
        "stored": now.outcomes.get(SUCCESS, 0),
        "success_ratio": round(ratio, 6) if ratio is not None else None,
        "limit": verdict["limit"] if verdict else None,
        "limit_words": verdict["words"] if verdict else None,
    }


class JsonHandler(logging.Handler):
    """Log records as lines."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a message that does not fit its arguments is no reason to fail
            more = {}
            if record.exc_info and record.exc_info[0] is not None:
                more["traceback"] = "".join(traceback.format_exception(*record.exc_info))
            say("log", level=record.levelname.lower(), logger=record.name, message=record.getMessage(), **more)


def speak_json() -> None:
    """From now on Python's warnings, and what threads die of, are lines as well. For a process that is ours."""
    logging.captureWarnings(True)
    warned = logging.getLogger("py.warnings")
    warned.addHandler(JsonHandler())
    warned.propagate = False

    def died(what: threading.ExceptHookArgs) -> None:
        if what.exc_type is not SystemExit:
            words = traceback.format_exception(what.exc_type, what.exc_value, what.exc_traceback)
            say("log", level="error", logger="threading", message=words[-1].strip(), traceback="".join(words))

    threading.excepthook = died
