"""The charts of the report, as SVG: colours and letters are those of the page, in light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from markupsafe import Markup

from any2ds.core import text
from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import Distribution
from any2ds.describe.timeline import Spell

if TYPE_CHECKING:
    from any2ds.describe.summary import Summary

_SIZES = {"wide": (560, 240), "narrow": (360, 240)}  # of a chart, for screens and for phones
_FULL = (1170, 240)  # of one that has a row of the page for itself
_LETTER = 6.3  # average width of a letter in a chart
_MOST_SERIES = 6
_LEAST_SECONDS, _LEAST_SHARDS = 30, 4  # of a run that charts over time can say something about


@dataclass(frozen=True, slots=True)
class _Series:
    name: str
    colour: str
    values: Sequence[tuple[float, str]]  # and the text of each


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of the page, that can be drawn in any size."""

    title: str
    summary: str  # what it shows, for those who do not see it
    kind: Literal["lines", "bars", "stacks"]  # of bars those of a tick stand side by side
    series: Sequence[_Series]
    ticks: Sequence[str]
    x_title: str
    y_title: str

    @property
    def is_drawn(self) -> bool:
        """Not if there is a single column, which says no more than the summary."""
        return len(self.ticks) > 1

    @property
    def legend(self) -> Sequence[tuple[str, str]]:
        """The class of each colour, and what has it."""
        is_needed = self.is_drawn and len(self.series) > 1
        return [(one.colour, one.name) for one in self.series] if is_needed else []

    def pictures(self, is_alone: bool) -> Iterator[tuple[str, Markup]]:
        """The same in several sizes: class, and SVG. One that `is_alone` has a row of the page for itself."""
        sizes = {**_SIZES, "full": _FULL} if is_alone else _SIZES
        for name, (width, height) in sizes.items() if self.is_drawn else ():
            yield name, self._draw(width, height)

    def _draw(self, width: int, height: int) -> Markup:
        """Whatever strangers wrote is text in it."""
        values = [[value for value, _ in one.values] for one in self.series]
        tops = [sum(column) if self.kind == "stacks" else max(column) for column in zip(*values, strict=True)]
        steps = _round_steps(max(tops), self.kind == "bars")
        labels = [text.axis_label(step) for step in steps]
        left, right = 32 + 7.0 * max(map(len, labels)), width - 4.0
        area = _Area(left, right, 8.0, height - 38.0, len(self.ticks), steps[-1], on_edges=self.kind == "lines")
        parts = []
        for step, label in zip(steps, labels, strict=True):
            parts.append(_path("guide", f"{left:.1f} {area.y(step):.1f}H{right:.1f}"))
            parts.append(_text("y", left - 5, area.y(step) + 4, label))
        parts += [_text("x", x, area.bottom + 16, label) for x, label in self._tick_labels(area, width)]
        parts.append(_text("title", (left + right) / 2, height - 5, self.x_title))
        parts.append(_text("title turned", -(area.top + area.bottom) / 2, 12, self.y_title))
        marks = {"lines": self._lines, "bars": self._bars, "stacks": self._stacks}[self.kind](area)
        for one, its in zip(self.series, marks, strict=True):
            parts.append(Markup('<g class="of-{}">{}</g>').format(one.colour, Markup("").join(its)))
        label = f"{self.title}: {self.summary}"
        return _SVG.format(width, height, label, Markup("").join(parts))

    def _tick_labels(self, area: _Area, width: int) -> Iterator[tuple[float, str]]:
        """The labels that there is room for, and the middle of each."""
        room = _LETTER * max(map(len, self.ticks)) + 8
        distance = area.x(1.5) - area.x(0.5)
        every = next((n for n in (1, 2, 5, 10, 20) if n * distance >= room), 50)
        for n in range(0, len(self.ticks), every):
            yield min(area.x(n + 0.5), width - _LETTER * len(self.ticks[n]) / 2), self.ticks[n]

    def _lines(self, area: _Area) -> Iterator[list[Markup]]:
        """Each with the area under it."""
        for one in self.series:
            points = [(area.x(n + 0.5), area.y(value)) for n, (value, _) in enumerate(one.values)]
            way = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            under = _path("line", f"{points[0][0]:.1f} {area.bottom:.1f}L{way}V{area.bottom:.1f}")
            labels = (label for _, label in one.values)
            yield [under, *(_DOT.format(x, y, label) for (x, y), label in zip(points, labels, strict=True))]

    def _bars(self, area: _Area) -> Iterator[list[Markup]]:
        share = 0.8 / len(self.series)
        for number, one in enumerate(self.series):
            start = 0.1 + number * share
            yield [area.bar(n + start, share, 0.0, value, label) for n, (value, label) in enumerate(one.values)]

    def _stacks(self, area: _Area) -> Iterator[list[Markup]]:
        below = [0.0] * len(self.ticks)
        for one in self.series:
            yield [area.bar(n + 0.1, 0.8, below[n], value, label) for n, (value, label) in enumerate(one.values)]
            below = [start + value for start, (value, _) in zip(below, one.values, strict=True)]


@dataclass(frozen=True, slots=True)
class _Area:
    """Where the marks of a chart stand, in its own units."""

    left: float
    right: float
    top: float
    bottom: float
    columns: int
    highest: float  # value
    on_edges: bool  # the middles of the first and the last column are near the edges

    def x(self, column: float) -> float:
        """The middle of the first column is at 0.5."""
        if self.on_edges:
            margin, steps = 9.0, max(1, self.columns - 1)
            return self.left + margin + (self.right - self.left - 2 * margin) * (column - 0.5) / steps
        return self.left + (self.right - self.left) * column / self.columns

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * value / self.highest

    def bar(self, column: float, width: float, below: float, value: float, label: str) -> Markup:
        left, top = self.x(column), self.y(below + value)
        return _BAR.format(left, top, self.x(column + width) - left, self.y(below) - top, label)


_SVG = Markup('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>')
# Browsers show the title of what the mouse is over.
_DOT = Markup('<circle class="dot" cx="{:.1f}" cy="{:.1f}" r="2"><title>{}</title></circle>')
_BAR = Markup('<rect class="bar" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>')


def _text(kind: str, x: float, y: float, content: str) -> Markup:
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}</text>').format(kind, x, y, content)


def _path(kind: str, way: str) -> Markup:
    return Markup('<path class="{}" d="M{}"/>').format(kind, way)


def over_time(figures: Summary) -> list[Chart]:
    """Throughput and outcomes; none of a short run, or if it is unknown when shards were made."""
    spells = figures.timeline.spells
    if figures.timeline.seconds < _LEAST_SECONDS or figures.coverage.shards_of_stats < _LEAST_SHARDS:
        return []
    unit, axis = _unit_of_time(figures.timeline.seconds)
    ticks = [text.number(round(spell.start / unit, 2)) for spell in spells]
    when = [_span(text.duration, spell.start, spell.start + spell.seconds) for spell in spells]
    scale = _scale(figures)

    def rate(of: Callable[[Spell], float]) -> list[float]:
        return [scale * of(spell) / spell.seconds if spell.seconds else 0.0 for spell in spells]

    def series(name: str, colour: str, values: list[float], what: str) -> _Series:
        labels = [f"{w}: {text.number(value)} {what}" for value, w in zip(values, when, strict=True)]
        return _Series(name, colour, list(zip(values, labels, strict=True)))

    stored, done, sizes = rate(lambda s: s.successes), rate(lambda s: s.rows), rate(lambda s: s.bytes / 1e6)
    mean = text.number(stored_per_second(figures))
    summary = f"While shards were open, {mean} rows a second were stored, at most {text.number(max(stored))}."
    both = [series("all rows", "rows", done, "rows/s"), series("stored", SUCCESS, stored, "stored/s")]
    charts = [Chart("Rows per second", summary, "lines", both, ticks, axis, "rows / s")]
    if any(sizes):
        summary = f"Of the files stored: at most {text.number(max(sizes))} MB/s."
        of_bytes = [series("stored", "bytes", sizes, "MB/s")]
        charts.append(Chart("Megabytes per second", summary, "lines", of_bytes, ticks, axis, "MB / s"))
    if len(figures.outcomes) > 1:
        charts.append(_outcomes(figures, spells, ticks, when, axis))
    return charts


def stored_per_second(figures: Summary) -> float:
    """Rows, on average, while shards were open."""
    return _scale(figures) * figures.successes / max(1e-3, figures.timeline.seconds)


def _scale(figures: Summary) -> float:
    """All rows, per row of the shards that were read."""
    read = figures.coverage.rows_of_stats
    return figures.rows / read if figures.rows and read else 1.0


def _outcomes(figures: Summary, spells: Sequence[Spell], ticks: Sequence[str], when: Sequence[str], axis: str) -> Chart:
    ordered = sorted(figures.outcomes, key=lambda code: (code != SUCCESS, code == "other", -figures.outcomes[code]))
    named = [code for code in ordered if code != "other"][:_MOST_SERIES]
    first = 0 if named[:1] == [SUCCESS] else 1  # the colour of success has no number
    colours = {code: f"failure-{number + first}" for number, code in enumerate(named)} | {SUCCESS: SUCCESS}
    counts = {code: [spell.outcomes.get(code, 0.0) for spell in spells] for code in named}
    rest = [spell.rows - sum(each) for spell, *each in zip(spells, *counts.values(), strict=True)]
    series = []
    for code, rows in {**counts, "others": rest}.items():
        shares = [max(0.0, 100 * n / spell.rows) if spell.rows else 0.0 for n, spell in zip(rows, spells, strict=True)]
        if code != "others" or max(shares) >= 1e-6:
            labels = [f"{w}: {share:.1f}% {code}" for share, w in zip(shares, when, strict=True)]
            series.append(_Series(code, colours.get(code, "others"), list(zip(shares, labels, strict=True))))
    total = sum(figures.outcomes.values())
    shown = ", ".join(f"{text.percent(figures.outcomes[code], total)} {code}" for code in named)
    summary = f"Over the whole time: {shown}."
    return Chart("Outcomes over time", summary, "stacks", series, ticks, axis, "% of rows")


def magnitudes(figures: Summary) -> list[Chart]:
    """Sizes of files and pictures, durations; those that there are."""
    sides = {"width": ("rows", figures.widths), "height": (SUCCESS, figures.heights)}
    charts = [
        _histogram("Size of files, files, size", {"files": ("bytes", figures.sizes)}, text.size),
        _histogram("Width and height, pictures, pixels", sides, lambda pixels: text.number(math.ceil(pixels))),
        _histogram("Duration, files, duration", {"files": ("bytes", figures.durations)}, text.duration),
    ]
    return [chart for chart in charts if chart is not None]


def latencies(figures: Summary) -> list[Chart]:
    """Of transfers; none if they are unknown."""
    found = Distribution(sum(count for *_, count in figures.latency_ranges), ranges=figures.latency_ranges)
    points = ", ".join(f"{name} {text.duration(value)}" for name, value in figures.latencies.items())
    of_transfers = {"transfers": ("rows", found)}
    if found.count == 1:
        summary = f"The one transfer that succeeded took {text.duration(figures.latencies['p50'])}"
    else:
        summary = f"Of {text.number(found.count)} transfers that succeeded, from start to last byte: {points}"
    if (failed := figures.attempts - found.count) > 0:
        summary += f"; {text.number(failed)} that failed {'is' if failed == 1 else 'are'} not counted"
    chart = _histogram("Time per successful transfer, transfers, time", of_transfers, _latency, summary)
    return [chart] if chart is not None else []


def _latency(seconds: float) -> str:
    return f"{1000 * seconds:g} ms" if seconds < 1 else f"{seconds:g} s" if seconds < 60 else text.duration(seconds)


def _histogram(
    names: str, found: Mapping[str, tuple[str, Distribution]], shown: Callable[[float], str], summary: str = ""
) -> Chart | None:
    """Of magnitudes whose ranges have the same ratio, and so the same ends where they overlap.

    `names` are those of the chart, of what is counted and of the axis; `found` has a colour and values by name.
    """
    title, what, axis = names.split(", ")
    there = {name: (colour, values) for name, (colour, values) in found.items() if values.count}
    if not there:
        return None
    ranges = sorted({(start, stop) for _, values in there.values() for start, stop, _ in values.ranges})
    series, summaries = [], []
    for name, (colour, values) in there.items():
        prefix = f"{name}, " if len(there) > 1 else ""
        counts = {start: count for start, _, count in values.ranges}
        bars = [(counts.get(start, 0), start, stop) for start, stop in ranges]
        labels = [f"{prefix}{_span(shown, start, stop)}: {text.number(n)} {what}" for n, start, stop in bars]
        series.append(_Series(name, colour, [(bar[0], label) for bar, label in zip(bars, labels, strict=True)]))
        summaries.append(f"{prefix.replace(',', ':')}{_described(values, shown)}")
    summary = summary or "; ".join(summaries)
    ticks = [shown(start).replace(".0 ", " ") for start, _ in ranges]
    ticks = [tick if tick not in ticks[:number] else "" for number, tick in enumerate(ticks)]  # each once
    return Chart(title, f"{summary[:1].upper()}{summary[1:]}.", "bars", series, ticks, f"{axis}, from", what)


def _span(shown: Callable[[float], str], start: float, stop: float) -> str:
    """`1.5 s to 2 s`; only one of them where both are shown alike."""
    first, last = "0 s" if shown is text.duration and not start else shown(start), shown(stop)
    return first if first == last else f"{first} to {last}"


def _described(values: Distribution, shown: Callable[[float], str]) -> str:
    smallest, largest, median = shown(values.smallest), shown(values.largest), shown(values.median)
    if smallest == largest:
        return f"all are {smallest}" if values.count > 1 else smallest
    half = _span(shown, values.first_quartile, values.third_quartile)
    is_range = " to " in half
    described = "" if half == f"{smallest} to {largest}" else f", half of them {'from ' if is_range else ''}{half}"
    return f"from {smallest} to {largest}{described}, median {median}"


def _unit_of_time(seconds: float) -> tuple[float, str]:
    unit, name = next(
        ((u, n) for u, n in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")) if seconds > 2 * u),
        (1.0, "seconds"),
    )
    return unit, f"{name} at work"


def _round_steps(top: float, are_counts: bool) -> list[float]:
    """From 0 to `top` or beyond, in two to seven round numbers; of counts none is a fraction."""
    if top < 1e-99:  # there are no rounder numbers than 0
        return [0, 1]
    power = 10.0 ** math.floor(math.log10(top))
    step = next(power * part for part in (0.2, 0.5, 1.0, 2.0) if top <= 5.02 * power * part)
    step = max(1.0, step) if are_counts else step
    return [float(f"{step * number:.9g}") for number in range(math.ceil(top / step - 0.02) + 1)]
