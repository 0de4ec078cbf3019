"""Figures as people read them."""

from __future__ import annotations

from rich.filesize import decimal

from any2ds.core.errors import printable, redacted


def size(count: float) -> str:
    """Of bytes: `12.3 MB`."""
    return decimal(int(count))


def rate(per_second: float) -> str:
    """`1,234`, and below ten `1.2`: a run that brings one file in two seconds is not one that stands still."""
    return f"{per_second:,.0f}" if per_second >= 9.95 or not per_second else f"{per_second:.1f}"


def percent(part: float, whole: float) -> str:
    """All is 100% only if it is all, and something is never nothing."""
    share = part / whole if whole else 0.0
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{min(share, 0.999) if part < whole else share:.1%}"


def clock(seconds: float) -> str:
    """`12.3 s`, `0:04:05`, `3 d 4:05:06`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days:,} d ' if days else ''}{hours}:{minutes:02d}:{rest:02d}"


def left(seconds: float) -> str:
    """How long it may take: nobody knows that to the second."""
    if seconds < 60:
        return f"{seconds:.0f} s left"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min left"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min left"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days:,} d {hours} h left"


def shortened(text: str, length: int, ellipsis: str = "...") -> str:
    """Foreign words on one line, without credentials and what a terminal would obey, their middle left out."""
    text = printable(redacted(text))
    if len(text) <= length:
        return text
    kept = max(2, length - len(ellipsis))
    return f"{text[: kept - kept // 2]}{ellipsis}{text[-(kept // 2) :]}"
