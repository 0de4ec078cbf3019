"""Several runs make a dataset in one output folder, each one its share of the shards: the ranks of a job.

Each rank holds a lock file of its own, `.any2ds/lock-rank-<number>-of-<size>`, which keeps out a second run of the same
rank and fences its workers. Changes to the folder as a whole, joining above all, happen one at a time under
`.any2ds/lock`. So a run without a rank and a rank always see each other, whichever comes first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from any2ds.config.options import ShareOptions
from any2ds.core import layout
from any2ds.core.errors import OptionError, OutputInUse
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.run_lock import (
    BRIEF,
    DEFAULT_INTERVALS,
    JOINING,
    Guard,
    Intervals,
    RunLock,
    bury_members,
    held,
    keep_out_members,
    no_orphans,
    wait_for_orphans,
)

_LONGEST_WAIT = 900.0  # seconds for another rank that joins or finishes
_SLURM, _INDEX = "SLURM_PROCID", "JOB_COMPLETION_INDEX"
_RANKS = (_SLURM, "SLURM_NTASKS"), ("RANK", "WORLD_SIZE"), (_INDEX, "WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Rank:
    """One of `world_size` runs that make a dataset together."""

    number: int  # from 0
    world_size: int

    @property
    def name(self) -> str:
        return f"rank-{self.number}-of-{self.world_size}"

    def makes(self, shard_id: int) -> bool:
        """Whether the shard is part of its share."""
        return shard_id % self.world_size == self.number

    def __str__(self) -> str:
        return f"rank {self.number} of {self.world_size}"


def rank_of(share: ShareOptions) -> Rank | None:
    """The rank that the options ask for; None if this run makes all shards. Raises OptionError."""
    number, size = share.rank, share.world_size
    if number is None and (size is None or size == 1):
        return None
    if number is None or size is None:
        given, missing = ("world_size", "rank") if number is None else ("rank", "world_size")
        raise OptionError(f"{given} is given and {missing} is not: the share of a process takes both")
    if number >= size:
        raise OptionError(f"invalid rank={number}: with world_size={size} ranks go from 0 to {size - 1}")
    return Rank(number, size)


def from_environment(share: ShareOptions, environment: Mapping[str, str]) -> tuple[dict[str, int], str]:
    """The rank and world size that Slurm, torchrun or an indexed Kubernetes Job give, and a message about them.

    Options win, and values that are not numbers are ignored. In a batch script of Slurm, outside of srun, one process
    runs for all tasks: SLURM_PROCID means nothing there, and SLURM_STEP_ID is not set. The message is empty if there
    is nothing to report.
    """
    if share.rank is not None or share.world_size == 1:
        return {}, ""
    for variable, of_size in _RANKS:
        rank = _number(environment, variable)
        size = share.world_size or _number(environment, of_size)
        if rank is None or (variable == _SLURM and _number(environment, "SLURM_STEP_ID") is None):
            continue
        if size is not None and size > 1:
            message = f"{variable} says that this is rank {rank} of {size}: it makes its share of the shards"
            return {"rank": rank, "world_size": size}, f"{message} (--world_size=1: all of them)"
    if _number(environment, _INDEX) is not None and _number(environment, "WORLD_SIZE") is None:
        message = f"{_INDEX} says that this is one of several, but not of how many: it makes all of the shards"
        return {}, f"{message}; to share them out, give --world_size=, as many as the completions of the Job"
    return {}, ""


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "").strip()
    return int(value) if value.isascii() and value.isdecimal() else None


@contextmanager
def joined(output: OutputFolder, rank: Rank, intervals: Intervals = DEFAULT_INTERVALS) -> Iterator[RunLock]:
    """Hold the lock of `rank` in `output`, which guards everything that it publishes.

    Raises OutputInUse if another run of this rank holds it, and OutputError if the folder cannot be written.
    """
    with (
        held(output, layout.member_lock(rank.name), f"{JOINING}{rank}", intervals=intervals) as lock,
        no_orphans(output, intervals, rank.name),
    ):
        yield lock


@contextmanager
def exclusive(
    output: OutputFolder,
    lock: RunLock,
    what: Literal["join", "finish"],
    rank: Rank,
    intervals: Intervals = DEFAULT_INTERVALS,
) -> Iterator[None]:
    """Have the folder to itself for a moment, to join or to finish, while it holds the `lock` of the rank.

    From joining on, the rank counts as being at work. Raises OutputInUse if a run without a rank, or one with another
    world size, is at work, and LockLost if the folder was taken over meanwhile.
    """
    with ExitStack() as stack:
        own = _in_turn(output, lock, what, intervals, stack)
        if what == "join":
            keep_out_members(output, intervals, lambda name: not _is_compatible(name, rank))
            present = {layout.member_of(name) for name in output.names_like(layout.MEMBER_LOCKS)} - {""}
            wait_for_orphans(output, intervals, lambda tenant: tenant not in present)
        yield
        if what == "join":
            lock.set_command(str(rank))
            # A run that has taken the folder over sees this, or this check sees that run.
            Guard(output, own.locks, replace(intervals, trust=0.0))()
        else:
            bury_members(output)


def is_alone(output: OutputFolder, rank: Rank, intervals: Intervals = DEFAULT_INTERVALS) -> bool:
    """Whether no other rank is at work in `output`. To be asked while joining."""
    try:
        keep_out_members(output, intervals, lambda name: name != rank.name)
    except OutputInUse:
        return False
    return True


def _in_turn(output: OutputFolder, lock: RunLock, what: str, intervals: Intervals, stack: ExitStack) -> RunLock:
    """Hold `.any2ds/lock` once other ranks have released it. Raises OutputInUse."""
    pause = intervals.look * (0.1 if output.is_local else 1.0)
    before, until = "", 0.0
    while True:
        try:
            return stack.enter_context(held(output, layout.LOCK_FILE, what, lock.locks, intervals))
        except OutputInUse as error:
            if str(error) != before:
                before, until = str(error), time.monotonic() + _LONGEST_WAIT
            # The lock has no command while its holder begins, or ends.
            if error.command not in ("", *BRIEF) or time.monotonic() > until:
                raise
        lock.check()
        time.sleep(random.uniform(pause / 2, pause * 2))


def _is_compatible(name: str, rank: Rank) -> bool:
    """Whether the run called `name` is a rank of the same job."""
    return name.startswith("rank-") and name.endswith(f"-of-{rank.world_size}")
