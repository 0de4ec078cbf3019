"""Figures in words, as they stand on the page."""

from __future__ import annotations

import math
from datetime import datetime, timezone

from any2ds.core.failures import NO_FAILURES, failure_code, meaning_of


def number(value: float | None) -> str:
    """12,345, and 0.31 where it is small; — where it is not known."""
    if value is None:
        return "—"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def few_letters(value: float | None) -> str:
    """The same, but for what is too long to be read at a glance: 1.23 billion."""
    return number(value) if value is None or value < 1e9 else f"{value / 1e9:,.3g} billion"


def about(value: float) -> str:
    """Of an estimate, no more digits than can be right: 91.2 million."""
    for factor, name in ((1e9, " billion"), (1e6, " million")):
        if value >= factor:
            return f"{value / factor:,.3g}{name}"
    return number(float(f"{value:.3g}"))


def short(value: float) -> str:
    """For the axis of a chart: 12k, 3M."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def size(count: float | None) -> str:
    """1.5 MB, of a million bytes each."""
    if count is None:
        return "—"
    units = ["bytes", "kB", "MB", "GB", "TB", "PB"]
    while count >= 999.5 and len(units) > 1:
        count /= 1000
        del units[0]
    return f"{count:.0f} {units[0]}" if units[0] == "bytes" or count >= 100 else f"{count:.3g} {units[0]}"


def span(seconds: float) -> str:
    """80 ms, 1.2 s, 3:20 min, 5:03 h, 2 d 03 h."""
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours_left = divmod(hours, 24)
    if days:
        return f"{days} d {hours_left:02d} h"
    return f"{hours}:{minutes:02d} h" if hours else f"{minutes}:{rest:02d} min"


def percent(part: float, whole: float) -> str:
    """Never 0 % of what there is, nor 100 % where something is missing."""
    if not whole:
        return "—"
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1 %"
    if 99.9 < share < 100:
        return "> 99.9 %"
    return f"{share:.1f} %" if share % 100 else f"{share:.0f} %"


def moment(seconds: float) -> str:
    """In universal time, since colleagues are elsewhere."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"


def meaning(code: str) -> str:
    """One sentence; nothing for the words of other tools."""
    return "what is rarer than these" if code == "other" else meaning_of(code)


def advice(code: str) -> str:
    """What to do about it, where there is something."""
    try:
        return "" if code in NO_FAILURES else failure_code(code).advice
    except KeyError:
        return ""


def pixels(value: float) -> str:
    return f"{math.ceil(value):,}"
