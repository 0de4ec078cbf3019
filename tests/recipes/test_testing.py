"""`RecipeTestCase` finds what is wrong with a recipe: each of its checks fails for one that breaks it."""

import itertools
import unittest
from collections.abc import Iterator
from typing import Any

import pytest

import any2ds
from any2ds.testing import RecipeTestCase

COUNTER = itertools.count()


class Sound(any2ds.Recipe):
    """A recipe with which nothing is wrong."""

    text: Any = "a text"

    def info(self) -> any2ds.Info:
        return any2ds.Info({"text": any2ds.Text()})

    def splits(self, dl: Any) -> Any:
        return {"train": [("a", {"text": self.text})], "test": [("b", {"text": "another"})]}


class Nameless(Sound):
    pass


class Untagged(Sound):
    """A wrong tag."""

    def info(self) -> any2ds.Info:
        return any2ds.Info({"text": any2ds.Text()}, tags=["Flowers"])


class Unstable(Sound):
    """Says something else each time."""

    def info(self) -> any2ds.Info:
        return any2ds.Info({"text": any2ds.Text()}, license=f"license {next(COUNTER)}")


class Unpicklable(Sound):
    """Its config cannot be sent anywhere."""

    CONFIGS = (any2ds.RecipeConfig("small", make=lambda: None),)


class Numeric(Sound):
    """A value that its feature cannot take."""

    text = 7


class Overlapping(Sound):
    """The same key in both splits."""

    def splits(self, dl: Any) -> Any:
        return {"train": [("a", {"text": "x"})], "test": [("a", {"text": "y"})]}


class Leaking(Sound):
    """The same sample in both splits, under two keys."""

    def splits(self, dl: Any) -> Any:
        return {name: [(f"{name}/a", {"text": "x"})] for name in ("train", "test")}


class Empty(Sound):
    """No samples."""

    def splits(self, dl: Any) -> Any:
        return {"train": []}


class Counting(Sound):
    """Its keys are other ones each time."""

    def splits(self, dl: Any) -> Iterator[Any]:
        yield f"{next(COUNTER):06}", {"text": "x"}


class Changing(Sound):
    """Its samples are other ones each time."""

    def splits(self, dl: Any) -> Iterator[Any]:
        yield "a", {"text": str(next(COUNTER))}


class Downloading(Sound):
    """Downloads a text."""

    def splits(self, dl: Any) -> Iterator[Any]:
        yield "a", {"text": dl.download("https://example.org/a.txt").read_text()}


def problems(recipe: type[any2ds.Recipe], check: str, **attributes: Any) -> str:
    """What the tests of a recipe say of one check."""
    case = type("Tests", (RecipeTestCase,), {"RECIPE": recipe, "__module__": __name__, **attributes})
    result = unittest.TestResult()
    unittest.TestSuite([case(f"test_{check}")]).run(result)
    assert result.testsRun == 1
    return "".join(text for _, text in [*result.failures, *result.errors])


@pytest.mark.parametrize(
    ("recipe", "check", "message"),
    [
        (Nameless, "info", "the recipe has no description: write its docstring or README.md"),
        (Untagged, "info", "Info: invalid tag 'Flowers'"),
        (Unstable, "info", "info() says something else the second time"),
        (Unpicklable, "info", "the recipe cannot be pickled, as Spark, Ray and Beam send it: "),
        (Numeric, "splits", "split train: sample 'a': feature 'text' cannot be 7: expected a text"),
        (Overlapping, "splits", "the key 'a' comes twice: sample 0 of train and sample 0 of test"),
        (Leaking, "splits", "sample 'train/a' of train and sample 'test/a' of test are the same"),
        (Empty, "splits", "there are no samples"),
        (Counting, "determinism", "a second build has other samples"),
        (Changing, "determinism", "a second build has other samples"),
        (Changing, "formats", "the samples differ in parquet"),
        (Downloading, "splits", "https://example.org/a.txt: the test has no dummy data for it"),
    ],
)
def test_what_is_wrong_with_a_recipe_fails_its_test(recipe: type[any2ds.Recipe], check: str, message: str) -> None:
    assert message in problems(recipe, check)


def test_the_counts_of_splits_and_the_checksums_are_compared() -> None:
    assert "SPLITS says how many samples each split has" in problems(Sound, "splits", SPLITS={"train": 2, "test": 1})
    dummy = {"DUMMY_DATA": {"https://example.org/a.txt": "a.txt"}}
    assert "checksums.tsv lacks it: any2ds build --register_checksums adds it" in problems(
        Downloading, "checksums", **dummy
    )
    assert problems(Downloading, "checksums", CHECKS_CHECKSUMS=False, **dummy) == ""


def test_nothing_fails_for_a_recipe_that_keeps_its_promises() -> None:
    for check in ("info", "splits", "determinism", "formats", "checksums"):
        assert problems(Sound, check) == "", check
    assert problems(Leaking, "splits", OVERLAPPING_SPLITS=["test"]) == ""
