"""Numbers, sizes, shares and times as people read them."""

from __future__ import annotations

from datetime import datetime, timezone

from rich.filesize import decimal

_UNKNOWN = "—"


def number(value: float | None) -> str:
    """`12,345`, with three digits where it is small: `0.31`."""
    if value is None:
        return _UNKNOWN
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def rows(count: int) -> str:
    """`1 row`, `1,200 rows`."""
    return f"{count:,} row" if count == 1 else f"{count:,} rows"


def estimate(value: float) -> str:
    """With the three digits that can be right: `91.2 million`."""
    for factor, name in ((1e9, " billion"), (1e6, " million")):
        if value >= factor:
            return f"{value / factor:,.3g}{name}"
    return number(float(f"{value:.3g}"))


def axis_label(value: float) -> str:
    """`12k`, `3M`."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def size(count: float | None) -> str:
    """A number of bytes in words: `12.3 MB`, of a million bytes each."""
    return _UNKNOWN if count is None else decimal(int(count))


def percent(part: float, whole: float) -> str:
    """100.0% only if it is all, and never 0.0% of something."""
    if not whole:
        return _UNKNOWN
    share = part / whole
    if 0 < share < 0.001:
        return "<0.1%"
    return ">99.9%" if 0.999 < share < 1 else f"{share:.1%}"


def duration(seconds: float) -> str:
    """`180 ms`, `12.3 s`, `0:04:05`, `3 d 4:05:06`."""
    if 0 < seconds < 0.9995:
        return f"{max(1, round(1000 * seconds))} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days:,} d ' if days else ''}{hours}:{minutes:02d}:{rest:02d}"


def time_left(seconds: float) -> str:
    """`5 s left`, `2 min left`, `1 h 5 min left`, `2 d 8 h left`: an estimate has no seconds."""
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


def moment(seconds: float) -> str:
    """A moment in Unix seconds, in universal time, since colleagues are elsewhere."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"
