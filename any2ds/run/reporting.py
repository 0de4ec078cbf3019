"""Calls the reporters: slow ones in threads of their own. None can harm the run."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from any2ds.config.options import WatchOptions
from any2ds.core import plugins
from any2ds.core.errors import error_text
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.run.monitor import Monitor
from any2ds.run.reporters._contract import Reporter, RunInfo

log = logging.getLogger(__name__)

_SNAPSHOT_INTERVAL = 0.5  # seconds
_MOST_WAITING = 10_000  # calls; a reporter that is further behind is switched off
_LONGEST_CALL = 60.0  # seconds; a reporter that takes longer for one call is switched off
_TIMEOUT = 60.0  # seconds that all threaded reporters together may take to finish when the run has ended,
_TIMEOUT_STOPPED = 5.0  # and when it was stopped by a signal
_SILENCE = 3.0  # seconds of waiting that are not worth a message


def check_reporters(watch: WatchOptions) -> None:
    """Raises MissingExtra if a library is not installed, UsageError if a reporter cannot do what is asked for."""
    for name in watch.chosen:
        plugins.load("reporters", name).check(watch)


def reporters(watch: WatchOptions, run: RunInfo, quiet: bool) -> list[Reporter]:
    """The console, unless `quiet`, and those of the options, in threads."""
    console = [] if quiet else [plugins.load("reporters", "console")(watch, run)]
    parts = [(name, plugins.load("reporters", name)) for name in watch.chosen]
    return [*console, *(ThreadedReporter(name, partial(part, watch, run)) for name, part in parts)]


class Reporters:
    """All reporters as one, called one at a time. One that raises is left out from then on."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = list(reporters)
        self._lock = threading.RLock()

    def on_start(self, finished_shards: int) -> None:
        self._call("on_start", finished_shards)

    def on_progress(self, now: Snapshot) -> None:
        self._call("on_progress", now)

    def on_shard(self, event: ShardReport | ShardError) -> None:
        self._call("on_shard", event)

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._call("on_stopping", open_shards, grace)

    def on_finish(self, total: RunReport, was_stopped: bool = False) -> None:
        """Waits for threaded reporters for a bounded time, which is short if the run was stopped."""
        self._call("on_finish", total)
        threaded = [reporter for reporter in self._reporters if isinstance(reporter, ThreadedReporter)]
        deadline = time.monotonic() + (_TIMEOUT_STOPPED if was_stopped else _TIMEOUT)
        try:
            for reporter in threaded:
                reporter.join(deadline)
        finally:  # also when another Ctrl-C ends the wait
            for reporter in threaded:
                reporter.abandon_unfinished()

    @contextmanager
    def watching(self, monitor: Monitor) -> Iterator[None]:
        """Meanwhile they get snapshots, whether or not anything happens; and one at the end."""
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(_SNAPSHOT_INTERVAL):
                self.on_progress(monitor.snapshot())

        ticker = threading.Thread(target=tick, name="any2ds-ticker", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join(_SNAPSHOT_INTERVAL)
            self.on_progress(monitor.snapshot())

    def _call(self, method: str, *arguments: Any) -> None:
        with self._lock:
            for reporter in list(self._reporters):
                try:
                    getattr(reporter, method)(*arguments)
                except Exception:
                    self._reporters.remove(reporter)
                    log.warning("%s failed and is switched off", type(reporter).__name__, exc_info=True)


class ThreadedReporter(Reporter):
    """A reporter that is made and called in a thread of its own, where it may be slow, hang or raise.

    It is switched off, with one warning, if it raises, hangs in a call or falls far behind. Of snapshots that wait for
    it, it gets the newest.
    """

    def __init__(self, name: str, make: Callable[[], Reporter]) -> None:
        self._name, self._make = name, make
        self._reporter: Reporter | None = None
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(_MOST_WAITING)
        self._newest: Snapshot | None = None  # whose call waits in the queue
        self._lock = threading.Lock()  # guards `_newest` and `_is_off`
        self._called_at: float | None = None  # when the present call began
        self._is_off = False
        self._thread = threading.Thread(target=self._run, name=f"any2ds-{name}", daemon=True)

    def on_start(self, finished_shards: int) -> None:
        self._put("on_start", finished_shards)
        self._thread.start()

    def on_progress(self, now: Snapshot) -> None:
        called_at = self._called_at
        if called_at is not None and time.monotonic() - called_at > _LONGEST_CALL:
            self._switch_off(f"it has not come back for {_LONGEST_CALL:.0f} s")
        with self._lock:
            is_waiting, self._newest = self._newest is not None, now
        if not is_waiting:
            self._put("on_progress")

    def on_shard(self, event: ShardReport | ShardError) -> None:
        self._put("on_shard", event)

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._put("on_stopping", open_shards, grace)

    def on_finish(self, total: RunReport) -> None:
        self._put("on_finish", total)

    def join(self, deadline: float) -> None:
        """Wait until it has finished, or the deadline (`time.monotonic`); not at all if it is switched off."""
        seconds = max(0.0, deadline - time.monotonic())
        if self._is_off or not self._thread.is_alive():
            return
        self._thread.join(min(_SILENCE, seconds))
        if self._thread.is_alive() and seconds > _SILENCE:
            log.info("waiting for %s, for up to %.0f s", self._name, seconds)
            self._thread.join(seconds - _SILENCE)

    def abandon_unfinished(self) -> None:
        if self._thread.is_alive():
            self._switch_off("it has not finished in time")

    def _put(self, method: str, *arguments: Any) -> None:
        if not self._is_off:
            try:
                self._calls.put_nowait((method, arguments))
            except queue.Full:
                self._switch_off(f"it is {_MOST_WAITING:,} calls behind")

    def _switch_off(self, why: str) -> None:
        with self._lock:
            if self._is_off:
                return
            log.warning("the reporter %s is switched off: %s", self._name, why)
            self._is_off = True
        if self._reporter is not None:
            try:
                self._reporter.cancel()
            except Exception:
                log.debug("%s", self._name, exc_info=True)

    def _run(self) -> None:
        method = ""
        try:
            self._called_at = time.monotonic()
            self._reporter = self._make()
            while method != "on_finish" and not self._is_off:
                self._called_at = None
                method, arguments = self._calls.get()
                self._called_at = time.monotonic()
                if method == "on_progress":
                    with self._lock:
                        arguments, self._newest = (self._newest,), None
                getattr(self._reporter, method)(*arguments)
        except (Exception, SystemExit) as error:
            log.debug("%s", self._name, exc_info=True)
            self._switch_off(f"{type(error).__name__}: {error_text(error)}")
