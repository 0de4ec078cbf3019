"""A source as a stream: an epoch in a shuffled order, shared out among ranks and workers, which can go on anywhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableSequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any, NoReturn

from any2ds.core.errors import UsageError
from any2ds.load import ahead
from any2ds.load.ahead import Stored
from any2ds.load.order import StreamState, position_of, states_in

if TYPE_CHECKING:
    from any2ds.load.source import Source

_READ_AT_ONCE = 64  # samples
_MOST_HELD = 1 << 30  # bytes of the samples of a window of a store; of bigger ones each sample is read by itself
EVEN = ("drop", "pad")
# A stream shares with the workers of a DataLoader: its epoch and position, whether workers take its samples, and where
# each of them is: see `_iteration`.
_EPOCH, _POSITION, _IN_WORKERS, _FIRST = range(4)
_MOST_WORKERS = 1024
_AGAIN = _FIRST + _MOST_WORKERS
SHARED = _AGAIN + _MOST_WORKERS
_LOOP_BITS = 40
_LOOP = (1 << _LOOP_BITS) - 1
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
    rank: int | None  # None: found when an iteration begins
    ranks: int | None
    advancing_ranks: int = 0  # with no more ranks, each iteration is the next epoch, without `set_epoch`

    def __post_init__(self) -> None:
        """Raises UsageError."""
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"batch_size={self.batch_size}: it takes at least one sample")
        if self.even is not None and self.even not in EVEN:
            raise UsageError(f"invalid even={self.even!r}: expected one of {', '.join(EVEN)}, or None")
        if (self.rank is None) != (self.ranks is None):
            raise UsageError("rank and world_size go together")
        if self.rank is not None and self.ranks is not None and not 0 <= self.rank < self.ranks:
            raise UsageError(f"rank {self.rank} is none of {self.ranks}")

    @property
    def batch(self) -> int:
        return self.batch_size or 1

    def rank_of_ranks(self) -> tuple[int, int]:
        """As given, else those of torch.distributed, else of the environment (torchrun, srun, mpirun), else the only
        one. Raises UsageError where the environment says that there are several, and not which one this is."""
        if self.rank is not None and self.ranks is not None:
            return self.rank, self.ranks
        return _ranks_of_torch() or _ranks_of_environment()

    def shared_out(self, samples: int, ranks: int) -> int:
        """How many samples the ranks take of so many that are left."""
        step = ranks * self.batch  # the samples that all ranks take together
        if self.even == "drop":
            return samples - samples % step
        return samples + -samples % step if self.even == "pad" else samples


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker of a PyTorch DataLoader, or a process that is none."""

    number: int = 0
    workers: int = 1  # of the loader
    loop: int = 0  # the same number in all workers that the loader started together; 0 in other processes

    @classmethod
    def of_this_process(cls) -> _Worker:
        if "torch" not in sys.modules:
            return cls()
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        if info is None:
            return cls()
        # A loop takes a seed by chance, unless a script sets the same one before each.
        return cls(info.id, info.num_workers, hash((info.seed - info.id, info.num_workers)) & _LOOP or 1)

    @property
    def place(self) -> int:
        """Its place among what a stream shares."""
        return self.number % _MOST_WORKERS


class Stream:
    """An iterable of samples. Ranks and the workers of a PyTorch DataLoader take different ones, together all of them.

    Each iteration is one epoch, `set_epoch` says which. How far an epoch is, is one number, the position: how many of
    its samples all ranks have taken together. `load_state_dict` takes it from the states of all consumers, for any
    number of them; or the state of one consumer for itself.
    """

    def __init__(self, source: Source, options: StreamOptions, shared: MutableSequence[int] | None = None) -> None:
        """`shared` are zeros, as many as `SHARED`, that the workers of a DataLoader see as well."""
        self._source, self._options = source, options
        self._shared = [0] * SHARED if shared is None else shared
        self._own: StreamState | None = None  # in which the next iteration of this consumer goes on
        self._now: StreamState | None = None  # of the iteration that is under way, but for what is taken
        self._taken = 0  # samples, in that iteration

    def __getstate__(self) -> dict[str, Any]:
        """A worker that does not begin as a copy of this process knows nothing of torch.distributed and Accelerate."""
        state = {**self.__dict__}
        if _ranks_of_torch() is not None:
            rank, ranks = self._rank_of_ranks()
            state["_options"] = replace(self._options, rank=rank, ranks=ranks)
        return state

    def _rank_of_ranks(self) -> tuple[int, int]:
        """Which process of how many takes samples. Raises UsageError, also where Accelerate would share them again."""
        rank, ranks = self._options.rank_of_ranks()
        if ranks > 1 and _is_shared_by_accelerate(self):
            raise UsageError(
                f"Accelerate shares out what this stream gives, and that is the part of rank {rank} of {ranks} alone: "
                "samples would be lost. Do not give its DataLoader to prepare(), each rank reads its own part; or give "
                "Accelerate, or the Trainer, all samples: stream(rank=0, world_size=1)"
            )
        return rank, ranks

    def advancing(self, most_ranks: int = sys.maxsize) -> Stream:
        """A stream of the same samples, of which each iteration is the next epoch, counted since `set_epoch`.

        Each rank counts for itself: all have to begin equally many, or samples are lost. With more ranks than
        `most_ranks` the epoch is that of `set_epoch`, as it always is in other streams.
        """
        return type(self)(self._source, replace(self._options, advancing_ranks=most_ranks))

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return int(self._shared[_EPOCH])

    def set_epoch(self, epoch: int, position: int = 0) -> None:
        """Before it is iterated over: which epoch, and so which order.

        position: the samples of the epoch that are passed over, counted over all ranks: steps * ranks * batch_size
            goes on after so many steps, if the stream has its `batch_size`. The epoch that was loaded goes on where it
            was left
        """
        if position < 0:
            raise UsageError(f"position={position}: it takes 0 or more samples")
        has_begun = any(self._shared[_FIRST:_AGAIN])
        if position or has_begun or epoch != self.epoch:
            self._go_to(epoch, position)
        self._shared[_IN_WORKERS] = 0

    def _go_to(self, epoch: int, position: int) -> None:
        """Let the next iteration of each consumer, and no later one, begin at a position."""
        self._own = self._now = None
        self._shared[_EPOCH], self._shared[_POSITION] = epoch, position
        for worker in range(_FIRST, SHARED):
            self._shared[worker] = 0

    @property
    def options(self) -> StreamOptions:
        """How it goes through its source."""
        return self._options

    def __len__(self) -> int:
        """The samples of an epoch that this rank takes. Raises UsageError."""
        rank, ranks = self._options.rank_of_ranks()
        return len(range(rank, self._options.shared_out(len(self._source), ranks), ranks))

    def __getitem__(self, item: object) -> NoReturn:
        raise UsageError(
            "a stream has no samples by number, unlike its source; for a DataLoader, import torch before the stream is "
            "made, so that it is an IterableDataset"
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker, own = _Worker.of_this_process(), self._own
        first, again = self._iteration(worker)
        state = self._state(worker, first + again)
        if own is not None:
            if (own.rank, own.worker, own.partition) != (state.rank, state.worker, state.partition):
                raise UsageError(
                    f"the state is that of rank {own.rank}, worker {own.worker} of {own.partition}, and this is rank "
                    f"{state.rank}, worker {state.worker} of {state.partition}: load the states of all ranks into the "
                    "stream before the loader is made"
                )
            state = own
        self._shared[_FIRST + worker.place] = first + 1 << _LOOP_BITS | worker.loop  # in this order: `_iteration`
        self._shared[_AGAIN + worker.place] = again
        self._own, self._now, self._taken = None, state, state.taken
        self._shared[_IN_WORKERS] = int(worker.loop > 0)
        return self._samples(state)

    def _iteration(self, worker: _Worker) -> tuple[int, int]:
        """The number of the next iteration since the epoch was set, as a sum: that of the first one of its loop, and
        how many the worker has begun in the loop.

        All workers of a loop find the same number, whichever asks first: that of a worker of their loop; else one more
        than all that have begun. So a worker that was stopped before it began, as after a `break`, makes no difference;
        but loops with the same seed count as one loop, and the workers may disagree after it.
        """
        begun = [(int(at) >> _LOOP_BITS, int(at) & _LOOP) for at in self._shared[_FIRST:_AGAIN]]
        if worker.loop:
            if begun[worker.place][1] == worker.loop:
                return begun[worker.place][0] - 1, int(self._shared[_AGAIN + worker.place]) + 1
            if same := [first for first, loop in begun if loop == worker.loop]:
                return same[0] - 1, 0
        return max(first and first + int(self._shared[_AGAIN + place]) for place, (first, _) in enumerate(begun)), 0

    def _state(self, worker: _Worker, iteration: int) -> StreamState:
        """Where an iteration of a consumer begins. Raises UsageError."""
        (rank, ranks), count = self._rank_of_ranks(), len(self._source)
        return StreamState(
            source=self._source.fingerprint,
            count=count,
            seed=self._options.seed,
            epoch=self.epoch + (iteration if ranks <= self._options.advancing_ranks else 0),
            window=self._options.window,
            start=0 if iteration else min(int(self._shared[_POSITION]), count),
            ranks=ranks,
            workers=worker.workers,
            batch_size=self._options.batch,
            rank=rank,
            worker=worker.number,
            taken=0,
        )

    def _samples(self, now: StreamState) -> Iterator[dict[str, Any]]:
        return self._source.passing(self._finished(now))

    def _finished(self, now: StreamState) -> Iterator[dict[str, Any] | None]:
        for stored in self._read(self._positions(now), now):
            sample = self._source.finished(stored)
            if self._now is now:  # else another iteration has begun
                self._taken += 1
            yield sample

    def _positions(self, now: StreamState) -> Iterator[int]:
        """The positions that the consumer takes; behind the end of the epoch are those that come once more."""
        shared_out = self._options.shared_out(now.count - now.start, now.ranks)
        total = now.partition.count(now.rank, now.worker, shared_out)
        return (now.start + now.partition.number(now.rank, now.worker, taken) for taken in range(now.taken, total))

    def _read(self, positions: Iterator[int], now: StreamState) -> Iterator[Stored]:
        source, order, consumers = self._source, now.order, now.ranks * now.workers
        if source.is_local:
            return chain.from_iterable(map(source.stored, map(order.samples, _chunks(positions))))
        size = ahead.chunk_size(source.sample_bytes)
        if order.window and order.window_size * source.sample_bytes <= _MOST_HELD * consumers:
            windows = groupby(positions, order.window_of_position)
            return ahead.in_windows(source.stored, (order.samples(own) for _, own in windows), order.block_of, size)
        return ahead.in_order(source.stored, map(order.samples, _chunks(positions, size)))

    def state_dict(self) -> dict[str, Any]:
        """The position of this consumer in the epoch: plain values.

        Raises UsageError in the process of a DataLoader whose workers take the samples.
        """
        worker = _Worker.of_this_process()
        if not worker.loop and self._shared[_IN_WORKERS]:
            raise UsageError(
                "the workers of a DataLoader take the samples of this stream, and know how far they are: save the "
                "state_dict of a StatefulDataLoader, or count the steps for set_epoch(epoch, position)"
            )
        if self._own is not None:
            return self._own.to_dict()
        if self._now is None:
            return self._state(worker, sum(self._iteration(worker))).to_dict()
        return replace(self._now, taken=self._taken).to_dict()

    def load_state_dict(self, state: Any) -> None:
        """The next iteration goes on where it was taken. `state` is that of this consumer; or, for other numbers of
        ranks and workers, whatever holds those of all: the `state_dict()` of a StatefulDataLoader, or a list of them.

        Raises UsageError for states of another stream, if those of some consumers are missing, or if their ranks were
        at different steps.
        """
        try:
            states = list(states_in(state))
        except ValueError as error:
            raise UsageError(f"the state cannot be loaded: {error}") from error
        if not states:
            raise UsageError("not the state of an any2ds stream")
        first = states[0]
        self._check(first)
        try:
            is_own = len(states) == 1 and first.ranks * first.workers > 1
            position = 0 if is_own else position_of(states)
        except ValueError as error:
            raise UsageError(f"the states cannot be put together: {error}") from error
        self._go_to(first.epoch, position)
        self._own, self._shared[_IN_WORKERS] = first if is_own else None, 0

    def _check(self, state: StreamState) -> None:
        """Raises UsageError for the state of another stream."""
        count, options = len(self._source), self._options
        if state.count != count:
            raise UsageError(f"the state is of {state.count:,} samples, and there are {count:,}")
        if state.source != self._source.fingerprint:
            raise UsageError("the state is of as many samples, but others: of another split or condition, or dataset")
        for name, its, here in (("seed", state.seed, options.seed), ("window", state.window, options.window)):
            if its != here:
                raise UsageError(f"the state is of a stream with {name}={its}, and this one has {name}={here}")


def _chunks(numbers: Iterator[int], size: int = _READ_AT_ONCE) -> Iterator[list[int]]:
    while chunk := list(islice(numbers, size)):
        yield chunk


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


def _is_shared_by_accelerate(stream: Stream) -> bool:
    """Whether a DataLoader that Accelerate has prepared is iterated over, and shares out what the stream gives."""
    if "accelerate" not in sys.modules:
        return False
    from accelerate.state import GradientState, PartialState

    dataset = getattr(GradientState().active_dataloader, "dataset", None)
    while dataset is not None and dataset is not stream:
        dataset = getattr(dataset, "dataset", None)  # of what Accelerate, or the user, has wrapped around the stream
    return dataset is stream and PartialState().num_processes > 1


def _ranks_of_torch() -> tuple[int, int] | None:
    if "torch" not in sys.modules:
        return None
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
