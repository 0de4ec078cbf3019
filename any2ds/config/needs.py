"""Judges which options have no effect without others. Each option declares that in its `needs`; here it is judged.
Pure.

`needs` is text, shown in the help as it is:

    unpack                        this option is given, and is not off
    output_format=parquet         it has this value, or contains it; `parquet|tfrecord`: one of these values
    frames, encode_format or x=y  one of these is enough; `audio_*`: any option whose name begins so
    file_size and x=y             both are needed
    not resize_mode=no            it does not have this value; `not x`: it is off
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from any2ds.config.declare import Option, declared

_OFF = (None, "no", "none", "keep")  # values that ask for nothing, so that nothing is missing for them


def without_effect(names: Collection[str], groups: Sequence[Any], is_set: Collection[str]) -> Iterator[tuple[str, str]]:
    """Each of the options `names` that has no effect, and why, as text.

    `groups` are the parsed options of a command, `is_set` the names of those that are not left to their defaults.
    """
    options = {each.name: each for each in declared(groups)}
    values = {each.name: getattr(group, each.name) for group in groups for each in declared([group])}
    for name in sorted(options.keys() & names):
        needs = _needs(options[name])
        if not needs or values[name] in _OFF:  # one without needs, such as url_list, may be no plain value
            continue
        for need in needs:
            other = need.removeprefix("not ")
            if other != need and values[name] and _is_met(other, values, is_set):
                shown = name if values[name] is True else f"{name}={values[name]}"
                yield name, f"{shown} has no effect with {other}: leave out one of them"
        unmet = [
            need
            for need in needs
            if not need.startswith("not ") and not any(_is_met(one, values, is_set) for one in _either(need))
        ]
        if unmet:
            hint = f"add {_flag(unmet[0], values)}" if len(_either(unmet[0])) == 1 else "add one of them"
            yield name, f"{name} has no effect without {' and '.join(unmet)}: {hint} or leave it out"


def option_names(needs: str) -> list[str]:
    """The names, and patterns of names, in the `needs` of an option."""
    return [one.partition("=")[0] for need in needs.split(" and ") for one in _either(need.removeprefix("not ")) if one]


def _needs(option: Option) -> list[str]:
    return option.needs.split(" and ") if option.needs else []


def _either(need: str) -> list[str]:
    return re.split(r", | or ", need)


def _is_met(one: str, values: Mapping[str, Any], is_set: Collection[str]) -> bool:
    name, equals, wanted = one.partition("=")
    if not equals:
        given = fnmatch.filter(values.keys() & is_set, name)
        return any(values[each] and values[each] not in _OFF for each in given)
    value = values.get(name)
    found = value if isinstance(value, tuple) else (value,)
    return any(str(each).removesuffix(".0") in wanted.split("|") for each in found)


def _flag(one: str, values: Mapping[str, Any]) -> str:
    """How `one` is given on the command line."""
    name, equals, wanted = one.partition("=")
    if equals:
        return f"--{name}={wanted.partition('|')[0]}"
    return f"--{name}" if isinstance(values.get(name), bool) else f"--{name}=..."
