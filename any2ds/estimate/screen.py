"""Shows an estimate: on a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from any2ds.core import text
from any2ds.core.errors import printable, shard_count
from any2ds.core.failures import SUCCESS, meaning_of
from any2ds.core.histogram import Histogram
from any2ds.core.terminal.stderr import facts_table, joined, write_parts

if TYPE_CHECKING:
    from any2ds.estimate.model import Prediction
    from any2ds.estimate.result import Estimate

_MOST_FAILURES = 8
_MOST_HOSTS = 3
_QUANTILES = {"median": 0.5, "p95": 0.95, "largest": 1.0}

_LIMITS = {
    "hosts": "the largest host",
    "bandwidth": "the line",
    "cpu": "the processor",
    "latency": "latency",
    "timeouts": "silent hosts",
}


def show(estimate: Estimate, stream: TextIO) -> None:
    """For a person; control characters from lists and servers are escaped."""
    write_parts(parts(estimate), stream)


def parts(estimate: Estimate) -> Iterator[Any]:
    """The parts of the screen, one below the other, for rich."""
    sections = {"the list": _list(estimate), "the sample": _sample(estimate), "the dataset": _dataset(estimate)}
    for title, facts in sections.items():
        yield Text(title, style="bold")
        yield facts_table(facts)
    if estimate.predictions:
        yield Text("the whole list", style="bold")
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        table.add_column(style="dim", no_wrap=True)
        for name, *values in _figures(estimate):
            table.add_row(name, *(Text(value, justify="right") for value in values))
        yield Padding(table, (0, 0, 0, 2))
    if estimate.advice:
        yield Text("options", style="bold")
        for each in estimate.advice:
            yield Padding(Text.assemble((each.flag, "bold"), f"  {joined(printable(each.reason))}"), (0, 0, 0, 2))
    for remark in estimate.remarks:
        yield Text(f"note: {printable(remark)}", style="yellow")


Facts = Iterator[tuple[str, str]]


def _list(estimate: Estimate) -> Facts:
    survey = estimate.model.survey
    read = f", of which {survey.read:,} were read" if survey.is_part else ""
    yield "rows", f"{'' if survey.is_exact else 'about '}{survey.rows:,}{read}"
    if survey.bad:
        yield "bad rows", f"{survey.bad:,} ({text.percent(survey.bad, survey.read)})"
    least = "at least " if survey.is_part else ""
    few = f"next to none{' among the rows that were read' if survey.is_part else ''}"
    yield "duplicates", f"{least}{survey.duplicates:.1%} of the rows" if survey.duplicates >= 0.0005 else few
    top = survey.largest_hosts(_MOST_HOSTS).items()
    largest = ", ".join(f"{host} {text.percent(rows, survey.urls)}" for host, rows in top)
    yield "hosts", f"{least}{len(survey.hosts):,}; the largest: {largest}" if largest else "none"


def _sample(estimate: Estimate) -> Facts:
    model = estimate.model
    sample, success = model.sample, model.success
    yield "rows", f"{text.rows(len(sample.rows))}, kept in {sample.folder}"
    if not sample.rows:
        return
    yield "stored", f"{success.value:.1%} (between {success.low:.1%} and {success.high:.1%})"
    failures = [(code, share) for code, share in model.shares.items() if code != SUCCESS]
    for code, share in failures[:_MOST_FAILURES]:
        yield code, f"{text.percent(share, 1.0)}  {meaning_of(code)}"
    if rest := failures[_MOST_FAILURES:]:
        yield f"{len(rest)} more", text.percent(sum(share for _, share in rest), 1.0)
    if sample.latencies:
        for name, values, shown in (("time", sample.latencies, text.duration), ("size", sample.sizes, text.size)):
            median, p95, largest = map(shown, quantiles(values).values())
            yield name, f"median {median}, 95 % below {p95}, at most {largest}"
    stored = f", {text.size(sample.stored_size)} stored" if sample.stored_size else ""
    cpu = f", {1e6 * model.cpu[1]:,.0f} µs of the processor" if sample.cost else ""
    yield "for a file", f"{text.size(sample.received)} received{stored}{cpu}"


def _dataset(estimate: Estimate) -> Facts:
    model = estimate.model
    value, low, high = (text.estimate(rows) for rows in (model.stored.value, model.stored.low, model.stored.high))
    yield "rows", f"{value} (between {low} and {high})"
    each = model.stored_bytes / model.shards
    yield "size", f"{text.size(model.stored_bytes)} in {shard_count(model.shards)} of {text.size(each)}"
    yield "received", text.size(model.received_bytes)


def _figures(estimate: Estimate) -> list[tuple[str, ...]]:
    """The name of each figure, and its value for each number of machines, or for one if their times are the same."""
    columns = [
        {
            "machines": f"{each.machines:,}",
            "time": shown_time(each.seconds.value),
            "  from": shown_time(each.seconds.low),
            "  to": shown_time(each.seconds.high),
            "rows/s": text.estimate(each.rows_per_second),
            "limit": _LIMITS[each.limit],
            "processes each": f"{each.processes:,}",
            "in flight, each process": f"{each.in_flight:,}",
            "largest host, requests/s": text.estimate(each.largest_host),
            "memory, each process": text.size(each.memory_per_worker),
            "memory in all": text.size(each.memory),
            "machine hours": text.number(each.machine_hours),
        }
        for each in estimate.predictions[: 1 if same_times(estimate.predictions) else None]
    ]
    return [(name, *(column[name] for column in columns)) for name in columns[0]]


def quantiles(values: Histogram) -> dict[str, float]:
    return {name: values.quantile(share) or 0.0 for name, share in _QUANTILES.items()}


def same_times(predictions: Sequence[Prediction]) -> bool:
    """Whether a person sees the same time, and range of it, for all numbers of machines."""
    times = (each.seconds for each in predictions)
    return len({(shown_time(each.value), shown_time(each.low), shown_time(each.high)) for each in times}) == 1


def shown_time(seconds: float) -> str:
    """With three digits at most."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.3g} min"
    if seconds < 3 * 86400:
        return f"{seconds / 3600:.3g} h"
    return f"{seconds / 86400:,.3g} d"
