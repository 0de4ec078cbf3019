"""Tells reporters how a run goes: those that could be slow in a thread of their own, and none may harm the run."""

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
from any2ds.core.errors import words_of
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.run.monitor import Monitor
from any2ds.run.reporters._contract import Reporter, RunInfo

log = logging.getLogger(__name__)

_TICK = 0.5  # seconds between two snapshots
_MOST_WAITING = 10_000  # shards that a slow reporter may be behind; those beyond are not told to it
_FAREWELL = 60.0  # seconds that those with a thread of their own may take to finish when the run has ended, together
_FAREWELL_STOPPED = 5.0  # when it was stopped by a signal,
_FAREWELL_AT_ONCE = 1.0  # and when whoever asked for that did so twice
_STUCK = 60.0  # seconds with one and the same thing after which a reporter is called so
_SILENCE = 3.0  # seconds of waiting for them that nobody has to be told of


def check_reporters(watch: WatchOptions) -> None:
    """Raises MissingExtra if a library of one that is asked for is not there, and UsageError if it cannot do that."""
    for name in watch.chosen:
        part = plugins.load("reporters", name)
        if (check := getattr(part, "check", None)) is not None:
            check(watch)


def reporters(watch: WatchOptions, run: RunInfo, quiet: bool) -> list[Reporter]:
    """Those that are asked for; all but the one for the terminal in threads of their own."""
    console = [] if quiet else [plugins.load("reporters", "console")(watch, run)]
    return [*console, *(Aside(name, partial(plugins.load("reporters", name), watch, run)) for name in watch.chosen)]


class Reporters:
    """All reporters as one; one that raises is left out from then on. Each is told one thing at a time."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = list(reporters)
        self._lock = threading.RLock()

    def on_start(self, finished_shards: int) -> None:
        self._each("on_start", finished_shards)

    def on_progress(self, now: Snapshot) -> None:
        self._each("on_progress", now)

    def on_shard(self, event: ShardReport | ShardError) -> None:
        self._each("on_shard", event)

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._each("on_stopping", open_shards, grace)

    def on_finish(self, total: RunReport, was_stopped: bool = False) -> None:
        """Waits for those with a thread of their own, but not for ever, and hardly if somebody wants to stop."""
        self._each("on_finish", total)
        farewell = _FAREWELL_STOPPED if was_stopped else _FAREWELL
        if isinstance(sys.exc_info()[1], (KeyboardInterrupt, SystemExit)):
            farewell = _FAREWELL_AT_ONCE
        asides = [reporter for reporter in self._reporters if isinstance(reporter, Aside)]
        until = time.monotonic() + farewell
        try:
            for aside in asides:
                aside.wait(until)
        finally:
            for aside in asides:
                aside.give_up(farewell)

    @contextmanager
    def watching(self, monitor: Monitor) -> Iterator[None]:
        """Meanwhile they are told of the progress, whether or not anything happens; and once more at the end."""
        ended = threading.Event()

        def tick() -> None:
            while not ended.wait(_TICK):
                self.on_progress(monitor.snapshot())

        ticker = threading.Thread(target=tick, name="any2ds-ticker", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join(_TICK)
            self.on_progress(monitor.snapshot())

    def _each(self, method: str, *arguments: Any) -> None:
        with self._lock:
            for reporter in list(self._reporters):
                try:
                    getattr(reporter, method)(*arguments)
                except Exception:
                    self._reporters.remove(reporter)
                    log.warning("%s failed and is switched off", type(reporter).__name__, exc_info=True)


class Aside:
    """A Reporter in a thread of its own, where it is made as well: it may be slow, hang or raise.

    Of snapshots it gets the newest. It is to be waited for, and given up, after `on_finish`.
    """

    def __init__(self, name: str, make: Callable[[], Reporter]) -> None:
        self._name, self._make = name, make
        self._reporter: Reporter | None = None
        self._todo: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(_MOST_WAITING)
        self._newest: Snapshot | None = None  # that it has not seen
        self._last: tuple[str, tuple[Any, ...]] | None = None  # what it is told at the end, until that is in the queue
        self._lock = threading.Lock()  # guards `_newest`
        self._missed = 0  # shards
        self._is_off = False
        self._since: float | None = None  # when it began with what it is at
        self._was_told = False  # that it is stuck
        self._thread = threading.Thread(target=self._run, name=f"any2ds-{name}", daemon=True)

    def on_start(self, finished_shards: int) -> None:
        self._put("on_start", finished_shards)
        self._thread.start()

    def on_progress(self, now: Snapshot) -> None:
        with self._lock:
            is_known = self._newest is not None  # that there is one
            self._newest = now if is_known or self._put("on_progress") else None
        self._tell_if_stuck()

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if not self._put("on_shard", event):
            self._missed += 1

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self._put("on_stopping", open_shards, grace)

    def on_finish(self, total: RunReport) -> None:
        if self._missed:
            log.warning("%s was too slow to be told of %d shards", self._name, self._missed)
        if not self._put("on_finish", total):
            self._last = "on_finish", (total,)

    def wait(self, until: float) -> None:
        """For its end, but no longer than until then (`time.monotonic`), and not at all if it is stuck."""
        if self._is_stuck or not self._thread.is_alive():
            return
        self._thread.join(min(_SILENCE, _left(until)))
        if self._thread.is_alive() and _left(until) > _SILENCE:
            log.info("waiting for %s, for up to %.0f s", self._name, _left(until))
        if self._last is not None:
            with contextlib.suppress(queue.Full):
                self._todo.put(self._last, timeout=_left(until))
        self._thread.join(_left(until))

    def give_up(self, farewell: float) -> None:
        """If it has not ended: nothing that it says or does counts any more."""
        if not self._thread.is_alive() or self._is_off:
            return
        self._is_off = True
        level = logging.DEBUG if self._is_stuck and self._was_told else logging.WARNING
        log.log(level, "%s has not finished within %.0f s, and is left behind", self._name, farewell)
        self._end()

    def _end(self) -> None:
        """Have it end what would outlive it."""
        if (give_up := getattr(self._reporter, "give_up", None)) is not None:
            try:
                give_up()
            except Exception:
                log.debug("%s", self._name, exc_info=True)

    def _put(self, method: str, *arguments: Any) -> bool:
        if self._is_off:
            return True
        try:
            self._todo.put_nowait((method, arguments))
        except queue.Full:
            return False
        return True

    @property
    def _is_stuck(self) -> bool:
        since = self._since
        return since is not None and time.monotonic() - since > _STUCK

    def _tell_if_stuck(self) -> None:
        if self._is_stuck and not (self._was_told or self._is_off):
            self._was_told = True
            log.warning("%s has not come back for %.0f s; the run goes on without it", self._name, _STUCK)

    def _run(self) -> None:
        method = ""
        try:
            self._since = time.monotonic()
            self._reporter = self._make()
            while method != "on_finish":
                self._since = None
                method, arguments = self._todo.get()
                self._since = time.monotonic()
                if method == "on_progress":
                    with self._lock:
                        arguments, self._newest = (self._newest,), None
                getattr(self._reporter, method)(*arguments)
        except (Exception, SystemExit) as error:
            if not self._is_off:
                self._is_off = True
                log.warning("%s failed and is switched off: %s: %s", self._name, type(error).__name__, words_of(error))
                log.debug("%s", self._name, exc_info=True)
            self._end()


def _left(until: float) -> float:
    return max(0.0, until - time.monotonic())
