"""Presets: what the options of another tool mean here, and which defaults it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from any2ds import registry
from any2ds.errors import OptionError


@dataclass(frozen=True, slots=True)
class Foreign:
    """An option that any2ds does not have under this name."""

    help: str
    shown: str  # its default in words
    is_flag: bool = False  # True or False, so that `--name` and `--noname` work


class Recipe(Protocol):
    """What `--preset` selects; a module `any2ds/recipes/<name>.py` has one in PART."""

    options: Mapping[str, Foreign]  # by their names: those that any2ds does not have
    renamed: Mapping[str, str]  # those of them that any2ds has under another name -> that name
    tolerated: frozenset[str]  # any2ds' names of options that the other tool accepts where they have no effect
    defaults: Mapping[str, Any]  # of any2ds' own options, where they differ from what these are otherwise
    ignores_columns_of_txt: bool  # asked for of a txt list, which has none; otherwise they are refused
    figures: Mapping[str, str]  # what the stats of a shard say as well -> what any2ds calls it
    cuts_by_file: bool  # each file of the list begins a new shard

    def columns(self, of_list: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
        """Of the columns of the metadata those in sight, in order: `of_list` are those that come with the rows, `own`
        those that any2ds writes behind them."""
        ...

    def own(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What was given, in any2ds' own options, with the defaults of the preset.

        Raises OptionError for what cannot be had here.
        """
        ...


def applied(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as they are without a preset, if one of them is `preset`. Raises OptionError."""
    recipe = find(given.get("preset"))
    if recipe is not None:
        return recipe.own(given)
    if (name := next((name for name in given if name in foreign_options()), None)) is not None:
        preset = foreign_options()[name]
        raise OptionError(f"{name!r} is an option of {preset}: --preset={preset} takes it")
    return dict(given)


def find(preset: Any) -> Recipe | None:
    """Raises OptionError for one that there is not."""
    if preset is None or preset in ("None", "none", "null"):
        return None
    known = registry.names("recipes")
    if preset not in known:
        raise OptionError(f"preset={preset!r} cannot be: it takes one of {', '.join(known)}")
    recipe: Recipe = registry.load("recipes", str(preset))
    return recipe


def set_by(preset: str | None) -> Mapping[str, str]:
    """The options that a preset has defaults of its own for -> how it is given."""
    recipe = find(preset)
    return dict.fromkeys(recipe.defaults, f"--preset={preset}") if recipe else {}


def foreign_options() -> Mapping[str, str]:
    """The names that only other tools have -> the preset of which each is; the first one that has it."""
    found: dict[str, str] = {}
    for preset in registry.names("recipes"):
        recipe: Recipe = registry.load("recipes", preset)
        for name in recipe.options:
            found.setdefault(name, preset)
    return found


def foreign_flags() -> frozenset[str]:
    """Those that are True or False."""
    recipes: list[Recipe] = [registry.load("recipes", preset) for preset in registry.names("recipes")]
    return frozenset(name for recipe in recipes for name, option in recipe.options.items() if option.is_flag)
