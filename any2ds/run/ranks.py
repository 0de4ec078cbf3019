"""Several runs in one output folder at a time, each with shards of its own: the ranks of a job, or takers of claims.

Each has a lock file of its own, `.any2ds/lock-<member>`, which keeps out others of the same name and fences its
workers. What concerns the folder as a whole, joining above all, happens under `.any2ds/lock`, one after the other; so a
run that wants the folder to itself and a member see each other, whoever comes first.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

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

_LONGEST_WAIT = 900.0  # seconds for one of those that join or finish before us
_SLURM, _INDEX = "SLURM_PROCID", "JOB_COMPLETION_INDEX"
_RANKS = (_SLURM, "SLURM_NTASKS"), ("RANK", "WORLD_SIZE"), (_INDEX, "WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Member:
    """One of several runs that make a dataset together."""

    name: str  # of letters, digits and `-`; no other that is at work has the same
    group: str  # what the names of the others begin with
    share: float  # of the shards that it makes, about
    makes: Callable[[int], bool]  # which they are; asked once for each that is not finished, when its turn comes
    owns: Callable[[int], bool] | None = None  # the same where it is settled from the start, and asked at any time

    def __str__(self) -> str:
        return self.name.replace("-", " ")


def rank_of(share: ShareOptions) -> Member | None:
    """The member that the options ask for; None if this run has the folder to itself. Raises OptionError."""
    rank, size = share.rank, share.world_size
    if rank is None and (size is None or size == 1):
        return None
    if rank is None or size is None:
        there, missing = ("world_size", "rank") if rank is None else ("rank", "world_size")
        raise OptionError(f"{there} is given and {missing} is not: the share of a process takes both")
    if rank >= size:
        raise OptionError(f"rank={rank} cannot be: with world_size={size} ranks go from 0 to {size - 1}")

    def is_its_own(shard_id: int) -> bool:
        return shard_id % size == rank

    return Member(f"rank-{rank}-of-{size}", "rank", 1 / size, is_its_own, is_its_own)


def from_environment(share: ShareOptions, environment: Mapping[str, str]) -> tuple[dict[str, int], str]:
    """What of rank and world size the options leave to Slurm, torchrun or an indexed Kubernetes Job, and a word on it.

    An option wins. What is no number tells nothing. In a batch script of Slurm, outside of srun, there is one process
    for all tasks: its rank says nothing, and there is no step. The word is empty where nothing is taken, and nobody
    need be told of that.
    """
    if share.rank is not None or share.world_size == 1 or share.claim is not None:
        return {}, ""
    for variable, of_size in _RANKS:
        rank = _number(environment, variable)
        size = share.world_size or _number(environment, of_size)
        if rank is None or (variable == _SLURM and _number(environment, "SLURM_STEP_ID") is None):
            continue
        if size is not None and size > 1:
            word = f"{variable} says that this is rank {rank} of {size}: it makes its share of the shards"
            return {"rank": rank, "world_size": size}, f"{word} (--world_size=1: all of them)"
    if _number(environment, _INDEX) is not None and _number(environment, "WORLD_SIZE") is None:
        word = f"{_INDEX} says that this is one of several, and nothing how many they are: it makes all of the shards"
        return {}, f"{word}; to share them out, give --world_size=, as many as the completions of the Job"
    return {}, ""


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "").strip()
    return int(value) if value.isascii() and value.isdecimal() else None


@contextmanager
def joined(output: OutputFolder, member: Member, intervals: Intervals = DEFAULT_INTERVALS) -> Iterator[RunLock]:
    """Be the `member` of that name in `output`, to join the others; whatever it publishes is guarded by that.

    Raises OutputInUse if one of the same name is there, and OutputError if the folder cannot be written.
    """
    with (
        held(output, layout.member_lock(member.name), f"{JOINING}{member}", intervals=intervals) as lock,
        no_orphans(output, intervals, member.name),
    ):
        yield lock


@contextmanager
def whole(
    output: OutputFolder, lock: RunLock, what: str, member: Member, intervals: Intervals = DEFAULT_INTERVALS
) -> Iterator[None]:
    """Under the `lock` of a member, have for a moment what concerns the folder as a whole: `what` is join or finish.

    Who has joined counts as being at work from then on. Raises OutputInUse if a run has the folder to itself, or others
    share it out in another way, and LockLost if it was taken over meanwhile.
    """
    with ExitStack() as stack:
        own = _in_turn(output, lock, what, intervals, stack)
        if what == "join":
            keep_out_members(output, intervals, lambda name: not _is_compatible(name, member))
            there = {layout.member_of(name) for name in output.names_like(layout.MEMBER_LOCKS)} - {""}
            wait_for_orphans(output, intervals, lambda tenant: tenant not in there)
        yield
        if what == "join":
            lock.say(str(member))
            # Whoever has taken the folder over sees that, or we see him.
            Guard(output, own.holds, replace(intervals, trust=0.0))()
        else:
            bury_members(output)


def is_alone(output: OutputFolder, member: Member, intervals: Intervals = DEFAULT_INTERVALS) -> bool:
    """Whether nobody else is at work in `output`, as the `member` that is just joining finds it."""
    try:
        keep_out_members(output, intervals, lambda name: name != member.name)
    except OutputInUse:
        return False
    return True


def _in_turn(output: OutputFolder, lock: RunLock, what: str, intervals: Intervals, stack: ExitStack) -> RunLock:
    """`.any2ds/lock`, once other members are through with it. Raises OutputInUse."""
    pause = intervals.look * (0.1 if output.is_local else 1.0)
    before, until = "", 0.0
    while True:
        try:
            return stack.enter_context(held(output, layout.LOCK_FILE, what, lock.holds, intervals))
        except OutputInUse as error:
            if str(error) != before:
                before, until = str(error), time.monotonic() + _LONGEST_WAIT
            # It does not say what it does while it is beginning, or ending.
            if error.command not in ("", *BRIEF) or time.monotonic() > until:
                raise
        lock.check()
        time.sleep(random.uniform(pause / 2, pause * 2))


def _is_compatible(name: str, member: Member) -> bool:
    """Whether the member called `name` has other shards than `member`, or is itself."""
    if not name.startswith(f"{member.group}-"):
        return False
    return member.group != "rank" or name.rpartition("-")[2] == member.name.rpartition("-")[2]
