"""The sample of an estimate: a dataset, either made by `download` from rows drawn from the list, or one of before."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import orjson
import pyarrow as pa

from any2ds.config import presets
from any2ds.config.datasets import ESTIMATE_GROUPS
from any2ds.config.declare import names_of
from any2ds.config.given import SECRET
from any2ds.config.options import (
    GROUPS,
    Config,
    FetchOptions,
    StorageOptions,
    parse_groups,
    with_config_file,
)
from any2ds.config.parsers import HashCheck, HashChecks, hash_check
from any2ds.core import layout, text
from any2ds.core.bodies.buffer import Buffer
from any2ds.core.errors import NetworkDown, OptionError, OutputError, RunError
from any2ds.core.failures import DUPLICATE, SUCCESS, Failure
from any2ds.core.histogram import Histogram
from any2ds.core.members import URL, Members, column
from any2ds.core.metadata import EXPECTED_HASH
from any2ds.core.reports import IncompleteRun, ProcessCost, RobotsCost, RunReport
from any2ds.core.rows import Row
from any2ds.core.samples import Fetched
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.dataset.places import of_place
from any2ds.dataset.recipe_file import RecipeFile
from any2ds.describe.sums import spread
from any2ds.estimate.facts import Sample, SampledRow, Survey, Transfer
from any2ds.fetch.fetcher import UrlFetcher
from any2ds.fetch.profiles import Profiles
from any2ds.readers.columns import ALL
from any2ds.run.download import make_dataset
from any2ds.storage.opening import open_folder
from any2ds.storage.stores import Stores

log = logging.getLogger(__name__)

HOST_DELAY = 0.25  # seconds between two transfers to one host, unless `host_delay` is given
DELAY_SECONDS = 20.0  # for which rows are waited for that are held up by nothing but the delay of a robots.txt
_HOST_SECONDS = 30.0  # for which one host is asked, and the same for a small list or one of a single host
_HOST_SECONDS_IF_SMALL = 10.0
_SMALL = 10_000  # rows of such a list
_LEAST_OF_HOST = 20  # rows that are fetched at any pace
_SINGLE_HOST = 0.95  # share of the rows, from which on a list counts as one of a single host
_SHARDS, _METADATA = 1000, 50  # shards of a dataset whose statistics, and whose metadata, are read
_MOST_ROWS = 50_000
_IDLE_CPU, _MOST_IDLE = 0.009, 0.75  # seconds in a second of waiting, measured; and share of all that is taken for it
_COLUMNS = ("url", "status", "error_code", "error_message", "bytes", "attempts")
_LEFT_OUT = "not fetched: the sample ends before the delay is over that the robots.txt of the host asks for"
_NOT_TAKEN = ("output_folder", "incremental_mode", "limit")
_NOT_TAKEN_OF_RECIPES = (*_NOT_TAKEN, "save_additional_columns")  # their rows have the recipe's own, lists have not


# --- a dataset that `download` makes ---


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The rows of a list that are fetched, and how."""

    rows: pa.Table
    config: Config  # of the run that is planned, with the pace of the sample
    files: tuple[str, ...]  # of the list
    seconds: float  # that the pace alone takes

    @property
    def pace(self) -> str:
        """How often a host is asked, and how long that takes, for a person; empty without a pace."""
        delay = self.config.fetch.host_delay
        if not (delay and self.seconds):
            return ""
        often = f"{text.number(1 / delay)} a second" if delay < 1 else f"one every {text.number(delay)} s"
        longest = f", {self.seconds + DELAY_SECONDS:.0f} s if a robots.txt asks for a longer delay"
        asks = self.config.fetch.robots != "ignore"
        return f", at most {often} per host: about {max(1.0, self.seconds):.0f} s{longest if asks else ''}"


def single_host(found: Survey) -> str | None:
    """The host that has nearly all URLs of a list."""
    return next((host for host, rows in found.largest_hosts(1).items() if rows >= _SINGLE_HOST * found.urls), None)


def choose_rows(config: Config, found: Survey) -> ChosenRows:
    """The rows drawn from the list, without what would take too long of one host at the pace of a sample."""
    if "host_delay" not in config.given:
        config = replace(config, fetch=replace(config.fetch, host_delay=max(HOST_DELAY, config.fetch.host_delay)))
    is_small = found.rows <= _SMALL or single_host(found) is not None
    seconds = _HOST_SECONDS_IF_SMALL if is_small else _HOST_SECONDS
    host_of = Profiles(config.fetch).host_of
    of_hosts: defaultdict[tuple[str, float], list[int]] = defaultdict(list)
    for number, url in enumerate(found.sample.column("url").to_pylist()):  # of several URLs the first
        host, policy = host_of(url)
        of_hosts[host, policy.host_delay].append(number)
    rng = random.Random(0)
    kept, longest = [], 0.0
    for (_, delay), numbers in of_hosts.items():
        most = max(_LEAST_OF_HOST, round(seconds / delay)) if delay else len(numbers)
        chosen = rng.sample(numbers, min(most, len(numbers)))
        longest = max(longest, (len(chosen) - 1) * delay)
        kept += chosen
    rows = found.sample.take(pa.array(sorted(kept), pa.int64()))
    return ChosenRows(rows, config, found.files, longest)


def fetch_sample(chosen: ChosenRows, folder: str) -> Sample:
    """Download the rows into a dataset in `folder`, where it replaces the sample of an earlier estimate. Raises
    OutputError if something else is there, and RunError if nothing was fetched."""
    config = chosen.config
    output = open_folder(folder, config.storage)
    if output.names() and output.read(layout.SAMPLE_FILE) is None:
        raise OutputError(
            f"sample_folder={folder}: is not empty, and holds no sample of an estimate: choose another one"
        )
    output.create()
    # The next estimate may replace what this one leaves, however it ends.
    output.write(layout.SAMPLE_FILE, orjson.dumps({"files": chosen.files}))
    report, problem = RunReport(), ""
    fetchers = BriefFetchers(config.storage, chosen.seconds + DELAY_SECONDS)
    try:
        report = make_dataset(_sample_config(config, chosen.rows, folder), fetchers)
    except IncompleteRun as error:
        report, problem = error.report, str(error)
    except NetworkDown as error:
        problem = str(error)
    if not report.count:
        raise RunError(f"the sample could not be fetched: {problem}")
    return replace(read_sample(folder, config), start_up=max(0.0, report.seconds - report.at_work), problem=problem)


def _sample_config(config: Config, rows: pa.Table, folder: str) -> Config:
    """The options of the run over `rows`: one process, and a folder of its own.

    The rows have been read as the options say, and their columns are called as in a dataset: paths (`images[].url`) and
    new names of columns have no meaning any more.
    """
    members, names = config.members, rows.schema.names
    given = replace(
        config.input,
        url_list=rows if members is None else rows.drop_columns("url"),  # which is that of the first member
        url_col="url" if members is None else ",".join(f"{name}:{column(name, URL)}" for name in members.names),
        caption_col="caption" if "caption" in names else None,
        save_additional_columns=(ALL,),
        input_format=None,
        url_template=None,
        limit=None,
        shuffle=None,
        column_types=None,
    )
    distributor = config.run.distributor if config.run.is_on_this_machine else "multiprocessing"
    running = replace(config.run, processes_count=1, distributor=distributor, quiet=True)
    check = _checks_of_dataset(config.output.verify_hash, members)
    output = replace(config.output, output_folder=folder, incremental_mode="overwrite", verify_hash=check)
    watch = replace(config.watch, reporters=None, enable_wandb=False, metrics_port=None, report=False)
    share = replace(config.share, rank=None, world_size=None)
    return replace(config, input=given, run=running, output=output, watch=watch, share=share)


def _checks_of_dataset(check: HashCheck | HashChecks | None, members: Members | None) -> HashCheck | HashChecks | None:
    """`check` with the columns of expected hashes that a dataset has, in place of those of its list."""
    if check is None or members is None:
        return check and HashCheck(EXPECTED_HASH.name, check.parts[0].kind)
    checked = {name: each for name in members.names if (each := check.of(name)) is not None}
    return hash_check({name: (column(name, EXPECTED_HASH.name), each.kind) for name, each in checked.items()})


@dataclass(frozen=True, slots=True)
class BriefFetchers:
    """Makes a `BriefFetcher`; it is sent to the worker."""

    storage: StorageOptions
    seconds: float

    def __call__(self, fetch: FetchOptions, buffer: Buffer) -> BriefFetcher:
        fetcher = BriefFetcher(fetch, buffer, Stores(self.storage.storage_options))
        fetcher.seconds = self.seconds
        return fetcher


class BriefFetcher(UrlFetcher):
    """Fails the rows that are left after `seconds`, if nothing but the delay of a robots.txt holds them up."""

    seconds = 0.0

    def fetch(self, rows: Iterable[Row]) -> Iterator[list[Fetched]]:
        ends, has_all = time.monotonic() + self.seconds, threading.Event()
        waiting: dict[tuple[int, int, str], Row] = {}

        def noted() -> Iterator[Row]:
            for row in rows:
                waiting[row.shard_id, row.position, row.member] = row
                yield row
            has_all.set()

        for batch in super().fetch(noted()):
            yield batch
            for fetched in batch:
                waiting.pop((fetched.row.shard_id, fetched.row.position, fetched.row.member), None)
            is_late = has_all.is_set() and time.monotonic() > ends
            if is_late and all(self.crawl_delay(row.url) > HOST_DELAY for row in waiting.values()):
                break
        if waiting:
            yield [Fetched(row, Failure("fetch", "timeout_total", _LEFT_OUT), 0) for row in waiting.values()]


# --- what a dataset says ---


def with_recorded(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of an estimate, with those of the dataset that it takes as its sample, if it does: its list, and how
    it was made. Those of a config file win over the dataset's, and those given over both. Raises OutputError for what
    is no dataset."""
    written = with_config_file(given, ESTIMATE_GROUPS)
    folder = written.get("from_dataset")
    if folder is None or written.get("preset") is not None:
        return given
    storage = parse_groups({"storage_options": written.get("storage_options")}, (StorageOptions,))[0]
    dataset = of_place(Dataset, str(folder), None, Stores(storage.storage_options))
    run = dataset.run
    not_taken = _NOT_TAKEN if RecipeFile.found(dataset.folder, dataset.entries) is None else _NOT_TAKEN_OF_RECIPES
    known = names_of(GROUPS) | presets.foreign_options().keys()
    recorded: dict[str, Any] = {
        name: text
        for name, (text, source) in (run.given if run is not None else {}).items()
        if name in known and name not in not_taken and source != "preset" and text != SECRET
    }
    files = [file.name for segment in run.lists for file in segment.files] if run is not None else []
    sample = orjson.loads(dataset.folder.read(layout.SAMPLE_FILE) or b"{}")
    files = files or sample.get("files")
    if files:
        recorded["url_list"] = files[0] if len(files) == 1 else files
    elif "url_list" not in written:
        raise OptionError(f"{folder}: does not say of which list it was made: url_list is missing")
    return {**recorded, **written, **given, "from_dataset": dataset.folder.url}


def read_sample(folder: str, config: Config) -> Sample:
    """The facts about rows that the dataset in `folder` holds. Raises OutputError if there are none."""
    folder = os.path.expanduser(folder)
    dataset = Dataset(folder, Stores(config.storage.storage_options))
    shards = [stats for _, stats in dataset.stats(spread(dataset.finished, _SHARDS)) if isinstance(stats, Stats)]
    if not sum(stats.count for stats in shards):
        raise OutputError(f"{folder}: holds no finished shard")
    profiles = Profiles(config.fetch)
    rows = [row for shard in spread(dataset.finished, _METADATA) for row in _rows_of(dataset, shard, profiles)]
    left_out = {row.host for row in rows if row.code == _LEFT_OUT}
    rows = [row for row in rows if row.code != _LEFT_OUT]
    if not rows and not left_out:
        raise OutputError(f"{folder}: its metadata cannot be read")
    successes = sum(stats.successes for stats in shards)
    urls = max(1, sum(stats.count - stats.duplicates for stats in shards)) * len(config.url_columns)
    latencies: Counter[int] = sum((Counter(stats.latencies) for stats in shards), Counter())
    robots = sum((stats.robots for stats in shards), RobotsCost())
    is_slow = dataset.folder.read(layout.SAMPLE_FILE) is not None
    waited = max(stats.end_time for stats in shards) - min(stats.start_time for stats in shards) if is_slow else 0.0
    cost = _mean_cost([stats.process for stats in shards], urls, _IDLE_CPU * waited)
    sizes = [transfer.size for row in rows for transfer in row.transfers]
    return Sample(
        folder,
        rows if len(rows) <= _MOST_ROWS else random.Random(0).sample(rows, _MOST_ROWS),
        stored_size=sum(stats.size or 0 for stats in shards) / successes if successes else 0.0,
        latencies=Histogram(latencies),
        sizes=Histogram.of(sizes),
        received=max(cost.received if cost else 0.0, sum(sizes) / max(1, len(sizes))),
        cost=cost,
        robots=robots,
        left_out=tuple(sorted(left_out - {row.host for row in rows})),
    )


def _mean_cost(costs: Sequence[ProcessCost], urls: int, idle: float) -> ProcessCost | None:
    """The cost of a URL, without `idle` seconds of the processor, which a process with nothing to do takes; None for
    datasets that do not say it."""
    cpu, own, received = (sum(getattr(cost, name) for cost in costs) for name in ("cpu", "own_cpu", "received"))
    if not cpu:
        return None
    idle = min(idle, _MOST_IDLE * own)
    memory = max(cost.memory for cost in costs)
    return ProcessCost((cpu - idle) / urls, (own - idle) / urls, memory, round(received / urls))


def _rows_of(dataset: Dataset, shard: ShardFiles, profiles: Profiles) -> Iterator[SampledRow]:
    """The rows of a shard that were fetched; none if it cannot be read."""
    members = dataset.members
    # The columns of each transfer: of the row, or of each of its files.
    transfers = [_COLUMNS] if members is None else [[column(name, own) for own in _COLUMNS] for name in members.names]
    wanted = {*_COLUMNS, *chain.from_iterable(transfers)}
    try:
        with dataset.metadata_file(shard) as file:
            rows = file.read(columns=[name for name in file.schema_arrow.names if name in wanted]).to_pylist()
    except Exception as error:  # of Arrow, of the system and of file systems
        log.warning("%s cannot be read: %s", shard.metadata, error)
        return
    for row in rows:
        if row.get("status") == DUPLICATE:
            continue
        code = _LEFT_OUT if row.get("error_message") == _LEFT_OUT else row.get("error_code") or row.get("status")
        values = (dict(zip(_COLUMNS, map(row.get, columns), strict=True)) for columns in transfers)
        yield SampledRow(code or SUCCESS, tuple(_transfer(own, profiles) for own in values))


def _transfer(fields: Mapping[str, Any], profiles: Profiles) -> Transfer:
    """The outcome of a URL, by its columns of the metadata."""
    host, _ = profiles.host_of(fields[URL])
    code = fields["error_code"] or fields["status"] or SUCCESS
    return Transfer(host, str(code), fields["bytes"] or 0, fields["attempts"] or 1)
