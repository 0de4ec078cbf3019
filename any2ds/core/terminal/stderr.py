"""The console that any2ds writes to: standard error. A failed write never fails a run."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from any2ds.core.errors import printable

_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:[kMGT]?B|bytes?|m?s|min|h|d|stored/s|attempts/s)\b)")
_LOG_WIDTH = 120  # columns where there is no terminal, such as the log of a CI
_NARROWEST = 40


class StderrConsole(Console):
    """Becomes quiet when its reader is gone, where rich would end the process.

    In notebooks it writes plain text, where rich would display every line as an output of its own.
    """

    def __init__(self, width: int | None = None) -> None:
        has_no_type = sys.platform != "win32" and not (os.environ.get("TERM") or os.environ.get("FORCE_COLOR"))
        super().__init__(
            stderr=True,
            force_jupyter=False,
            width=width,
            color_system=None if has_no_type else "auto",
            highlight=False,
            markup=False,
            emoji=False,
        )

    def print(self, *objects: Any, **options: Any) -> None:
        """Plain lines are not wrapped: some are to be copied."""
        options.setdefault("soft_wrap", all(isinstance(each, (str, Text)) for each in objects))
        super().print(*objects, **options)

    def print_message(self, message: str, style: str = "") -> None:
        """On a terminal the message is wrapped at its words."""
        shown = wrapped(message, self.width) if self.is_terminal else message
        self.print(Text(shown, style=style))

    def show_cursor(self, show: bool = True) -> bool:
        """A cursor that is hidden stays so if the process is killed."""
        return False

    def on_broken_pipe(self) -> None:
        self.quiet = True

    @property
    def size(self) -> ConsoleDimensions:
        found = super().size
        if self._width is None and not is_terminal(self.file) and not os.environ.get("COLUMNS", "").isdigit():
            return ConsoleDimensions(_LOG_WIDTH, found.height)
        return found

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size

    @property
    def can_redraw(self) -> bool:
        """Whether written lines can be overwritten. FORCE_COLOR, in a CI for instance, makes no terminal of a log."""
        known = sys.platform == "win32" or os.environ.get("TERM", "") not in ("", "dumb", "unknown")
        return known and self.is_terminal and is_terminal(self.file) and not self.legacy_windows

    @property
    def is_ascii(self) -> bool:
        """Whether the terminal may show nothing but ASCII."""
        return not self.encoding.startswith("utf")


@functools.cache
def stderr_console() -> StderrConsole:
    """The one of this process: what is printed with it appears above a status block."""
    return StderrConsole()


def wrapped(text: str, width: int) -> str:
    """In lines of no more than `width` columns. A longer word stays whole, so that it can be copied, and so does a
    number with its unit."""
    return textwrap.fill(joined(text), width, break_long_words=False, break_on_hyphens=False).replace("\xa0", " ")


def joined(text: str) -> str:
    """With spaces between numbers and their units that do not break."""
    return _BEFORE_UNIT.sub("\xa0", text)


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        return False


def facts_table(facts: Iterable[tuple[str, str]]) -> Any:
    """A table of names and what is said of each, for `write_parts`."""
    from rich.table import Table  # which a run does not need

    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, message in facts:
        table.add_row(f"  {name}", Text(joined(printable(message))))
    return table


def write_parts(parts: Iterable[Any], stream: TextIO) -> None:
    """Write what rich prints, one below the other, for a terminal or as plain text; without blanks at the ends of
    lines."""
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = width_of_pipe()
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    stream.writelines(f"{line.rstrip()}\n" for line in captured.get().replace("\xa0", " ").split("\n")[:-1])


def width_of_pipe() -> int:
    """COLUMNS, or the width of the terminal on which standard error is, as in `any2ds inspect dataset | head`."""
    columns = os.environ.get("COLUMNS", "")
    known = int(columns) if columns.isdecimal() else 0
    with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed, or no terminal
        known = known or os.get_terminal_size(sys.__stderr__.fileno()).columns  # type: ignore[union-attr]
    return max(known, _NARROWEST) if known else _LOG_WIDTH
