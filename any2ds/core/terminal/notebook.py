"""An output of a notebook's cell that changes while something goes on: no flood of lines, and no widgets."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def kernel() -> Any:
    """IPython's shell, if it belongs to a notebook's kernel; else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell if getattr(shell, "kernel", None) is not None else None


class Cell:
    """Plain text in the output of the cell that is being run."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Put `text` in the place of what was shown before."""
        display: Any = importlib.import_module("IPython.display")  # there if a kernel is

        content = {"text/plain": text}
        if self._handle is None:
            self._handle = display.DisplayHandle()
            self._handle.display(content, raw=True)
        else:
            self._handle.update(content, raw=True)
