"""A source as a stream: an epoch in a shuffled order, shared out among ranks and workers, which can go on anywhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any

from any2ds.core.errors import UsageError
from any2ds.dataset.load import ahead
from any2ds.dataset.load.order import BLOCK, EpochOrder, Left, merged, states_in, to_state

if TYPE_CHECKING:
    from any2ds.dataset.load.source import Source

_READ_AT_ONCE = 64  # samples
_MOST_HELD = 1 << 30  # bytes of the samples of a window of a store; of bigger ones each sample is read by itself


class Stream:
    """An iterable of samples. Ranks and the workers of a PyTorch DataLoader take different ones, together all of them.

    Each iteration is one epoch, `set_epoch` says which. The state of an epoch that was left in the middle is
    `state_dict`; `load_state_dict` takes that, or those of all consumers in one piece, for any other number of them.
    """

    def __init__(self, source: Source, seed: int, window: int, ranks: tuple[int, int]) -> None:
        """`window` is 0 for the order of the source; `ranks` are the rank of this process and how many there are."""
        self._source, self._seed, self._window = source, seed, window
        self._rank, self._world_size = ranks
        self._epoch_set = 0
        self._resumed: tuple[EpochOrder, Left] | None = None  # of the next iteration
        self._taken_before: tuple[int, int, int] | None = None  # consumer, consumers, samples: of the one resumed
        self._order, self._left, self._taken = self._new_order(), Left(), 0

    @property
    def epoch(self) -> int:
        return self._epoch_set

    def set_epoch(self, epoch: int) -> None:
        """Before it is iterated over: which epoch, and so which order."""
        self._epoch_set = epoch

    def __len__(self) -> int:
        """The samples of an epoch that this rank takes."""
        return len(range(self._rank, len(self._source), self._world_size))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        consumer, consumers = self._consumer()
        self._order, self._left = self._resumed or (self._new_order(), Left())
        self._taken = 0
        if self._taken_before is not None:
            if self._taken_before[:2] != (consumer, consumers):
                was, of, _ = self._taken_before
                raise UsageError(
                    f"the state is that of consumer {was} of {of}, and this is {consumer} of {consumers}: "
                    "load the states of all before the loader is made"
                )
            self._taken = self._taken_before[2]
        self._resumed = self._taken_before = None
        return self._samples(consumer, consumers)

    def _samples(self, consumer: int, consumers: int) -> Iterator[dict[str, Any]]:
        order, left = self._order, self._left
        numbers = range(self._taken * consumers + consumer, left.count(len(order)), consumers)
        for sample in self._read(map(left.position, numbers), order, consumers):
            self._taken += 1
            yield sample

    def _read(self, positions: Iterator[int], order: EpochOrder, consumers: int) -> Iterator[dict[str, Any]]:
        source = self._source
        if source.is_local:
            return chain.from_iterable(map(source.__getitems__, _chunks(map(order.__getitem__, positions))))
        size = ahead.chunk_size(source.sample_bytes)
        if order.window and order.blocks_in_window * BLOCK * source.sample_bytes <= _MOST_HELD * consumers:
            windows = groupby(positions, order.window_of_position)
            numbers = ([order[position] for position in own] for _, own in windows)
            return ahead.in_windows(source.__getitems__, numbers, BLOCK, size)
        return ahead.in_order(source.__getitems__, _chunks(map(order.__getitem__, positions), size))

    def state_dict(self) -> dict[str, Any]:
        """What this consumer has taken of the epoch: plain values."""
        consumer, consumers = self._consumer()
        order, left, taken = self._order, self._left, self._taken
        if self._resumed is not None:
            (order, left), taken = self._resumed, self._taken_before[2] if self._taken_before else 0
        return to_state(order, left, consumer, consumers, taken)

    def load_state_dict(self, state: Any) -> None:
        """The next iteration goes on where it was taken. `state` is that of this consumer; or, for other numbers of
        ranks and workers, whatever holds those of all: the `state_dict()` of a StatefulDataLoader, or a list of them.

        Raises UsageError for states of another stream, or if those of some consumers are missing.
        """
        states = list(states_in(state))
        if not states:
            raise UsageError("not the state of an any2ds stream")
        first = states[0]
        order = EpochOrder(first["count"], first["seed"], first["epoch"], first["window"])
        if order.count != len(self._source):
            raise UsageError(f"the state is of {order.count:,} samples, and there are {len(self._source):,}")
        if len(states) == 1 and first["consumers"] > 1:
            self._taken_before = first["consumer"], first["consumers"], first["taken"]
            self._resumed = order, Left(first["rest"], tuple(first["some"]))
            return
        try:
            self._resumed, self._taken_before = (order, merged(states)), None
        except ValueError as error:
            raise UsageError(f"the states cannot be put together: {error}") from error

    def _new_order(self) -> EpochOrder:
        return EpochOrder(len(self._source), self._seed, self.epoch, self._window)

    def _consumer(self) -> tuple[int, int]:
        """Which one this process is, and how many there are: the workers of all ranks."""
        worker, workers = _worker()
        return self._rank + self._world_size * worker, self._world_size * workers


def _chunks(numbers: Iterator[int], size: int = _READ_AT_ONCE) -> Iterator[list[int]]:
    while chunk := list(islice(numbers, size)):
        yield chunk


def _worker() -> tuple[int, int]:
    """Of a PyTorch DataLoader: which worker this process is, and of how many."""
    if "torch" not in sys.modules:
        return 0, 1
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """As given, else those of torch.distributed, else of the environment (torchrun), else the only one.

    Raises UsageError.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size go together")
    if rank is None or world_size is None:
        rank, world_size = _ranks_of_torch() or (int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
    if not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} is none of {world_size}")
    return rank, world_size


def _ranks_of_torch() -> tuple[int, int] | None:
    if "torch" not in sys.modules:
        return None
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()
