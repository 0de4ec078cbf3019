"""The report as Markdown, for pull requests and for the summaries of pipelines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from any2ds.core.histogram import Distribution
from any2ds.core.text import duration, number, percent, size
from any2ds.dataset.figures import Figures
from any2ds.dataset.report import labels

_SHOWN = 15  # lines of a table
_OBEYED = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~&@:])")


def markdown(figures: Figures) -> str:
    return "\n".join(_lines(figures)) + "\n"


def text(written: str) -> str:
    """As text: nothing of it is markup, a link or somebody's name."""
    return _OBEYED.sub(r"\\\1", " ".join(written.split()))


def _lines(figures: Figures) -> Iterator[str]:
    looked = figures.looked
    yield f"# {text(figures.output_folder)}"
    yield ""
    about = "about " if figures.rows not in (None, looked.rows_of_stats) else ""
    yield from _table(
        ["", ""],
        [
            ("format", f"{text(figures.output_format or 'unknown')}, {number(figures.shards)} shards"),
            ("rows", number(figures.rows)),
            ("stored", f"{about}{percent(figures.successes, looked.rows_of_stats)} of the rows"),
            ("samples", number(figures.samples)),
            ("size of the files", size(figures.bytes)),
            ("time at work", duration(figures.timeline.seconds) if figures.timeline.spells else "—"),
        ],
    )
    if not figures.is_whole:
        yield (
            f"Outcomes and times are from {number(looked.shards_of_stats)} of the shards, types, sizes and "
            "hosts "
            f"from {number(looked.shards_of_metadata)}, chosen at random."
        )
        yield ""
    if figures.outcomes:
        total = sum(figures.outcomes.values())
        rows = [
            (text(code), number(rows), percent(rows, total), text(labels.meaning(code)))
            for code, rows in sorted(figures.outcomes.items(), key=lambda item: (item[0] != "success", -item[1]))
        ]
        yield "## Outcomes\n"
        yield from _table(["outcome", "rows", "share", "what it means"], rows[:_SHOWN])
    if figures.not_processed:
        yield "## Not processed\n"
        reasons = [(text(reason), number(files)) for reason, files in figures.not_processed.items()]
        yield from _table(["not processed", "files"], reasons)
    if failing := [host for host in figures.hosts if host.failed]:
        yield "## Hosts with most failures\n"
        hosts = [(text(host.name), number(host.failed), number(host.rows)) for host in failing[:_SHOWN]]
        yield from _table(["host", "failed", "of rows"], hosts)
    if figures.types:
        yield "## Files\n"
        types = sorted(figures.types.items(), key=lambda item: -item[1].files)[:_SHOWN]
        rows = [(text(name), number(found.files), size(found.bytes), "") for name, found in types]
        yield from _table(["media type", "files", "size"], [row[:3] for row in rows])
    magnitudes = [
        ("size", figures.sizes, size),
        ("width", figures.widths, number),
        ("height", figures.heights, number),
        ("duration", figures.durations, duration),
    ]
    found = [(name, *map(shown, _five(values))) for name, values, shown in magnitudes if values.count]
    if figures.latencies:
        yield f"Transfers took {', '.join(f'{name} {duration(s)}' for name, s in figures.latencies.items())}.\n"
    if found:
        yield from _table(["", "smallest", "a quarter", "median", "three quarters", "largest"], found)
    for problem in figures.problems:
        yield f"> {text(problem)}\n"


def _five(values: Distribution) -> tuple[float, ...]:
    return values.smallest, values.first_quartile, values.median, values.third_quartile, values.largest


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""
