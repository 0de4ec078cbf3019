"""Which options to set for a run, each with its reason in figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from any2ds.core import text
from any2ds.core.failures import SUCCESS
from any2ds.forecast.transfers import mean, transfers_needed

if TYPE_CHECKING:
    from any2ds.forecast.model import Model, Prediction

AT_ONCE = 32  # transfers that are advised to a host that holds much of a list
_WORTH_WAITING = 60.0  # seconds, from which on a host is worth an option
_DECIDES = 0.6  # of the shortest time: a host that takes so long decides it, or would
_MANY = 0.01  # share of the rows from which on something is worth an option
_SHARD_BYTES = (50e6, 2e9)  # smaller shards are slow to read from stores, larger ones lose much when a run stops
_WANTED_SHARD = 300e6
_MOST_SHARDS = 100_000
_SHARDS_OF_WORKER = 4
_LEAST_ROWS = 1000


@dataclass(frozen=True, slots=True)
class Advice:
    """An option, the value that is advised, and why."""

    option: str
    value: str
    reason: str

    @property
    def flag(self) -> str:
        return f"--{self.option}={self.value}"


def advise(model: Model, predictions: Sequence[Prediction]) -> tuple[Advice, ...]:
    return tuple(
        advice
        for found in (
            _thread_count(model, predictions),
            _processes_count(model, predictions),
            _shards(model, predictions),
            _retries(model),
            _hosts(model, predictions),
            _shuffle(model, predictions),
            _dedupe(model),
        )
        for advice in found
    )


def _thread_count(model: Model, predictions: Sequence[Prediction]) -> Iterator[Advice]:
    first = predictions[0]
    rate = first.rows_per_second * model.survey.urls_per_row / first.processes
    seconds = mean([each for each in model.sample.transfers if each.code == SUCCESS], "seconds")
    needed = transfers_needed(rate, seconds)
    given = model.config.fetch.thread_count
    each = f"a transfer takes {text.duration(seconds)} on average"
    found = f"{each}, so {text.number(_three(rate))} {_unit(model)}/s of a process need {needed:,} in flight"
    if given == "auto" and needed > 1:
        yield Advice("thread_count", "auto", f"{found}; auto finds that by itself")
    elif given != "auto" and given < needed:
        yield Advice("thread_count", "auto", f"{found}, and {given:,} are too few")


def _processes_count(model: Model, predictions: Sequence[Prediction]) -> Iterator[Advice]:
    first = predictions[0]
    rate = first.rows_per_second * model.survey.urls_per_row
    cores = rate * model.cpu[1]
    each = f"a row takes {1e6 * model.cpu[1]:,.0f} µs of the processor"
    reason = f"{each}, so {text.number(_three(rate))} {_unit(model)}/s keep {cores:.2g} cores busy"
    wanted = max(1, min(round(cores + 0.5), first.processes))
    if first.limit == "cpu" and model.shards == 1:
        yield Advice("processes_count", "1", f"{each}, and one shard is made by one process, which is the limit")
    elif first.limit == "cpu":
        yield Advice("processes_count", str(first.processes), f"{reason}: the processor is the limit")
    elif wanted < first.processes:
        yield Advice("processes_count", str(wanted), f"{reason}: more processes ask robots.txt and DNS more often")


def _shards(model: Model, predictions: Sequence[Prediction]) -> Iterator[Advice]:
    rows, now = model.survey.rows, model.config.output.number_sample_per_shard
    share = model.stored.value / rows if rows else 0.0
    each = share * model.sample.stored_size  # bytes for a row of the list
    workers = max(each.machines * each.processes for each in predictions)
    if rows > _LEAST_ROWS * workers > model.shards * _LEAST_ROWS:
        wanted = max(_LEAST_ROWS, _rounded(rows / workers / _SHARDS_OF_WORKER))
        if wanted < now:
            few = f"{model.shards:,} shards of {now:,} rows" if model.shards > 1 else "one shard"
            yield Advice("number_sample_per_shard", str(wanted), f"{few} cannot keep {workers:,} processes busy")
            return
    if not each or rows <= now:
        return
    size = each * now
    if _SHARD_BYTES[0] <= size <= _SHARD_BYTES[1] and model.shards <= _MOST_SHARDS:
        yield Advice(
            "number_sample_per_shard", str(now), f"shards of {text.size(size)}, {model.shards:,} of them, are fine"
        )
        return
    for_workers = max(now, _rounded(rows / workers / _SHARDS_OF_WORKER))  # which all should have some
    wanted = max(_LEAST_ROWS, min(_rounded(_WANTED_SHARD / each), for_workers), _rounded(rows / _MOST_SHARDS))
    if wanted == now:
        return
    why = f"{now:,} rows make shards of {text.size(size)}, {model.shards:,} of them"
    yield Advice(
        "number_sample_per_shard",
        str(wanted),
        f"{why}; {wanted:,} make {text.size(each * wanted)}, {-(-rows // wanted):,} of them",
    )


def _unit(model: Model) -> str:
    return "rows" if model.survey.urls_per_row == 1 else "files"


def _three(value: float) -> float:
    """With three digits."""
    return float(f"{value:.3g}")


def _rounded(value: float) -> int:
    """One digit, upwards."""
    if value < 1:
        return 1
    unit = 10 ** (len(str(int(value))) - 1)
    return int(-(-value // unit) * unit)


def _retries(model: Model) -> Iterator[Advice]:
    transfers = model.sample.transfers
    weight = sum(each.weight for each in transfers) or 1.0
    transient = sum(each.weight for each in transfers if each.is_transient and each.code != "dns") / weight
    retries = model.config.fetch.retries
    if transient >= _MANY and not retries:
        rows = text.estimate(transient * model.survey.rows)
        yield Advice(
            "retries", "1", f"{transient:.1%} of the rows ({rows}) failed in a way that another attempt can help"
        )
    elif transient and not retries:
        yield Advice("retries", "0", f"{transient:.1%} of the rows failed in a way that another attempt can help")


def _hosts(model: Model, predictions: Sequence[Prediction]) -> Iterator[Advice]:
    """The host that decides the end of the run, if it is treated politely; of one that asks for a delay a remark says
    it."""
    slowest, shortest = model.slowest_host(AT_ONCE), min(each.seconds.value for each in predictions)
    if slowest.crawl_delay or slowest.seconds < max(_WORTH_WAITING, _DECIDES * shortest):
        return
    share = text.percent(slowest.rows, model.survey.urls)
    which = f"the largest host, {slowest.name}," if slowest.name in model.survey.hosts.top(1) else slowest.name
    holds = f"{which} holds {share} of the rows"
    needs = f"it needs {text.duration(slowest.seconds)}, whatever you buy"
    fastest = max(predictions, key=lambda each: each.largest_host)
    rate = text.number(_three(fastest.largest_host))
    machines = f"{fastest.machines:,} machine{'s' * (fastest.machines > 1)}"
    others = (
        f"; {machines} as predicted ask the largest host {rate} times a second" if slowest.seconds > shortest else ""
    )
    yield Advice(
        "max_per_host", str(slowest.at_once), f"{holds}; at {slowest.at_once} transfers at once {needs}{others}"
    )


def _shuffle(model: Model, predictions: Sequence[Prediction]) -> Iterator[Advice]:
    if not model.is_in_blocks:
        return
    first = predictions[0]
    now, then = first.seconds.value, first.seconds_if_shuffled
    takes = f", which takes {text.duration(now)} instead of {text.duration(then)}" if now > 1.1 * then else ""
    yield Advice(
        "shuffle",
        "0",
        f"a shard has the rows of {text.number(round(model.survey.hosts.per_shard))} hosts, and would have those of"
        f" {text.number(round(model.hosts_per_shard_if_shuffled))} in a random order: all workers ask the same few"
        f" hosts at a time{takes}",
    )


def _dedupe(model: Model) -> Iterator[Advice]:
    survey = model.survey
    if model.config.output.dedupe != "run" and survey.duplicates - survey.duplicates_in_shards >= _MANY:
        rows = text.estimate(survey.duplicates * survey.rows)
        yield Advice("dedupe", "run", f"{survey.duplicates:.1%} of the rows ({rows}) have the URL of an earlier one")
