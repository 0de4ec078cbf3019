"""`download()`: the way from a url list to a dataset, as a flow."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING
from typing import Any

from any2ds import registry
from any2ds.config import Config, declared
from any2ds.dedupe import mark_duplicates
from any2ds.fetch.routes import check
from any2ds.layout import Layout
from any2ds.plan import plan
from any2ds.protocols import Reporter
from any2ds.resume import prepare
from any2ds.run import run
from any2ds.sources import Source
from any2ds.storage import OutputFolder, sweep
from any2ds.types import RunReport
from any2ds.worker import ShardWorker


def download(url_list: Any = None, **options: Any) -> RunReport:
    """Fetch every row of `url_list` and pack the files into shards."""
    config = Config.from_options(options if url_list is None else {"url_list": url_list, **options})
    with _opened(config) as (source, output):
        finished = prepare(output, config, source.first_rows)
        names = Layout(config.output.number_sample_per_shard, config.output.oom_shard_count)
        rows, schema = source.batches(), source.schema
        if config.output.dedupe == "run":
            rows, schema = mark_duplicates(rows, schema, names)
        jobs = plan(rows, schema, names.rows_per_shard, finished)
        worker = ShardWorker(config.output, config.fetch)
        distributor = registry.load("distributors", config.run.distributor)(config.run)
        return run(worker, jobs, distributor, _reporters(config), finished)


@contextmanager
def _opened(config: Config) -> Iterator[tuple[Source, OutputFolder]]:
    """Both ends of the way. Whatever happens, no staged file of a process that is gone stays behind."""
    logging.getLogger("any2ds").setLevel(config.run.log_level.upper())
    registry.load("writers", config.output.output_format)  # so that a missing extra is told before anything is made
    check(config.fetch)
    output = OutputFolder(config.output.output_folder)
    source = Source(config.input)
    try:
        yield source, output
    finally:
        with contextlib.suppress(ValueError):  # it is being read at this moment, in a thread that ends with us
            source.close()
        sweep(output)


def _reporters(config: Config) -> list[Reporter]:
    if config.run.quiet:
        return []
    return [registry.load("reporters", "console")(config)]


def _document(function: Any) -> None:
    """Give `download` the signature and the text that the options declare, for help() and for editors."""
    lines, group, parameters = [function.__doc__, ""], "", []
    for info in declared():
        if info.group != group:
            group = info.group
            lines += [f"    {group}:"]
        lines += [f"        {info.name}: {info.help} (default: {info.shown})"]
        default = inspect.Parameter.empty if info.default is MISSING else info.default
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if info.name == "url_list" else inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(info.name, kind, default=default))
    lines += [
        "        config: YAML or JSON file with any of these; what is given here wins",
        "",
        "    Returns the figures of the run. Raises UsageError if it cannot start (nothing was created), and",
        "    IncompleteRun, with the figures, if shards could not be written or the list broke off.",
    ]
    parameters.append(inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None))
    function.__doc__ = "\n".join(lines)
    function.__signature__ = inspect.Signature(parameters, return_annotation=RunReport)


_document(download)
