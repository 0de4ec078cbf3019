"""Classes of values: they behave as those of the standard library do."""

import dataclasses
import pickle
from dataclasses import field

import pytest

from any2ds.core import values


def both(**options: bool) -> list[type]:
    """The same class, made by the standard library and by ours."""

    def make(decorator: object) -> type:
        class Point:
            x: int
            y: list[int] = field(default_factory=list)
            note: str = field(default="", compare=False, repr=False)

        return decorator(**options)(Point)  # type: ignore[operator, no-any-return]

    return [make(dataclasses.dataclass), make(values.dataclass)]


@pytest.mark.parametrize("options", [{}, {"slots": True}, {"frozen": True, "slots": True}, {"kw_only": True}])
def test_values_are_shown_compared_and_copied_as_those_of_the_standard_library(options: dict[str, bool]) -> None:
    theirs, ours = both(**options)
    for kind in (theirs, ours):
        one = kind(x=1, note="a")
        assert repr(one).endswith("Point(x=1, y=[])")
        assert one == kind(x=1, note="b")
        assert one != kind(x=2)
        assert one != "Point"
        assert dataclasses.replace(one, x=3) == kind(x=3)
        assert dataclasses.asdict(one) == {"x": 1, "y": [], "note": "a"}
    assert ours(x=1) != theirs(x=1)


@values.dataclass(frozen=True, slots=True)
class Name:
    first: str
    last: str = ""


@values.dataclass(frozen=True, slots=True)
class Full(Name):
    middle: str = ""


def test_frozen_values_are_keys_and_the_others_are_not() -> None:
    assert {Name("a", "b"): 1}[Name("a", "b")] == 1
    with pytest.raises(TypeError):
        hash(both()[1](x=1))


def test_a_class_without_equality_is_compared_by_identity() -> None:
    kind = both(eq=False)[1]
    one, other = kind(x=1), kind(x=1)
    assert one != other
    assert len({one, other}) == 2


def test_what_a_class_defines_itself_stays() -> None:
    @values.dataclass(frozen=True)
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    assert (Own(1) == Own(2), hash(Own(1)), repr(Own(1))) == (True, 7, "own")


def test_fields_are_inherited_and_values_survive_pickling() -> None:
    one = Full("a", "b", "c")
    assert pickle.loads(pickle.dumps(one)) == one
    assert Full("a") != Name("a")
    assert not hasattr(one, "__dict__")
