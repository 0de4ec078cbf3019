"""What a reporter implements, and what it knows of a run before it begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from any2ds.config.options import OutputOptions, StorageOptions
from any2ds.core.metrics import Snapshot
from any2ds.core.reports import RunReport, ShardError, ShardReport
from any2ds.dataset.thumbnails import Thumbnail
from any2ds.storage.folders import OutputFolder


def _none(count: int) -> Sequence[Thumbnail]:
    return ()


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What reporters may know of a run before it begins."""

    command: Literal["download", "retry", "finish"]
    output: OutputFolder
    options: Mapping[str, Any]  # as given and by default, without secrets
    storage: StorageOptions
    identity: str  # of the dataset: the same for every run that goes on with it
    made: OutputOptions | None = None  # how the dataset is made
    finished: Collection[int] = ()  # the shards that are there before it begins
    from_shell: bool = False  # whether the person has typed a command, rather than called a function
    member: str = ""  # which of several runs that make the dataset together it is, as `rank-3-of-8`
    missing: Callable[[], Collection[int]] = tuple  # shards that others are to make, when all of its own are through
    # Up to so many samples of the finished shards, as people may look at them. It reads files, takes
    # its time, and gives fewer rather than raising.
    samples: Callable[[int], Sequence[Thumbnail]] = _none


class Reporter(Protocol):
    """Tells somebody how the run goes. A reporter that raises is switched off, and the run goes on.

    Its class, the `PART` of its module, is called with WatchOptions and RunInfo. It is told one thing at a time, though
    in different threads; all but the one for the terminal have a thread of their own, where they may take their time.

    Two further methods are asked for where they are there. `check(watch)`, a static one, is called before anything is
    made, and raises UsageError if the reporter cannot do what the options ask for. `give_up()` is called from another
    thread when the run has ended and nobody waits any more: what would outlive the run, such as a process, ends then.
    """

    def on_start(self, finished_shards: int) -> None: ...

    def on_progress(self, now: Snapshot) -> None:
        """About twice a second, whether or not anything has happened, and once more before `on_finish`."""
        ...

    def on_shard(self, event: ShardReport | ShardError) -> None:
        """A shard is finished, or could not be made."""
        ...

    def on_stopping(self, open_shards: int, grace: float) -> None:
        """The run was asked to stop; so many shards are open, and some may be finished within `grace` seconds."""
        ...

    def on_finish(self, total: RunReport) -> None: ...
