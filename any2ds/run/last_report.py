"""The report that a run leaves behind in its folder when it ends."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from any2ds.config.options import WatchOptions
from any2ds.core import layout
from any2ds.core.errors import LockLost, words_of
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import IncompleteRun, RunReport, ShardError, ShardReport
from any2ds.dataset.figures import gather
from any2ds.dataset.report.report import put, render
from any2ds.dataset.shard_sample import Survey
from any2ds.run.reporters._contract import RunInfo
from any2ds.storage.stores import Stores

log = logging.getLogger(__name__)

_SAMPLES = 64
_SECONDS_AT_THE_END = 8.0  # of a run, for each of both
_FAREWELL = 60.0  # seconds after which a page that is still not there is not waited for
_MOST_SHARDS_AT_THE_END = 2000


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
            content = render(survey, figures, _SAMPLES, _SECONDS_AT_THE_END)
            if not self._is_given_up.is_set():
                put(output, content, name)
        except LockLost:
            log.debug("%s is left to the run that has the folder now", layout.REPORT_FILE)
        except Exception as error:  # whatever it is, the dataset is made
            log.warning("%s cannot be written: %s", layout.REPORT_FILE, words_of(error))
            log.debug("%s", layout.REPORT_FILE, exc_info=True)


def _told(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not told by `.any2ds/run`, or have come to nothing."""
    return {name: value for name, value in options.items() if value is not None and name != "output_folder"}
