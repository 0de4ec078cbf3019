"""The options that were given to a command, as text: made once by `options.parse_options`, and kept in the run file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Number
from typing import Any, Literal

from any2ds.core.errors import redacted

Source = Literal["call", "config", "preset"]
"""Where a value stood: in the words of a command or the keywords of a function, or in their config file. A preset has
made it where it is none of its defaults and was not given under this name."""

Given = Mapping[str, tuple[str, str]]
"""Option, under the name that was written -> its text, as a command line takes it, and its Source."""

SECRET = "..."
"""The text of an option whose value may be a credential."""

_MOST_SHOWN, _LONGEST = 100, 10_000  # values of a list, and characters of their text
_LISTS = "url_list"  # whose values are not recorded: there may be millions


def as_given(values: Mapping[str, Any], source: Source, secret: Collection[str]) -> Given:
    """The options with their text, without credentials; `secret` names those that may be some."""
    texts = {name: _count(value) if name == _LISTS else text_of(value) for name, value in values.items()}
    return {name: (SECRET if name in secret else redacted(text), source) for name, text in texts.items()}


def text_of(value: Any) -> str:
    """A value as a command line takes it; of a function its name, and of what has no text its type."""
    if isinstance(value, float):
        return f"{value:.15g}"
    if value is None or isinstance(value, (str, Number)) or hasattr(value, "__fspath__"):
        return str(value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{_text_of_part(part)}" for name, part in value.items())
    if isinstance(value, (list, tuple)) and len(value) > _MOST_SHOWN:
        return _count(value)
    if isinstance(value, (list, tuple)) and not any(isinstance(part, (Mapping, bytes)) for part in value):
        text = ",".join(map(text_of, value))
        return text if len(text) <= _LONGEST else _count(value)
    has_name = hasattr(value, "__qualname__") and hasattr(value, "__module__")
    return f"{value.__module__}:{value.__qualname__}" if has_name else type(value).__name__


def _count(value: Any) -> str:
    """How many values a list or tuple has; anything else as `text_of` has it."""
    return f"{len(value):,} values" if isinstance(value, (list, tuple)) else text_of(value)


def _text_of_part(part: Any) -> str:
    """A value of a mapping: the options of a member, or a column and its kind of hash."""
    if isinstance(part, Mapping):
        return ",".join(f"{name}={text_of(value)}" for name, value in part.items())
    return ":".join(map(str, part)) if isinstance(part, (list, tuple)) else str(part)
