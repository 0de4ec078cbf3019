"""The sample of an estimate: a small run of `download` over rows drawn from the list, which records its transfers."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace

import orjson
import pyarrow as pa

from any2ds.config.options import Config, FetchOptions
from any2ds.core import layout
from any2ds.core.errors import NetworkDown, OutputError, RunError
from any2ds.core.reports import IncompleteRun, RunReport
from any2ds.fetch.profiles import Profiles
from any2ds.forecast.recording import Recorder
from any2ds.forecast.transfers import Sample, parse
from any2ds.run.download import make_dataset
from any2ds.run.reporters._contract import Reporter
from any2ds.storage.folders import OutputFolder

HOST_DELAY = 0.25  # seconds between two transfers to one host: a sample never asks more than a few times a second
MOST_OF_HOST = 120  # rows of one host that are fetched, half a minute at that pace; each stands for several then


def fetch_sample(config: Config, rows: pa.Table, folder: str, reporter: Reporter) -> Sample:
    """Download `rows` into a dataset in `folder`, as `config` says, and slowly; `reporter` is told how it goes. What an
    earlier estimate has left there is replaced; raises OutputError if something else is there."""
    chosen, weights = _without_crowds(rows, config.fetch)
    output = OutputFolder.at(folder, config.storage)
    if output.names() and output.read(layout.TRANSFERS_FILE) is None:
        raise OutputError(
            f"sample_folder={folder}: is not empty, and holds no sample of an estimate: choose another one"
        )
    output.create()
    output.write(layout.TRANSFERS_FILE, b"")  # the next estimate may replace what this one leaves, however it ends
    with tempfile.TemporaryDirectory(prefix="any2ds-estimate-") as temporary:
        recorder = Recorder(temporary, config.storage)
        report, problem = RunReport(), ""
        try:
            report = make_dataset(_of_sample(config, chosen, folder), recorder, [reporter])
        except IncompleteRun as error:
            report, problem = error.report, str(error)
        except NetworkDown as error:
            problem = str(error)
        found, cost = parse(recorder.lines())
    transfers = [replace(each, weight=weights.get(each.host, 1.0)) for each in found]
    lines = [*(asdict(each) for each in transfers), {"worker": asdict(cost)}]
    output.write(layout.TRANSFERS_FILE, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    if not transfers and problem:
        raise RunError(f"the sample could not be fetched: {problem}")
    return Sample(folder, transfers, cost, report, max(0.0, report.seconds - cost.seconds), problem=problem)


def _of_sample(config: Config, rows: pa.Table, folder: str) -> Config:
    """The options of the run over `rows`: one process, few requests to a host, and a folder of its own."""
    given = replace(
        config.input,
        url_list=rows.rename_columns(_names_in_list(config, rows.schema.names)),
        input_format=None,
        limit=None,
        shuffle=None,
        column_types=None,
    )
    hosts = {
        pattern: {**options, "host_delay": max(HOST_DELAY, options.get("host_delay", 0.0))}
        if "host_delay" in options
        else options
        for pattern, options in (config.fetch.hosts or {}).items()
    }
    fetch = replace(config.fetch, host_delay=max(HOST_DELAY, config.fetch.host_delay), hosts=hosts or None)
    is_here = config.run.is_on_this_machine
    distributor = config.run.distributor if is_here else "multiprocessing"
    running = replace(config.run, processes_count=1, distributor=distributor, quiet=True)
    output = replace(config.output, output_folder=folder, incremental_mode="overwrite")
    watch = replace(config.watch, reporters=None, enable_wandb=False, metrics_port=None, report=False)
    share = replace(config.share, rank=None, world_size=None)
    return replace(config, input=given, fetch=fetch, run=running, output=output, watch=watch, share=share)


def _names_in_list(config: Config, columns: Sequence[str]) -> list[str]:
    """The columns of the dataset under the names that they have in the list."""
    check = config.output.verify_hash
    theirs = {"url": config.input.url_col}
    if config.input.caption_col:
        theirs["caption"] = config.input.caption_col
    if check is not None:
        theirs["expected_hash"] = check.column
    return [theirs.get(name, name) for name in columns]


def _without_crowds(rows: pa.Table, fetch: FetchOptions) -> tuple[pa.Table, dict[str, float]]:
    """The rows without those beyond `MOST_OF_HOST` of a host, picked at random; and for these hosts how many rows each
    of theirs stands for."""
    host_of = Profiles(fetch).host_of
    of_hosts: defaultdict[str, list[int]] = defaultdict(list)
    for number, url in enumerate(rows.column("url").to_pylist()):
        of_hosts[host_of(url)[0]].append(number)
    rng = random.Random(0)
    kept, weights = [], {}
    for host, numbers in of_hosts.items():
        if len(numbers) > MOST_OF_HOST and host:
            weights[host] = len(numbers) / MOST_OF_HOST
            numbers = rng.sample(numbers, MOST_OF_HOST)
        kept += numbers
    return rows.take(pa.array(sorted(kept), pa.int64())), weights
