"""The report as one page of HTML that needs nothing else (no script, no font, no request), and as Markdown."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from any2ds.core import text
from any2ds.core.failures import NO_FAILURES, SUCCESS
from any2ds.dataset.figures import Figures
from any2ds.dataset.loaders import Snippet
from any2ds.dataset.pictures import Picture
from any2ds.dataset.rendering import environment
from any2ds.dataset.report import charts
from any2ds.dataset.thumbnails import Thumbnail

_SHOWN = 20  # lines of a table in HTML
_SHOWN_IN_MARKDOWN = 15


def markdown(figures: Figures) -> str:
    """For pull requests, and for the summaries of pipelines."""
    template = environment().get_template("report.md")
    return template.render(lines=_SHOWN_IN_MARKDOWN, **_tables(figures))


def html(figures: Figures, samples: Sequence[Thumbnail] = (), snippets: Sequence[Snippet] = ()) -> str:
    """Whatever strangers wrote is text in it."""
    templates = environment()
    source = templates.loader.get_source(templates, "report.css")[0] if templates.loader else ""
    return templates.get_template("report.html").render(
        style=Markup(source),
        style_hash=base64.b64encode(hashlib.sha256(source.encode()).digest()).decode(),
        data=_as_data(figures.to_json()),
        over_time=[*charts.over_time(figures), *charts.latencies(figures)],
        magnitudes=charts.magnitudes(figures),
        samples=samples,
        snippets=snippets,
        no_failures=NO_FAILURES,
        lines=_SHOWN,
        tile=_tile,
        source=_source,
        is_link=lambda url: url.lower().startswith(("http://", "https://")),
        **_tables(figures),
    )


def _tables(figures: Figures) -> dict[str, Any]:
    """What both forms show, in order."""
    return {
        "figures": figures,
        "name": figures.recipe.replace(":", " ") or _last_part(figures.output_folder) or figures.output_folder,
        "contents": _contents(figures),
        "sampled": _sampled(figures),
        "stored_per_second": charts.stored_per_second(figures),
        "estimate": lambda count: _estimate(count, figures),
        "sources": _sources(figures),
        "outcomes": sorted(figures.outcomes.items(), key=_place),
        "outcome_rows": sum(figures.outcomes.values()),
        "failing": [host for host in figures.hosts if host.failed],
        "types": sorted(figures.types.items(), key=lambda item: -item[1].files),
    }


def _last_part(path: str) -> str:
    return re.split(r"[/\\\\]", path.rstrip("/\\"))[-1]


def _place(outcome: tuple[str, int]) -> tuple[Any, ...]:
    """Success first, then the most frequent."""
    code, rows = outcome
    return code != SUCCESS, code == "other", -rows, code


def _sampled(figures: Figures) -> str:
    """Which figures are of some shards only; empty if none are."""
    looked, found = figures.looked, []
    of = [("outcomes and times", looked.shards_of_stats, looked.rows_of_stats)]
    of.append(("types, sizes and hosts", looked.shards_of_metadata, looked.rows_of_metadata))
    for names, shards, rows in of:
        if shards < figures.shards:
            found.append(f"{names} are from {shards:,} of the {figures.shards:,} shards ({text.rows(rows)})")
    return f"Sampled at random: {', '.join(found)}." if found else ""


def _contents(figures: Figures) -> str:
    """What the dataset holds, such as `1,200 images`; by the most frequent types."""
    count = figures.samples if figures.samples is not None else figures.successes
    kinds = {"image": "image", "audio": "sound file", "video": "video", "text": "text"}
    files = sum(found.files for found in figures.types.values())
    shares = {
        kind: sum(found.files for name, found in figures.types.items() if name.startswith(f"{start}/"))
        for start, kind in kinds.items()
    }
    kind = next((kind for kind, count in shares.items() if files and count > 0.9 * files), "file")
    return f"{_tile(count)} {kind}{'' if count == 1 else 's'}"


def _sources(figures: Figures) -> str:
    """The names of the lists."""
    names = [_last_part(file) for each in figures.lists for file in each["files"]]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _tile(value: float | None) -> str:
    """What is too long to be read at a glance is rounded."""
    return text.number(value) if value is None or value < 1e9 else text.estimate(value)


def _estimate(count: int, figures: Figures) -> str:
    """Of rows in all shards, by those that were looked at."""
    looked = figures.looked.rows_of_stats
    if figures.rows is None or looked in (0, figures.rows):
        return _tile(count)
    return f"≈\u00a0{text.estimate(count * figures.rows / looked)}"


def _as_data(content: Any) -> Markup:
    """JSON that may stand in a script element, which ends where its text says so."""
    written = json.dumps(content, ensure_ascii=True)
    for char in "<>&":
        written = written.replace(char, f"\\u{ord(char):04x}")
    return Markup(written)


def _source(picture: Picture) -> str:
    return f"data:{picture.mime_type};base64,{base64.b64encode(picture.data).decode()}"
