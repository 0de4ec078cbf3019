"""Which part of the limits of hosts each running task of a cluster has, so that all of them together keep the limits.

A place is one of so many equal parts. A task asks for one when it begins, and has it until it is over, however often
its machine is lost. Where more tasks run than there are places, there get to be more: those that have one confirm the
new number before a new task gets one.
"""

from __future__ import annotations

SETTLING = 1.0  # seconds after which a task whose place got smaller has no more in flight than that allows


class Places:
    """Tasks, by number, and their places. Tasks that run have different places of the same number of places."""

    def __init__(self) -> None:
        self.of = 0  # how many there are
        self.taken: dict[int, int] = {}  # task -> its place, from 0
        self._known: dict[int, int] = {}  # task -> of how many places it surely knows
        self._waiting: dict[int, None] = {}  # tasks that have begun and have none, in this order

    def ask(self, task: int) -> None:
        """It has begun, for the first time or anew."""
        if task not in self.taken:
            self._waiting[task] = None

    def confirm(self, task: int, of: int) -> bool:
        """It knows of so many places now: whether its own has become smaller by that."""
        if task not in self.taken:
            return False
        is_smaller = self._known[task] < of
        self._known[task] = of
        return is_smaller

    def leave(self, task: int) -> None:
        """It is over."""
        self._waiting.pop(task, None)
        self.taken.pop(task, None)
        self._known.pop(task, None)

    def assign(self, slots: int) -> bool:
        """Give places to tasks that wait for one, on a cluster that runs `slots` tasks at a time: whether there is
        news for anybody."""
        if not self._waiting:
            return False
        wanted = max(slots, len(self.taken) + len(self._waiting))
        is_news = wanted > self.of or not self.taken
        if is_news:
            self.of = wanted
        if any(known != self.of for known in self._known.values()):
            return is_news
        free = iter(sorted(set(range(self.of)) - set(self.taken.values())))
        for task in self._waiting:
            self.taken[task] = next(free)
            self._known[task] = self.of
        self._waiting.clear()
        return True
