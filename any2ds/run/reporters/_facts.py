"""What is said of a run, as facts with names: screens show them, JSON lines and other reporters record them.

The names are those of docs/watching.md. Nothing that is shown is computed elsewhere, so that all say the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

from any2ds.config.command_line import load_call, report_call, report_command, retry_call, retry_command
from any2ds.core import plugins
from any2ds.core.errors import printable, redacted
from any2ds.core.failures import DROPPED, DUPLICATE, FILTERED, NO_FAILURES, SUCCESS, FailureCode, failure_code, in_order
from any2ds.core.filetypes import UNKNOWN_EXT, type_of_name
from any2ds.core.layout import report_file
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport
from any2ds.dataset.kinds import DRAWN, kind_of_ext
from any2ds.dataset.shards import pattern
from any2ds.run.reporters._contract import PeriodicReporter, RunInfo
from any2ds.transforms.contract import STEPS

Facts = Mapping[str, Any]

_LONGEST_URL = 300  # characters


def progress(now: Snapshot) -> Facts:
    """How a run goes, without what is unknown yet: null."""
    fields = asdict(now)
    verdict = fields.pop("verdict")
    return {
        **{name: round(value, 6) if isinstance(value, float) else value for name, value in fields.items()},
        **counts(now.outcomes),
        "limit": verdict["limit"] if verdict else None,
        "limit_words": verdict["message"] if verdict else None,
    }


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


def finish(total: RunReport, seen: PeriodicReporter) -> Facts:
    """How a run has ended, of which a reporter has `seen` the shards and the last snapshot."""
    run, now = seen.run, seen.now
    folder, given_folder = _shown(run.output.url), str(run.options.get("output_folder") or run.output.url)
    seconds = max(total.at_work or total.seconds, 1e-3)
    outcomes = [_outcome(code, rows, total) for code, rows in in_order(total.status_dict)]
    retryable = sum(outcome["rows"] for outcome in outcomes if outcome["transient"])
    has_stores = bool(run.storage.storage_options)  # with the lists, files or the folder in one of them
    is_in_store = has_stores and not run.output.is_local
    is_in_vain = run.command == "retry" and not total.successes  # nothing has changed that another retry could use
    limit = run.options.get("limit")
    retry: Callable[..., str] = retry_command if run.from_shell else retry_call
    left = len(run.missing()) if run.member and not (total.left_shards or total.failed_shards) else None
    has_shards = total.shards or total.skipped_shards
    is_whole = not (seen.was_stopped or total.left_shards or (run.member and left != 0))
    page = report = None
    if has_shards and is_whole and run.options.get("report"):
        page = f"{folder.rstrip('/')}/{report_file(run.made is not None and run.made.preset is not None)}"
    elif has_shards and not run.member and (run.options.get("report") or (run.command != "retry" and not total.shards)):
        write: Callable[..., str] = report_command if run.from_shell else report_call
        report = _shown(write(given_folder, run.options, is_in_store))
    stored_exts = None if seen.was_stopped else run.stored_exts()
    return {
        "command": run.command,
        "codes": run.options.get("codes"),
        "output_folder": folder,
        "pattern": None if run.member else _pattern(run, seen.done),  # shards of other members are unknown here
        "load": load_call(_shown(given_folder), is_in_store) if _has_numbers(run) else None,
        "report": page,
        "report_command": report,
        "seconds": round(total.seconds, 3),
        "seconds_at_work": round(seconds, 3),
        **counts(total.status_dict),
        "first_rows": limit if now.total_rows == limit else None,  # of the list, which may have more
        "samples": total.samples,
        "bytes": total.bytes,
        "received": now.received,
        "attempts": total.attempts,
        "successes_per_second": round(total.successes / seconds, 3),
        "attempts_per_second": round(total.attempts / seconds, 3),
        "bytes_per_second": round(max(total.bytes, now.received) / seconds, 3),
        "shards_done": total.shards,
        "shards_before": total.skipped_shards,
        "shards_failed": len(total.failed_shards),
        "shards_given_up": total.left_shards,
        "shards_of_others": left,
        **{f"robots_{name}": value for name, value in asdict(total.robots).items()},
        "types": _types(total.exts if stored_exts is None else stored_exts),
        "types_of_all": stored_exts is not None and bool(total.skipped_shards or run.finished),
        "files_of_other_kinds": _files_of_other_kinds(run, total.exts),
        "not_processed": dict(total.not_processed),
        "unused_options": _unused_options(run, total),
        "members": {name: dict(files) for name, files in total.members.items()},
        "outcomes": outcomes,
        "retryable_rows": retryable,
        "retry": _shown(retry(given_folder, run.options, has_stores)) if retryable and not is_in_vain else None,
    }


def _shown(text: str) -> str:
    return printable(redacted(text))


def shortened(text: str, length: int) -> str:
    """`text` on one line, without credentials and control characters, its middle left out."""
    text = _shown(text)
    return text if len(text) <= length else f"{text[: length - length // 2 - 1]}…{text[-(length // 2) :]}"


def _known(code: str) -> FailureCode:
    if code in NO_FAILURES:
        return FailureCode(False, NO_FAILURES[code], "")
    try:
        return failure_code(code)
    except KeyError:  # from shards of other versions or tools
        return FailureCode(False, "a failure that this version does not know", "See error_message in the metadata.")


def _outcome(code: str, rows: int, total: RunReport) -> Facts:
    known = _known(code)
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
    return pattern(sorted({*run.finished, *done}), run.made.layout, extension)


def _has_numbers(run: RunInfo) -> bool:
    """Whether samples of this format can be read by their number, as `any2ds.load` does it."""
    made = run.made
    return made is not None and (
        hasattr(plugins.load("writers", made.output_format), "indexed") and made.tfrecord_compression != "gzip"
    )


def _unused_options(run: RunInfo, total: RunReport) -> dict[str, str]:
    """Option -> the kinds of files that it is for, of options that changed, or failed, no file of the run."""
    has_arrived = total.successes + total.failed_to_subsample + total.filtered > 0
    if not has_arrived or not {"transform_timeout", "transform_crash"}.isdisjoint(total.status_dict):
        return {}  # it is unknown which steps the files went through
    steps_of: defaultdict[str, list[str]] = defaultdict(list)
    for step, options in run.steps.items():
        for option in options:
            steps_of[option].append(step)
    return {
        f"--{option}": " or ".join(STEPS[step].files for step in steps)
        for option, steps in steps_of.items()
        if not any(total.processed.get(step) for step in steps)
    }


def _types(exts: Mapping[str, int]) -> dict[str, int]:
    """Media type -> files, the most frequent first; of an extension that stands for none, the extension."""
    types = Counter[str]()
    for ext, files in exts.items():
        name = type_of_name(f"file.{ext}") or ("of unknown type" if ext == UNKNOWN_EXT else f".{printable(ext)}")
        types[name] += files
    return dict(types.most_common())


def _files_of_other_kinds(run: RunInfo, exts: Mapping[str, int]) -> int:
    """Stored files that are neither images nor drawings, if the options ask for changes of images alone."""
    refused_or_meant: Collection[Any] = [run.options.get(name) for name in ("only_images", "preset", "transform")]
    if run.command != "download" or set(run.steps) != {"image"} or any(refused_or_meant):
        return 0
    return sum(files for ext, files in exts.items() if kind_of_ext(ext) != "image" and ext.lower() not in DRAWN)
