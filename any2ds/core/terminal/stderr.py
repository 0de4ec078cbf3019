"""The terminal as any2ds writes to it: on standard error, and never worth a failed run."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console, ConsoleDimensions

_LOG_WIDTH = 120  # columns of what is no terminal, such as the log of a CI


class StderrConsole(Console):
    """Goes quiet when nobody reads any more, where rich would end the process and redirect its standard output.

    In notebooks it writes plain text: rich would make an output of its own of every line.
    """

    def __init__(self, width: int | None = None) -> None:
        is_nameless = sys.platform != "win32" and not (os.environ.get("TERM") or os.environ.get("FORCE_COLOR"))
        super().__init__(
            stderr=True, force_jupyter=False, width=width, color_system=None if is_nameless else "auto", highlight=False
        )

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
        """Whether what was written can be written over: on a terminal, unless it can do nothing but write on.

        FORCE_COLOR asks for colours, in the log of a CI for instance, and makes no terminal of it.
        """
        known = sys.platform == "win32" or os.environ.get("TERM", "") not in ("", "dumb", "unknown")
        return known and is_terminal(self.file) and not self.legacy_windows

    @property
    def is_ascii(self) -> bool:
        """Whether anything but ASCII may be more than the terminal can show."""
        return not self.encoding.startswith("utf")


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):  # there is none, or it is closed
        return False
