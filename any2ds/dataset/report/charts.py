"""Charts as SVG, drawn by pygal and stripped down: colours and letters are those of the page, in light and dark.

pygal is pure Python and draws to a tree, which is changed here by a filter of its own: its style sheet and scripts go,
and what it would show when a script is told of the mouse becomes `<title>`, which browsers show by themselves.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pygal
from markupsafe import Markup
from pygal.style import Style

from any2ds.core import text
from any2ds.core.failures import SUCCESS
from any2ds.core.histogram import Distribution
from any2ds.dataset.timeline import Spell

if TYPE_CHECKING:
    from any2ds.dataset.figures import Figures

# For its plugins it puts a finder in front of everybody's imports, in an old way that Python warns of at each of them.
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != "pygal"]

_SIZES = {"wide": (560, 240), "narrow": (360, 240)}  # of a chart, for screens and for phones
_MOST_SERIES = 6
_STYLE = Style(
    label_font_size=11, major_label_font_size=11, title_font_size=12, value_font_size=11, no_data_font_size=14
)


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure of the page."""

    title: str
    summary: str  # what it shows, for those who do not see it
    legend: tuple[tuple[str, str], ...]  # class of the colour, and what has it
    pictures: tuple[tuple[str, Markup], ...]  # class, and SVG: the same in several sizes


@dataclass(frozen=True, slots=True)
class _Series:
    name: str
    colour: str
    values: Sequence[tuple[float, str]]  # and what is said of each


def over_time(figures: Figures) -> list[Chart]:
    """Throughput and outcomes; none where nothing tells when shards were made."""
    spells = figures.timeline.spells
    if not spells:
        return []
    unit, axis = _unit_of_time(figures.timeline.seconds)
    ticks = [text.number(round(spell.start / unit, 2)) for spell in spells]
    when = [
        f"{text.duration(spell.start) if spell.start else '0 s'} to {text.duration(spell.start + spell.seconds)}"
        for spell in spells
    ]
    looked, rows = figures.looked.rows_of_stats, figures.rows
    scale = rows / looked if rows and looked else 1.0  # of the shards that were not looked at

    def rate(of: Callable[[Spell], float]) -> list[float]:
        return [scale * of(spell) / spell.seconds if spell.seconds else 0.0 for spell in spells]

    stored, done, sizes = rate(lambda s: s.successes), rate(lambda s: s.rows), rate(lambda s: s.bytes / 1e6)
    kind = pygal.Line if len(spells) > 1 else pygal.Bar  # a line has two ends
    mean = scale * sum(spell.successes for spell in spells) / max(1e-9, figures.timeline.seconds)
    charts = [
        _chart(
            "Rows per second",
            f"On average {text.number(mean)} rows were stored per second, at most {text.number(max(stored))}.",
            kind,
            [
                _Series(
                    "all rows",
                    "rows",
                    [(v, f"{w}: {text.number(v)} rows/s") for v, w in zip(done, when, strict=True)],
                ),
                _Series(
                    "stored",
                    SUCCESS,
                    [(v, f"{w}: {text.number(v)} stored/s") for v, w in zip(stored, when, strict=True)],
                ),
            ],
            ticks,
            axis,
            "rows / s",
            fill=True,
        ),
        _chart(
            "Megabytes per second",
            f"Of the files stored: at most {text.number(max(sizes))} MB/s.",
            kind,
            [
                _Series(
                    "stored", "bytes", [(v, f"{w}: {text.number(v)} MB/s") for v, w in zip(sizes, when, strict=True)]
                )
            ],
            ticks,
            axis,
            "MB / s",
            fill=True,
        ),
    ]
    if not any(sizes):
        charts.pop()
    return [*charts, _outcomes(figures, spells, ticks, when, axis)]


def _outcomes(figures: Figures, spells: Sequence[Spell], ticks: Sequence[str], when: Sequence[str], axis: str) -> Chart:
    ordered = sorted(figures.outcomes, key=lambda code: (code != SUCCESS, code == "other", -figures.outcomes[code]))
    named = [code for code in ordered if code != "other"][:_MOST_SERIES]
    first = 0 if named[:1] == [SUCCESS] else 1  # the colour of success has no number
    series = []
    for number, code in enumerate([*named, "others"]):
        shares = [
            100
            * (
                spell.outcomes.get(code, 0.0)
                if code != "others"
                else spell.rows - sum(spell.outcomes.get(c, 0.0) for c in named)
            )
            / spell.rows
            if spell.rows
            else 0.0
            for spell in spells
        ]
        if code == "others" and max(shares) < 1e-6:
            continue
        colour = SUCCESS if code == SUCCESS else "others" if code == "others" else f"failure-{number + first}"
        reported = [(max(0.0, share), f"{w}: {share:.1f} % {code}") for share, w in zip(shares, when, strict=True)]
        series.append(_Series(code, colour, reported))
    shown = ", ".join(f"{text.percent(figures.outcomes[c], sum(figures.outcomes.values()))} {c}" for c in named)
    return _chart(
        "Outcomes over time",
        f"Over the whole time: {shown}.",
        pygal.StackedBar,
        series,
        ticks,
        axis,
        "% of rows",
    )


def magnitudes(figures: Figures) -> list[Chart]:
    """Sizes of files and pictures, durations, latencies; those that there are."""
    charts = [
        _histogram("Size of files", "files", [("files", "bytes", figures.sizes)], text.size, "size"),
        _histogram(
            "Width and height",
            "pictures",
            [("width", "rows", figures.widths), ("height", SUCCESS, figures.heights)],
            lambda pixels: text.number(math.ceil(pixels)),
            "pixels",
        ),
        _histogram("Duration", "files", [("files", "bytes", figures.durations)], text.duration, "duration"),
    ]
    return [chart for chart in charts if chart is not None]


def latencies(figures: Figures) -> Chart | None:
    """Of transfers."""
    if not figures.latency_ranges:
        return None
    count = sum(count for *_, count in figures.latency_ranges)
    found = Distribution(count, ranges=figures.latency_ranges)
    points = "From its start to its last byte: " + ", ".join(
        f"{name} {text.duration(value)}" for name, value in figures.latencies.items()
    )
    return _histogram(
        "Seconds per transfer", "transfers", [("transfers", "rows", found)], text.duration, "time", points
    )


def _histogram(
    title: str,
    what: str,
    found: Sequence[tuple[str, str, Distribution]],
    shown: Callable[[float], str],
    axis: str,
    summary: str = "",
) -> Chart | None:
    """Of magnitudes whose ranges have the same ratio, and so the same ends where they overlap."""
    there = [(name, colour, values) for name, colour, values in found if values.count]
    if not there:
        return None
    ranges = sorted({(start, stop) for _, _, values in there for start, stop, _ in values.ranges})
    series = []
    for name, colour, values in there:
        counts = {start: count for start, _, count in values.ranges}
        reported = [
            (counts.get(a, 0), f"{shown(a)} to {shown(b)}: {text.number(counts.get(a, 0))} {what}") for a, b in ranges
        ]
        series.append(
            _Series(name, colour, [(count, f"{name}, {said}" if len(there) > 1 else said) for count, said in reported])
        )
    if not summary:
        summary = "; ".join(
            (f"{name}: " if len(there) > 1 else "")
            + f"from {shown(values.smallest)} to {shown(values.largest)}, half of them from "
            f"{shown(values.first_quartile)} to {shown(values.third_quartile)}, median {shown(values.median)}"
            for name, _, values in there
        )
    return _chart(
        title,
        f"{summary[:1].upper()}{summary[1:]}.",
        pygal.Bar,
        series,
        [shown(a) for a, _ in ranges],
        f"{axis}, from",
        what,
    )


def _unit_of_time(seconds: float) -> tuple[float, str]:
    unit, name = next(
        ((u, n) for u, n in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")) if seconds > 2 * u),
        (1.0, "seconds"),
    )
    return unit, f"{name} at work"


def _chart(
    title: str,
    summary: str,
    kind: Any,
    series: Sequence[_Series],
    ticks: Sequence[str],
    x_title: str,
    y_title: str,
    **how: Any,
) -> Chart:
    pictures = tuple(
        (name, _drawn(f"{title}: {summary}", kind, series, ticks, x_title, y_title, width, height, how))
        for name, (width, height) in _SIZES.items()
    )
    legend = tuple((one.colour, one.name) for one in series) if len(series) > 1 else ()
    return Chart(title, summary, legend, pictures)


def _drawn(
    label: str,
    kind: Any,
    series: Sequence[_Series],
    ticks: Sequence[str],
    x_title: str,
    y_title: str,
    width: int,
    height: int,
    how: dict[str, Any],
) -> Markup:
    most = 10 if width > 500 else 5  # labels that there is room for
    chart = kind(
        width=width,
        height=height,
        style=_STYLE,
        js=[],
        show_legend=False,
        disable_xml_declaration=True,
        x_title=x_title,
        y_title=y_title,
        value_formatter=text.axis_label,
        x_labels_major_every=-(-len(ticks) // most),
        show_minor_x_labels=False,
        truncate_label=-1,
        show_dots=True,
        dots_size=2,
        margin=4,
        margin_left=18,  # else its title stands on the numbers of the axis
        include_x_axis=True,
        spacing=4,
        **how,
    )
    chart.x_labels = list(ticks)
    top = (
        max(map(sum, zip(*([value for value, _ in one.values] for one in series), strict=True)))
        if kind is pygal.StackedBar
        else max(value for one in series for value, _ in one.values)
    )
    chart.y_labels = _round_steps(top)
    for one in series:
        chart.add(one.name, [{"value": value, "label": said} for value, said in one.values])
    chart.add_xml_filter(lambda root: _stripped(root, label, [one.colour for one in series]))
    drawn: str = chart.render(is_unicode=True)
    return Markup(drawn)


def _round_steps(top: float) -> list[float]:
    """From 0 to `top` or beyond, in four to seven round numbers."""
    if top <= 0:
        return [0, 1]
    power = 10.0 ** math.floor(math.log10(top))
    step = next(power * part for part in (0.2, 0.25, 0.5, 1.0, 2.0) if top <= 5.02 * power * part)
    return [round(step * number, 9) for number in range(math.ceil(top / step - 0.02) + 1)]


_SVG = "{http://www.w3.org/2000/svg}"


def _stripped(root: Any, label: str, colours: Sequence[str]) -> Any:
    """Without style, scripts and names that other charts of the page have as well; with titles, and `colours`."""
    root.attrib.pop("id", None)
    root.set("role", "img")
    root.set("aria-label", label)
    for parent in list(root.iter()):
        title = next((child.text for child in parent if _name(child) == "desc" and child.get("class") == "label"), None)
        for child in list(parent):
            if _name(child) in ("defs", "desc", "script", "style", "", "title") or "tooltip-overlay" in child.get(
                "class", ""
            ):
                parent.remove(child)
        if title is not None:
            said = parent.makeelement(f"{_SVG}title" if parent.tag.startswith(_SVG) else "title", {})
            said.text = title
            parent.insert(0, said)
        for name in ("style", "id"):
            parent.attrib.pop(name, None)
        found = str(parent.get("class", "")).split()
        if "series" in found:
            number = next(int(part.removeprefix("serie-")) for part in found if part.startswith("serie-"))
            parent.set("class", f"series of-{colours[number]}")
    return root


def _name(element: Any) -> str:
    """Of its tag; nothing for a comment."""
    return str(element.tag).rpartition("}")[2] if isinstance(element.tag, str) else ""
