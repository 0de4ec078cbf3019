"""Places of tasks: whatever begins, ends and is lost, no two tasks have the same part of what a host allows."""

import random

import pytest

from any2ds.core.shares import SharePath
from any2ds.distributors._places import Places


class Machines:
    """Tasks that hear of their places late, and whose answers are late as well."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.places = Places()
        self.running: dict[int, SharePath | None] = {}  # task -> its place, as it knows it
        self.answers: list[tuple[int, SharePath]] = []
        self.next = 0

    def begin(self) -> None:
        self.running[self.next] = None
        self.places.ask(self.next)
        self.next += 1

    def end(self) -> None:
        task = self.rng.choice(list(self.running))
        del self.running[task]
        self.places.leave(task)

    def restart(self) -> None:
        """The machine of a task is lost, and another one begins it anew."""
        task = self.rng.choice(list(self.running))
        self.running[task] = None
        self.places.ask(task)

    def hear(self) -> None:
        task = self.rng.choice(list(self.running))
        if task in self.places.taken:
            self.running[task] = self.places.taken[task]
            self.answers.append((task, self.places.taken[task]))

    def answer(self) -> None:
        if self.answers:
            self.places.confirm(*self.answers.pop(0))

    @property
    def placed(self) -> list[SharePath]:
        return [place for place in self.running.values() if place is not None]


def size(place: SharePath) -> float:
    whole = 1.0
    for _, of in place:
        whole /= of
    return whole


@pytest.mark.parametrize("seed", range(20))
def test_places_of_tasks_that_run_have_nothing_in_common(seed: int) -> None:
    machines = Machines(seed)
    slots = 2
    for _ in range(2000):
        if machines.rng.random() < 0.02:
            slots += 1  # the cluster grows
        actions = [machines.begin] if len(machines.running) < slots + 1 else []
        actions += [machines.end, machines.restart, machines.hear, machines.hear, machines.hear] * bool(
            machines.running
        )
        machines.rng.choice([*actions, machines.answer, machines.answer])()
        machines.places.assign(slots)
        placed = machines.placed
        for number, place in enumerate(placed):
            others = placed[number + 1 :]
            assert not any(place[: len(other)] == other[: len(place)] for other in others), (place, others)
        assert sum(map(size, placed)) <= 1 + 1e-9
    for _ in range(10):  # where all hear and answer, all have a place in the end
        for task in machines.running:
            if (place := machines.places.taken.get(task)) is not None:
                machines.running[task] = place
                machines.places.confirm(task, place)
        machines.places.assign(slots)
    assert machines.running.keys() == machines.places.taken.keys()


def test_two_halves_that_are_free_are_one_place_again() -> None:
    places = Places()
    for task in range(4):
        places.ask(task)
        places.assign(2)
        for other, place in list(places.taken.items()):
            places.confirm(other, place)
        places.assign(2)
    assert places.taken == {0: ((0, 2), (0, 2)), 1: ((1, 2), (0, 2)), 2: ((0, 2), (1, 2)), 3: ((1, 2), (1, 2))}
    for task in (0, 2):
        places.leave(task)
    places.ask(4)
    places.assign(2)
    assert places.taken[4] == ((0, 2),)


def test_a_task_gives_half_of_its_place_to_one_that_is_too_many_once_it_has_answered() -> None:
    places = Places()
    for task in range(3):
        places.ask(task)
    assert places.assign(2)  # one more than the cluster says that it runs
    assert places.taken == {0: ((0, 3),), 1: ((1, 3),), 2: ((2, 3),)}
    assert not places.assign(2)
    places.ask(3)
    assert places.assign(2)
    assert places.taken == {0: ((0, 3), (0, 2)), 1: ((1, 3),), 2: ((2, 3),)}  # the first has to know
    assert not places.assign(2)
    assert not places.confirm(0, ((0, 3),))  # an answer to what was before
    assert not places.assign(2)
    assert places.confirm(0, ((0, 3), (0, 2)))
    assert places.assign(2)
    assert places.taken[3] == ((0, 3), (1, 2))


def test_a_task_that_is_begun_anew_has_the_same_place_and_one_that_ends_leaves_its() -> None:
    places = Places()
    for task in (0, 1):
        places.ask(task)
        places.assign(2)
    places.ask(0)
    assert not places.assign(2)
    assert places.taken == {0: ((0, 2),), 1: ((1, 2),)}
    places.leave(0)
    places.ask(2)
    assert places.assign(2)
    assert places.taken == {1: ((1, 2),), 2: ((0, 2),)}


def test_a_task_that_ends_before_it_has_given_half_away_leaves_all_of_it() -> None:
    places = Places()
    for task in (0, 1):
        places.ask(task)
        places.assign(2)
    places.ask(2)
    places.assign(2)
    assert places.taken[0] == ((0, 2), (0, 2))
    places.leave(0)
    assert places.assign(2)
    assert places.taken == {1: ((1, 2),), 2: ((0, 2),)}
