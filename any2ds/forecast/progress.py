"""What a person sees while an estimate is made: one line at a time, redrawn on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from any2ds.core import text
from any2ds.core.terminal.stderr import stderr_console
from any2ds.run.reporters._contract import Facts, Reporter


class Steps:
    """Shows what is done now, unless it is `quiet`. Without a terminal each step is one line when it begins."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._console = stderr_console()
        self._status = self._console.status("")

    @contextmanager
    def step(self, message: str) -> Iterator[None]:
        if self._quiet:
            yield
        elif not self._console.can_redraw:
            self._console.print(message)
            yield
        else:
            self._status.update(message)
            with self._status:
                yield

    def show(self, message: str) -> None:
        """How far the step is."""
        if not self._quiet and self._console.can_redraw:
            self._status.update(message)

    def read(self, rows: int, share: float | None) -> None:
        self.show(f"reading the list: {text.rows(rows)}{f', {share:.0%}' if share else ''}")


class SampleProgress(Reporter):
    """Tells how far the sample is."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def report(self, event: str, facts: Facts) -> None:
        if event == "progress":
            left = f", {text.time_left(facts['eta'])}" if facts["eta"] else ""
            of = text.rows(facts["total_rows"] or facts["rows"])
            self._steps.show(f"fetching the sample: {facts['rows']:,} of {of}{left}")
