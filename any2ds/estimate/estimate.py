"""`estimate()`: reads a list, fetches a sample of it, and predicts what the whole would take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from any2ds.config.datasets import ESTIMATE_GROUPS, EstimateOptions
from any2ds.config.options import Config, ParsedOptions
from any2ds.config.signature import command
from any2ds.core import text
from any2ds.core.errors import RunError
from any2ds.core.failures import FAILURE_CODES, NOT_ALLOWED, SUCCESS
from any2ds.core.terminal.stderr import stderr_console
from any2ds.estimate.advice import advise
from any2ds.estimate.facts import Sample
from any2ds.estimate.model import Model, Prediction
from any2ds.estimate.result import Estimate
from any2ds.estimate.sample import choose_rows, fetch_sample, read_sample, single_host, with_recorded
from any2ds.estimate.screen import same_times
from any2ds.estimate.survey import survey

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
    """Say what `download` with these options would take: time, machines, memory and disk, and what would fail.

    The list is read, and a sample of its rows is downloaded into `sample_folder`, with at most four requests per second
    to each host, or as `host_delay` says if it is given: for 10 s of each host if the list is small, else for 30 s.
    """
    wanted = options.group(EstimateOptions)
    groups = tuple(group for group in options.groups if not isinstance(group, EstimateOptions))
    config = Config.of(replace(options, groups=groups))
    config = replace(config, output=replace(config.output, key_col=None))  # which costs one more reading of the list
    if not config.run.quiet:
        stderr_console().print("reading the list")
    found = survey(config, wanted.sample)
    if wanted.from_dataset is not None:
        sample = read_sample(wanted.from_dataset, config)
    else:
        chosen = choose_rows(config, found)
        if not config.run.quiet:
            rows = text.rows(chosen.rows.num_rows)
            stderr_console().print(f"fetching a sample of {rows} into {wanted.sample_folder}{chosen.pace}")
        sample = fetch_sample(chosen, wanted.sample_folder)
    _check(sample)
    model = Model(config, found, sample)
    machines = () if model.is_hopeless else wanted.machines
    predictions = tuple(model.predict(count, wanted.bandwidth) for count in machines)
    advice = advise(model, predictions) if predictions else ()
    return Estimate(model, wanted.bandwidth, predictions, advice, tuple(_remarks(model, predictions)))


def _check(sample: Sample) -> None:
    """Raises RunError if the sample says nothing about the list."""
    codes = {row.code for row in sample.rows}
    if codes and codes <= _NO_NETWORK:
        raise RunError(
            f"no row of the sample was answered ({', '.join(sorted(codes))}): is there a network? An estimate needs"
            " answers"
        )


def _remarks(model: Model, predictions: Sequence[Prediction]) -> Iterator[str]:
    """Remarks on what makes the estimate less certain."""
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
    elif sample.rows and SUCCESS not in model.shares:
        yield "no row of the sample was stored: the time and the size of the others are unknown"
    elif len(sample.rows) < min(_FEW, found.rows):
        yield f"the sample has {text.rows(len(sample.rows))}: the intervals are wide"
    host = single_host(found)
    if found.rows > 1 and host is not None:
        rows = found.hosts[host]
        every = "all rows are" if rows >= found.urls else f"{rows / found.urls:.0%} of the rows are"
        yield (
            f"{every} on one host, {host}, which decides how fast it is asked: the time holds if it bears what the"
            " run asks of it, which a sample cannot try. More machines do not help."
        )
    elif len(predictions) > 1 and same_times(predictions):
        yield "more machines do not help so small a list: it takes the same time on any number of them"
    slowest = model.slowest
    if slowest.crawl_delay and slowest.seconds >= _LONG:
        yield (
            f"the robots.txt of {slowest.name} asks for {text.number(slowest.crawl_delay)} s between two requests: its"
            f" {text.rows(slowest.rows)} take {text.duration(slowest.seconds)}, on any number of machines"
        )
    if refusing := model.refusing_hosts:
        subject = f"{len(refusing):,} hosts of the sample refuse" if len(refusing) > 1 else f"{min(refusing)} refuses"
        yield f"{subject} everything: how long the run waits for such hosts differs from run to run"
    if hosts := sample.left_out:
        yield (
            f"of {', '.join(hosts[:3])}{' and others' if len(hosts) > 3 else ''} no row of the sample could be fetched,"
            " because of the delay that the robots.txt asks for: the rows of other hosts stand for theirs"
        )
    if sample.cost is None:
        yield "the sample does not say what it took of CPU and memory: the time may be longer, and memory differ"
