"""Facts about a run, by name: screens show them, JSON lines and other reporters record them.

The names are those of docs/watching.md. Nothing that is shown is computed elsewhere, so that all say the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field

from any2ds.config.command_line import load_call, retry_call, retry_command
from any2ds.core import plugins
from any2ds.core.errors import printable, redacted
from any2ds.core.failures import DROPPED, DUPLICATE, FILTERED, SUCCESS, FailureCode, in_order, known_outcome
from any2ds.core.filetypes import UNKNOWN_EXT, type_of_name
from any2ds.core.layout import report_file
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.core.version import __version__
from any2ds.dataset import shards
from any2ds.run.reporters._contract import Facts, RunInfo

_UNKNOWN = FailureCode(False, "a failure that this version does not know", "See error_message in the metadata.")
_LONGEST_URL = 300  # characters


def start(run: RunInfo, finished_shards: int) -> Facts:
    """Facts about the run that begins."""
    return {
        "any2ds": __version__,
        "command": run.command,
        "output_folder": _shown(run.output.url),
        "shards_before": finished_shards,
        "columns_left_out": run.left_out,
        "options": run.options,
        "member": run.member or None,
    }


def numbers(facts: Facts) -> dict[str, float]:
    """The facts that are known numbers."""
    return {name: value for name, value in facts.items() if isinstance(value, (int, float))}


def counts(outcomes: Mapping[str, int]) -> Facts:
    """Rows by what became of them. The share of successes is among the rows that are no duplicates."""
    rows, stored = sum(outcomes.values()), outcomes.get(SUCCESS, 0)
    others = {"dropped": DROPPED, "filtered": FILTERED, "duplicates": DUPLICATE}
    known = {name: outcomes.get(code, 0) for name, code in others.items()}
    tried = rows - known["duplicates"]
    return {
        "rows": rows,
        "stored": stored,
        "failed": rows - stored - sum(known.values()),
        **known,
        "success_ratio": round(stored / tried, 6) if tried > 0 else None,
    }


def shard_finished(report: ShardReport) -> Facts:
    """The outcomes of the rows of a shard."""
    known = {"shard_id": report.shard_id, "seconds": round(report.duration, 3), **counts(report.status_dict)}
    return {**known, "bytes": report.bytes, "outcomes": report.status_dict, "replaces": report.replaces}


def shard_failed(error: ShardError) -> Facts:
    """Why a shard could not be made."""
    return {"shard_id": error.shard_id, "reason": error.reason, "attempt": error.attempt, "again": error.again}


@dataclass(slots=True)
class Seen:
    """Observations of a run while it went on."""

    now: Facts = field(default_factory=dict)  # the newest progress
    done: set[int] = field(default_factory=set)  # shards that it has finished
    was_stopped: bool = False


def finish(total: RunReport, run: RunInfo, seen: Seen) -> Facts:
    """How a run has ended."""
    now = seen.now
    seconds = max(total.at_work or total.seconds, 1e-3)
    outcomes = [_outcome(code, rows, total) for code, rows in in_order(total.status_dict)]
    limit = run.options.get("limit")
    is_done = not (seen.was_stopped or total.left_shards or total.failed_shards)
    facts = {
        "command": run.command,
        "codes": run.options.get("codes"),
        "output_folder": _shown(run.output.url),
        "seconds": round(total.seconds, 3),
        "seconds_at_work": round(seconds, 3),
        **counts(total.status_dict),
        "first_rows": limit if now.get("total_rows") == limit else None,  # of the list, which may have more
        "samples": total.samples,
        "bytes": total.bytes,
        "received": now.get("received", 0),
        "attempts": total.attempts,
        "successes_per_second": round(total.successes / seconds, 3),
        "attempts_per_second": round(total.attempts / seconds, 3),
        "bytes_per_second": round(max(total.bytes, now.get("received", 0)) / seconds, 3),
        "shards_done": total.shards,
        "shards_before": total.skipped_shards,
        "shards_failed": len(total.failed_shards),
        "shards_given_up": total.left_shards,
        "shards_of_others": run.missing() if run.member and is_done else None,
        **{f"robots_{name}": value for name, value in asdict(total.robots).items()},
        "types": _types(total.exts),
        "not_processed": total.not_processed,
        "members": total.members,
        "outcomes": outcomes,
        "retryable_rows": sum(outcome["rows"] for outcome in outcomes if outcome["transient"]),
    }
    return {**facts, **_next_steps(facts, run, seen)}


def _next_steps(facts: Facts, run: RunInfo, seen: Seen) -> Facts:
    """Commands to type, and files to look at, once a run has ended as the `facts` say; null where that is no use."""
    options = run.options
    folder = str(options.get("output_folder") or run.output.url)
    has_stores = bool(run.storage.storage_options)  # with the lists, files or the folder in one of them
    is_in_store = has_stores and not run.output.is_local
    # A rank does not know the shards of the others.
    pattern = None if run.member or not (facts["stored"] or run.finished) else _pattern(run, seen.done)
    has_shards = facts["shards_done"] or facts["shards_before"]
    is_whole = not (seen.was_stopped or facts["shards_given_up"] or (run.member and facts["shards_of_others"] != 0))
    page = report_file(run.made is not None and run.made.preset is not None)
    writes_report = has_shards and is_whole and options.get("report")
    has_gained = run.command != "retry" or facts["stored"]  # else nothing has changed that another retry could use
    can_retry = facts["retryable_rows"] and has_gained and not facts["shards_given_up"]  # else this command comes first
    retry = retry_command if run.from_shell else retry_call
    return {
        "pattern": pattern,
        "load": _shown(load_call(folder, is_in_store)) if pattern and _has_numbers(run) else None,
        "report": f"{facts['output_folder'].rstrip('/')}/{page}" if writes_report else None,
        "retry": _shown(retry(folder, run.given)) if can_retry else None,
    }


def _shown(text: str) -> str:
    return printable(redacted(text))


def shortened(text: str, length: int) -> str:
    """`text` on one line, without credentials and control characters, its middle left out."""
    text = _shown(text)
    return text if len(text) <= length else f"{text[: length - length // 2 - 1]}…{text[-(length // 2) :]}"


def _outcome(code: str, rows: int, total: RunReport) -> Facts:
    known = known_outcome(code) or _UNKNOWN
    return {
        "code": printable(code),
        "rows": rows,
        "share": round(rows / total.count, 6) if total.count else 0.0,
        "meaning": known.meaning,
        "advice": known.advice or None,
        "example": shortened(total.examples.get(code, ""), _LONGEST_URL) or None,
        "transient": known.transient,
    }


def _pattern(run: RunInfo, done: Collection[int]) -> str | None:
    """The data files of all finished shards."""
    if run.made is None:
        return None
    extension = plugins.load("writers", run.made.output_format).extension
    if extension is None and run.made.preset is not None:  # the preset shows no metadata files
        return None
    return shards.pattern(sorted({*run.finished, *done}), run.made.layout, extension)


def _has_numbers(run: RunInfo) -> bool:
    """Whether samples of this format can be read by their number, as `any2ds.load` does it."""
    made = run.made
    return made is not None and plugins.load("writers", made.output_format).shard is not None


def _types(exts: Mapping[str, int]) -> dict[str, int]:
    """Media type -> files, the most frequent first; of an extension that stands for none, the extension."""
    types = Counter[str]()
    for ext, files in exts.items():
        name = type_of_name(f"file.{ext}") or ("of unknown type" if ext == UNKNOWN_EXT else f".{printable(ext)}")
        types[name] += files
    return dict(types.most_common())
