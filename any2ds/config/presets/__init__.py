"""Presets: what the options of another tool mean here, and which defaults it has."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from any2ds.core import plugins
from any2ds.core.errors import OptionError


@dataclass(frozen=True, slots=True)
class Foreign:
    """An option that any2ds does not have under this name."""

    help: str
    shown: str  # its default, as text
    is_flag: bool = False  # True or False, so that `--name` and `--noname` work


class Preset(Protocol):
    """The options of another tool, selected by `--preset`; a module `any2ds/config/presets/<name>.py` has one in
    PART."""

    options: Mapping[str, Foreign]  # by their names: those that any2ds does not have
    renamed: Mapping[str, str]  # those of them that any2ds has under another name -> that name
    tolerated: frozenset[str]  # any2ds' names of options that the other tool accepts where they have no effect
    defaults: Mapping[str, Any]  # of any2ds' own options, where they differ from what these are otherwise
    deciding: Sequence[str]  # our names of options by which it sets others
    ignores_columns_of_txt: bool  # asked for of a txt list, which has none; otherwise they are refused
    figures: Mapping[str, str]  # what the stats of a shard say as well -> what any2ds calls it
    cuts_by_file: bool  # each file of the list begins a new shard

    def columns(self, of_list: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
        """Columns of the metadata in sight, in order: `of_list` are those that come with the rows, `own`
        those that any2ds writes behind them."""
        ...

    def own(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Our options for what was given, with the defaults of the preset.

        Raises OptionError for what cannot be had here.
        """
        ...


def applied(given: Mapping[str, Any], own: Collection[str]) -> dict[str, Any]:
    """The options as they are without a preset, if one of them is `preset`. `own` are the names that any2ds has.

    Raises OptionError.
    """
    chosen = find(given.get("preset"))
    if chosen is not None:
        return chosen.own(given)
    others = [name for name in given if name not in own]
    if (name := next((name for name in others if name in foreign_options()), None)) is not None:
        preset = foreign_options()[name]
        ours = plugins.load("presets", preset).renamed.get(name)
        hint = f"did you mean {ours}? " if ours else ""
        raise OptionError(f"{name!r} is an option of {preset}: {hint}--preset={preset} takes it")
    return dict(given)


def find(preset: Any) -> Preset | None:
    """Raises OptionError for one that there is not."""
    if preset is None or preset in ("None", "none", "null"):
        return None
    if not (isinstance(preset, str) and plugins.exists("presets", preset)):
        raise OptionError(f"invalid preset={preset!r}: expected one of {', '.join(plugins.names('presets'))}")
    part: Preset = plugins.load("presets", str(preset))
    return part


def set_by(preset: str | None) -> Mapping[str, str]:
    """The options that a preset has defaults of its own for -> how it is given."""
    part = find(preset)
    return dict.fromkeys(part.defaults, f"--preset={preset}") if part else {}


def all_presets() -> dict[str, Preset]:
    """Each preset by its name."""
    return {name: plugins.load("presets", name) for name in plugins.names("presets")}


def foreign_options() -> Mapping[str, str]:
    """The names that only other tools have -> the preset of which each is; the first one that has it."""
    return {option: name for name, part in reversed(all_presets().items()) for option in part.options}


def foreign_flags() -> frozenset[str]:
    """Names of options of presets that are True or False."""
    return frozenset(name for part in all_presets().values() for name, option in part.options.items() if option.is_flag)
