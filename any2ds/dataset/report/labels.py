"""What the report says about outcome codes."""

from __future__ import annotations

from any2ds.core.failures import NO_FAILURES, failure_code, meaning_of


def meaning(code: str) -> str:
    """One sentence; empty for codes of other tools."""
    return "what is rarer than these" if code == "other" else meaning_of(code)


def advice(code: str) -> str:
    """What to do about it, if anything."""
    try:
        return "" if code in NO_FAILURES else failure_code(code).advice
    except KeyError:
        return ""
