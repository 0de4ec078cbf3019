"""Shows results as tables in Markdown: on the screen, and on the pages after `<!-- benchmark NAME -->`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.case import Case, Column
from benchmarks.runner import Result
from benchmarks.servers import ROOT

RESULTS = ROOT / "benchmarks" / "results"
PAGES = (ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md")))
_PLACE = re.compile(r"(<!-- benchmark ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_UNITS = {"d": 86400.0, "h": 3600.0, "min": 60.0}


def seconds(value: float) -> str:
    if value < 120:
        return f"{value:.2f} s" if value < 1 else f"{value:.1f} s"
    return next(f"{value / unit:,.3g} {name}" for name, unit in _UNITS.items() if value >= 2 * unit)


FORMS: Mapping[str, Callable[[float], str]] = {
    "count": lambda value: f"{value:,.0f}",
    "seconds": seconds,
    "µs": lambda value: f"{value * 1e6:,.0f} µs",
    "ms": lambda value: f"{value * 1e3:.2f} ms",
    "MB": lambda value: f"{value / 1e6:,.0f} MB",
    "bytes": lambda value: f"{value / 1e6:,.0f} MB" if value < 1e9 else f"{value / 1e9:,.1f} GB",
    "money": lambda value: f"{value:,.2f}" if value < 100 else f"{value:,.0f}",
    "percent": lambda value: f"{value:.0%}",
    "ratio": lambda value: f"{value:.2f}",
    "power": lambda value: re.sub(r"e\+0*(\d+)", r"·10^\1", f"{value:.3g}"),
}


def page_of(case: Case, result: Result | None) -> str:
    """What a case is, the command that measures it, and the tables of its result."""
    if result is None:
        return f"{case.about}\n\nNot measured yet: `python -m benchmarks {case.name}`.\n"
    replaced = f", by `{result['by']}`, which this case replaces" if "by" in result else ""
    facts = (
        f"`{result['command']}`: {result['machine']['cores']} cores, {result['date']}, commit {result['commit']}"
        f"{replaced}; rounds: {result['rounds']}{', with short lists' * result['quick']}."
    )
    parts = [case.about, facts]
    for group in dict.fromkeys(side.get("group", "") for side in result["sides"]):
        sides = [side for side in result["sides"] if side.get("group", "") == group]
        if any(side["figures"] or "broken" in side or "missing" in side for side in sides):
            parts += [f"### {group}"] * bool(group)
            parts.append(table(case.columns, sides, result))
        if case.shows_commands:
            shown = "\n".join(side["shown"] for side in sides if "shown" in side)
            parts.append(f"```text\n{shown}\n```")
    if result["comparisons"]:
        parts.append(comparisons(result))
    return "\n\n".join(parts) + "\n"


def table(wanted: Sequence[Column], sides: list[Result], result: Result) -> str:
    columns = [each for each in wanted if any(each.figure in side["figures"] for side in sides)] or wanted
    against = next((side for side in sides if side["name"] == result["against"]), None)
    has_notes = any(side.get("note") for side in sides)
    titles = ["", *(column.title for column in columns)]
    titles += [f"time against {result['against']}"] * bool(against) + ["what it leaves out"] * has_notes
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for side in sides:
        cells = [side["name"], *(cell(side, column) for column in columns)]
        if side.get("missing") or side.get("broken"):
            cells[1] = side.get("missing") or side["broken"].splitlines()[-1][:200]
        if against:
            cells.append(ratio_to(side, against))
        if has_notes:
            cells.append(side.get("note", ""))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(side: Result, column: Column) -> str:
    found = side["figures"].get(column.figure)
    return FORMS[column.form](found["median"]) if found else ""


def ratio_to(side: Result, other: Result) -> str:
    """The median of the ratios within each round; given by the result where its rounds are not known."""
    if "against" in side["figures"]:
        found = side["figures"]["against"]
        return f"{found['median']:.2f} x ({found['low']:.2f} to {found['high']:.2f})"
    mine, theirs = (each["figures"].get("wall", {}).get("rounds", ()) for each in (side, other))
    ratios = sorted(own / base for own, base in zip(mine, theirs, strict=False))
    return f"{ratios[len(ratios) // 2]:.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else ""


def comparisons(result: Result) -> str:
    lines = ["| figure | of | by that of | median | from, to | goal | met |", "|---" * 7 + "|"]
    for each in result["comparisons"]:
        met = {None: "", True: "yes", False: "no"}[each["met"]]
        name, others = FIGURES.get(each["figure"], each["figure"]), " or ".join(each["others"])
        ratio = f"{each['median']:.2f} | {each['low']:.2f}, {each['high']:.2f}"
        lines.append(f"| {name} | {each['side']} | {others} | {ratio} | {each['goal']} | {met} |")
    return "\n".join(lines)


FIGURES = {"wall": "time", "cpu": "CPU", "cpu_each": "CPU each", "open_rate": "rate", "rate": "rate, start included"}


def put_into(page: str, cases: Mapping[str, Case], results: Path) -> str:
    """A page with the tables of the cases that it names."""

    def made(place: re.Match[str]) -> str:
        path = results / f"{place[2]}.json"
        result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        return f"{place[1]}\n{page_of(cases[place[2]], result)}\n{place[3]}"

    return _PLACE.sub(made, page)


def write_pages(cases: Mapping[str, Case], results: Path = RESULTS) -> list[str]:
    """Renew the tables of all pages; returns the names of those that have changed."""
    changed = []
    for path in PAGES:
        before = path.read_text(encoding="utf-8")
        if (after := put_into(before, cases, results)) != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path.name)
    return changed
