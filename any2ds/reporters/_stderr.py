"""The terminal as any2ds writes to it: on standard error, and never worth a failed run."""

from __future__ import annotations

from rich.console import Console


class StderrConsole(Console):
    """Goes quiet when nobody reads any more, where rich would end the process and redirect its standard output."""

    def __init__(self) -> None:
        super().__init__(stderr=True)

    def on_broken_pipe(self) -> None:
        self.quiet = True
