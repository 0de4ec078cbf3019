"""Declares options: all that is known of one stands in its declaration, as a field of a group.

A group is a dataclass, and its options are its fields that were made by `option`; other fields are constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

from any2ds.core import suggestions
from any2ds.core.errors import OptionError, UsageError

Parser = Callable[[Any], Any]
"""Turns what a person gave (text from the command line, any value from Python or YAML) into the option's type.

Raises ValueError with a message that says what it takes."""

_MOST_SHOWN = 300  # characters of a value in a message
_LONGEST_MESSAGE = 1000  # characters; messages that quote a value and list what is possible


@dataclass(frozen=True, slots=True)
class Option:
    """All that is known of an option. The value of one whose parser is `secret` is in no message, report or record."""

    summary: str
    parse: Parser
    default: Any  # MISSING where it has to be given
    wording: str | None = None  # of the default, where that is no plain value; of an option without one an example
    needs: str = ""  # the options without which it has no effect, and is refused (see `needs.py`)
    off: Any = None  # the value that asks for no step of media; None does so always
    may_change: bool = False  # of options that decide what a dataset holds: whether a run that goes on may have another
    # For a fetch option `host`, if it may differ by host; for a media option `run`, if it may not differ by URL column,
    # or `splits`, if it makes several samples of a file.
    scope: Literal["", "run", "host", "splits"] = ""
    task: str = ""  # its heading in the short help; empty: the full help alone has it
    hints: str = ""  # its names in other tools, separated by blanks; whoever gives one is told ours
    name: str = ""
    group: str = ""  # the title of its group
    type: str = ""  # as the field is annotated

    @property
    def help(self) -> str:
        """The summary, and the options that it needs or excludes."""
        if not self.needs:
            return self.summary
        excluded = self.needs.removeprefix("not ")
        return f"{self.summary} ({f'needs {self.needs}' if excluded == self.needs else f'not with {excluded}'})"

    @property
    def shown(self) -> str:
        """The default as the command line takes it, or in words."""
        if self.default is MISSING:
            return "required"
        if self.wording:
            return self.wording
        if isinstance(self.default, float):
            return f"{self.default:g}"
        return ",".join(map(str, self.default)) if isinstance(self.default, tuple) else str(self.default)

    @property
    def is_flag(self) -> bool:
        """Whether it is True or False, so that `--name` and `--noname` work."""
        return self.type == "bool"

    @property
    def is_secret(self) -> bool:
        return getattr(self.parse, "is_secret", False)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that it takes, if they can be listed; several may be separated by commas."""
        found: Callable[[], tuple[str, ...]] = getattr(self.parse, "choices", tuple)
        return found()

    @property
    def accepts(self) -> str:
        """The types that it takes besides its own, as Python writes them; empty if there are none."""
        return str(getattr(self.parse, "accepts", ""))

    def value_of(self, given: Any) -> Any:
        """The value. Raises OptionError that names the option and says what is expected."""
        try:
            return self.parse(given)
        except UsageError as error:
            if len(str(error)) <= _LONGEST_MESSAGE:
                raise
            message, part = str(error), _LONGEST_MESSAGE // 2
            raise OptionError(f"{message[:part]} … {message[-part:]}") from None
        except RecursionError:
            raise OptionError(f"invalid {self.name}: it is nested too deep") from None
        except ValueError as error:
            shown = self.name if self.is_secret else f"{self.name}={_brief(given)}"
            raise OptionError(f"invalid {shown}: expected {error}") from None


def option(summary: str, parse: Parser, default: Any = MISSING, wording: str | None = None, **more: Any) -> Any:
    """A field of a group that is an option; `more` are further attributes of `Option`."""
    made = Option(summary, parse, default, wording, **more)
    return field(default=default, repr=not made.is_secret, metadata={"option": made})


def declared(groups: Sequence[Any]) -> Iterator[Option]:
    """Every option of these groups, or of objects of them, in order."""
    for group in groups:
        yield from _declared(group if isinstance(group, type) else type(group))


@cache
def _declared(group: type) -> tuple[Option, ...]:
    return tuple(
        replace(each.metadata["option"], name=each.name, group=group.__doc__, type=str(each.type))
        for each in fields(group)
        if each.metadata
    )


def names_of(groups: Sequence[Any]) -> frozenset[str]:
    """The names of the options of these groups."""
    return frozenset(each.name for each in declared(groups))


def parse_nested(
    place: str, given: Any, options: Mapping[str, Option], is_allowed: Callable[[Option], bool], every: str
) -> dict[str, Any]:
    """The options `given` for one host or member, parsed; `every` names them all. Raises OptionError that begins with
    `place`."""
    allowed = {name: each.hints for name, each in options.items() if is_allowed(each)}
    for name in given:
        if name not in allowed:
            what = f"is for all {every} alike" if name in options else "is no option here"
            hint = suggestions.for_name(str(name), allowed) or f"it may be one of {', '.join(allowed)}"
            raise OptionError(f"{place}: {name!r} {what}: {hint}")
    try:
        return {name: options[name].value_of(value) for name, value in given.items()}
    except OptionError as error:
        raise OptionError(f"{place}: {error}") from None


def _brief(value: Any) -> str:
    """As Python writes it, and its start where it is long."""
    try:
        written = repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits, a list of lists of lists
        written = f"<a {type(value).__name__} that is too long to be shown>"
    return written if len(written) <= _MOST_SHOWN else f"{written[:_MOST_SHOWN]}…"
