"""Calls the reporters: slow ones in threads of their own. None can harm the run."""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
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
_MOST_WAITING = 10_000  # shards that a slow reporter may be behind; it does not get more
_TIMEOUT = 60.0  # seconds that all threaded reporters together may take to finish when the run has ended,
_TIMEOUT_STOPPED = 5.0  # when it was stopped by a signal,
_TIMEOUT_AT_ONCE = 1.0  # and by a second one
_STUCK = 60.0  # seconds in one call after which a reporter counts as stuck
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
        timeout = _TIMEOUT_STOPPED if was_stopped else _TIMEOUT
        if isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit)):
            timeout = _TIMEOUT_AT_ONCE
        threaded = [reporter for reporter in self._reporters if isinstance(reporter, ThreadedReporter)]
        deadline = time.monotonic() + timeout
        try:
            for reporter in threaded:
                reporter.wait(deadline)
        finally:
            for reporter in threaded:
                reporter.abandon(timeout)

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
    """A reporter made and called in a thread of its own: it may be slow, hang or raise. It gets the newest snapshot."""

    def __init__(self, name: str, make: Callable[[], Reporter]) -> None:
        self._name, self._make = name, make
        self._reporter: Reporter | None = None
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(_MOST_WAITING)
        self._newest: Snapshot | None = None  # whose call is in the queue
        self._last: tuple[str, tuple[Any, ...]] | None = None  # `on_finish`, if the queue had no room for it
        self._lock = threading.Lock()  # guards `_newest`
        self._missed = 0  # shards
        self._is_off = False
        self._since: float | None = None  # when the present call began
        self._has_warned = False  # that it is stuck
        self._thread = threading.Thread(target=self._run, name=f"any2ds-{name}", daemon=True)

    def on_start(self, finished_shards: int) -> None:
        self._put("on_start", finished_shards)
        self._thread.start()

    def on_progress(self, now: Snapshot) -> None:
        with self._lock:
            is_queued = self._newest is not None
            self._newest = now if is_queued or self._put("on_progress") else None
        if self._is_stuck and not (self._has_warned or self._is_off):
            self._has_warned = True
            log.warning("%s has not come back for %.0f s; the run goes on without it", self._name, _STUCK)

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if not self._put("on_shard", event):
            self._missed += 1

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._put("on_stopping", open_shards, grace)

    def on_finish(self, total: RunReport) -> None:
        if self._missed:
            log.warning("%s was too slow and has missed %d shards", self._name, self._missed)
        if not self._put("on_finish", total):
            self._last = "on_finish", (total,)

    def wait(self, deadline: float) -> None:
        """Until it has finished, or the deadline (`time.monotonic`); not at all if it is stuck."""
        if self._is_stuck or not self._thread.is_alive():
            return
        self._thread.join(min(_SILENCE, _left(deadline)))
        if self._thread.is_alive() and _left(deadline) > _SILENCE:
            log.info("waiting for %s, for up to %.0f s", self._name, _left(deadline))
        if self._last is not None:
            with contextlib.suppress(queue.Full):
                self._calls.put(self._last, timeout=_left(deadline))
        self._thread.join(_left(deadline))

    def abandon(self, timeout: float) -> None:
        """Ignore it from now on, if it has not finished."""
        if not self._thread.is_alive() or self._is_off:
            return
        self._is_off = True
        level = logging.DEBUG if self._is_stuck and self._has_warned else logging.WARNING
        log.log(level, "%s has not finished within %.0f s and is abandoned", self._name, timeout)
        self.cancel()

    def cancel(self) -> None:
        if self._reporter is not None:
            try:
                self._reporter.cancel()
            except Exception:
                log.debug("%s", self._name, exc_info=True)

    def _put(self, method: str, *arguments: Any) -> bool:
        if self._is_off:
            return True
        try:
            self._calls.put_nowait((method, arguments))
        except queue.Full:
            return False
        return True

    @property
    def _is_stuck(self) -> bool:
        since = self._since
        return since is not None and time.monotonic() - since > _STUCK

    def _run(self) -> None:
        method = ""
        try:
            self._since = time.monotonic()
            self._reporter = self._make()
            while method != "on_finish":
                self._since = None
                method, arguments = self._calls.get()
                self._since = time.monotonic()
                if method == "on_progress":
                    with self._lock:
                        arguments, self._newest = (self._newest,), None
                getattr(self._reporter, method)(*arguments)
        except (Exception, SystemExit) as error:
            if not self._is_off:
                self._is_off = True
                log.warning(
                    "%s failed and is switched off: %s: %s", self._name, type(error).__name__, error_text(error)
                )
                log.debug("%s", self._name, exc_info=True)
            self.cancel()


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())
