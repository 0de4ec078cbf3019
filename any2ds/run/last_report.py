"""Writes the files about the dataset as a whole when a run ends, the report above all."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
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
_MOST_SHARDS = 2000  # looked at


class LastReport(AbstractContextManager["LastReport", None]):
    """A context around a run: inside its lock, and outside of what keeps the list of shards true.

    When the run has ended, it writes the report. A run that was stopped, or had nothing to do, leaves an existing
    report as it is. A run that ends well sets `total`.
    """

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self._is_wanted, self._run = watch.report, run
        self.total = RunReport()  # the figures of the run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        total = error.report if isinstance(error, IncompleteRun) else self.total if error is None else RunReport()
        if self._is_wanted and (total.shards or total.skipped_shards):
            _write(self._run, total)


def _write(run: RunInfo, total: RunReport) -> None:
    """Write the report. What prevents that is logged, and nothing fails: the dataset itself is complete."""
    # Not before: templates take longer to import than a run needs for its first files.
    from any2ds.dataset.shard_sample import ShardSample
    from any2ds.describe.report.report import page, put
    from any2ds.describe.summary import LastRun

    name = layout.report_file(run.made is not None and run.made.preset is not None)
    try:
        if not total.shards and run.output.exists(name):
            return
        sample = ShardSample.of(run.output.url, Stores(run.storage.storage_options), _MOST_SHARDS)
        last_run = LastRun(run.given, run.command == "retry" and not total.successes)
        content, _ = page(sample, _SAMPLES, _SECONDS, _SECONDS_FOR_SAMPLES, last_run)
        put(run.output, content, name)
    except LockLost:
        log.debug("%s is left to the run that has taken over the folder", name)
    except Exception as error:  # of any kind
        log.warning("%s cannot be written: %s", name, error_text(error))
        log.debug("%s", name, exc_info=True)


def write_dataset_files(watch: WatchOptions, info: RunInfo) -> None:
    """Write the list of shards, the files for TFDS and the report."""
    assert info.made is not None
    with LastReport(watch, info) as last_report:
        rebuild(info.output, info.made)
        last_report.total = RunReport(shards=1)
