"""The share of a host's limits that one of several fetchers keeps to, so that all of them together keep the limits.

Nobody coordinates them: each knows how many there are and which one it is, and all have about the same time of day.

- Transfers at once are divided: of 64, each of 8 fetchers has 8.
- Where there are more fetchers than transfers, fetchers take turns of a few seconds, by the clock.
- Starts that must be some seconds apart have places on a grid of time, and each fetcher has every so many-th of them.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

TURN = 5.0  # seconds that a host is one fetcher's, where there are more of them than transfers
GUARD = 1.0  # seconds at the end of a turn in which nothing is begun: what is in flight ends, and clocks differ
_LATE = (0.02, 0.1)  # seconds, and part of the delay, by which a start may miss its place on the grid


@dataclass(frozen=True, slots=True)
class Cycle:
    """Every `length`-th of things that are numbered, from `number` on."""

    number: int = 0
    length: int = 1

    def within(self, number: int, length: int) -> Cycle:
        """Of the things in this cycle again every `length`-th."""
        return Cycle(self.number + self.length * number, self.length * length)

    def first(self, least: int) -> int:
        """The first of them that is not before `least`."""
        return least + (self.number - least) % self.length


@dataclass(frozen=True, slots=True)
class HostShare:
    """What a fetcher may do with one host. Times are seconds of the day's clock (`time.time()`)."""

    most: int  # transfers at once, in its turn
    starts: Cycle = Cycle()  # its places on the grid, where starts must be some time apart
    turns: Cycle = Cycle()
    salt: int = 0  # so that hosts differ in who comes first

    @property
    def has_turns(self) -> bool:
        return self.turns.length > 1

    def next_start(self, now: float, delay: float) -> float:
        """The first time from `now` on at which a transfer may start: `now` itself, or the beginning of a later place.

        `delay` is the time that all fetchers leave between two starts, in seconds.
        """
        if not delay:
            return self._next_turn(now) if self.has_turns else now
        if self.starts.length == self.turns.length == 1:
            return now
        late = max(_LATE[0], _LATE[1] * delay)
        width = delay + late
        place = math.floor(now / width)
        if now - place * width > late:
            place += 1
        found = self._first_place(place, width)
        return now if found == place and found * width <= now else found * width

    def interval(self, delay: float) -> float:
        """Seconds after a start in which there is no other place."""
        return self.starts.length * delay

    def _first_place(self, place: int, width: float) -> int:
        """The first of its places on the grid, not before `place`."""
        places = self.starts.length * max(1, math.ceil(TURN / width / self.starts.length))  # of one turn
        while True:
            place = self.starts.first(place + self.salt) - self.salt
            turn = (place + self.salt) // places
            if (mine := self.turns.first(turn)) == turn:
                return place
            place = mine * places - self.salt

    def _next_turn(self, now: float) -> float:
        turn = math.floor(now / TURN)
        if now - turn * TURN > TURN - GUARD:
            turn += 1
        mine = self.turns.first(turn + self.salt) - self.salt
        return max(now, mine * TURN)


@dataclass(frozen=True, slots=True)
class Share:
    """Which of several fetchers one is: `parts` are (number from 0, of how many), from machines to processes."""

    parts: tuple[tuple[int, int], ...] = ()

    @property
    def fetchers(self) -> int:
        """How many fetchers there are."""
        return math.prod(of for _, of in self.parts)

    def of_host(self, name: str, max_per_host: int) -> HostShare:
        """Its share of a host that allows `max_per_host` transfers at once."""
        salt, most = zlib.crc32(name.encode("utf-8", "replace")), max_per_host
        starts = turns = Cycle()
        for number, of in self.parts:
            active = min(of, most)  # at the same time
            starts = starts.within(number % active, active)
            turns = turns.within(number // active, -(-of // active))
            rest = most % of if active == of else 0
            most = most // active + ((number + salt) % of < rest)
        return HostShare(most, starts, turns, salt)


ALONE = Share()
