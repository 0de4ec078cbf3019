"""What a run writes about the dataset as a whole when it ends, the report above all."""

from __future__ import annotations

import logging
import threading
from types import TracebackType

from any2ds.config.options import WatchOptions
from any2ds.core import layout
from any2ds.core.errors import LockLost, error_text
from any2ds.core.reports import IncompleteRun, RunReport
from any2ds.dataset.shard_list_file import rebuild
from any2ds.run.reporters._contract import RunInfo
from any2ds.storage.stores import Stores

log = logging.getLogger(__name__)

_SAMPLES = 32
_SECONDS, _SECONDS_FOR_SAMPLES = 8.0, 1.0  # at most; most datasets take less than half a second for both
_LONGEST_WAIT = 60.0  # seconds for the report, in all
_MOST_SHARDS = 2000  # looked at


class LastReport:
    """A context around a run: inside its lock, and outside of what keeps the list of shards true.

    When the run has ended, it writes the report, in bounded time. If it cannot, it logs why, and nothing fails. A run
    that was stopped, or had nothing to do, leaves an existing report as it is. A run that ends well sets `total`.
    """

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self._is_wanted, self._run = watch.report, run
        self.total = RunReport()  # the figures of the run
        self._is_given_up = threading.Event()

    def __enter__(self) -> LastReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, IncompleteRun):
            self.total = error.report
        elif error is not None:
            return
        if not self._is_wanted or not (self.total.shards or self.total.skipped_shards):
            return
        # In a thread: a store that does not answer must not hold up the end of the run.
        thread = threading.Thread(target=self._make, name="any2ds-report", daemon=True)
        thread.start()
        try:
            thread.join(_LONGEST_WAIT)
        finally:
            self._is_given_up.set()  # from here on the folder may belong to another run
        if thread.is_alive():
            log.warning(
                "%s is not ready after %.0f s: any2ds report writes it later", layout.REPORT_FILE, _LONGEST_WAIT
            )

    def _make(self) -> None:
        # Not before: templates take longer to import than a run needs for its first files.
        from any2ds.dataset.report.report import page, put
        from any2ds.dataset.shard_sample import ShardSample
        from any2ds.dataset.summary import LastRun

        output, options = self._run.output, self._run.options
        name = layout.report_file(self._run.made is not None and self._run.made.preset is not None)
        try:
            if not self.total.shards and output.exists(name):
                return
            sample = ShardSample.of(output.url, Stores(self._run.storage.storage_options), _MOST_SHARDS)
            given = {name: value for name, value in options.items() if value is not None and name != "output_folder"}
            last_run = LastRun(given, self._run.command == "retry" and not self.total.successes)
            content, _ = page(sample, _SAMPLES, _SECONDS, _SECONDS_FOR_SAMPLES, last_run)
            if not self._is_given_up.is_set():
                put(output, content, name)
        except LockLost:
            log.debug("%s is left to the run that has taken over the folder", layout.REPORT_FILE)
        except Exception as error:  # of any kind: the dataset itself is complete
            log.warning("%s cannot be written: %s", layout.REPORT_FILE, error_text(error))
            log.debug("%s", layout.REPORT_FILE, exc_info=True)


def write_dataset_files(watch: WatchOptions, info: RunInfo) -> None:
    """Write the list of shards, the files for TFDS and the report."""
    assert info.made is not None
    with LastReport(watch, info) as last_report:
        rebuild(info.output, info.made)
        last_report.total = RunReport(shards=1)
