"""The order of an epoch, and which samples of it each of several consumers takes. Pure.

Samples that lie side by side form a block. An epoch takes the blocks in an order of its own, and shuffles the samples
of as many blocks as make a window. What is at a position depends on seed, epoch, window and the number of samples
alone. Ranks take turns position by position; the workers of a rank take turns by batches of its positions.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

BLOCK = 64  # samples
_ROUNDS = 6
_SMALLEST = 4  # bits of a half: permutations of fewer numbers would be few
_VERSION = 2  # of states


@dataclass(frozen=True)
class EpochOrder:
    """The samples of one epoch: `order[position]` is the number of one. It takes no memory to speak of."""

    count: int  # samples
    seed: int
    epoch: int
    window: int  # samples; 0: as they come

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> int:
        (sample,) = self.samples((position,))
        return sample

    def samples(self, positions: Iterable[int]) -> list[int]:
        """The numbers of the samples at these positions; behind its end, the epoch comes once more."""
        positions = (position % self.count for position in positions)
        if not self.window:
            return list(positions)
        found: list[int] = []
        current, samples = -1, array("Q")
        for position in positions:
            number, at = divmod(position, self.window_size)
            if number != current:
                current, samples = number, _window_of(self, number)
            found.append(samples[at])
        return found

    @property
    def window_size(self) -> int:
        """Samples of the blocks of a window."""
        return BLOCK * max(1, round(self.window / BLOCK))

    def window_of_position(self, position: int) -> int:
        """A number for the window that it is in, which windows behind the end of the epoch have for themselves."""
        turn, at = divmod(position, self.count)
        return turn * -(-self.count // self.window_size) + at // self.window_size

    @cached_property
    def _first(self) -> int:
        """The sample with which the first block begins: the last block, which is shorter, has others in each epoch."""
        return random.Random(f"{self.seed} {self.epoch} first").randrange(self.count or 1) if self.window else 0

    def block_of(self, sample: int) -> int:
        """A number for the block of a sample."""
        return (sample - self._first) % self.count // BLOCK

    def _block(self, place: int) -> int:
        """The number of a block, by its place in the epoch; the last one, which may be shorter, stays the last."""
        whole = self.count // BLOCK
        return place if place >= whole else permuted(place, whole, f"{self.seed} {self.epoch} blocks")

    def window_of(self, number: int) -> array[int]:
        """The samples of a window, shuffled."""
        size, blocks = self.window_size // BLOCK, -(-self.count // BLOCK)
        places = range(number * size, min((number + 1) * size, blocks))
        starts = [self._block(place) * BLOCK for place in places]
        found = [each for start in starts for each in range(start, min(start + BLOCK, self.count))]
        random.Random(f"{self.seed} {self.epoch} window {number}").shuffle(found)
        return array("Q", [(each + self._first) % self.count for each in found])


@lru_cache(4)
def _window_of(order: EpochOrder, number: int) -> array[int]:
    return order.window_of(number)


def permuted(number: int, count: int, key: str) -> int:
    """The number, of `count`, in the place of this one in the permutation that belongs to the key.

    A Feistel network permutes the numbers of an even count of bits; it is walked until one below `count` comes.
    """
    half = max(_SMALLEST, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = number >> half, number & mask
        for turn in range(_ROUNDS):
            digest = blake2b(f"{key} {turn} {right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest, "little") & mask)
        number = left << half | right
        if number < count:
            return number


@dataclass(frozen=True, slots=True)
class Partition:
    """How the remaining positions of an epoch are dealt to the workers of all ranks."""

    ranks: int
    workers: int  # of each rank
    batch: int  # samples of its rank that a worker takes before the next worker does

    def number(self, rank: int, worker: int, taken: int) -> int:
        """The remaining position that a consumer takes after `taken` others."""
        turn, at = divmod(taken, self.batch)
        return rank + self.ranks * ((turn * self.workers + worker) * self.batch + at)

    def count(self, rank: int, worker: int, total: int) -> int:
        """How many of `total` a consumer takes."""
        batches, rest = divmod(len(range(rank, total, self.ranks)), self.batch)
        own = len(range(worker, batches, self.workers)) * self.batch
        return own + rest if batches % self.workers == worker else own


@dataclass(frozen=True, slots=True)
class StreamState:
    """How far one consumer is in an epoch."""

    source: int  # which samples they are
    count: int  # samples of the epoch
    seed: int
    epoch: int
    window: int
    start: int  # position at which the iteration began
    ranks: int
    workers: int
    batch_size: int
    rank: int
    worker: int
    taken: int  # samples

    @property
    def order(self) -> EpochOrder:
        return EpochOrder(self.count, self.seed, self.epoch, self.window)

    @property
    def partition(self) -> Partition:
        return Partition(self.ranks, self.workers, self.batch_size)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {"any2ds_stream": _VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> StreamState:
        """Raises ValueError for what `to_dict` did not make."""
        try:
            return cls(**{name: value for name, value in state.items() if name != "any2ds_stream"})
        except TypeError as error:
            raise ValueError("a part of it is missing, or it is that of another version of any2ds") from error


def states_in(found: Any) -> Iterator[StreamState]:
    """The states of consumers in whatever holds them: that of a StatefulDataLoader, or a list of those of all ranks.

    Raises ValueError for states that are older than the batches that the loader has given.
    """
    if isinstance(found, Mapping):
        if "any2ds_stream" in found:
            yield StreamState.from_dict(found)
            return
        if behind := found.get("_steps_since_snapshot"):
            raise ValueError(
                f"the loader gave {behind} more batches than its state knows: snapshot_every_n_steps has to be 1"
            )
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        for each in found:
            yield from states_in(each)


def position_of(states: Sequence[StreamState]) -> int:
    """The position up to which all consumers together have taken an epoch, by the states of all of them.

    Raises ValueError if one is missing, or if they have not taken the same number of steps.
    """
    first = states[0]
    taken: dict[tuple[int, int], int] = {}
    for state in states:
        for name in ("source", "count", "seed", "epoch", "window", "start", "ranks", "workers", "batch_size"):
            here, there = getattr(first, name), getattr(state, name)
            if here != there:
                raise ValueError(f"they are of different epochs, streams or loaders: {name} {here} and {there}")
        if taken.setdefault((state.rank, state.worker), state.taken) != state.taken:
            raise ValueError(f"there are two of rank {state.rank}, worker {state.worker}")
    consumers = [(rank, worker) for rank in range(first.ranks) for worker in range(first.workers)]
    if missing := sorted({rank for rank, worker in consumers if (rank, worker) not in taken}):
        raise ValueError(f"of {first.ranks} ranks, states of {missing} are missing")
    total = sum(taken.values())
    if any(taken[each] != first.partition.count(*each, total) for each in consumers):
        raise ValueError(
            "the ranks are at different steps, or the stream has not the batch_size of its loader: such states are for "
            "a loader with the same numbers of ranks and workers"
        )
    return min(first.start + total, first.count)
