"""Handles a sample that cannot be read, decoded or transformed: an error, or it is left out and counted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from any2ds.core.errors import UsageError, error_text

log = logging.getLogger(__name__)

OnError = str | Callable[[Exception], Any]
"""`raise`, `skip`, or a function of the error that returns a sample in its place, or None to leave it out."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands for a sample whose error is to be raised when it is its turn."""

    error: Exception


def check(on_error: Any) -> None:
    """Raises UsageError."""
    if on_error not in ("raise", "skip") and not callable(on_error):
        raise UsageError(f"invalid on_error={on_error!r}: expected 'raise', 'skip' or a function of the error")


class LeftOut:
    """Counts what one process leaves out."""

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self.count = 0
        self._first = ""

    def instead(self, error: Exception) -> Any:
        """The value in the place of a sample; None: nothing. Raises UsageError: a library is not installed."""
        if isinstance(error, UsageError):
            raise error
        if callable(self._on_error) and (found := self._on_error(error)) is not None:
            return found
        self.count += 1
        self._first = self._first or error_text(error)
        return None

    def passing(self, samples: Iterable[Any]) -> Iterator[Any]:
        """The samples that are there; at the end the log says what was left out."""
        before = self.count
        for sample in samples:
            if sample is not None:
                yield sample
        if (count := self.count - before) > 0:
            log.warning("%s of the samples left out, the first of all: %s", f"{count:,}", self._first)
