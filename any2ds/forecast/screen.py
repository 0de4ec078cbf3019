"""Shows an estimate: on a terminal, in a notebook, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from any2ds.core import text
from any2ds.core.errors import printable, shard_count
from any2ds.core.failures import SUCCESS, meaning_of
from any2ds.core.schemes import FILE_SYSTEMS, WEB
from any2ds.core.terminal.stderr import joined, write_parts
from any2ds.forecast.transfers import Interval, distribution, quantile

if TYPE_CHECKING:
    from any2ds.forecast.model import Prediction
    from any2ds.forecast.result import Estimate

_MOST_FAILURES = 8
_MOST_HOSTS = 3
_LARGEST_HOST = "largest host, requests/s"

_LIMITS = {
    "hosts": "the largest host",
    "bandwidth": "the line",
    "cpu": "the processor",
    "latency": "latency",
    "timeouts": "silent hosts",
}

Rows = Sequence[tuple[str, str]]


def show(estimate: Estimate, stream: TextIO) -> None:
    """For a person; control characters from lists and servers are escaped."""
    write_parts(parts(estimate), stream)


def parts(estimate: Estimate) -> Iterator[Any]:
    """What rich prints, one below the other."""
    for title, facts in _sections(estimate):
        yield Text(title, style="bold")
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, message in facts:
            table.add_row(f"  {name}", Text(joined(printable(message))))
        yield table
    if estimate.predictions:
        yield Text("the whole list", style="bold")
        yield Padding(_table(estimate), (0, 0, 0, 2))
    if estimate.advice:
        yield Text("options", style="bold")
        for each in estimate.advice:
            yield Padding(Text.assemble((each.flag, "bold"), f"  {joined(printable(each.reason))}"), (0, 0, 0, 2))
    for remark in estimate.remarks:
        yield Text(f"note: {printable(remark)}", style="yellow")


def markdown(estimate: Estimate) -> str:
    lines = []
    for title, facts in _sections(estimate):
        lines += [f"## {title.capitalize()}", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {_cell(message)} |" for name, message in facts]
        lines.append("")
    if estimate.predictions:
        names, columns = _columns(estimate)
        lines += ["## The whole list", "", f"| {' | '.join(['', *(columns[0] if columns else [])])} |"]
        lines.append("|" + "---|" * (1 + len(shown_predictions(estimate))))
        lines += [f"| {name} | {' | '.join(values)} |" for name, values in zip(names[1:], columns[1:], strict=True)]
        lines.append("")
    if estimate.advice:
        lines += ["## Options", ""]
        lines += [f"- `{each.flag}`: {_cell(each.reason)}" for each in estimate.advice]
        lines.append("")
    lines += [f"> {_cell(remark)}" for remark in estimate.remarks]
    return "\n".join(lines).rstrip() + "\n"


def _cell(message: str) -> str:
    return printable(message).replace("|", "\\|").replace("<", "&lt;")


def _sections(estimate: Estimate) -> Iterator[tuple[str, Rows]]:
    yield "the list", list(_list(estimate))
    yield "the sample", list(_sample(estimate))
    yield "the dataset", list(_dataset(estimate))


def _list(estimate: Estimate) -> Iterator[tuple[str, str]]:
    survey = estimate.model.survey
    about = "" if survey.is_exact else "about "
    read = f", of which {survey.read:,} were read" if survey.is_part else ""
    yield "rows", f"{about}{survey.rows:,}{read}"
    if survey.bad:
        yield "bad rows", f"{survey.bad:,} ({text.percent(survey.bad, survey.read)})"
    schemes = {_scheme(scheme): rows for scheme, rows in survey.schemes.items()}
    if set(schemes) - {"http", "https"}:
        total = sum(schemes.values())
        yield "schemes", ", ".join(f"{name} {text.percent(rows, total)}" for name, rows in schemes.items())
    few = "next to none" if not survey.is_part else "next to none among the rows that were read"
    least = "at least " if survey.is_part else ""
    repeated = f"{least}{survey.duplicates:.1%} of the rows" if survey.duplicates >= 0.0005 else few
    inside = f", {survey.duplicates_in_shards:.1%} within a shard" if survey.duplicates >= 0.0005 else ""
    yield "duplicates", f"{repeated}{inside}"
    hosts = survey.hosts
    largest = ", ".join(f"{host} {text.percent(rows, survey.urls)}" for host, rows in hosts.top(_MOST_HOSTS).items())
    yield "hosts", f"{least}{hosts.count:,}; the largest: {largest}" if largest else "none"


def _scheme(name: str) -> str:
    if not name:
        return "no URL"
    return name if name in WEB | FILE_SYSTEMS else f"{name} (cannot be fetched)"


def _sample(estimate: Estimate) -> Iterator[tuple[str, str]]:
    model = estimate.model
    sample = model.sample
    yield "fetched", f"{text.rows(len(sample.transfers))}, kept in {sample.folder}"
    if not sample.transfers:
        return
    yield "stored", _share(model.success)
    failures = [(code, share) for code, share in model.shares.items() if code != SUCCESS]
    for code, share in failures[:_MOST_FAILURES]:
        yield code, f"{text.percent(share, 1.0)}  {meaning_of(code)}"
    if rest := failures[_MOST_FAILURES:]:
        yield f"{len(rest)} more", text.percent(sum(share for _, share in rest), 1.0)
    good = [each for each in sample.transfers if each.code == SUCCESS]
    if good:
        seconds, sizes = [each.seconds for each in good], [float(each.size) for each in good]
        yield "time", _spread(seconds, text.duration)
        yield "size", _spread(sizes, text.size)
    stored = f", {text.size(sample.stored_size)} stored" if sample.stored_size else ""
    cpu = f", {1e6 * model.cpu[1]:,.0f} µs of the processor" if sample.cost.rows else ""
    each = "row" if model.survey.urls_per_row == 1 else "file"
    yield f"for a {each}", f"{text.size(sample.received)} received{stored}{cpu}"


def _share(found: Interval) -> str:
    return f"{found.value:.1%} (between {found.low:.1%} and {found.high:.1%})"


def _spread(values: Sequence[float], show: Any) -> str:
    found = distribution(values)
    return f"median {show(found.median)}, 95 % below {show(quantile(values, 0.95))}, at most {show(found.largest)}"


def _dataset(estimate: Estimate) -> Iterator[tuple[str, str]]:
    model = estimate.model
    stored = model.stored
    yield (
        "rows",
        f"{text.estimate(stored.value)} (between {text.estimate(stored.low)} and {text.estimate(stored.high)})",
    )
    each = model.stored_bytes / max(1, model.shards)
    yield "size", f"{text.size(model.stored_bytes)} in {shard_count(model.shards)} of {text.size(each)}"
    yield "received", text.size(model.received_bytes)
    costs, currency = model.costs(0.0, estimate.prices), estimate.prices.currency
    keep, away = _money(costs.storage_month, currency), _money(costs.egress, currency)
    yield "storage", f"{keep} a month; reading it once from elsewhere costs {away}"


def _table(estimate: Estimate) -> Table:
    names, columns = _columns(estimate)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    for _ in shown_predictions(estimate):
        table.add_column(justify="right")
    for name, values in zip(names, columns, strict=True):
        table.add_row(name, *values)
    return table


def _columns(estimate: Estimate) -> tuple[list[str], list[list[str]]]:
    """The names of the figures, and of each its value for each number of machines."""
    currency = estimate.prices.currency
    by_name: list[tuple[str, Any]] = [
        ("machines", lambda each: f"{each.machines:,}"),
        ("time", lambda each: _time(each.seconds.value)),
        ("  from", lambda each: _time(each.seconds.low)),
        ("  to", lambda each: _time(each.seconds.high)),
        ("rows/s", lambda each: text.number(_digits(each.rows_per_second))),
        ("limit", lambda each: _LIMITS[each.limit]),
        ("processes each", lambda each: f"{each.processes:,}"),
        ("in flight, each process", lambda each: f"{each.in_flight:,}"),
        (_LARGEST_HOST, lambda each: text.number(_digits(each.largest_host))),
        ("DNS questions", lambda each: text.estimate(each.dns_questions)),
        ("memory, each process", lambda each: text.size(each.memory_per_worker)),
        ("memory in all", lambda each: text.size(each.memory)),
        ("disk, each process", lambda each: text.size(each.disk_per_worker)),
        ("cost of the run", lambda each: _money(each.costs.run, currency)),
    ]
    if not estimate.model.survey.hosts.top(1):
        by_name = [each for each in by_name if each[0] != _LARGEST_HOST]
    return [name for name, _ in by_name], [[get(each) for each in shown_predictions(estimate)] for _, get in by_name]


def shown_predictions(estimate: Estimate) -> Sequence[Prediction]:
    """Those of which the times differ; the first if none does."""
    return estimate.predictions[:1] if same_times(estimate.predictions) else estimate.predictions


def same_times(predictions: Sequence[Prediction]) -> bool:
    """Whether a person sees the same time, and range of it, for all numbers of machines."""
    shown = {(_time(each.value), _time(each.low), _time(each.high)) for each in (one.seconds for one in predictions)}
    return len(shown) == 1


def _digits(value: float) -> float:
    """An estimate has no more than three."""
    return float(f"{value:.3g}")


def _time(seconds: float) -> str:
    """With three digits at most."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.3g} min"
    if seconds < 3 * 86400:
        return f"{seconds / 3600:.3g} h"
    return f"{seconds / 86400:,.3g} d"


def _money(value: float, currency: str) -> str:
    return f"{value:,.2f} {currency}" if value < 100 else f"{value:,.0f} {currency}"
