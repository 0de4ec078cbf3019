"""The report as one page of HTML that needs nothing else: no script, no font, no request."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from any2ds.core.failures import NO_FAILURES
from any2ds.dataset.figures import Figures
from any2ds.dataset.loaders import Snippet
from any2ds.dataset.preview import Picture
from any2ds.dataset.report import charts, labels
from any2ds.dataset.thumbnails import Thumbnail

_SHOWN_HOSTS = 20
_SHOWN_TYPES = 20


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("any2ds.dataset.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=labels.number,
        tile=labels.few_letters,
        size=labels.size,
        span=labels.span,
        moment=labels.moment,
        meaning=labels.meaning,
        advice=labels.advice,
        source=_source,
        shown=_shown,
    )
    environment.tests["link"] = _is_link
    environment.globals["percent"] = labels.percent
    return environment


def html(figures: Figures, samples: Sequence[Thumbnail] = (), snippets: Sequence[Snippet] = ()) -> str:
    """Whatever strangers wrote is text in it."""
    environment = _environment().overlay()
    environment.filters = {**environment.filters, "estimate": lambda count: _estimate(count, figures)}
    source = environment.loader.get_source(environment, "report.css")[0] if environment.loader else ""
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    return environment.get_template("report.html").render(
        figures=figures,
        style=Markup(source),
        style_hash=digest,
        data=_as_data(figures.to_json()),
        over_time=charts.over_time(figures),
        magnitudes=charts.magnitudes(figures),
        latencies=charts.latencies(figures),
        samples=samples,
        snippets=snippets,
        outcomes=sorted(
            figures.outcomes.items(), key=lambda item: (item[0] != "success", item[0] == "other", -item[1])
        ),
        no_failures=NO_FAILURES,
        outcome_rows=sum(figures.outcomes.values()),
        failing=[host for host in figures.hosts if host.failed][:_SHOWN_HOSTS],
        types=sorted(figures.types.items(), key=lambda item: -item[1].files)[:_SHOWN_TYPES],
    )


def _estimate(count: int, figures: Figures) -> str:
    """Of rows in all shards, by those that were looked at."""
    looked = figures.looked.rows_of_stats
    if figures.rows is None or looked in (0, figures.rows):
        return labels.few_letters(count)
    return f"≈\u00a0{labels.about(count * figures.rows / looked)}"


def _as_data(content: Any) -> Markup:
    """JSON that may stand in a script element, which ends where its text says so."""
    written = json.dumps(content, ensure_ascii=True)
    for char in "<>&":
        written = written.replace(char, f"\\u{ord(char):04x}")
    return Markup(written)


def _source(picture: Picture) -> str:
    return f"data:{picture.mime_type};base64,{base64.b64encode(picture.data).decode()}"


def _is_link(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _shown(value: Any) -> str:
    """The value of an option."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
