"""Several runs make a dataset in one output folder, each one its share of the shards: the ranks of a job.

Each rank holds a lock file of its own, `.any2ds/lock-rank-<number>-of-<size>`, which keeps out a second run of the same
rank and fences its workers. Then it looks at the lock files of the others: a run without a rank, or with another world
size, keeps it out, and such a run looks at the files of the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from any2ds.config.options import ShareOptions
from any2ds.core import layout
from any2ds.core.errors import OptionError
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.lease import Intervals, RunLock
from any2ds.storage.lock.run_lock import DEFAULT_INTERVALS, locked

_SLURM = "SLURM_PROCID"
_RANKS = (_SLURM, "SLURM_NTASKS"), ("RANK", "WORLD_SIZE"), ("JOB_COMPLETION_INDEX", "WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class Rank:
    """A run among `world_size` that make a dataset together."""

    number: int  # from 0
    world_size: int

    @property
    def name(self) -> str:
        return f"rank-{self.number}-of-{self.world_size}"

    @property
    def is_alone(self) -> bool:
        """Whether it makes all shards."""
        return self.world_size == 1

    def makes(self, shard_id: int) -> bool:
        """Whether the shard is part of its share."""
        return shard_id % self.world_size == self.number

    def __str__(self) -> str:
        return f"rank {self.number} of {self.world_size}"


def rank_of(share: ShareOptions) -> Rank:
    """The rank that the options ask for. Raises OptionError."""
    number, size = share.rank, share.world_size
    if number is None and size in (None, 1):
        return Rank(0, 1)
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
    return {}, ""


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name, "").strip()
    return int(value) if value.isascii() and value.isdecimal() else None


@contextmanager
def joined(output: OutputFolder, rank: Rank, intervals: Intervals = DEFAULT_INTERVALS) -> Iterator[RunLock]:
    """Hold the lock of `rank` in `output`, which guards everything that it publishes.

    Raises OutputInUse if another run of this rank is at work, one without a rank, or one with another world size, and
    OutputError if the folder cannot be written.
    """

    def is_rival(lock_file: str) -> bool:
        return not lock_file.endswith(f"-of-{rank.world_size}")

    with locked(output, str(rank), layout.member_lock(rank.name), is_rival, intervals) as lock:
        yield lock
