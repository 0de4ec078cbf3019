"""The base class of reporters, and what they know of a run before it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from any2ds.config.options import OutputOptions, StorageOptions
from any2ds.config.watch import WatchOptions
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.storage.folders import OutputFolder


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What reporters know of a run before it begins."""

    command: Literal["download", "retry", "finish"]
    output: OutputFolder
    options: Mapping[str, Any]  # given and default ones, without secrets
    storage: StorageOptions
    identity: str  # of the dataset: the same for every run that continues it
    made: OutputOptions | None = None  # with which the dataset is made
    finished: Collection[int] = ()  # shards that were finished before
    steps: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # step that changes files -> options that ask for it
    left_out: Sequence[str] = ()  # columns of the url list that the dataset does not keep
    from_shell: bool = False  # whether a command was typed, rather than a function called
    member: str = ""  # this one of several runs that make the dataset together, such as `rank-3-of-8`
    missing: Callable[[], Collection[int]] = tuple  # shards that others make, once this run has made its own
    # Extension -> files in all finished shards, once the run has made its own; None if nobody knows. Never raises.
    stored_exts: Callable[[], Mapping[str, int] | None] = lambda: None


class Reporter:
    """Reports how a run goes. Subclasses override what they report; one that raises is switched off.

    The class, `PART` of its module, is called with WatchOptions and RunInfo. Calls come one at a time, from different
    threads. Every reporter but the console runs in a thread of its own, where it may be slow.
    """

    @staticmethod
    def check(watch: WatchOptions) -> None:
        """Called before anything is made. Raises UsageError if it cannot do what the options ask for."""

    def on_start(self, finished_shards: int) -> None:
        """The run begins; so many shards were finished before."""

    def on_progress(self, now: Snapshot) -> None:
        """About twice a second, whether or not anything has happened, and once more before `on_finish`."""

    def on_shard(self, event: ShardReport | ShardError) -> None:
        """A shard is finished, or has failed."""

    def on_stopping(self, open_shards: int, grace: float) -> None:
        """The run was asked to stop; so many shards are open, and may be finished within `grace` seconds.

        Called before `on_finish` of every run that is stopped by a signal."""

    def on_finish(self, total: RunReport) -> None:
        """The run has ended."""

    def cancel(self) -> None:
        """Called from another thread when nobody waits any more. Ends what would outlive the run."""


class PeriodicReporter(Reporter):
    """Keeps what has happened so far, and calls `record` every `log_interval` seconds."""

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self.watch, self.run = watch, run
        self.now = Snapshot()  # the newest one
        self.done: set[int] = set()  # shards that this run has finished
        self.was_stopped = False
        self.interval, self._recorded = watch.log_interval, time.monotonic()

    def on_progress(self, now: Snapshot) -> None:
        self.now = now
        if time.monotonic() - self._recorded >= self.interval:
            self._recorded = time.monotonic()
            self.record()

    def on_shard(self, event: ShardReport | ShardError) -> None:
        if isinstance(event, ShardReport):
            self.done.add(event.shard_id)

    def on_stopping(self, open_shards: int, grace: float) -> None:
        self.was_stopped = True

    def record(self) -> None:
        """Report how the run goes now."""
        raise NotImplementedError


class ShardListener(Reporter):
    """Passes finished and failed shards to `take`."""

    def __init__(self, take: Callable[[ShardReport | ShardError], None]) -> None:
        self._take = take

    def on_shard(self, event: ShardReport | ShardError) -> None:
        self._take(event)
