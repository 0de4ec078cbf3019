"""A source as a stream: an epoch in a shuffled order, shared out among ranks and workers, which can go on anywhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any, NoReturn

from any2ds.core.errors import UsageError
from any2ds.load import ahead
from any2ds.load.ahead import Stored
from any2ds.load.order import BLOCK, ConsumerState, Deal, EpochOrder, Left, merged, states_in

if TYPE_CHECKING:
    from any2ds.load.source import Source

_READ_AT_ONCE = 64  # samples
_MOST_HELD = 1 << 30  # bytes of the samples of a window of a store; of bigger ones each sample is read by itself
EVEN = ("drop", "pad")
_EPOCH, _POSITION, _ITERATION, _IN_WORKERS = range(4)  # of what a stream shares with the workers of a DataLoader
SHARED = 4
# Variables with the number of processes and which one this is, as torchrun, srun and mpirun set them.
_LAUNCHERS = (
    ("WORLD_SIZE", "RANK"),
    ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream goes through a source."""

    seed: int
    window: int  # samples; 0 for the order of the source
    batch_size: int | None  # samples of a rank that a worker takes in a row
    even: str | None  # what makes the shares of ranks equal: one of `EVEN`
    rank: int
    ranks: int

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"batch_size={self.batch_size}: it takes at least one sample")
        if self.even is not None and self.even not in EVEN:
            raise UsageError(f"invalid even={self.even!r}: expected one of {', '.join(EVEN)}, or None")

    @property
    def step(self) -> int:
        """The samples that all ranks take together, when each takes as many as a worker does in a row."""
        return self.ranks * (self.batch_size or 1)

    def shared_out(self, samples: int) -> int:
        """How many samples the ranks take of so many that are left."""
        if self.even == "drop":
            return samples - samples % self.step
        return samples + -samples % self.step if self.even == "pad" else samples


class Stream:
    """An iterable of samples. Ranks and the workers of a PyTorch DataLoader take different ones, together all of them.

    Each iteration is one epoch, `set_epoch` says which. The state of an epoch that was left in the middle is
    `state_dict`; `load_state_dict` takes that, or those of all consumers in one piece, for any other number of them.
    """

    def __init__(self, source: Source, options: StreamOptions, shared: MutableSequence[int] | None = None) -> None:
        """`shared` are four zeros that the workers of a DataLoader see as well."""
        self._source, self._options = source, options
        self._shared = [0] * SHARED if shared is None else shared
        self._resumed: tuple[EpochOrder, Left] | None = None  # of the next iteration
        self._own: ConsumerState | None = None  # the same, of this consumer alone
        self._now: ConsumerState | None = None  # of the iteration that is under way, but for what is taken
        self._taken = 0  # samples, in that iteration

    @property
    def epoch(self) -> int:
        """That of the next iteration."""
        return self._resumed[0].epoch if self._resumed is not None else int(self._shared[_EPOCH])

    def set_epoch(self, epoch: int, position: int = 0) -> None:
        """Before it is iterated over: which epoch, and so which order.

        position: the samples of the epoch that are passed over, counted over all ranks: steps * ranks * batch_size
            goes on after so many steps, if the stream has its `batch_size`
        """
        if position < 0:
            raise UsageError(f"position={position}: it takes 0 or more samples")
        if position or self.epoch != epoch:
            self._resumed = self._own = None
        self._shared[_EPOCH], self._shared[_POSITION], self._shared[_IN_WORKERS] = epoch, position, 0

    @property
    def options(self) -> StreamOptions:
        """How it goes through its source."""
        return self._options

    def __len__(self) -> int:
        """The samples of an epoch that this rank takes."""
        options = self._options
        return len(range(options.rank, options.shared_out(len(self._source)), options.ranks))

    def __getitem__(self, item: object) -> NoReturn:
        raise UsageError(
            "a stream has no samples by number, unlike its source; for a DataLoader, import torch before the stream is "
            "made, so that it is an IterableDataset"
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker, workers, iteration = _worker()
        self._now = now = self._started(worker, workers, iteration)
        self._taken = now.taken
        self._shared[_IN_WORKERS] = int(iteration is not None)
        return self._samples(now)

    def _started(self, worker: int, workers: int, iteration: int | None) -> ConsumerState:
        """Where the iteration begins that is started now. Raises UsageError."""
        deal, own = self._deal(workers), self._own
        resumed = self._resumed if self._is_first(iteration) else None
        self._resumed = self._own = None
        if own is not None:
            if (own.rank, own.worker, own.deal) != (self._options.rank, worker, deal):
                raise UsageError(
                    f"the state is that of rank {own.rank}, worker {own.worker} of {own.deal}, and this is rank "
                    f"{self._options.rank}, worker {worker} of {deal}: load the states of all ranks into the stream "
                    "before the loader is made"
                )
            return own
        return self._beginning(resumed, worker, deal)

    def _beginning(self, resumed: tuple[EpochOrder, Left] | None, worker: int, deal: Deal) -> ConsumerState:
        order, left = resumed or (self._new_order(), Left(min(int(self._shared[_POSITION]), len(self._source))))
        return ConsumerState(self._source.fingerprint, order, left, deal, self._options.rank, worker, 0)

    def _is_first(self, iteration: int | None) -> bool:
        """Whether no earlier iteration has taken what was loaded: a loader makes new workers, from what this process
        has, for each."""
        if iteration is None or self._resumed is None:
            return True
        if not self._shared[_ITERATION]:
            self._shared[_ITERATION] = iteration
        return int(self._shared[_ITERATION]) == iteration

    def _samples(self, now: ConsumerState) -> Iterator[dict[str, Any]]:
        for stored in self._read(self._positions(now), now):
            sample = self._source.finished(stored)
            if self._now is now:  # else another iteration has begun
                self._taken += 1
            yield sample

    def _positions(self, now: ConsumerState) -> Iterator[int]:
        """Those that the consumer takes; behind the end of the epoch are those that come once more."""
        left, epoch = now.left, len(now.order)
        count = left.count(epoch)
        total = now.deal.count(now.rank, now.worker, self._options.shared_out(count))
        for taken in range(now.taken, total):
            number = now.deal.number(now.rank, now.worker, taken)
            yield left.position(number) if number < count else epoch + number - count

    def _read(self, positions: Iterator[int], now: ConsumerState) -> Iterator[Stored]:
        source, order, consumers = self._source, now.order, now.deal.ranks * now.deal.workers
        if source.is_local:
            return chain.from_iterable(map(source.stored, map(order.samples, _chunks(positions))))
        size = ahead.chunk_size(source.sample_bytes)
        if order.window and order.blocks_in_window * BLOCK * source.sample_bytes <= _MOST_HELD * consumers:
            windows = groupby(positions, order.window_of_position)
            return ahead.in_windows(source.stored, (order.samples(own) for _, own in windows), BLOCK, size)
        return ahead.in_order(source.stored, map(order.samples, _chunks(positions, size)))

    def state_dict(self) -> dict[str, Any]:
        """What this consumer has taken of the epoch: plain values.

        Raises UsageError in the process of a DataLoader whose workers take the samples.
        """
        worker, workers, iteration = _worker()
        if iteration is None and self._shared[_IN_WORKERS]:
            raise UsageError(
                "the workers of a DataLoader take the samples of this stream, and know how far they are: save the "
                "state_dict of a StatefulDataLoader, or count the steps for set_epoch(epoch, position)"
            )
        if self._own is not None:
            return self._own.to_dict()
        if self._now is None or self._resumed is not None:
            return self._beginning(self._resumed, worker, self._deal(workers)).to_dict()
        return {**self._now.to_dict(), "taken": self._taken}

    def load_state_dict(self, state: Any) -> None:
        """The next iteration goes on where it was taken. `state` is that of this consumer; or, for other numbers of
        ranks and workers, whatever holds those of all: the `state_dict()` of a StatefulDataLoader, or a list of them.

        Raises UsageError for states of another stream, or if those of some consumers are missing.
        """
        try:
            states = list(states_in(state))
        except ValueError as error:
            raise UsageError(f"the state cannot be loaded: {error}") from error
        if not states:
            raise UsageError("not the state of an any2ds stream")
        self._check(states[0])
        self._resumed = self._own = None
        self._shared[_ITERATION] = self._shared[_IN_WORKERS] = 0
        if len(states) == 1 and len(states[0].deal.consumers()) > 1:
            self._own = states[0]
            return
        try:
            self._resumed = states[0].order, merged(states)
        except ValueError as error:
            raise UsageError(f"the states cannot be put together: {error}") from error

    def _check(self, state: ConsumerState) -> None:
        """Raises UsageError for the state of another stream."""
        own, order = self._new_order(), state.order
        if order.count != own.count:
            raise UsageError(f"the state is of {order.count:,} samples, and there are {own.count:,}")
        if state.source != self._source.fingerprint:
            raise UsageError("the state is of as many samples, but others: of another split or condition, or dataset")
        for name, its, here in (("seed", order.seed, own.seed), ("window", order.window, own.window)):
            if its != here:
                raise UsageError(f"the state is of a stream with {name}={its}, and this one has {name}={here}")

    def _new_order(self) -> EpochOrder:
        return EpochOrder(len(self._source), self._options.seed, int(self._shared[_EPOCH]), self._options.window)

    def _deal(self, workers: int) -> Deal:
        return Deal(self._options.ranks, workers, self._options.batch_size or 1)


def _chunks(numbers: Iterator[int], size: int = _READ_AT_ONCE) -> Iterator[list[int]]:
    while chunk := list(islice(numbers, size)):
        yield chunk


def _worker() -> tuple[int, int, int | None]:
    """Of a PyTorch DataLoader: which worker this process is, of how many, and what the workers of one iteration have in
    common; (0, 1, None) in any other process."""
    if "torch" not in sys.modules:
        return 0, 1, None
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return (0, 1, None) if info is None else (info.id, info.num_workers, (info.seed - info.id) or 1)


def ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """As given, else those of torch.distributed, else of the environment (torchrun, srun, mpirun), else the only one.

    Raises UsageError, also where the environment says that there are several, and not which one this is.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size go together")
    if rank is None or world_size is None:
        rank, world_size = _ranks_of_torch() or _ranks_of_environment()
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} is none of {world_size}")
    return rank, world_size


def _ranks_of_environment() -> tuple[int, int]:
    """As the first launcher says whose variables are set, also if it started one process only: torchrun in a Slurm
    step, say. Raises UsageError."""
    for size_name, rank_name in _LAUNCHERS:
        size, rank = int(os.environ.get(size_name) or 1), os.environ.get(rank_name)
        if rank and os.environ.get(size_name):
            return int(rank), size
        if size > 1:
            raise UsageError(
                f"{size_name} says that there are {size} processes, and {rank_name} is not set: "
                f"name the process, as in stream(rank=0, world_size={size})"
            )
    return 0, 1


def _ranks_of_torch() -> tuple[int, int] | None:
    if "torch" not in sys.modules:
        return None
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
