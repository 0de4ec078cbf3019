"""A random sample of the shards of a dataset, and the totals of all of them.

A dataset may have a million shards: where it has a list of shards, its folder is not listed.
"""

from __future__ import annotations

import contextlib
import random
from array import array
from copy import copy
from dataclasses import dataclass
from typing import cast

from any2ds.core import plugins
from any2ds.core.errors import DamagedShard, OutputError, Unreachable, access_text, error_text, redacted
from any2ds.core.stats import Stats
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.shards import ShardEntry, ShardList, ShardTable, Totals, pattern
from any2ds.storage.opening import open_folder
from any2ds.storage.patience import is_permanent
from any2ds.storage.stores import Stores
from any2ds.writers.contract import ShardWriter

MOST_SHARDS = 10_000
"""Of a sample; smaller datasets are in it as a whole."""


@dataclass(frozen=True, slots=True)
class ShardSample:
    """Some shards of a dataset, or all."""

    dataset: Dataset  # with these shards only
    ids: array[int]  # of all finished shards of the dataset
    table_of_all: ShardTable | None = None  # of all shards; None without a list of shards
    whole: Dataset | None = None  # with all shards, where the folder was listed

    @property
    def shards(self) -> int:
        """Number of finished shards of the dataset."""
        return len(self.ids)

    @property
    def table(self) -> ShardTable | None:
        """The rows of these shards; None without a list of shards."""
        return self.table_of_all and self.table_of_all.only(self.dataset.finished.ids)

    @property
    def totals(self) -> Totals | None:
        """The sums over all shards; None without a list of shards."""
        return self.table_of_all.totals if self.table_of_all is not None else None

    @property
    def pattern(self) -> str | None:
        """The names of all data files, see `shards.pattern`; None if they are unknown."""
        names, writer = self.dataset.layout, self.dataset.writer
        return pattern(self.ids, names, writer.extension) if names is not None and writer is not None else None

    @property
    def writer(self) -> type[ShardWriter]:
        """Writer of its format. Raises MissingExtra where a library for it is not installed."""
        return self.dataset.writer or cast(
            "type[ShardWriter]", plugins.load("writers", self.dataset.output_format or "")
        )

    @classmethod
    def of(
        cls,
        url: str,
        stores: Stores | None = None,
        most: int = MOST_SHARDS,
        seed: int = 0,
        unfinished: bool = False,
    ) -> ShardSample:
        """Sample of a dataset, of the same shards each time.

        Raises OutputError for a folder that holds no dataset, or gives no answer, and for one that is being built,
        unless it may be `unfinished`.
        """
        folder = open_folder(url, stores=stores)
        try:
            if not (listed := ShardList.of(folder)).is_open:  # as while a run is at work
                table = listed.table
                some = table if len(table) <= most else table.only(random.Random(seed).sample(list(table.ids), most))
                dataset = Dataset(url, stores, some)
                if dataset.run is not None:
                    return cls(dataset, table.ids, table)
        except Unreachable:
            raise
        except (OutputError, LookupError):  # the list of shards is broken
            pass
        except Exception as error:  # it is missing, or broken; any file system has exceptions of its own
            if not folder.is_local and not is_permanent(error):  # to list the folder would take as long, and fail, too
                raise Unreachable(f"{url!r} cannot be opened: {access_text(error)}") from error
        return cls.listed(Dataset(url, stores, unfinished=unfinished), most, seed)

    @classmethod
    def listed(cls, dataset: Dataset, most: int = MOST_SHARDS, seed: int = 0) -> ShardSample:
        """A sample of a dataset whose folder was listed, so that what is missing is known."""
        ids = dataset.finished.ids
        if len(ids) <= most:
            return cls(dataset, ids, whole=dataset)
        some = copy(dataset)
        some.shards = dataset.shards.only(random.Random(seed).sample(list(ids), most))
        return cls(some, ids, listed_table(dataset), whole=dataset)


def listed_table(dataset: Dataset) -> ShardTable | None:
    """The list of shards of a dataset whose folder was listed; None if it does not name the finished ones."""
    with contextlib.suppress(Exception):  # of a list that is missing or broken, and of any file system
        listed = ShardList.of(dataset.folder)
        if not listed.is_open and listed.table.ids == dataset.finished.ids:
            return listed.table
    return None


def shard_table(dataset: Dataset) -> ShardTable:
    """The finished shards, by the list of shards if it is true, else by their statistics. Raises DamagedShard."""
    table = listed_table(dataset)
    return table_of_stats(dataset) if table is None else table


def table_of_stats(dataset: Dataset) -> ShardTable:
    """The finished shards by their statistics. Raises DamagedShard."""
    entries = []
    for files, stats in dataset.stats(dataset.finished):
        if not isinstance(stats, Stats):
            raise DamagedShard(f"{files.stats} of {redacted(dataset.folder.url)!r}: {error_text(stats)}")
        listed_size = files.sizes.get(files.data or "", 0)  # which the statistics of img2dataset do not have
        entries.append(ShardEntry.of_stats(files.shard_id, stats, listed_size))
    return ShardTable.of(entries)
