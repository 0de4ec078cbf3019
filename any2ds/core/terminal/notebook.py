"""Output of notebooks: one output of a cell that is updated, without widgets, and results as HTML."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.text import Text

WIDTH = 100  # columns
_PAGE = '<pre style="font-family: monospace; line-height: 1.3; overflow-x: auto; white-space: pre">{code}</pre>'


def kernel() -> Any:
    """The IPython shell if it runs in a notebook kernel; else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell if getattr(shell, "kernel", None) is not None else None


def html(parts: Iterable[Any], width: int = WIDTH) -> str:
    """HTML that rich makes of `parts`, a line each or several; texts are escaped, and not wrapped."""
    console = Console(
        file=io.StringIO(),
        record=True,
        width=width,
        force_terminal=True,
        force_jupyter=False,
        color_system="standard",
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, (str, Text)))
    return console.export_html(code_format=_PAGE, inline_styles=True)


class Cell:
    """Lines in the output of the running cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, lines: Iterable[Text]) -> None:
        """Replace what was shown before."""
        display: Any = importlib.import_module("IPython.display")  # installed if a kernel runs
        texts = list(lines)
        content = {"text/plain": "\n".join(text.plain.rstrip() for text in texts), "text/html": html(texts)}
        if self._handle is None:
            self._handle = display.DisplayHandle()
            self._handle.display(content, raw=True)
        else:
            self._handle.update(content, raw=True)
