"""A random sample of the shards of a dataset, and the totals of all of them.

A dataset may have a million shards: the list of shards is read once, as a stream, and only the shards of the sample are
known to `Dataset`.
"""

from __future__ import annotations

import contextlib
import io
import random
from copy import copy
from dataclasses import dataclass, replace
from typing import cast

from any2ds.core import layout, plugins
from any2ds.core.errors import OutputError, Unreachable, access_text
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.shards import ShardList, ShardTable, Totals, pattern
from any2ds.storage.folders import OutputFolder
from any2ds.storage.patience import is_permanent
from any2ds.storage.stores import Stores
from any2ds.writers.contract import ShardWriter

MOST_SHARDS = 10_000
"""Of a sample; smaller datasets are in it as a whole."""
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ShardSample:
    """Some shards of a dataset, or all."""

    dataset: Dataset  # with these shards only
    shards: int  # finished shards of the dataset
    table: ShardTable | None = None  # of these shards; None without a list of shards
    table_of_all: ShardTable | None = None  # of all shards; the same
    pattern: str | None = None  # of all data files, see `shards`; None if it is unknown
    whole: Dataset | None = None  # with all shards, where the folder was listed

    @property
    def totals(self) -> Totals | None:
        """The sums over all shards; None without a list of shards."""
        return self.table_of_all.totals if self.table_of_all is not None else None

    @property
    def is_all(self) -> bool:
        """Whether these are all finished shards."""
        return len(self.dataset.finished) == self.shards

    @property
    def writer(self) -> type[ShardWriter]:
        """That of its format. Raises MissingExtra where a library for it is not installed."""
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
        """The same shards each time. Raises OutputError for a folder that holds no dataset, or gives no answer, and for
        one that is being built, unless it may be `unfinished`."""
        chance, folder = random.Random(seed), OutputFolder(url, stores=stores)
        try:
            if (listed := _closed_list(folder)) is not None:
                return _from_list(listed, folder, stores, most, chance)
        except (OutputError, LookupError):  # the list of shards is broken
            pass
        except Exception as error:  # it is missing, or broken; any file system has exceptions of its own
            if not folder.is_local and not is_permanent(error):  # to list the folder would take as long, and fail, too
                raise Unreachable(f"{url!r} cannot be opened: {access_text(error)}") from error
        return cls.listed(Dataset(url, stores, unfinished=unfinished), most, seed)

    @classmethod
    def listed(cls, dataset: Dataset, most: int = MOST_SHARDS, seed: int = 0) -> ShardSample:
        """A sample of a dataset whose folder was listed, so that what is missing is known."""
        finished, chance = dataset.shards.finished(), random.Random(seed)
        names, count = dataset.layout, len(finished)
        sample = cls(
            dataset,
            count,
            pattern=pattern(finished.ids, names, dataset.writer.extension) if names and dataset.writer else None,
            whole=dataset,
        )
        if count <= most:
            return sample
        some = copy(dataset)
        some.shards = dataset.shards.only(finished.ids[place] for place in chance.sample(range(count), most))
        sample = replace(sample, dataset=some)
        with contextlib.suppress(Exception):  # of a list of shards that is missing or broken, and of any file system
            if (listed := _closed_list(dataset.folder)) is not None and len(listed.table) == count:
                return replace(sample, table_of_all=listed.table)
        return sample


def _closed_list(folder: OutputFolder) -> ShardList | None:
    """`.any2ds/shards`; None if it is open, because a run is at work. Raises any exception if it is broken."""
    with folder.open(layout.SHARDS_FILE) as raw, io.BufferedReader(raw, _BUFFER_BYTES) as file:  # type: ignore[type-var]
        listed = ShardList.read(file)
    return None if listed.is_open else listed


def _from_list(
    listed: ShardList, folder: OutputFolder, stores: Stores | None, most: int, chance: random.Random
) -> ShardSample:
    """Raises any exception if a file of the dataset is broken."""
    table = listed.table
    some = table if len(table) <= most else table.only(chance.sample(list(table.ids), most))
    dataset = Dataset(folder.url, stores, some)
    if dataset.run is None:
        raise OutputError(f"{folder.url!r}: {layout.RUN_FILE} cannot be read")
    return ShardSample(dataset, len(table), some, table, listed.pattern)
