"""Counts in files that strangers may have written: whole, not negative, and small enough to be added up."""

from __future__ import annotations

from typing import Any

MOST = 2**53  # as JSON has them everywhere


def count(value: Any, name: str = "a count") -> int:
    """Raises ValueError, which names the value, if it cannot be how many there are of something."""
    if not _is_magnitude(value) or value != int(value):
        try:
            shown = repr(value)
        except (ValueError, RecursionError):
            shown = "a long value"
        raise ValueError(f"{name} is {shown if len(shown) <= 50 else f'{shown[:50]}…'}, which is no count")
    return int(value)


def positive(value: Any, name: str) -> float:
    """Raises ValueError, which names the value, if it is no number from 0 on."""
    if not _is_magnitude(value):
        raise ValueError(f"{name} is {str(value)[:50]!r}, which is no number from 0 on")
    return float(value)


def _is_magnitude(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST


def counts(value: Any, name: str) -> dict[str, int]:
    """A count for each name. Raises ValueError."""
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"{name} holds no counts")
    return {str(key): count(each, name) for key, each in (value or {}).items()}
