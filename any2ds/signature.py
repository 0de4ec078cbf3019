"""Gives a function that takes options the signature and the text that they declare, for help() and for editors."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import MISSING
from typing import Any

from any2ds.config import declared


def document(function: Any, groups: Sequence[Any], returns: Any, *ending: str) -> None:
    """The first of the options may be given without its name; `ending` says what it returns and raises."""
    lines, group = [function.__doc__, ""], ""
    parameters: list[inspect.Parameter] = []
    for info in declared(groups):
        if info.group != group:
            group = info.group
            lines += [f"    {group}:"]
        lines += [f"        {info.name}: {info.help} (default: {info.shown})"]
        default = inspect.Parameter.empty if info.default is MISSING else info.default
        kind = inspect.Parameter.KEYWORD_ONLY if parameters else inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(info.name, kind, default=default))
    lines += ["        config: YAML or JSON file with any of these; what is given here wins", ""]
    lines += [f"    {line}" for line in ending]
    parameters.append(inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None))
    function.__doc__ = "\n".join(lines)
    function.__signature__ = inspect.Signature(parameters, return_annotation=returns)
