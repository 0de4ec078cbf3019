"""Which part of the limits of hosts each running task of a cluster has, so that all of them together keep the limits.

A task asks for a place when it begins, and has it until it is over, however often its machine is lost. Where more tasks
run than there are places, a task gives half of its own to a new one: it confirms that it knows of it first.
"""

from __future__ import annotations

from any2ds.core.shares import SharePath

# Seconds after which a task whose place got smaller has no more in flight than that allows: what is more is given
# `fetch.policy.turns.PATIENCE` seconds to end.
SETTLING = 7.0


class Places:
    """Tasks, by number, and their places, which have nothing in common."""

    def __init__(self) -> None:
        self.taken: dict[int, SharePath] = {}
        self._known: dict[int, SharePath] = {}  # task -> the place that it surely knows
        self._halves: dict[int, SharePath] = {}  # task -> what it is going to give away
        self._free: list[SharePath] = []
        self._waiting: dict[int, None] = {}  # tasks that have begun and have none, in this order

    def ask(self, task: int) -> None:
        """It has begun, for the first time or anew."""
        if task not in self.taken:
            self._waiting[task] = None

    def confirm(self, task: int, place: SharePath) -> bool:
        """It knows of this place now: whether its own has become smaller by that."""
        if task not in self.taken or len(place) <= len(self._known[task]):
            return False
        self._known[task] = place
        if place == self.taken[task] and task in self._halves:
            self._free.append(self._halves.pop(task))
        return True

    def leave(self, task: int) -> None:
        """It is over."""
        self._waiting.pop(task, None)
        if (place := self.taken.pop(task, None)) is not None:
            del self._known[task]
            place = place[:-1] if self._halves.pop(task, None) else place
            while len(place) > 1 and (other := (*place[:-1], (1 - place[-1][0], 2))) in self._free:
                self._free.remove(other)  # both halves of a place are free
                place = place[:-1]
            self._free.append(place)

    def assign(self, slots: int) -> bool:
        """Give places to tasks that wait for one, on a cluster that runs `slots` tasks at a time: whether there is
        news for anybody."""
        if not self._waiting:
            return False
        if not self.taken:
            of = max(slots, len(self._waiting))
            self._free = [((number, of),) for number in range(of)]
        self._free.sort(key=len)
        given = list(zip(self._waiting, self._free, strict=False))
        del self._free[: len(given)]
        for task, place in given:
            self.taken[task] = self._known[task] = place
            del self._waiting[task]
        halved = sorted(self.taken.keys() - self._halves.keys(), key=lambda task: len(self.taken[task]))
        halved = halved[: max(0, len(self._waiting) - len(self._halves))]
        for task in halved:
            place = self.taken[task]
            self.taken[task], self._halves[task] = (*place, (0, 2)), (*place, (1, 2))
        return bool(given or halved)
