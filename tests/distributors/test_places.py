"""Places of tasks: whatever begins, ends and is lost, no two tasks have the same part of what a host allows."""

import random

import pytest

from any2ds.distributors._places import Places


class Machines:
    """Tasks that hear of their places late, and whose answers are late as well."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.places = Places()
        self.running: dict[int, tuple[int, int] | None] = {}  # task -> its place and of how many, as it knows it
        self.answers: list[tuple[int, int]] = []
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
            self.running[task] = self.places.taken[task], self.places.of
            self.answers.append((task, self.places.of))

    def answer(self) -> None:
        if self.answers:
            self.places.confirm(*self.answers.pop(0))

    @property
    def placed(self) -> list[tuple[int, int]]:
        return [place for place in self.running.values() if place is not None]


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_all_tasks_that_run_are_never_more_than_the_whole(seed: int) -> None:
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
        assert sum(1 / of for _, of in machines.placed) <= 1 + 1e-9
        newest = [number for number, of in machines.placed if of == machines.places.of]
        assert len(set(newest)) == len(newest)


def test_all_that_run_get_a_place_once_they_have_answered() -> None:
    places = Places()
    for task in range(3):
        places.ask(task)
    assert places.assign(2)  # one more than the cluster says that it runs
    assert (places.of, sorted(places.taken.values())) == (3, [0, 1, 2])
    assert not places.assign(2)
    places.ask(3)
    assert places.assign(2)
    assert (places.of, set(places.taken)) == (4, {0, 1, 2})  # these have to know first
    for task in range(3):
        places.confirm(task, 4)
    assert places.assign(2)
    assert sorted(places.taken.values()) == [0, 1, 2, 3]


def test_a_task_that_is_begun_anew_has_the_same_place_and_one_that_ends_leaves_its() -> None:
    places = Places()
    for task in (0, 1):
        places.ask(task)
        places.assign(2)
    places.ask(0)
    assert not places.assign(2)
    assert places.taken == {0: 0, 1: 1}
    places.leave(0)
    places.ask(2)
    assert places.assign(2)
    assert places.taken == {1: 1, 2: 0}
