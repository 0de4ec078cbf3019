"""`report()`: what has become of a dataset, as a page to send to colleagues; and the page that every run leaves behind.

shard sample ─▶ summary ─▶ page, Markdown or JSON
            └─▶ thumbnails ─┘
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from any2ds.config.datasets import ReportOptions
from any2ds.config.options import ParsedOptions
from any2ds.config.signature import command
from any2ds.core import layout
from any2ds.core.errors import LockLost, OutputError, error_text, redacted
from any2ds.core.paths import expanded
from any2ds.core.terminal.results import standard_output, write_file
from any2ds.dataset.places import located
from any2ds.dataset.shard_sample import ShardSample
from any2ds.describe.loaders import Snippet, snippets
from any2ds.describe.summary import LastRun, Summary, summarize
from any2ds.describe.thumbnails import thumbnails, thumbnails_of
from any2ds.storage.folders import OutputFolder
from any2ds.storage.opening import open_folder
from any2ds.storage.report_file import is_others_report, refuse_others_file
from any2ds.storage.stores import Stores

log = logging.getLogger(__name__)

_SAMPLES = 64
_SECONDS = 60.0  # for the summary, and as many for samples


@command(
    [ReportOptions],
    "Returns the summary. Raises UsageError for a folder that holds no dataset, or a file that cannot be written.",
)
def report(options: ParsedOptions) -> Summary:
    """Write down what has become of a dataset: a page of HTML that needs nothing else, or its figures."""
    (wanted,) = options.groups
    stores = Stores(wanted.storage_options)
    wanted = located(wanted, stores)
    sample = ShardSample.of(wanted.output_folder, stores)
    if wanted.format != "html":
        summary = summarize(sample, seconds=_SECONDS)
        _write(written(summary, wanted.format), wanted)
        return summary
    content, summary = page(sample, wanted.samples, _SECONDS, _SECONDS)
    place = wanted.output
    if place is None:
        put(open_folder(wanted.output_folder, stores=stores), content)
    else:
        _write(content, wanted)
    if wanted.open:
        _open(content, place, sample.dataset.folder)
    return summary


def written(summary: Summary, form: str) -> str:
    """As `md` or `json`."""
    if form == "json":
        return json.dumps(summary.to_json(), indent=2, ensure_ascii=True) + "\n"
    from any2ds.describe.report.page import markdown

    return markdown(summary)


def page(
    sample: ShardSample,
    samples: int,
    seconds: float,
    seconds_for_samples: float,
    last_run: LastRun | None = None,
) -> tuple[str, Summary]:
    """The page, and its summary; the samples are decoded by another process meanwhile."""
    with ThreadPoolExecutor(1, thread_name_prefix="any2ds-samples") as thread:
        pictures = thread.submit(thumbnails, sample, samples, seconds=seconds_for_samples) if samples else None
        from any2ds.describe.report.page import html

        summary, snippets = summarize(sample, seconds=seconds, last_run=last_run), _loading(sample)
        shown = pictures.result() if pictures else ()
        places = [(group.shard, group.key) for group in summary.same_bytes if samples and group.key]
        repeated = thumbnails_of(sample, places, seconds_for_samples) if places else {}
        return html(summary, shown, repeated, snippets), summary


def _loading(sample: ShardSample) -> Sequence[Snippet]:
    """How to load it; nothing if that is unknown."""
    if not sample.shards:
        return ()
    try:
        return snippets(sample.dataset)
    except Exception as error:  # of any file system, over a dataset in any state
        log.debug("no snippets to load it: %s", error, exc_info=True)
        return ()


def put(folder: OutputFolder, content: str, name: str = layout.REPORT_FILE) -> None:
    """Into the folder, but not over somebody's own file. Raises OutputError."""
    try:
        if name == layout.REPORT_FILE and is_others_report(folder):
            raise OutputError(f"{name} in {folder.url!r} is not of any2ds: --output=FILE writes to another place")
        folder.write(name, content.encode())
    except (OutputError, LockLost):
        raise
    except Exception as error:  # every file system has exceptions of its own
        raise OutputError(f"{name} cannot be written to {folder.url!r}: {error_text(error)}") from error


def _write(content: str, wanted: ReportOptions) -> None:
    """To a file, or to standard output. Raises OutputError."""
    place = wanted.output
    if place in (None, "-"):
        with standard_output() as stream:
            stream.write(content)
        return
    try:
        path = expanded(str(place))
        refuse_others_file(path, wanted.format, "--output")
        write_file(path, content.encode())
    except OSError as error:
        raise OutputError(f"--output={place}: {error.strerror}") from error


def _open(content: str, place: str | None, folder: OutputFolder) -> None:
    """In a browser, which needs a file on this machine."""
    import webbrowser

    if place is not None and place != "-":
        path = expanded(place)
    elif folder.is_local and place is None:
        path = Path(folder.path) / layout.REPORT_FILE
    else:
        handle, name = tempfile.mkstemp(prefix="any2ds-report-", suffix=".html")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        path = Path(name)
    if not webbrowser.open(path.resolve().as_uri()):
        log.warning("no browser could be started: the report is %s", redacted(str(path)))
