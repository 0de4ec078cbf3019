"""Paths to values in nested columns, as options name them: `image.url`, `captions[0]`, and `images[].url`, which makes
a row of each image. `formats/_paths.py` finds the values.

A column whose name is the text of a path is that column.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

EACH = "[]"
NUMBER = "[#]"
"""Behind the list whose elements are rows: the number of the element, from 0."""

_STEP = re.compile(r"\.([^.\[\]]+)|\[([0-9]+)\]")
_PATH = re.compile(r"([^.\[\]]+)((?:" + _STEP.pattern + r")*)")

Step = str | int
"""The key of an object, or the place in a list, from 0."""


class Path(NamedTuple):
    """The place of a value in a row; or in each element of a list, where `element` is not None."""

    root: str  # name of the column
    steps: tuple[Step, ...]  # to the value, or to the list
    element: tuple[Step, ...] | None = None  # from an element of the list to the value

    @property
    def is_nested(self) -> bool:
        return bool(self.steps) or self.element is not None


@lru_cache
def path_of(text: str) -> Path:
    """The path that a text stands for. A text that is none is the name of a column."""
    before, each, behind = text.partition(EACH)
    if (parsed := _PATH.fullmatch(before)) is None or (each and not re.fullmatch(rf"(?:{_STEP.pattern})*", behind)):
        return Path(text, ())
    return Path(parsed[1], _steps(parsed[2]), _steps(behind) if each else None)


def list_of(text: str) -> str | None:
    """The path of the list whose elements are rows, `images` in `images[].url`; None if the text names none."""
    return text.partition(EACH)[0] if path_of(text).element is not None else None


def _steps(text: str) -> tuple[Step, ...]:
    return tuple(key or int(place) for key, place in _STEP.findall(text))
