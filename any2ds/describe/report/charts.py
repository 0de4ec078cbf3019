"""The charts of the report: columns of bars as SVG, in the colours and letters of the page, in light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from any2ds.core import text
from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import Distribution
from any2ds.describe.timeline import Spell

if TYPE_CHECKING:
    from any2ds.describe.summary import Summary

_WIDTH, _HEIGHT = 560, 230
_LEFT, _TOP, _BOTTOM = 64, 10, 190  # of the area with the bars
_LETTER = 6.5  # average width of a letter
_MOST_SERIES = 6  # with a colour of their own
_LEAST_SECONDS, _LEAST_SHARDS = 30, 4  # of a run that charts over time can say something about
_OTHERS = "others"


@dataclass(frozen=True, slots=True)
class Chart:
    """Columns of one or several bars, one on the other."""

    title: str
    summary: str  # what it shows, for readers who do not see it
    ticks: Sequence[str]  # of each column
    spans: Sequence[str]  # what each column stands for, as a bar's title says it
    series: Mapping[str, Sequence[float]]  # name -> value of each column
    unit: str  # of the values
    axis: str  # what the columns are

    @property
    def picture(self) -> Markup:
        """The chart as SVG, in which whatever strangers wrote is text; nothing of a single column."""
        if len(self.ticks) < 2:
            return Markup("")
        steps = _round_steps(max(map(sum, zip(*self.series.values(), strict=True))))
        scale, width = (_BOTTOM - _TOP) / steps[-1], (_WIDTH - _LEFT) / len(self.ticks)
        parts = [_text("title", (_LEFT + _WIDTH) / 2, _HEIGHT - 6, f"{self.axis} (bars: {self.unit})")]
        for step in steps:
            y = _BOTTOM - scale * step
            parts.append(_GUIDE.format(_LEFT, y, _WIDTH))
            parts.append(_text("y", _LEFT - 6, y + 4, text.axis_label(step)))
        every = math.ceil((_LETTER * max(map(len, self.ticks)) + 8) / width)  # as many labels as there is room for
        for column in range(0, len(self.ticks), every):
            half = _LETTER * len(self.ticks[column]) / 2
            x = min(_LEFT + width * (column + 0.5), _WIDTH - half)
            parts.append(_text("x", x, _BOTTOM + 16, self.ticks[column]))
        below = [0.0] * len(self.ticks)
        for number, (name, values) in enumerate(self.series.items()):
            label = f"{self.unit}, {name}" if len(self.series) > 1 else self.unit
            for column, value in enumerate(values):
                below[column] += value
                x, y = _LEFT + width * (column + 0.08), _BOTTOM - scale * below[column]
                title = f"{self.spans[column]}: {text.number(value)} {label}"
                parts.append(_BAR.format(self.colour(number), x, y, 0.84 * width, scale * value, title))
        return _SVG.format(_WIDTH, _HEIGHT, f"{self.title}: {self.summary}", Markup("").join(parts))

    @property
    def legend(self) -> Sequence[tuple[str, str]]:
        """The class of the colour and the name of each series, if there are several."""
        return [(self.colour(number), name) for number, name in enumerate(self.series) if len(self.series) > 1]

    def colour(self, number: int) -> str:
        """The class of a series."""
        if len(self.series) == 1:
            return "only"
        return "others" if list(self.series)[number] == _OTHERS else f"series-{number}"


_SVG = Markup('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
_GUIDE = Markup('<path class="guide" d="M{} {:.1f}H{}"/>')
# Browsers show the title of what the mouse is over.
_BAR = Markup('<rect class="bar of-{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>')


def _text(kind: str, x: float, y: float, content: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(kind, x, y, content)


def _round_steps(top: float) -> list[float]:
    """From 0 to `top` or beyond, in two to seven round numbers."""
    if top < 1e-99:  # there are no rounder numbers than 0
        return [0, 1]
    power = 10.0 ** math.floor(math.log10(top))
    step = next(power * part for part in (0.2, 0.5, 1.0, 2.0) if top <= 5.02 * power * part)
    return [float(f"{step * number:.9g}") for number in range(math.ceil(top / step - 0.02) + 1)]


def charts_of(summary: Summary) -> Iterator[Chart]:
    """The charts that there are figures for: over time (none of a short run), of transfers and of files."""
    if summary.timeline.seconds >= _LEAST_SECONDS and summary.coverage.shards_of_stats >= _LEAST_SHARDS:
        yield from _over_time(summary)
    if summary.latency_ranges:
        yield _latencies(summary)
    for title, values, shown, axis in (
        ("Size of files", summary.sizes, text.size, "size, from"),
        ("Width", summary.widths, _pixels, "pixels, from"),
        ("Height", summary.heights, _pixels, "pixels, from"),
        ("Duration", summary.durations, text.duration, "duration, from"),
    ):
        if values.count:
            yield _ranges(title, f"{_described(values, shown)}.", values.ranges, shown, "files", axis)


def stored_per_second(summary: Summary) -> float:
    """Rows, on average, while shards were open."""
    return _scale(summary) * summary.successes / max(1e-3, summary.timeline.seconds)


def _scale(summary: Summary) -> float:
    """All rows, per row of the shards that were read."""
    read = summary.coverage.rows_of_stats
    return summary.rows / read if summary.rows and read else 1.0


def _over_time(summary: Summary) -> Iterator[Chart]:
    """Rows by what became of them, and bytes."""
    spells, scale = summary.timeline.spells, _scale(summary)
    units = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
    unit, name = next(((u, n) for u, n in units if summary.timeline.seconds > 2 * u), (1.0, "seconds"))
    ticks = [text.number(round(spell.start / unit, 2)) for spell in spells]
    spans = [_span(text.duration, spell.start, spell.start + spell.seconds) for spell in spells]

    def rates(of: Callable[[Spell], float]) -> list[float]:
        return [scale * of(spell) / spell.seconds if spell.seconds else 0.0 for spell in spells]

    by_code = sorted(summary.outcomes, key=lambda code: (code != SUCCESS, code == "other", -summary.outcomes[code]))
    named = [code for code in by_code if code != "other"][:_MOST_SERIES]
    series = {code: rates(lambda spell, code=code: spell.outcomes.get(code, 0.0)) for code in named}  # type: ignore[misc]
    if len(by_code) > len(named):
        series[_OTHERS] = rates(lambda spell: sum(n for code, n in spell.outcomes.items() if code not in named))
    total = sum(summary.outcomes.values())
    shares = ", ".join(f"{text.percent(summary.outcomes[code], total)} {code}" for code in named)
    mean = text.number(stored_per_second(summary))
    what = f"While shards were open, {mean} rows a second were stored. Over the whole time: {shares}."
    yield Chart("Rows per second", what, ticks, spans, series, "rows/s", f"{name} at work")
    sizes = rates(lambda spell: spell.bytes / 1e6)
    if any(sizes):
        what = f"Of the files stored: at most {text.number(max(sizes))} MB/s."
        yield Chart("Megabytes per second", what, ticks, spans, {"stored": sizes}, "MB/s", f"{name} at work")


def _latencies(summary: Summary) -> Chart:
    count = sum(transfers for *_, transfers in summary.latency_ranges)
    points = ", ".join(f"{name} {text.duration(value)}" for name, value in summary.latencies.items())
    what = f"Of {text.number(count)} transfers that succeeded, from start to last byte: {points}"
    if (failed := summary.attempts - count) > 0:
        what += f"; failed ones ({text.number(failed)}) are not counted"
    ranges = summary.latency_ranges
    return _ranges("Time per successful transfer", f"{what}.", ranges, text.duration, "transfers", "time, from")


def _ranges(
    title: str,
    summary: str,
    ranges: Sequence[tuple[float, float, int]],
    shown: Callable[[float], str],
    unit: str,
    axis: str,
) -> Chart:
    """How many `unit` lie in each range of a magnitude, which `shown` writes."""
    ticks = [shown(start).replace(".0 ", " ") for start, *_ in ranges]
    spans = [_span(shown, start, stop) for start, stop, _ in ranges]
    return Chart(title, summary, ticks, spans, {unit: [count for *_, count in ranges]}, unit, axis)


def _span(shown: Callable[[float], str], start: float, stop: float) -> str:
    """`1.5 s to 2 s`; only one of them where both are shown alike."""
    first, last = shown(start), shown(stop)
    return first if first == last else f"{first} to {last}"


def _described(values: Distribution, shown: Callable[[float], str]) -> str:
    whole = _span(shown, values.smallest, values.largest)
    if " to " not in whole:
        return f"All are {whole}" if values.count > 1 else whole
    half = _span(shown, values.first_quartile, values.third_quartile)
    return f"From {whole}, median {shown(values.median)}, half of them {half}"


def _pixels(value: float) -> str:
    return text.number(math.ceil(value))
