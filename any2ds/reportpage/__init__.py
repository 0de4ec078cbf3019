"""`report()`: what has become of a dataset, as a page to send to colleagues; and the page that every run leaves behind.

survey ─▶ figures ─▶ page, Markdown or JSON
      └─▶ thumbnails ─┘
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
import threading
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from any2ds import layout
from any2ds.config import ReportOptions, WatchOptions, check_effects, parse_groups
from any2ds.errors import IncompleteRun, LockLost, OutputError, redacted, words_of
from any2ds.figures import Figures, gather
from any2ds.loaders import Loadable, Snippet, snippets
from any2ds.protocols import RunInfo
from any2ds.resume.overwrite import is_somebody_elses
from any2ds.signature import document
from any2ds.storage import OutputFolder
from any2ds.storage.stores import Stores
from any2ds.survey import Survey
from any2ds.thumbnails import thumbnails
from any2ds.types import RunReport, ShardError, ShardReport
from any2ds.vitals import Snapshot

log = logging.getLogger(__name__)

_SAMPLES = 64
_SECONDS = 60.0  # for figures, and as many for samples
_SECONDS_AT_THE_END = 8.0  # of a run, for each of both
_FAREWELL = 60.0  # seconds after which a page that is still not there is not waited for
_MOST_SHARDS_AT_THE_END = 2000


def report(output_folder: Any = None, **options: Any) -> Figures:
    """Write down what has become of a dataset: a page of HTML that needs nothing else, or its figures."""
    given = options if output_folder is None else {"output_folder": output_folder, **options}
    (wanted,) = parse_groups(given, [ReportOptions])
    check_effects(given, [wanted])
    stores = Stores(wanted.storage_options)
    survey = Survey.of(wanted.output_folder, stores)
    figures = gather(survey, _SECONDS)
    if wanted.format != "html":
        _write(written(figures, wanted.format), wanted.output)
        return figures
    content = _page(survey, figures, wanted.samples, _SECONDS)
    place = wanted.output
    if place is None:
        _put(OutputFolder(wanted.output_folder, stores=stores), content)
    else:
        _write(content, place)
    if wanted.open:
        _open(content, place, survey.dataset.folder)
    return figures


document(
    report,
    [ReportOptions],
    Figures,
    "Returns the figures. Raises UsageError for a folder that holds no dataset, or a file that cannot be written.",
)


def written(figures: Figures, form: str) -> str:
    """As `md` or `json`."""
    if form == "json":
        return json.dumps(figures.to_json(), indent=2, ensure_ascii=True) + "\n"
    from any2ds.reportpage.markdown import markdown

    return markdown(figures)


def _page(survey: Survey, figures: Figures, samples: int, seconds: float) -> str:
    from any2ds.reportpage.page import html

    return html(figures, thumbnails(survey, samples, seconds=seconds) if samples else (), _loading(survey))


def _loading(survey: Survey) -> Sequence[Snippet]:
    """How to load it; nothing where that cannot be told."""
    if not survey.shards:
        return ()
    try:
        found = Loadable.of(survey.dataset)
        return snippets(dataclasses.replace(found, pattern=survey.pattern or found.pattern))
    except Exception as error:  # of any file system, over a dataset in any state
        log.debug("no words on how to load it: %s", error, exc_info=True)
        return ()


def _put(folder: OutputFolder, content: str, name: str = layout.REPORT_FILE) -> None:
    """Into the folder, but not over somebody's own file. Raises OutputError."""
    try:
        if name == layout.REPORT_FILE and is_somebody_elses(folder):
            raise OutputError(f"{name} in {folder.url!r} is not of any2ds: --output=FILE writes to another place")
        folder.write(name, content.encode())
    except (OutputError, LockLost):
        raise
    except Exception as error:  # every file system has exceptions of its own
        raise OutputError(f"{name} cannot be written to {folder.url!r}: {words_of(error)}") from error


def _write(content: str, place: str | None) -> None:
    """To a file, or to standard output. Raises OutputError."""
    if place in (None, "-"):
        import sys

        sys.stdout.write(content)
        return
    try:
        Path(str(place)).expanduser().write_text(content, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"--output={place}: {error.strerror}") from error


def _open(content: str, place: str | None, folder: OutputFolder) -> None:
    """In a browser, which needs a file on this machine."""
    if place is not None and place != "-":
        path = Path(place).expanduser()
    elif folder.is_local and place is None:
        path = Path(folder.path) / layout.REPORT_FILE
    else:
        handle, name = tempfile.mkstemp(prefix="any2ds-report-", suffix=".html")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        path = Path(name)
    if not webbrowser.open(path.resolve().as_uri()):
        log.warning("no browser could be started: the report is %s", redacted(str(path)))


class LastPage:
    """A reporter, and a context around a run: inside of its lock, and outside of what keeps the folder true.

    When the run has ended, the report is written into its folder, in bounded time. That it cannot be is told, and fails
    nothing. A run that was stopped, or had nothing to do, leaves a report that there is as it is.
    """

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self._is_wanted, self._run = watch.report, run
        self._total = RunReport()
        self._is_given_up = threading.Event()

    def __enter__(self) -> LastPage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        has_ended = error is None or isinstance(error, IncompleteRun)
        if not (self._is_wanted and has_ended and (self._total.shards or self._total.skipped_shards)):
            return
        # In a thread: a store that does not answer any more must not keep the run from its end.
        thread = threading.Thread(target=self._make, name="any2ds-report", daemon=True)
        thread.start()
        try:
            thread.join(_FAREWELL)
        finally:
            self._is_given_up.set()  # whoever interrupts this gives the folder away
        if thread.is_alive():
            log.warning(
                "%s is not ready after %.0f s, and left out: any2ds report makes it", layout.REPORT_FILE, _FAREWELL
            )

    def on_start(self, finished_shards: int) -> None:
        """There is nothing to tell yet."""

    def on_progress(self, now: Snapshot) -> None:
        """The page is about the end."""

    def on_shard(self, event: ShardReport | ShardError) -> None:
        """Its stats are read when all are there."""

    def on_stopping(self, open_shards: int, grace: float) -> None:
        """Who stops a run wants to go."""

    def on_finish(self, total: RunReport) -> None:
        self._total = total

    def _make(self) -> None:
        output, options = self._run.output, self._run.options
        name = layout.report_file(self._run.made is not None and self._run.made.preset is not None)
        try:
            if not self._total.shards and output.exists(name):
                return
            survey = Survey.of(output.url, Stores(self._run.storage.storage_options), _MOST_SHARDS_AT_THE_END)
            figures = gather(survey, _SECONDS_AT_THE_END, _told(options))
            content = _page(survey, figures, _SAMPLES, _SECONDS_AT_THE_END)
            if not self._is_given_up.is_set():
                _put(output, content, name)
        except LockLost:
            log.debug("%s is left to the run that has the folder now", layout.REPORT_FILE)
        except Exception as error:  # whatever it is, the dataset is made
            log.warning("%s cannot be written: %s", layout.REPORT_FILE, words_of(error))
            log.debug("%s", layout.REPORT_FILE, exc_info=True)


def _told(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not told by `.any2ds/run`, or have come to nothing."""
    return {name: value for name, value in options.items() if value is not None and name != "output_folder"}
