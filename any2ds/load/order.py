"""The order of an epoch, and which samples of it each of several consumers takes. Pure.

Samples that lie side by side form a block. An epoch takes the blocks in an order of its own, and shuffles the samples
of as many blocks as make a window. What is at a position depends on seed, epoch, window and the number of samples
alone. Ranks take turns position by position; the workers of a rank take turns by batches of its positions. If these
are single samples, a consumer (a worker of a rank) has blocks of its own where the number of consumers divides the
number of lanes, which is `LANES` where a window has that many blocks.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

BLOCK = 64  # samples
LANES = 96  # of a window; as many numbers as can divide it
_LANES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, LANES)
_ROUNDS = 6
_SMALLEST = 4  # bits of a half: permutations of fewer numbers would be few


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
        size, found, current = self.blocks_in_window * BLOCK, [], -1
        samples: Sequence[int] = ()
        for position in positions:
            number, at = divmod(position, size)
            if number != current:
                current, samples = number, _window_of(self, number)
            found.append(samples[at])
        return found

    @cached_property
    def lanes(self) -> int:
        """The most that the blocks of a window suffice for."""
        return max(lanes for lanes in _LANES if lanes <= max(1, self.window // BLOCK))

    @cached_property
    def blocks_in_window(self) -> int:
        """About as many as make `window` samples, and the same number in each lane."""
        return self.lanes * max(1, round(self.window / BLOCK / self.lanes))

    def window_of_position(self, position: int) -> int:
        """A number for the window that it is in, which windows behind the end of the epoch have for themselves."""
        turn, at = divmod(position, self.count)
        size = self.blocks_in_window * BLOCK
        return turn * -(-self.count // size) + at // size

    def block(self, place: int) -> int:
        """The number of a block, by its place in the epoch; the last one, which may be shorter, stays the last."""
        whole = self.count // BLOCK
        return place if place >= whole else permuted(place, whole, f"{self.seed} {self.epoch} blocks")

    def window_of(self, number: int) -> array[int]:
        """The samples of a window, shuffled. Those of a block are in one lane, and lanes take turns."""
        chance = random.Random(f"{self.seed} {self.epoch} window {number}")
        size, blocks = self.blocks_in_window, -(-self.count // BLOCK)
        lanes: list[list[int]] = [[] for _ in range(self.lanes)]
        for place in range(number * size, min((number + 1) * size, blocks)):
            block = self.block(place)
            lanes[place % size % len(lanes)] += range(block * BLOCK, min((block + 1) * BLOCK, self.count))
        for lane in lanes:
            chance.shuffle(lane)
        found = array("Q")
        for turn in range(max(map(len, lanes), default=0)):
            found.extend(lane[turn] for lane in lanes if turn < len(lane))
        return found


@lru_cache(4)
def _window_of(order: EpochOrder, number: int) -> array[int]:
    return order.window_of(number)


def permuted(number: int, count: int, key: str) -> int:
    """Which of `count` numbers takes the place of this one in the permutation that belongs to the key.

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
class Deal:
    """How what is left of an epoch is dealt to its consumers, the workers of all ranks."""

    ranks: int
    workers: int  # of each rank
    batch: int  # samples of its rank that a worker takes before the next worker does

    def number(self, rank: int, worker: int, taken: int) -> int:
        """Which of those left a consumer takes after `taken` others."""
        turn, at = divmod(taken, self.batch)
        return rank + self.ranks * ((turn * self.workers + worker) * self.batch + at)

    def count(self, rank: int, worker: int, total: int) -> int:
        """How many of `total` a consumer takes."""
        batches, rest = divmod(len(range(rank, total, self.ranks)), self.batch)
        own = len(range(worker, batches, self.workers)) * self.batch
        return own + rest if batches % self.workers == worker else own

    def is_taken(self, number: int, taken: dict[tuple[int, int], int]) -> bool:
        """Whether a number is among those that consumers, by rank and worker, have taken."""
        of_rank, rank = divmod(number, self.ranks)
        batch, at = divmod(of_rank, self.batch)
        turn, worker = divmod(batch, self.workers)
        return turn * self.batch + at < taken[rank, worker]

    def consumers(self) -> list[tuple[int, int]]:
        """Rank and worker of each."""
        return [(rank, worker) for rank in range(self.ranks) for worker in range(self.workers)]


@dataclass(frozen=True, slots=True)
class Left:
    """The positions of an epoch that nobody has taken: some, and all from `rest` on."""

    rest: int = 0
    some: tuple[int, ...] = field(default=())  # in ascending order, below `rest`

    def position(self, number: int) -> int:
        """That of the n-th of them."""
        some = len(self.some)
        return self.some[number] if number < some else self.rest + number - some

    def count(self, total: int) -> int:
        """How many there are among `total` positions."""
        return len(self.some) + max(0, total - self.rest)

    def without(self, deal: Deal, taken: dict[tuple[int, int], int], total: int) -> Left:
        """What is left when consumers, by rank and worker, have taken so many; of `total` positions."""
        first = min(deal.number(*consumer, count) for consumer, count in taken.items())
        stop = max(deal.number(*consumer, count - 1) + 1 if count else 0 for consumer, count in taken.items())
        stop = min(stop, self.count(total))  # beyond it, samples that were taken once more
        left = [number for number in range(first, stop) if not deal.is_taken(number, taken)]
        rest = max(self.rest, self.position(stop)) if stop >= len(self.some) else self.rest
        return Left(rest, (*map(self.position, left), *self.some[stop:]))


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """How far one consumer is in an epoch."""

    source: int  # which samples they are
    order: EpochOrder
    left: Left  # before anybody took of it
    deal: Deal
    rank: int
    worker: int
    taken: int  # samples

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "any2ds_stream": 1,
            "source": self.source,
            "count": self.order.count,
            "seed": self.order.seed,
            "epoch": self.order.epoch,
            "window": self.order.window,
            "rest": self.left.rest,
            "some": list(self.left.some),
            "ranks": self.deal.ranks,
            "workers": self.deal.workers,
            "batch_size": self.deal.batch,
            "rank": self.rank,
            "worker": self.worker,
            "taken": self.taken,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> ConsumerState:
        """Raises ValueError for what `to_dict` did not make."""
        try:
            return cls(
                state["source"],
                EpochOrder(state["count"], state["seed"], state["epoch"], state["window"]),
                Left(state["rest"], tuple(state["some"])),
                Deal(state["ranks"], state["workers"], state["batch_size"]),
                state["rank"],
                state["worker"],
                state["taken"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a part of it is missing or damaged: {error}") from error


def states_in(found: Any) -> Iterator[ConsumerState]:
    """Those of consumers in whatever holds them: the state of a StatefulDataLoader, or a list of those of all ranks.

    Raises ValueError for states that are older than the batches that the loader has given.
    """
    if isinstance(found, dict):
        if "any2ds_stream" in found:
            yield ConsumerState.from_dict(found)
            return
        if behind := found.get("_steps_since_snapshot"):
            raise ValueError(
                f"the loader gave {behind} more batches than its state knows: snapshot_every_n_steps has to be 1"
            )
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        for each in found:
            yield from states_in(each)


def merged(states: Sequence[ConsumerState]) -> Left:
    """What is left of an epoch, by the states of all its consumers. Raises ValueError if one is missing."""
    first = states[0]
    for name in ("source", "order", "left", "deal"):
        values = [getattr(state, name) for state in states]
        if any(value != values[0] for value in values):
            raise ValueError(f"they are of different epochs, streams or loaders: {_difference(name, values)}")
    taken: dict[tuple[int, int], int] = {}
    for state in states:
        if taken.setdefault((state.rank, state.worker), state.taken) != state.taken:
            raise ValueError(f"there are two of rank {state.rank}, worker {state.worker}")
    if missing := [consumer for consumer in first.deal.consumers() if consumer not in taken]:
        ranks = sorted({rank for rank, _ in missing})
        raise ValueError(f"of {first.deal.ranks} ranks, states of {ranks} are missing")
    return first.left.without(first.deal, taken, first.order.count)


def _difference(name: str, values: Sequence[Any]) -> str:
    """The first two values that differ."""
    other = next(value for value in values if value != values[0])
    return f"{name} {values[0]} and {other}"
