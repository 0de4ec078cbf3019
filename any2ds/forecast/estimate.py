"""`estimate()`: reads a list, fetches a sample of it, and predicts what the whole would take."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from any2ds.config.options import ESTIMATE_GROUPS, Config, EstimateOptions, ParsedOptions
from any2ds.config.signature import command
from any2ds.core import text
from any2ds.core.errors import RunError
from any2ds.core.failures import FAILURE_CODES, NOT_ALLOWED, SUCCESS
from any2ds.forecast.advice import advise
from any2ds.forecast.behaviour import refusing_hosts
from any2ds.forecast.earlier import earlier_sample, with_recorded
from any2ds.forecast.model import Model, Prediction
from any2ds.forecast.prices import Prices
from any2ds.forecast.progress import SampleProgress, Steps
from any2ds.forecast.result import Estimate
from any2ds.forecast.sample import choose_rows, fetch_sample, only_host
from any2ds.forecast.screen import same_times
from any2ds.forecast.survey import survey
from any2ds.forecast.transfers import Sample

log = logging.getLogger(__name__)

_LONG = 60.0  # seconds, from which on the delay of a host is named
_FEW = 100  # rows of a sample, below which it says little
_NO_NETWORK = frozenset({"dns", "connect", "timeout_connect", "timeout_total", "host_down", "no_network"})


@command(
    ESTIMATE_GROUPS,
    "Returns the estimate; its sample is a dataset in `sample_folder`. Raises UsageError if the list cannot be read or",
    "is empty, and RunError if no row of the sample could be fetched.",
    positional=("url_list", "output_folder"),
    completed=with_recorded,
)
def estimate(options: ParsedOptions) -> Estimate:
    """Say what `download` with these options would take: time, machines, memory, disk and costs, and what would fail.

    The list is read, and a sample of its rows is downloaded into `sample_folder`, with at most four requests per second
    to each host, or as `host_delay` says if it is given: for 10 s of each host if the list is small, else for 30 s.
    """
    wanted = options.group(EstimateOptions)
    prices = Prices.read(wanted.price)
    groups = tuple(group for group in options.groups if not isinstance(group, EstimateOptions))
    config = Config.of(replace(options, groups=groups))
    steps = Steps(config.run.quiet)
    with steps.step("reading the list"):
        found = survey(config, wanted.sample, wanted.sample_seed, steps.read)
    if wanted.from_dataset is not None:
        sample = earlier_sample(wanted.from_dataset, config)
    else:
        chosen = choose_rows(config, found)
        pace = f", {chosen.pace}" if chosen.pace else ""
        with steps.step(f"fetching a sample of {text.rows(chosen.rows.num_rows)} into {wanted.sample_folder}{pace}"):
            sample = fetch_sample(chosen, wanted.sample_folder, SampleProgress(steps))
    _check(sample)
    model = Model(config, found, sample)
    with steps.step("simulating the whole list"):
        machines = () if model.is_hopeless else wanted.machines
        predictions = tuple(_predicted(model, wanted, prices, machines, steps))
    remarks = tuple(_remarks(model, predictions))
    advice = advise(model, predictions) if predictions else ()
    return Estimate(model, wanted.bandwidth, prices, predictions, advice, remarks)


def _predicted(
    model: Model, wanted: EstimateOptions, prices: Prices, machines: Sequence[int], steps: Steps
) -> Iterator[Prediction]:
    for count in machines:
        steps.show(f"simulating the whole list on {count:,} machine{'s' * (count != 1)}")
        yield model.predict(count, wanted.bandwidth, prices)


def _check(sample: Sample) -> None:
    """Raises RunError if the sample says nothing about the list."""
    codes = {each.code for each in sample.transfers}
    if codes and codes <= _NO_NETWORK:
        raise RunError(
            f"no row of the sample was answered ({', '.join(sorted(codes))}): is there a network? An estimate needs"
            " answers"
        )


def _remarks(model: Model, predictions: Sequence[Prediction]) -> Iterator[str]:
    found, sample = model.survey, model.sample
    if found.error:
        yield f"the list could not be read to its end: {found.error}"
    if found.is_part and not found.error:
        yield (
            f"only {found.read:,} rows were read, from places drawn at random: all of the list has more hosts and"
            " duplicates"
        )
    if sample.problem:
        yield f"the sample is not complete: {sample.problem}"
    if model.is_hopeless:
        way_out = f"is url_col={model.config.input.url_col} the column of the URLs?"
        if NOT_ALLOWED in model.shares:
            way_out = FAILURE_CODES[NOT_ALLOWED].advice
        yield f"no URL of the sample can be fetched ({', '.join(model.shares)}): {way_out}"
    elif sample.transfers and all(each.code != SUCCESS for each in sample.transfers):
        yield "no row of the sample was stored: the time and the size of the others are unknown"
    elif len(sample.transfers) < min(_FEW, found.rows):
        yield f"the sample has {len(sample.transfers):,} rows: the intervals are wide"
    host = only_host(found)
    if found.rows > 1 and host is not None:
        rows = found.hosts.largest[host]
        every = "all rows are" if rows >= found.urls else f"{rows / found.urls:.0%} of the rows are"
        yield (
            f"{every} on one host, {host}, which decides how fast it is asked: the time holds if it bears what the"
            " run asks of it, which a sample cannot try. More machines do not help."
        )
    elif len(predictions) > 1 and same_times(predictions):
        yield "more machines do not help so small a list: it takes the same time on any number of them"
    slowest = model.slowest_host()
    if slowest.crawl_delay and slowest.seconds >= _LONG:
        yield (
            f"the robots.txt of {slowest.name} asks for {text.number(slowest.crawl_delay)} s between two requests: its"
            f" {text.rows(slowest.rows)} take {text.duration(slowest.seconds)}, on any number of machines"
        )
    if refusing := refusing_hosts(sample.transfers):
        many = f"{len(refusing):,} hosts of the sample refuse" if len(refusing) > 1 else f"{min(refusing)} refuses"
        yield f"{many} everything: how long the run waits for such hosts differs from run to run, so the range is wide"
    large = Counter(each.host for each in sample.transfers if each.weight > 1)
    if large:
        yield (
            f"of {', '.join(list(large)[:3])}{' and others' if len(large) > 3 else ''} no more than"
            f" {text.rows(max(large.values()))} of the sample could be fetched, for all others of these hosts"
        )
    if hosts := sample.hosts_not_fetched:
        yield (
            f"of {', '.join(hosts[:3])}{' and others' if len(hosts) > 3 else ''} no row of the sample could be fetched,"
            " because of the delay that the robots.txt asks for: the rows of other hosts stand for theirs"
        )
    if not sample.is_fetched:
        yield "the sample is a dataset, whose CPU and memory were not measured: memory is that of a usual worker"
