"""Counts what became of the rows of one shard, for its report and its `_stats.json`."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any

from any2ds.core.failures import DROPPED, DUPLICATE, FILTERED, STATUS_OF_STAGE, SUCCESS
from any2ds.core.histogram import Histogram
from any2ds.core.members import Members
from any2ds.core.metadata import example_of
from any2ds.core.reports import ProcessCost, RobotsCost, ShardReport, most_frequent

_FAILED = STATUS_OF_STAGE["fetch"]


class ShardStats:
    """Rows are counted by outcome, stored files by extension, transfers by their number and seconds."""

    def __init__(self, members: Members | None = None) -> None:
        """`members` of a sample, where rows have several URLs."""
        self._members = members
        self.start_time = time.time()
        self._bytes = 0  # of stored files
        self.not_processed: Counter[str] = Counter()  # reason -> files that a step has left as they came
        self.splits: Mapping[str, int] = {}  # value of the column `split` -> samples
        self.replaces: Mapping[str, int] = {}  # failure code -> rows of earlier shards that are tried again in this one
        self.replaced_members: Mapping[str, Mapping[str, int]] = {}  # what had become of their members
        self.attempts = 0
        self.robots = RobotsCost()
        self.process = ProcessCost()
        self._seconds = array("d")  # of transfers: a Histogram of all at once takes a third of the time
        self._statuses: Counter[str] = Counter()
        self._codes: Counter[str] = Counter()
        self._exts: Counter[str] = Counter()
        self._of_members: dict[str, Counter[str]] = {name: Counter() for name in members.names} if members else {}
        self._samples = 0
        self.examples: dict[str, str] = {}  # code -> URL of a row that failed so

    def add_row(self, status: str, code: str) -> None:
        """A row has this outcome."""
        self._statuses[status] += 1
        self._codes[code] += 1

    def add_members(self, fields: Mapping[str, Any]) -> None:
        """The files of a row have these outcomes, by its metadata."""
        if self._members is not None:
            for name, outcome in self._members.outcomes(fields):
                self._of_members[name][outcome] += 1

    def add_example(self, code: str, url: str | None) -> None:
        """A row with this URL has failed so."""
        if shown := example_of(url):
            self.examples[code] = shown

    def add_sample(self, ext: str, size: int, not_processed: Mapping[str, str] | None = None) -> None:
        """A sample is stored, with a file of `size` bytes; steps have left those `not_processed` as they came."""
        self._samples += 1
        if not_processed:
            self.not_processed.update(not_processed.values())
        self._exts[ext] += 1  # not by `add_file`: a call more for every row
        self._bytes += size

    def add_file(self, ext: str, size: int) -> None:
        """A further file of the last sample is stored."""
        self._exts[ext] += 1
        self._bytes += size

    def add_transfer(self, attempts: int | None, seconds: float) -> None:
        """A row was fetched, or its fetch has failed; `seconds` are 0 then."""
        self.attempts += attempts or 0
        self._seconds.append(seconds)

    def report(self, shard_id: int) -> ShardReport:
        """The report of a shard that ends now."""
        named = (SUCCESS, DROPPED, FILTERED, DUPLICATE, _FAILED)
        return ShardReport(
            shard_id=shard_id,
            count=self._statuses.total(),
            successes=self._statuses[SUCCESS],
            failed_to_download=self._statuses[_FAILED],
            failed_to_subsample=self._statuses.total() - sum(self._statuses[status] for status in named),
            dropped=self._statuses[DROPPED],
            filtered=self._statuses[FILTERED],
            duplicates=self._statuses[DUPLICATE],
            samples=self._samples,
            bytes=self._bytes,
            start_time=self.start_time,
            end_time=time.time(),
            status_dict=dict(self._codes),
            robots=self.robots,
            exts=dict(self._exts),
            splits=self.splits,
            replaces=dict(self.replaces),
            replaced_members={name: dict(of) for name, of in self.replaced_members.items()},
            not_processed=most_frequent(self.not_processed),
            attempts=self.attempts,
            examples=self.examples,
            members={name: dict(of) for name, of in self._of_members.items() if of},
            latencies=dict(Histogram.of(self._seconds).counts),
            process=self.process,
        )
