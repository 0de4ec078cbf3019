"""The report as one page of HTML that needs nothing else (no script, no font, no request), and as Markdown."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from any2ds.core import text
from any2ds.core.failures import NO_FAILURES, in_order
from any2ds.describe.rendering import environment
from any2ds.describe.report import charts

if TYPE_CHECKING:
    from any2ds.describe.loaders import Snippet
    from any2ds.describe.summary import Summary
    from any2ds.describe.thumbnails import Thumbnail

_SHOWN = 20  # lines of a table in HTML
_SHOWN_IN_MARKDOWN = 15


def markdown(summary: Summary) -> str:
    """For pull requests, and for the summaries of pipelines."""
    template = environment().get_template("report.md")
    return template.render(lines=_SHOWN_IN_MARKDOWN, **_tables(summary))


def html(summary: Summary, samples: Sequence[Thumbnail] = (), snippets: Sequence[Snippet] = ()) -> str:
    """Whatever strangers wrote is text in it."""
    templates = environment()
    source = templates.loader.get_source(templates, "report.css")[0] if templates.loader else ""
    return templates.get_template("report.html").render(
        style=Markup(source),
        style_hash=base64.b64encode(hashlib.sha256(source.encode()).digest()).decode(),
        data=_as_data(summary.to_json()),
        charts=list(charts.charts_of(summary)),
        samples=samples,
        snippets=snippets,
        no_failures=NO_FAILURES,
        lines=_SHOWN,
        rounded=_tile,
        source=lambda data, mime_type: f"data:{mime_type};base64,{base64.b64encode(data).decode()}",
        is_link=lambda url: url.lower().startswith(("http://", "https://")),
        **_tables(summary),
    )


def _tables(summary: Summary) -> dict[str, Any]:
    """Tables that both forms show, in order."""
    return {
        "summary": summary,
        "name": _title(summary),
        "contents": _contents(summary),
        "sampled": _sampled(summary),
        "stored_per_second": charts.stored_per_second(summary),
        "estimate": lambda count: _estimate(count, summary),
        "sources": _sources(summary),
        "outcomes": sorted(in_order(summary.outcomes), key=lambda item: item[0] == "other"),
        "outcome_rows": sum(summary.outcomes.values()),
        "failing": [host for host in summary.hosts if host.failed],
        "types": sorted(summary.types.items(), key=lambda item: -item[1].files),
    }


def _title(summary: Summary) -> str:
    if summary.recipe is not None:
        return str(summary.recipe["name"]).replace(":", " ")
    return _last_part(summary.output_folder) or summary.output_folder


def _last_part(path: str) -> str:
    return re.split(r"[/\\\\]", path.rstrip("/\\"))[-1]


def _sampled(summary: Summary) -> str:
    """Sentence on the figures that are of some shards only; empty if none are."""
    looked = summary.coverage
    figures = [
        ("outcomes and times", looked.shards_of_stats, looked.rows_of_stats),
        ("types, sizes and hosts", looked.shards_of_metadata, looked.rows_of_metadata),
    ]
    found = [
        f"{names} are from {shards:,} of the {summary.shards:,} shards ({text.rows(rows)})"
        for names, shards, rows in figures
        if shards < summary.shards
    ]
    return f"Sampled at random: {', '.join(found)}." if found else ""


def _contents(summary: Summary) -> str:
    """Contents of the dataset, such as `1,200 images`; by the most frequent types."""
    count = summary.samples if summary.samples is not None else summary.successes
    kinds: Counter[str] = Counter()
    for name, figures in summary.types.items():
        kinds[name.partition("/")[0]] += figures.files
    most, files = max(kinds.items(), key=lambda item: item[1], default=("", 0))
    names = {"image": "image", "audio": "sound file", "video": "video", "text": "text"}
    kind = names.get(most, "file") if files > 0.9 * kinds.total() else "file"
    return f"{_tile(count)} {kind}{'' if count == 1 else 's'}"


def _sources(summary: Summary) -> str:
    """The names of the lists."""
    names = [_last_part(file) for each in summary.lists for file in each["files"]]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _tile(value: float | None) -> str:
    """A number, rounded if it is too long to be read at a glance."""
    return text.number(value) if value is None or value < 1e9 else text.estimate(value)


def _estimate(count: int, summary: Summary) -> str:
    """A number of rows in all shards, by the shards that were looked at."""
    looked = summary.coverage.rows_of_stats
    if summary.rows is None or looked in (0, summary.rows):
        return _tile(count)
    return f"≈\u00a0{text.estimate(count * summary.rows / looked)}"


def _as_data(content: Any) -> Markup:
    """JSON that may stand in a script element, which ends where its text says so."""
    written = json.dumps(content, ensure_ascii=True)
    for char in "<>&":
        written = written.replace(char, f"\\u{ord(char):04x}")
    return Markup(written)
