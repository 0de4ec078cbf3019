"""One output of a notebook cell that is updated, without widgets."""

from __future__ import annotations

import importlib
import sys
from typing import Any


def kernel() -> Any:
    """The IPython shell if it runs in a notebook kernel; else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell if getattr(shell, "kernel", None) is not None else None


class Cell:
    """Plain text in the output of the running cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Replace what was shown before."""
        display: Any = importlib.import_module("IPython.display")  # installed if a kernel runs
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = display.DisplayHandle()
            self._handle.display(content, raw=True)
        else:
            self._handle.update(content, raw=True)
