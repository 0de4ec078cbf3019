"""Everything any2ds raises, as one tree.

    Any2dsError
    ├── UsageError            what was asked for cannot be done; nothing was created (exit code 2)
    │   ├── OptionError       an unknown option, or a value that it cannot take
    │   ├── InputError        the url list is missing or empty
    │   │   └── MissingColumns    it lacks a column
    │   ├── OutputError       the output folder cannot be used
    │   └── MissingExtra      a library is not installed that this choice needs
    └── RunError              the run ended, but not with everything that was asked for (exit code 1)
        ├── ReadError         the url list broke off: malformed line, broken gzip, truncated parquet
        ├── NetworkDown       nothing answers any more, for longer than --outage_patience
        └── IncompleteRun     shards are missing; carries the report of what was done

What goes wrong with one row is not an exception but a `types.Failure`; what goes wrong with one
shard travels as a `types.ShardError`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from any2ds.types import RunReport


_NAMES_SHOWN = 20


_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s]*@")


def redacted(text: str) -> str:
    """`text` without the user names and passwords of the URLs in it."""
    return _CREDENTIALS.sub(r"\1", text) if "@" in text else text


def words_of(error: BaseException) -> str:
    """What an exception of another library says, on one line and without credentials; its name if it says nothing."""
    return redacted(" ".join(str(error).split())) or type(error).__name__


def printable(text: str) -> str:
    """`text` on one line, without what a terminal would obey: such characters as Python would write them."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class Any2dsError(Exception):
    """The root: `except Any2dsError` catches whatever any2ds raises on purpose."""

    exit_code = 1

    def __str__(self) -> str:
        return redacted(super().__str__())


class UsageError(Any2dsError):
    exit_code = 2


class OptionError(UsageError):
    pass


class InputError(UsageError):
    pass


class MissingColumns(InputError):
    """The columns `missing` are not among the `existing` ones; `source` names the url list and how it was read."""

    def __init__(self, missing: Sequence[str], existing: Sequence[str], source: str = "url list") -> None:
        super().__init__(missing, existing, source)
        self.missing, self.existing, self.source = tuple(missing), tuple(existing), source

    def __str__(self) -> str:
        absent = ", ".join(map(repr, self.missing))
        shown = ", ".join(printable(name[:100]) for name in self.existing[:_NAMES_SHOWN]) or "none"
        more = len(self.existing) - _NAMES_SHOWN
        return f"{redacted(self.source)}: no column {absent}; columns that exist: {shown}" + (
            f" … and {more:,} more" * (more > 0)
        )


class OutputError(UsageError):
    pass


class MissingExtra(UsageError):
    """`extra` is the name in `pip install any2ds[extra]` that brings the missing library."""

    def __init__(self, wanted: str, extra: str) -> None:
        super().__init__(f"{wanted} needs a library that is not installed: pip install 'any2ds[{extra}]'")
        self.extra = extra


class RunError(Any2dsError):
    pass


class NetworkDown(RunError):
    """Nothing answers any more. It ends the run: what is not finished would fail without reason."""


class ReadError(RunError):
    """A url list could be read only up to a point. `path` names the file, `where` the place in it."""

    def __init__(self, where: str, reason: str, path: str = "") -> None:
        super().__init__(path, where, reason)
        self.path, self.where, self.reason = path, where, reason

    def __str__(self) -> str:
        return f"{redacted(self.path) or 'url list'}: could be read only up to {self.where}: {self.reason}"


class IncompleteRun(RunError):
    def __init__(self, message: str, report: RunReport) -> None:
        super().__init__(message)
        self.report = report
