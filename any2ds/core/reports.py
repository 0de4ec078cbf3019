"""Reports of workers and runs: the statistics of shards, their errors, progress, and the sum of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from any2ds.core.counts import count, counts
from any2ds.core.errors import RunError, printable, redacted, shard_count
from any2ds.core.failures import DUPLICATE, NO_FAILURES, SUCCESS, in_order, known_outcome
from any2ds.core.histogram import Histogram
from any2ds.core.metrics import WorkerMetrics
from any2ds.core.text import duration, percent
from any2ds.core.text import rows as row_count
from any2ds.core.version import __version__

OTHER_REASONS = "other kinds of files"
_MOST_CODES = 4  # that a message names
_LONGEST_EXAMPLE = 300  # characters of a URL in it
_MOST_EXTS = 1000  # that a run counts: servers may call files whatever they like
_MOST_DELAYS = 100  # hosts whose robots.txt asks for a delay, the longest delays first


@dataclass(frozen=True, slots=True)
class RobotsCost:
    """The cost of asking for robots.txt. The rows that it excluded are counted by their failure codes."""

    files: int = 0  # requested, each once, however often it was tried; not of hosts without a connection
    bytes: int = 0  # of those that exist
    seconds: float = 0.0  # for which rows waited for each, added up; other hosts went on meanwhile
    delays: Mapping[str, float] = field(default_factory=dict)  # host -> seconds between two requests that it asks for

    @classmethod
    def from_json(cls, stats: Mapping[str, Any]) -> RobotsCost:
        """The cost that the statistics of a shard tell. Raises TypeError or ValueError for anything else."""
        files, size = (count(stats.get(f"robots_{name}") or 0, f"robots_{name}") for name in ("files", "bytes"))
        delays = {str(host): float(seconds) for host, seconds in (stats.get("robots_delays") or {}).items()}
        return cls(files, size, float(stats.get("robots_seconds") or 0), delays)

    def __add__(self, other: RobotsCost) -> RobotsCost:
        delays = self.delays or other.delays
        if self.delays and other.delays:
            longest = sorted({**self.delays, **other.delays}.items(), key=lambda item: -item[1])
            delays = dict(longest[:_MOST_DELAYS])
        return RobotsCost(self.files + other.files, self.bytes + other.bytes, self.seconds + other.seconds, delays)


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """The cost of a worker process between the completion of two of its shards; `estimate` reads it."""

    cpu: float = 0.0  # seconds of the processor, children included
    own_cpu: float = 0.0  # seconds, of `cpu`, of the thread that drives sockets and writes files
    memory: int = 0  # bytes at the end
    received: int = 0  # bytes of bodies, those of failures included

    @classmethod
    def from_json(cls, stats: Mapping[str, Any]) -> ProcessCost:
        """The cost that the statistics of a shard tell. Raises TypeError or ValueError for anything else."""
        found = stats.get("process") or {}
        kinds = {"cpu": float, "own_cpu": float, "memory": int, "received": int}
        return cls(**{name: max(kind(0), kind(found.get(name, 0))) for name, kind in kinds.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Outcomes of rows, of a shard or of a run. The five counts from `successes` to `duplicates`, and those of the
    two stages that fail, make `count`."""

    count: int = 0  # rows
    successes: int = 0  # rows with at least one stored sample
    failed_to_download: int = 0  # rows
    failed_to_subsample: int = 0  # rows that were downloaded, and failed in a step
    dropped: int = 0  # fetched, and not stored because of their hash
    filtered: int = 0  # fetched, and filtered by a step of the user
    duplicates: int = 0  # rows that refer to an earlier one
    samples: int = 0  # stored: a row that succeeded has one, or several
    bytes: int = 0  # of the files stored
    attempts: int = 0  # transfers that were made for its rows
    status_dict: Mapping[str, int] = field(default_factory=dict)  # outcome code -> rows
    robots: RobotsCost = RobotsCost()  # what asking for robots.txt took
    not_processed: Mapping[str, int] = field(default_factory=dict)  # reason -> files that a step left as they came
    examples: Mapping[str, str] = field(default_factory=dict)  # failure code -> URL of a row with it, no credentials
    # member -> outcome -> files, where rows have several URLs; see `core.members`
    members: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # failure code -> rows of earlier shards whose failures these rows replace, as a retry's do; `status_dict` less this
    # counts each row once, by its last outcome, in the sum over a dataset
    replaces: Mapping[str, int] = field(default_factory=dict)
    # and what had become of the members of these rows, as in `members`
    replaced_members: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


SUMMED = tuple(each.name for each in fields(RowCounts) if each.type == "int")
"""The counts, which are added up over shards and runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReport(RowCounts):
    """The statistics of a finished shard; `_stats.json` is its JSON. Its `robots` are those since the process finished
    its previous shard."""

    shard_id: int
    start_time: float = 0.0  # Unix seconds
    end_time: float = 0.0
    urls_sha256: str = ""  # the fingerprint of its rows, which tells when the list has changed
    exts: Mapping[str, int] = field(default_factory=dict)  # extension -> files stored with it
    splits: Mapping[str, int] = field(default_factory=dict)  # value of the column `split` -> samples, "" for null
    data_bytes: int = 0  # of the data file; 0 where it is a folder, or there is none
    latencies: Mapping[int, int] = field(default_factory=dict)  # of a Histogram: seconds of transfers that succeeded
    process: ProcessCost = ProcessCost()

    @classmethod
    def from_json(cls, stats: Mapping[str, Any]) -> ShardReport:
        """The report that `to_json` was made from. Raises KeyError, TypeError, AttributeError or ValueError for
        anything else."""
        stats = {"attempts": 0, **stats}  # those of other tools lack it
        numbers: dict[str, Any] = {name: count(stats[name], name) for name in ("shard_id", "data_bytes", *SUMMED)}
        return cls(**numbers, **figures_in(stats))

    @property
    def duration(self) -> float:
        return max(0.0, self.end_time - self.start_time)

    def to_json(self) -> dict[str, Any]:
        found = {"any2ds": __version__, **asdict(self), "duration": self.duration}
        robots = {f"robots_{name}": value for name, value in found.pop("robots").items()}
        latencies = {str(bucket): count for bucket, count in sorted(self.latencies.items())}
        for name in ("members", "replaces", "replaced_members"):
            if not found[name]:
                del found[name]
        return {**found, **robots, "latencies": latencies}


def figures_in(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ShardReport, besides its counts, that the statistics of a shard tell; those of other tools lack
    most of them. Raises TypeError, AttributeError or ValueError for values of other kinds."""
    by_member = {
        name: {str(member): counts(of, name) for member, of in (stats.get(name) or {}).items()}
        for name in ("members", "replaced_members")
    }
    return {
        **{name: counts(stats.get(name), name) for name in _COUNTS_BY_NAME},
        **by_member,
        "start_time": float(stats.get("start_time") or 0),
        "end_time": float(stats.get("end_time") or 0),
        "urls_sha256": str(stats.get("urls_sha256") or ""),
        "examples": {str(code): str(url) for code, url in (stats.get("examples") or {}).items()},
        "latencies": dict(Histogram.from_json(stats.get("latencies") or {}).counts),
        "process": ProcessCost.from_json(stats),
        "robots": RobotsCost.from_json(stats),
    }


_COUNTS_BY_NAME = ("status_dict", "exts", "splits", "not_processed", "replaces")


def members_added(
    one: Mapping[str, Mapping[str, int]], other: Mapping[str, Mapping[str, int]]
) -> Mapping[str, Mapping[str, int]]:
    """The sum of what became of members."""
    if not (one and other):
        return one or other
    return {name: dict(Counter(one.get(name, {})) + Counter(other.get(name, {}))) for name in {**one, **other}}


def most_frequent(reasons: Mapping[str, int], most: int = 20) -> dict[str, int]:
    """The most frequent reasons, and the others in one: servers may call files whatever they like."""
    ordered = sorted(reasons.items(), key=lambda item: (item[0] == OTHER_REASONS, -item[1], item[0]))
    if len(ordered) <= most:
        return dict(ordered)
    return {**dict(ordered[:most]), OTHER_REASONS: sum(count for _, count in ordered[most:])}


@dataclass(frozen=True, slots=True)
class ShardError:
    """A shard that could not be made; its rows have no outcome yet."""

    shard_id: int
    reason: str
    traceback: str = ""
    attempt: int = 0  # of the job that failed
    again: bool = False  # it is going to be tried again; `run` knows, nobody else has to say


@dataclass(frozen=True, slots=True)
class Progress:
    """Events in one worker since its last Progress, for people who watch."""

    # success, dropped, filtered, duplicate or failure code -> rows; fewer than none where a shard failed whose rows had
    # been reported
    outcomes: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0  # of successes
    metrics: WorkerMetrics | None = None  # of that worker, if known


Event = Progress | ShardReport | ShardError


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RunReport(RowCounts):
    """The sum of a run: rows by outcome, over the shards made in it."""

    shards: int = 0  # made in it
    seconds: float = 0.0  # from start to end
    first_start: float = 0.0  # of its shards, in Unix seconds; 0 if there are none
    last_end: float = 0.0
    skipped_shards: int = 0  # finished by an earlier run
    failed_shards: tuple[ShardError, ...] = ()  # that could not be written
    left_shards: int = 0  # open when the run was stopped or broken off, and left to another one
    exts: Mapping[str, int] = field(default_factory=dict)  # extension -> files stored with it, the most frequent ones

    def __add__(self, shard: ShardReport) -> RunReport:
        added = self._with_counts(shard, shard.start_time, shard.end_time)
        return replace(added, shards=self.shards + 1)

    def followed_by(self, later: RunReport) -> RunReport:
        """The figures of two runs of one command, one after the other."""
        added = self._with_counts(later, later.first_start, later.last_end)
        return replace(
            added,
            shards=self.shards + later.shards,
            seconds=self.seconds + later.seconds,
            skipped_shards=self.skipped_shards + later.skipped_shards,
            failed_shards=(*self.failed_shards, *later.failed_shards),
            left_shards=self.left_shards + later.left_shards,
        )

    def _with_counts(self, other: ShardReport | RunReport, start: float, end: float) -> RunReport:
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in SUMMED},
            first_start=min(self.first_start or start, start or self.first_start),
            last_end=max(self.last_end, end),
            status_dict=dict(Counter(self.status_dict) + Counter(other.status_dict)),
            robots=self.robots + other.robots,
            not_processed=most_frequent(Counter(self.not_processed) + Counter(other.not_processed)),
            examples={**other.examples, **self.examples},
            exts=dict((Counter(self.exts) + Counter(other.exts)).most_common(_MOST_EXTS)),
            members=members_added(self.members, other.members),
            replaces=dict(Counter(self.replaces) + Counter(other.replaces)),
            replaced_members=members_added(self.replaced_members, other.replaced_members),
        )

    @property
    def at_work(self) -> float:
        """Seconds with shards open, as the report page has them: without start-up and end. 0 if there were none."""
        return max(0.0, min(self.last_end - self.first_start, self.seconds))

    @property
    def nothing_stored(self) -> str:
        """Why rows were tried and none was stored; empty if one was, perhaps by an earlier run, or if none was tried
        but duplicates."""
        tried = {code: rows for code, rows in in_order(self.status_dict) if code != DUPLICATE}
        if self.successes or self.skipped_shards or not tried:
            return ""
        code, count = next(iter(tried.items()))
        if len(tried) > 1:
            shown = ", ".join(f"{rows:,} as {printable(code)}" for code, rows in [*tried.items()][:_MOST_CODES])
            more = ", …" if len(tried) > _MOST_CODES else ""
            return f"nothing was stored: of {row_count(sum(tried.values()))}, {shown}{more}"
        which = "the only row" if count == 1 else f"all {count:,} rows"
        if code in NO_FAILURES:
            return f"nothing was stored: {which} ended as {code} ({NO_FAILURES[code]})"
        why = f"nothing was stored: {which} failed as {printable(code)}"
        if (known := known_outcome(code)) is not None:  # None: of another version
            why += f" ({known.meaning}). {known.advice}"
        example = self.examples.get(code)
        return f"{why} The first: {printable(redacted(example))[:_LONGEST_EXAMPLE]}" if example else why

    def __repr__(self) -> str:
        failed = self.failed_to_download + self.failed_to_subsample
        shards = shard_count(self.shards) + (f", {len(self.failed_shards):,} FAILED" if self.failed_shards else "")
        rows = f"{row_count(self.count)}: {self.successes:,} stored, {failed:,} failed"
        return f"<RunReport {rows}; {shards} in {duration(self.at_work or self.seconds)}>"

    def _repr_html_(self) -> str:
        """HTML for a notebook: the outcomes with their rows and shares."""
        from rich.table import Table
        from rich.text import Text

        from any2ds.core.terminal.notebook import html

        table = Table(box=None, pad_edge=False)
        table.add_column("outcome")
        table.add_column("rows", justify="right")
        table.add_column("share", justify="right")
        for code, rows in in_order(self.status_dict):
            style = "green" if code == SUCCESS else "" if code in NO_FAILURES else "yellow"
            table.add_row(Text(printable(code), style=style), f"{rows:,}", percent(rows, self.count))
        return html([Text(repr(self)[1:-1]), table] if self.status_dict else [Text(repr(self)[1:-1])])


class IncompleteRun(RunError):
    """Shards are missing; `report` says what was done."""

    def __init__(self, message: str, report: RunReport) -> None:
        super().__init__(message)
        self.report = report
