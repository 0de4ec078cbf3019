"""What a person sees while an estimate is made: one line at a time, redrawn on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from any2ds.core import text
from any2ds.core.metrics import Snapshot
from any2ds.core.terminal.stderr import stderr_console
from any2ds.run.reporters._contract import Reporter


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

    def on_progress(self, now: Snapshot) -> None:
        done, left = sum(now.outcomes.values()), f", {text.time_left(now.eta)}" if now.eta else ""
        self._steps.show(f"fetching the sample: {done:,} of {text.rows(now.total_rows or done)}{left}")
