"""The base class of reporters, and what they know of a run before it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from any2ds.config.given import Given
from any2ds.config.options import OutputOptions, StorageOptions
from any2ds.config.watch import WatchOptions
from any2ds.storage.folders import OutputFolder


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Facts about a run that reporters know before it begins."""

    command: Literal["download", "retry"]
    output: OutputFolder
    options: Mapping[str, Any]  # given and default ones, without secrets
    storage: StorageOptions
    identity: str  # of the dataset: the same for every run that continues it
    made: OutputOptions | None = None  # with which the dataset is made
    finished: Collection[int] = ()  # shards that were finished before
    left_out: Sequence[str] = ()  # columns of the url list that the dataset does not keep
    from_shell: bool = False  # whether a command was typed, rather than a function called
    member: str = ""  # this one of several runs that make the dataset together, such as `rank-3-of-8`
    missing: Callable[[], int] = int  # shards that others make, once this run has made its own
    given: Given = field(default_factory=dict)  # the options of the command, without credentials


Facts = Mapping[str, Any]
"""What is said of a run, by the names of docs/watching.md. Its values are those of JSON."""


class Reporter:
    """Reports how a run goes. One that raises is switched off.

    The class, `PART` of its module, is called with WatchOptions and RunInfo. Calls come one at a time, from different
    threads. Every reporter but the console runs in a thread of its own, where it may be slow.
    """

    def __init__(self, watch: WatchOptions, run: RunInfo) -> None:
        self.watch, self.run = watch, run
        self.interval, self._recorded = watch.log_interval, time.monotonic()

    @staticmethod
    def check(watch: WatchOptions) -> None:
        """Called before anything is made. Raises UsageError if it cannot do what the options ask for."""

    def report(self, event: str, facts: Facts) -> None:
        """Something has happened: `start`; `progress`, about twice a second whether or not anything has, and once more
        before `finish`; `shard_finished`; `shard_failed`; `stopping`, if a signal asked for that; `finish`."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Called from another thread when nobody waits any more. Ends what would outlive the run."""

    def is_due(self) -> bool:
        """Whether it is time to record progress, which is every `log_interval` seconds. If so, the next are counted."""
        now = time.monotonic()
        if now - self._recorded < self.interval:
            return False
        self._recorded = now
        return True
