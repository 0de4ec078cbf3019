"""Functions of the package: from options by name to parsed ones, with the signature and the text that these declare."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, Protocol, TypeVar, cast

from any2ds.config.declare import declared
from any2ds.config.options import ParsedOptions, parse_options

T = TypeVar("T")
R = TypeVar("R", covariant=True)


class Command(Protocol[R]):
    """A public function; `run` does the same with options that are parsed."""

    run: Callable[[ParsedOptions], Any]

    def __call__(self, *values: Any, **options: Any) -> R: ...


def command(
    groups: Sequence[Any],
    *ending: str,
    positional: Sequence[str] = ("output_folder",),
    completed: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> Callable[[Callable[[ParsedOptions], T]], Command[T]]:
    """Makes a function of parsed options public: with the options of `groups` as keywords, of which the `positional`
    ones may be given by position. `ending` is the end of its docstring: what it returns and raises. `completed` adds
    options that the command finds elsewhere."""

    def public(run: Callable[[ParsedOptions], T]) -> Command[T]:
        @functools.wraps(run)
        def call(*values: Any, **options: Any) -> T:
            named = dict(zip(positional, values, strict=False))
            if len(values) > len(positional) or options.keys() & named:
                raise TypeError(f"{run.__name__}() takes at most {', '.join(positional)} by position, and each once")
            given = {**named, **options}
            if given.get(positional[0], MISSING) is None:
                del given[positional[0]]
            return run(parse_options(completed(given), groups))

        found = cast(Any, call)
        found.run = run
        found.__doc__ = _documentation(run.__doc__, groups, ending)
        found.__signature__ = _signature(groups, positional, inspect.signature(run).return_annotation)
        return cast("Command[T]", found)

    return public


def _documentation(summary: str | None, groups: Sequence[Any], ending: Sequence[str]) -> str:
    lines, group = [inspect.cleandoc(summary or ""), ""], ""  # Python 3.13 has done that already
    for info in declared(groups):
        if info.group != group:
            group = info.group
            lines += [f"{group}:"]
        lines += [f"    {info.name}: {info.help} (default: {info.shown})"]
    lines += ["    config: YAML or JSON file with any of these; what is given here wins", ""]
    return "\n".join([*lines, *ending])


def _signature(groups: Sequence[Any], positional: Sequence[str], returns: Any) -> inspect.Signature:
    kind = inspect.Parameter
    parameters = {
        info.name: kind(
            info.name,
            kind.POSITIONAL_OR_KEYWORD if info.name in positional else kind.KEYWORD_ONLY,
            default=kind.empty if info.default is MISSING else info.default,
        )
        for info in declared(groups)
    }
    parameters["config"] = kind("config", kind.KEYWORD_ONLY, default=None)
    names = [*positional, *(name for name in parameters if name not in positional)]
    return inspect.Signature([parameters[name] for name in names], return_annotation=returns)
