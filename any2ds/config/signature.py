"""Gives a function that takes options the signature and the text that they declare, for help() and for editors."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import MISSING
from typing import Any

from any2ds.config.options import declared


def document(function: Any, groups: Sequence[Any], returns: Any, *ending: str) -> None:
    """The named parameters of `function` are options that may be given by position; `ending` says what it returns and
    raises."""
    lines, group = [function.__doc__, ""], ""
    parameters: dict[str, inspect.Parameter] = {}
    kinds = {name: p.kind for name, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD}
    for info in declared(groups):
        if info.group != group:
            group = info.group
            lines += [f"    {group}:"]
        lines += [f"        {info.name}: {info.help} (default: {info.shown})"]
        default = inspect.Parameter.empty if info.default is MISSING else info.default
        kind = kinds.get(info.name, inspect.Parameter.KEYWORD_ONLY)
        parameters[info.name] = inspect.Parameter(info.name, kind, default=default)
    lines += ["        config: YAML or JSON file with any of these; what is given here wins", ""]
    lines += [f"    {line}" for line in ending]
    parameters["config"] = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None)
    ordered = [*kinds, *(name for name in parameters if name not in kinds)]
    function.__doc__ = "\n".join(lines)
    function.__signature__ = inspect.Signature([parameters[name] for name in ordered], return_annotation=returns)
