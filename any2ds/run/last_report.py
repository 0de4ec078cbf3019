"""The report that a run leaves behind in its folder when it ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from any2ds.config.options import WatchOptions
from any2ds.core import layout
from any2ds.core.errors import IncompleteRun, LockLost, words_of
from any2ds.core.types import RunReport
from any2ds.dataset.figures import gather
from any2ds.dataset.report.report import put, render
from any2ds.dataset.shard_sample import Survey
from any2ds.run.reporters._contract import Reporter, RunInfo
from any2ds.storage.stores import Stores

log = logging.getLogger(__name__)

_SAMPLES = 64
_SECONDS = 8.0  # for each of gathering and rendering
_TIMEOUT = 60.0  # seconds that the run waits for the page
_MOST_SHARDS = 2000


class LastPage(Reporter):
    """A reporter, and a context around a run: inside its lock, and outside of what keeps the folder consistent.

    Writes the report into the folder when the run has ended, in bounded time. A failure is logged and fails nothing.
    A run that was stopped, or had nothing to do, leaves an existing report alone.
    """

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self._is_wanted, self._run = watch.report, run
        self._total = RunReport()
        self._is_cancelled = threading.Event()

    def __enter__(self) -> LastPage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        has_ended = error is None or isinstance(error, IncompleteRun)
        if not (self._is_wanted and has_ended and (self._total.shards or self._total.skipped_shards)):
            return
        # In a thread: a store that does not answer must not hold up the end of the run.
        thread = threading.Thread(target=self._make, name="any2ds-report", daemon=True)
        thread.start()
        try:
            thread.join(_TIMEOUT)
        finally:
            self._is_cancelled.set()  # the folder may belong to another run from now on
        if thread.is_alive():
            log.warning(
                "%s is not ready after %.0f s and is left out: any2ds report makes it", layout.REPORT_FILE, _TIMEOUT
            )

    def on_finish(self, total: RunReport) -> None:
        self._total = total

    def _make(self) -> None:
        output, options = self._run.output, self._run.options
        name = layout.report_file(self._run.made is not None and self._run.made.preset is not None)
        try:
            if not self._total.shards and output.exists(name):
                return
            survey = Survey.of(output.url, Stores(self._run.storage.storage_options), _MOST_SHARDS)
            figures = gather(survey, _SECONDS, _shown(options))
            content = render(survey, figures, _SAMPLES, _SECONDS)
            if not self._is_cancelled.is_set():
                put(output, content, name)
        except LockLost:
            log.debug("%s is left to the run that owns the folder now", layout.REPORT_FILE)
        except Exception as error:  # the dataset is made all the same
            log.warning("%s cannot be written: %s", layout.REPORT_FILE, words_of(error))
            log.debug("%s", layout.REPORT_FILE, exc_info=True)


def _shown(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that have a value."""
    return {name: value for name, value in options.items() if value is not None and name != "output_folder"}
