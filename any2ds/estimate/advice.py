"""The options to set for a run, each with its reason in figures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from any2ds.core import text

if TYPE_CHECKING:
    from any2ds.estimate.model import Model, Prediction

AT_ONCE = 32  # transfers that are advised to a host that holds much of a list
_LONG = 60.0  # seconds, from which on a host is worth an option
_DECISIVE = 0.6  # of the shortest time: a host that takes so long decides it, or would
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
    return (
        *_shards(model, predictions),
        *_retries(model),
        *_hosts(model, predictions),
        *_dedupe(model),
    )


def _shards(model: Model, predictions: Sequence[Prediction]) -> Iterator[Advice]:
    """Enough shards for all processes, of a size that stores and readers like."""
    rows, now = model.survey.rows, model.config.output.number_sample_per_shard
    each = model.stored.value / rows * model.sample.stored_size  # bytes for a row of the list
    workers = max(each.machines * each.processes for each in predictions)
    for_workers = _rounded(rows / workers / _SHARDS_OF_WORKER)  # rows of a shard, so that each worker has some
    if rows > _LEAST_ROWS * workers > model.shards * _LEAST_ROWS and max(_LEAST_ROWS, for_workers) < now:
        few = f"{model.shards:,} shards of {now:,} rows" if model.shards > 1 else "one shard"
        reason = f"{few} cannot keep {workers:,} processes busy"
        yield Advice("number_sample_per_shard", str(max(_LEAST_ROWS, for_workers)), reason)
    elif each and rows > now:
        shard = each * now
        if _SHARD_BYTES[0] <= shard <= _SHARD_BYTES[1] and model.shards <= _MOST_SHARDS:
            return
        by_size = min(_rounded(_WANTED_SHARD / each), max(now, for_workers))
        wanted = max(_LEAST_ROWS, by_size, _rounded(rows / _MOST_SHARDS))
        if wanted != now:
            reason = (
                f"{now:,} rows make shards of {text.size(shard)}, {model.shards:,} of them; {wanted:,} make"
                f" {text.size(each * wanted)}, {-(-rows // wanted):,} of them"
            )
            yield Advice("number_sample_per_shard", str(wanted), reason)


def _rounded(value: float) -> int:
    """One digit, upwards."""
    unit = 10 ** (len(str(int(max(1.0, value)))) - 1)
    return max(1, int(math.ceil(value / unit) * unit))


def _retries(model: Model) -> Iterator[Advice]:
    if model.rates.transient >= _MANY and not model.config.fetch.retries:
        rows = text.estimate(model.rates.transient * model.survey.rows)
        reason = f"{model.rates.transient:.1%} of the rows ({rows}) failed in a way that another attempt can help"
        yield Advice("retries", "1", reason)


def _hosts(model: Model, predictions: Sequence[Prediction]) -> Iterator[Advice]:
    """The host that decides the end of the run, if it is treated politely; of one that asks for a delay a remark says
    it."""
    slowest, shortest = model.slowest_host(AT_ONCE), min(each.seconds.value for each in predictions)
    if slowest.crawl_delay or slowest.seconds < max(_LONG, _DECISIVE * shortest):
        return
    at_once = min(AT_ONCE, model.config.fetch.max_per_host)
    holds = f"{slowest.name} holds {text.percent(slowest.rows, model.survey.urls)} of the rows"
    needs = f"at {at_once} transfers at once it needs {text.duration(slowest.seconds)}, whatever you buy"
    fastest = max(predictions, key=lambda each: each.largest_host)
    rate, machines = text.estimate(fastest.largest_host), fastest.machines
    others = f"{machines:,} machine{'s' * (machines > 1)} as predicted ask the largest host {rate} times a second"
    reason = f"{holds}; {needs}" + (f"; {others}" if slowest.seconds > shortest else "")
    yield Advice("max_per_host", str(at_once), reason)


def _dedupe(model: Model) -> Iterator[Advice]:
    survey = model.survey
    if model.config.output.dedupe != "run" and model.shards > 1 and survey.duplicates >= _MANY:
        rows = text.estimate(survey.duplicates * survey.rows)
        yield Advice("dedupe", "run", f"{survey.duplicates:.1%} of the rows ({rows}) have the URL of an earlier one")
