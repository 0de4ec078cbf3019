"""The sample of an estimate: a small run of `download` over rows drawn from the list, which records its transfers."""

from __future__ import annotations

import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

import orjson
import pyarrow as pa

from any2ds.config.hashes import hash_columns
from any2ds.config.options import Config, FetchOptions
from any2ds.core import layout, text
from any2ds.core.errors import NetworkDown, OutputError, RunError
from any2ds.core.reports import IncompleteRun, RunReport
from any2ds.fetch.profiles import Profiles
from any2ds.forecast.recording import Recorder
from any2ds.forecast.survey import Survey
from any2ds.forecast.transfers import Sample, parse
from any2ds.readers.columns import hash_sources, wanted_columns
from any2ds.run.download import make_dataset
from any2ds.run.reporters._contract import Reporter
from any2ds.storage.opening import open_folder

HOST_DELAY = 0.25  # seconds between two transfers to one host, unless `host_delay` is given
SECONDS_OF_DELAYS = 20.0  # that a sample waits longer, at most, where a robots.txt asks for a longer delay
_SECONDS_OF_HOST = 30.0  # for which a host is asked; the rows fetched then stand for its others
_SECONDS_IF_SMALL = 10.0  # the same for a list that is downloaded in little more, and for one of a single host
_SMALL = 10_000  # rows of such a list
_LEAST_OF_HOST = 20  # rows that are fetched at any pace
_ONE_HOST = 0.95  # of the rows, from which on a list counts as one of a single host


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The rows of a list that are fetched, and how."""

    rows: pa.Table
    config: Config  # of the run that is planned, with the pace of the sample
    weights: Mapping[str, float] = field(default_factory=dict)  # large host -> rows that each of its rows stands for
    seconds: float = 0.0  # that the pace alone takes
    has_hosts: bool = True  # with a pace
    files: tuple[str, ...] = ()  # of the list

    @property
    def pace(self) -> str:
        """How often a host is asked, and how long that takes."""
        delay = self.config.fetch.host_delay
        if not delay or not self.has_hosts:
            return ""
        often = f"{text.number(1 / delay)} a second" if delay < 1 else f"one every {text.number(delay)} s"
        if not self.seconds:
            return f"at most {often} per host"
        longest = f", {self.seconds + SECONDS_OF_DELAYS:.0f} s if a robots.txt asks for a longer delay"
        asks = self.config.fetch.robots != "ignore"
        return f"at most {often} per host: about {max(1.0, self.seconds):.0f} s{longest if asks else ''}"


def only_host(found: Survey) -> str | None:
    """The host that has nearly all URLs of a list."""
    return next((host for host, rows in found.hosts.top(1).items() if rows >= _ONE_HOST * found.urls), None)


def choose_rows(config: Config, found: Survey) -> ChosenRows:
    """Those drawn from the list, without what would take too long of one host at the pace of a sample."""
    config = replace(config, fetch=_slowly(config))
    is_small = found.rows <= _SMALL or only_host(found) is not None
    seconds = _SECONDS_IF_SMALL if is_small else _SECONDS_OF_HOST
    host_of = Profiles(config.fetch).host_of
    of_hosts: defaultdict[tuple[str, float], list[int]] = defaultdict(list)
    for number, url in enumerate(found.sample.column("url").to_pylist()):  # of several URLs the first
        host, policy = host_of(url)
        of_hosts[host, policy.host_delay].append(number)
    rng = random.Random(0)
    kept, weights, longest = [], {}, 0.0
    for (host, delay), numbers in of_hosts.items():
        most = max(_LEAST_OF_HOST, round(seconds / delay)) if delay else len(numbers)
        if len(numbers) > most:
            weights[host] = len(numbers) / most
            numbers = rng.sample(numbers, most)
        longest = max(longest, (len(numbers) - 1) * delay)
        kept += numbers
    return ChosenRows(
        found.sample.take(pa.array(sorted(kept), pa.int64())),
        config,
        weights,
        longest,
        any(delay for _, delay in of_hosts),
        found.files,
    )


def _slowly(config: Config) -> FetchOptions:
    """The options of the run with few requests to a host; a delay that was given stays as it is."""
    fetch = config.fetch
    return fetch if "host_delay" in config.given else replace(fetch, host_delay=max(HOST_DELAY, fetch.host_delay))


def fetch_sample(chosen: ChosenRows, folder: str, reporter: Reporter) -> Sample:
    """Download the rows into a dataset in `folder`; `reporter` is told how it goes. What an earlier estimate has left
    there is replaced; raises OutputError if something else is there."""
    config, weights = chosen.config, dict(chosen.weights)
    output = open_folder(folder, config.storage)
    if output.names() and output.read(layout.TRANSFERS_FILE) is None:
        raise OutputError(
            f"sample_folder={folder}: is not empty, and holds no sample of an estimate: choose another one"
        )
    output.create()
    output.write(layout.TRANSFERS_FILE, b"")  # the next estimate may replace what this one leaves, however it ends
    with tempfile.TemporaryDirectory(prefix="any2ds-estimate-") as temporary:
        recorder = Recorder(temporary, config.storage, chosen.seconds + SECONDS_OF_DELAYS)
        report, problem = RunReport(), ""
        try:
            report = make_dataset(_of_sample(config, chosen.rows, folder), recorder, [reporter])
        except IncompleteRun as error:
            report, problem = error.report, str(error)
        except NetworkDown as error:
            problem = str(error)
        recorded = recorder.lines()
    found, cost, delays = parse(recorded)
    left_out: Counter[str] = sum((Counter(line.get("left_out")) for line in recorded), Counter())
    fetched = Counter(each.host for each in found)
    for host, rows in left_out.items():
        weights[host] = weights.get(host, 1.0) * (1 + rows / fetched[host]) if fetched[host] else 1.0
    transfers = [replace(each, weight=weights.get(each.host, 1.0)) for each in found]
    lines = [
        {"files": chosen.files},
        *(asdict(each) for each in transfers),
        {"worker": asdict(cost)},
        {"delays": delays},
    ]
    output.write(layout.TRANSFERS_FILE, b"".join(orjson.dumps(line) + b"\n" for line in lines))
    if not transfers and problem:
        raise RunError(f"the sample could not be fetched: {problem}")
    start_up = max(0.0, report.seconds - cost.seconds)
    return Sample(folder, transfers, cost, report, start_up, problem=problem, left_out=delays)


def _of_sample(config: Config, rows: pa.Table, folder: str) -> Config:
    """The options of the run over `rows`: one process, and a folder of its own."""
    given = replace(
        config.input,
        url_list=_as_in_list(config, rows),
        input_format=None,
        url_template=None,
        limit=None,
        shuffle=None,
        column_types=None,
    )
    is_here = config.run.is_on_this_machine
    distributor = config.run.distributor if is_here else "multiprocessing"
    running = replace(config.run, processes_count=1, distributor=distributor, quiet=True)
    output = replace(config.output, output_folder=folder, incremental_mode="overwrite")
    watch = replace(config.watch, reporters=None, enable_wandb=False, metrics_port=None, report=False)
    share = replace(config.share, rank=None, world_size=None)
    return replace(config, input=given, run=running, output=output, watch=watch, share=share)


def _as_in_list(config: Config, rows: pa.Table) -> pa.Table:
    """Rows of the dataset with columns as the list has them."""
    check, members = config.output.verify_hash, config.members
    if members is not None:  # of which the first has the same
        rows = rows.drop_columns("url")
    theirs = wanted_columns(config.input, hash_sources(check, members), hash_columns(config.output))
    return rows.rename_columns([theirs.get(name, name) for name in rows.schema.names])
