"""The share of a host's limits that one of several fetchers keeps to, so that all of them together keep the limits.

Nobody coordinates them: each knows its share, and all have about the same time of day.

- Transfers at once are divided: of 64, each of 8 fetchers has 8.
- Each transfer that the host allows is a slot. Where there are more fetchers than slots, fetchers take turns of a few
  seconds, by the clock: a slot is one fetcher's at a time. What outlasts a turn is announced (`Announcements`), and its
  slot stays taken.
- Starts that must be some seconds apart have places on a grid of time, and each fetcher has every so many-th of them.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from any2ds.core.shares import SharePath

TURN = 5.0  # seconds that a slot is one fetcher's, where there are more of them than transfers
CLOCKS = 0.5  # seconds by which clocks of machines may differ
LONGEST_REQUEST = 1.0  # seconds, to the store through which fetchers make announcements; else it is of no use
LEAST_LEAD = 0.5  # seconds that an announcement takes, at least
MOST_LEAD = LEAST_LEAD + 2 * LONGEST_REQUEST
_SHORT = 0.2  # seconds between the last start of a turn and the moment when what still runs is announced
_MOST_GUARD = CLOCKS + MOST_LEAD + _SHORT
_LATE = (0.02, 0.1)  # seconds, and part of the delay, by which a start may miss its place on the grid


class Announcements(Protocol):
    """What fetchers let each other know of transfers that outlast their turns, by the names of slots. No method waits.

    Where that does not work, nothing is known of others, and all that is to be announced counts as announced.
    """

    @property
    def lead(self) -> float:
        """Seconds that an announcement takes."""
        ...

    def of_others(self, age: float) -> frozenset[str] | None:
        """The slots that others have announced and not taken back, as known `age` seconds ago or later; None: wait."""
        ...

    def announce(self, slots: frozenset[str]) -> None:
        """Have others know of these and no others, from now on."""
        ...

    def announced(self) -> frozenset[str]:
        """Those that others surely know of."""
        ...


@dataclass(frozen=True, slots=True)
class Cycle:
    """Every `length`-th of things that are numbered, from `number` on."""

    number: int = 0
    length: int = 1

    def within(self, number: int, length: int) -> Cycle:
        """Of the things in this cycle again every `length`-th."""
        return Cycle(self.number + self.length * number, self.length * length)

    def has(self, number: int) -> bool:
        return (number - self.number) % self.length == 0

    def first(self, least: int) -> int:
        """The first of them that is not before `least`."""
        return least + (self.number - least) % self.length


@dataclass(frozen=True, slots=True)
class Part:
    """A part of what a host allows."""

    slots: range  # numbers of the transfers that it may have at once, in its turn; with turns it is one
    starts: Cycle = Cycle()  # its places on the grid, where starts must be some time apart
    turns: Cycle = Cycle()


@dataclass(frozen=True, slots=True)
class HostShare:
    """What a fetcher may do with one host. Times are seconds of the day's clock (`time.time()`)."""

    parts: tuple[Part, ...]
    salt: int = 0  # so that hosts differ in who comes first

    @property
    def most(self) -> int:
        """Transfers at once, in the best of turns."""
        in_turn: Counter[int] = Counter()
        for part in self.parts:  # which have as many turns each
            in_turn[part.turns.number] += len(part.slots)
        return max(in_turn.values())

    @property
    def has_turns(self) -> bool:
        return any(part.turns.length > 1 for part in self.parts)

    def next_start(self, now: float, delay: float, lead: float = LEAST_LEAD) -> float:
        """The first time from `now` on at which a transfer may start: `now` itself, or the beginning of a later place.

        `delay` is the time that all fetchers leave between two starts, and `lead` how long an announcement takes, in
        seconds.
        """
        guard = CLOCKS + lead + _SHORT
        if not delay:
            return self._next_turn(now, guard) if self.has_turns else now
        if all(part.starts.length == part.turns.length == 1 for part in self.parts):
            return now
        late = max(_LATE[0], _LATE[1] * delay)
        width = delay + late
        place = math.floor(now / width)
        if now - place * width > late:
            place += 1
        found = min(self._first_place(part, place, width, guard) for part in self.parts)
        return now if found == place and found * width <= now else found * width

    def interval(self, delay: float) -> float:
        """Seconds after a start in which there is no other place."""
        return delay * (self.parts[0].starts.length if len(self.parts) == 1 else 1)

    def turn_seconds(self, delay: float) -> float:
        """How long a turn is; where starts are apart, so many places that each slot has one that is early enough."""
        width = delay + max(_LATE[0], _LATE[1] * delay)
        return self._places(self.parts[0], width) * width if delay else TURN

    def slots(self, turn: int) -> frozenset[int]:
        """Those that are its own in the `turn`-th turn since the beginning of time."""
        turn += self.salt
        return frozenset(slot for part in self.parts if part.turns.has(turn) for slot in part.slots)

    def owns(self, slot: int, turn: int) -> bool:
        """Whether it is among `slots(turn)`."""
        turn += self.salt
        return any(slot in part.slots and part.turns.has(turn) for part in self.parts)

    def _places(self, part: Part, width: float) -> int:
        """Places of a turn."""
        length = part.starts.length
        return length * math.ceil(max(TURN, length * width + _MOST_GUARD) / width / length)

    def _first_place(self, part: Part, place: int, width: float, guard: float) -> int:
        """The first of its places on the grid, not before `place`."""
        places = self._places(part, width)
        while True:
            place = part.starts.first(place + self.salt) - self.salt
            if part.turns.length == 1:
                return place
            turn = place // places
            if (turn + 1) * places * width - place * width < guard:
                turn += 1
            elif part.turns.has(turn + self.salt):
                return place
            place = (part.turns.first(turn + self.salt) - self.salt) * places

    def _next_turn(self, now: float, guard: float) -> float:
        turn = math.floor(now / TURN)
        if now - turn * TURN > TURN - guard:
            turn += 1
        mine = min(part.turns.first(turn + self.salt) for part in self.parts) - self.salt
        return max(now, mine * TURN)


@dataclass(frozen=True, slots=True)
class Share:
    """Which part of the limits of all hosts a fetcher has: that of each of `paths`, which differ in their last pair.

    No paths, or one that is empty: all of it.
    """

    paths: tuple[SharePath, ...] = ()

    @classmethod
    def of(cls, *path: tuple[int, int]) -> Share:
        return cls((path,))

    @property
    def is_all(self) -> bool:
        return self.fetchers <= 1

    def has_all_of(self, other: Share) -> bool:
        """Whether nothing of `other` is missing."""
        return self.is_all or (bool(other.paths) and not other.is_all and {*other.paths} <= {*self.paths})

    @property
    def fetchers(self) -> float:
        """How many fetchers with such a share there could be."""
        return math.prod(of for _, of in self.paths[0]) / len(self.paths) if self.paths else 1.0

    def of_host(self, name: str, max_per_host: int) -> HostShare:
        """Its share of a host that allows `max_per_host` transfers at once."""
        salt = zlib.crc32(name.encode("utf-8", "replace"))
        parts = tuple(_part(path, max_per_host, salt) for path in self.paths or ((),))
        return HostShare(parts, salt)


def _part(path: SharePath, most: int, salt: int) -> Part:
    slots, starts, turns = range(most), Cycle(), Cycle()
    for number, of in path:
        active = min(of, len(slots))  # at the same time
        starts = starts.within(number % active, active)
        turns = turns.within(number // active, -(-of // active))
        slots = slots[(number + salt) % of :: of] if active == of else slots[number % active :][:1]
    return Part(slots, starts, turns)


@lru_cache(1 << 14)
def slot_name(host: str, slot: int) -> str:
    """Four characters that stand for it; for another one as well in one of 16 million cases, which does no harm."""
    return base64.urlsafe_b64encode(
        zlib.crc32(f"{host} {slot}".encode("utf-8", "replace")).to_bytes(4, "big")[:3]
    ).decode()


ALONE = Share()
