"""The order of an epoch, and which samples of it each of several consumers takes. Pure.

Samples that lie side by side form a block. An epoch takes the blocks in an order of its own, and shuffles the samples
of as many blocks as make a window. Each consumer (a worker of a rank) takes every n-th position of that order, where n
is the number of consumers; the samples of a window are dealt so that a consumer has blocks of its own if n divides
the number of lanes, which is `LANES` where a window has that many blocks. What is at a position depends on seed, epoch,
window and the number of samples alone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

BLOCK = 64  # samples
LANES = 96  # of a window; as many numbers as can divide it
_LANES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, LANES)


@dataclass(frozen=True)
class EpochOrder:
    """The samples of one epoch: `order[position]` is the number of one."""

    count: int  # samples
    seed: int
    epoch: int
    window: int  # samples; 0: as they come

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> int:
        if not self.window:
            return position
        window, at = self._place(position)
        return _window_of(self, window)[at]

    @cached_property
    def lanes(self) -> int:
        """The most that the blocks of a window suffice for."""
        return max(lanes for lanes in _LANES if lanes <= max(1, self.window // BLOCK))

    @cached_property
    def blocks_in_window(self) -> int:
        """About as many as make `window` samples, and the same number in each lane."""
        return self.lanes * max(1, round(self.window / BLOCK / self.lanes))

    def window_of_position(self, position: int) -> int:
        return self._place(position)[0] if self.window else 0

    def blocks(self) -> list[int]:
        """The numbers of the blocks in the order of the epoch; the last one, which may be shorter, stays the last."""
        whole = list(range(self.count // BLOCK))
        random.Random(f"{self.seed} {self.epoch} blocks").shuffle(whole)
        return [*whole, len(whole)] if self.count % BLOCK else whole

    def window_of(self, number: int, blocks: Sequence[int]) -> list[int]:
        """The samples of a window, shuffled."""
        chance = random.Random(f"{self.seed} {self.epoch} window {number}")
        size = self.blocks_in_window
        lanes: list[list[int]] = [[] for _ in range(self.lanes)]
        for place, block in enumerate(blocks[number * size : (number + 1) * size]):
            lanes[place % len(lanes)] += range(block * BLOCK, min((block + 1) * BLOCK, self.count))
        for lane in lanes:
            chance.shuffle(lane)
        found = []
        for turn in range(max(map(len, lanes), default=0)):
            found += [lane[turn] for lane in lanes if turn < len(lane)]
        return found

    def _place(self, position: int) -> tuple[int, int]:
        size = self.blocks_in_window * BLOCK
        return position // size, position % size


@lru_cache(4)
def _blocks_of(order: EpochOrder) -> list[int]:
    return order.blocks()


@lru_cache(4)
def _window_of(order: EpochOrder, number: int) -> list[int]:
    return order.window_of(number, _blocks_of(order))


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

    def without(self, taken: Sequence[int]) -> Left:
        """What is left when consumer c of `len(taken)`, who takes every n-th of them, has taken `taken[c]`."""
        consumers, most = len(taken), max(taken)
        left = [
            number
            for number in range(min(taken) * consumers, most * consumers)
            if number // consumers >= taken[number % consumers]
        ]
        return Left(self._bound(most * consumers), tuple(self._within(left, most * consumers)))

    def _bound(self, number: int) -> int:
        return max(self.rest, self.position(number)) if number >= len(self.some) else self.rest

    def _within(self, numbers: Iterable[int], stop: int) -> Iterator[int]:
        yield from map(self.position, numbers)
        yield from self.some[stop:]


def to_state(order: EpochOrder, left: Left, consumer: int, consumers: int, taken: int) -> dict[str, Any]:
    """What a consumer has to keep to go on; plain values."""
    return {
        "any2ds_stream": 1,
        "count": order.count,
        "seed": order.seed,
        "epoch": order.epoch,
        "window": order.window,
        "rest": left.rest,
        "some": list(left.some),
        "consumer": consumer,
        "consumers": consumers,
        "taken": taken,
    }


def states_in(found: Any) -> Iterator[dict[str, Any]]:
    """Those of consumers in whatever holds them: the state of a StatefulDataLoader, or a list of those of all ranks."""
    if isinstance(found, dict):
        if "any2ds_stream" in found:
            yield found
            return
        found = list(found.values())
    if isinstance(found, (list, tuple)):
        for each in found:
            yield from states_in(each)


def merged(states: Sequence[dict[str, Any]]) -> Left:
    """What is left of an epoch, by the states of all its consumers. Raises ValueError if one is missing."""
    first = states[0]
    same = ("count", "seed", "epoch", "window", "rest", "some", "consumers")
    if any(state[name] != first[name] for state in states for name in same):
        raise ValueError("they are of different epochs or streams")
    taken = {state["consumer"]: state["taken"] for state in states}
    if missing := sorted(set(range(first["consumers"])) - set(taken)):
        raise ValueError(f"of {first['consumers']} consumers the states of {missing} are missing")
    left = Left(first["rest"], tuple(first["some"]))
    return left.without([taken[consumer] for consumer in range(first["consumers"])])
