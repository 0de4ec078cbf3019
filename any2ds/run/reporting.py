"""Calls the reporters: slow ones in threads of their own. None can harm the run."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from any2ds.config.options import WatchOptions
from any2ds.core import plugins
from any2ds.core.errors import error_text
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.run.reporters._contract import Facts, Reporter, RunInfo
from any2ds.run.reporters._facts import Seen, finish, shard_failed, shard_finished, start

log = logging.getLogger(__name__)

_PROGRESS_INTERVAL = 0.5  # seconds
_MOST_WAITING = 1000  # events; a reporter that is further behind is switched off
_TIMEOUT = 60.0  # seconds that all threaded reporters together may take to finish when the run has ended,
_TIMEOUT_STOPPED = 5.0  # and when it was stopped by a signal


def check_reporters(watch: WatchOptions) -> None:
    """Raises MissingExtra if a library is not installed, UsageError if a reporter cannot do what is asked for."""
    for name in watch.chosen:
        plugins.load("reporters", name).check(watch)


class Reporters:
    """All reporters as one, called one at a time. One that raises is left out from then on."""

    def __init__(self, watch: WatchOptions, run: RunInfo, quiet: bool, more: Sequence[Reporter] = ()) -> None:
        """The console, unless `quiet`, `more`, and those of the options, in threads."""
        console = [] if quiet else [plugins.load("reporters", "console")(watch, run)]
        self._at_once = [*console, *more]
        parts = [(name, plugins.load("reporters", name)) for name in watch.chosen]
        self._threaded = [ThreadedReporter(name, partial(part, watch, run)) for name, part in parts]
        self._run, self._seen = run, Seen()
        self._lock = threading.RLock()

    def on_start(self, finished_shards: int) -> None:
        self._report("start", start(self._run, finished_shards))

    def on_progress(self, now: Facts) -> None:
        self._seen.now = now
        self._report("progress", now)

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if isinstance(event, ShardError):
            self._report("shard_failed", shard_failed(event))
        else:
            self._seen.done.add(event.shard_id)
            self._report("shard_finished", shard_finished(event))

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._seen.was_stopped = True
        self._report("stopping", {"shards_open": open_shards, "grace": grace})

    def on_finish(self, total: RunReport) -> None:
        """Waits for threaded reporters for a bounded time, which is short if the run was stopped."""
        try:
            self._report("finish", finish(total, self._run, self._seen))
        except Exception as error:  # a store that does not answer any more
            log.warning("the end of the run cannot be shown: %s", error_text(error), exc_info=True)
        deadline = time.monotonic() + (_TIMEOUT_STOPPED if self._seen.was_stopped else _TIMEOUT)
        for reporter in self._threaded:
            reporter.join(deadline)

    @contextmanager
    def watching(self, progress: Callable[[], Facts]) -> Iterator[None]:
        """Meanwhile they get the progress, whether or not anything happens; and once more at the end."""
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(_PROGRESS_INTERVAL):
                self.on_progress(progress())

        ticker = threading.Thread(target=tick, name="any2ds-ticker", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join(_PROGRESS_INTERVAL)
            self.on_progress(progress())

    def _report(self, event: str, facts: Facts) -> None:
        with self._lock:
            for threaded in self._threaded:
                threaded.put(event, facts)
            for reporter in list(self._at_once):
                try:
                    reporter.report(event, facts)
                except Exception:
                    self._at_once.remove(reporter)
                    log.warning("%s failed and is switched off", type(reporter).__name__, exc_info=True)


class ThreadedReporter:
    """Makes a reporter in a thread, and calls it there, where it may be slow, hang or raise.

    It is switched off, with one warning, if it raises, falls far behind or does not finish in time. Progress is left
    out while other events wait, but for the last one.
    """

    def __init__(self, name: str, make: Callable[[], Reporter]) -> None:
        self._name, self._make = name, make
        self._reporter: Reporter | None = None
        self._events: queue.Queue[tuple[str, Facts]] = queue.Queue(_MOST_WAITING)
        self._last_progress: Facts = {}
        self._off = threading.Lock()  # held once it is switched off
        self._is_behind = False  # and so may hang
        self._thread = threading.Thread(target=self._run, name=f"any2ds-{name}", daemon=True)
        self._thread.start()

    def put(self, event: str, facts: Facts) -> None:
        """Have the thread report this after the others."""
        if event == "progress":
            self._last_progress = facts
            if not self._events.empty():
                return
        try:
            if event == "finish" and self._last_progress:
                self._events.put_nowait(("progress", self._last_progress))
            self._events.put_nowait((event, facts))
        except queue.Full:
            self._is_behind = True
            self._switch_off(f"it is {_MOST_WAITING:,} events behind")

    def join(self, deadline: float) -> None:
        """Wait until it has finished, or the deadline (`time.monotonic`); not at all if it has fallen behind."""
        try:
            self._thread.join(0.0 if self._is_behind else max(0.0, deadline - time.monotonic()))
        finally:  # also when another Ctrl-C ends the wait
            if self._thread.is_alive():
                self._switch_off("it has not finished in time")

    def _switch_off(self, why: str) -> None:
        if self._off.acquire(blocking=False):
            log.warning("the reporter %s is switched off: %s", self._name, why)
            if self._reporter is not None:
                try:
                    self._reporter.cancel()
                except Exception:  # it may be a plugin's: the run goes on
                    log.debug("%s", self._name, exc_info=True)

    def _run(self) -> None:
        event = ""
        try:
            self._reporter = self._make()
            while event != "finish" and not self._off.locked():
                event, facts = self._events.get()
                self._reporter.report(event, facts)
        except (Exception, SystemExit) as error:
            log.debug("%s", self._name, exc_info=True)
            self._switch_off(f"{type(error).__name__}: {error_text(error)}")
