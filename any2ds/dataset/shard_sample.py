"""A random sample of the shards of a dataset, and the totals of all of them.

A dataset may have a million shards: the list of shards is read once, as a stream, and only the shards of the sample are
known to `Dataset`.
"""

from __future__ import annotations

import contextlib
import io
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import cast

from any2ds.core import layout, plugins
from any2ds.core.errors import OutputError, Unreachable, access_text
from any2ds.core.manifest import Manifest
from any2ds.dataset import shard_list
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import Entry, PerShard
from any2ds.dataset.shard_list import pattern
from any2ds.storage.folders import OutputFolder
from any2ds.storage.opening import open_folder
from any2ds.storage.patience import is_permanent
from any2ds.storage.stores import Stores
from any2ds.writers.contract import ShardWriter

MOST_SHARDS = 10_000
"""Of a sample; smaller datasets are in it as a whole."""
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Totals:
    """The sums over all shards."""

    shards: int = 0
    rows: int = 0
    samples: int = 0
    bytes: int | None = 0  # of the files stored; None if unknown
    exts: Mapping[str, int] = field(default_factory=dict)  # extension -> files


@dataclass(frozen=True, slots=True)
class ShardSample:
    """Some shards of a dataset, or all."""

    dataset: Dataset  # with these shards only
    shards: int  # finished shards of the dataset
    samples: Mapping[int, int] = field(default_factory=dict)  # shard -> samples; empty without a list of shards
    data_bytes: Mapping[int, int] = field(default_factory=dict)  # shard -> size of its data file; the same
    file_bytes: Mapping[int, int] = field(default_factory=dict)  # shard -> sizes of the files stored; the same
    totals: Totals | None = None  # None without a list of shards
    pattern: str | None = None  # of all data files, see `shard_list`; None if it is unknown
    whole: Dataset | None = None  # with all shards, where the folder was listed

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
        chance, folder = random.Random(seed), open_folder(url, stores=stores)
        try:
            if (sample := _from_list(folder, stores, most, chance)) is not None:
                return sample
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
        chosen = {finished.ids[place] for place in chance.sample(range(count), most)}
        some = copy(dataset)
        some.shards = dataset.shards.only(chosen.__contains__)
        sample = replace(sample, dataset=some)
        with contextlib.suppress(Exception):  # of a list of shards that is missing or broken, and of any file system
            if (by_list := _from_list(dataset.folder, None, 0, chance)) is not None and by_list.shards == count:
                return replace(sample, totals=by_list.totals)
        return sample


def _from_list(folder: OutputFolder, stores: Stores | None, most: int, chance: random.Random) -> ShardSample | None:
    """By `.any2ds/shards`; None if it is open, because a run is at work. Raises any exception if it is broken."""
    run = Manifest.parse(folder.read(layout.RUN_FILE) or b"")
    # Shards, samples, bytes of data and of files: a random choice among those so far.
    kept = [array("q") for _ in range(4)]
    rows = samples = size = shards = 0
    exts: Counter[str] = Counter()
    with folder.open(layout.SHARDS_FILE) as raw, io.BufferedReader(raw, _BUFFER_BYTES) as file:  # type: ignore[type-var]
        head = shard_list.head_of(file.readline())
        if head["open"]:
            return None
        for entry in shard_list.lines_of(file):
            shards += 1
            rows += entry["count"] - entry.get("replaces", 0)
            samples += entry["nsamples"]
            size += entry["bytes"]
            exts.update(entry["exts"])
            own = entry["shard_id"], entry["nsamples"], entry["filesize"], entry["bytes"]
            place = shards - 1 if shards <= most else chance.randrange(shards)
            if place < most:
                for column, value in zip(kept, own, strict=True):
                    column[place : place + 1] = array("q", [value])
    if shards != head["shards"]:
        raise OutputError(f"{layout.SHARDS_FILE} is truncated")
    if shards > most:
        order = sorted(range(most), key=kept[0].__getitem__)
        kept = [array("q", map(column.__getitem__, order)) for column in kept]
    ids, *figures = kept
    dataset = Dataset(folder.url, stores, _files(folder, run, ids))
    totals = Totals(shards, rows, samples, size, dict(exts.most_common()))
    samples_of, data_bytes, file_bytes = (PerShard(ids, column) for column in figures)
    return ShardSample(dataset, shards, samples_of, data_bytes, file_bytes, totals, head["pattern"])


def _files(folder: OutputFolder, run: Manifest, shards: Iterable[int]) -> Iterator[Entry]:
    """The files of `shards`, and those of the dataset by which it is opened, without listing the folder."""
    names = run.layout
    extension = plugins.load("writers", str(run.options.get("output_format"))).extension
    yield Entry(layout.RUN_FILE, 0, False)
    hidden = set(folder.names(layout.METADATA_FOLDER)) if names.hides else set[str]()
    for number in shards:
        if (own := names.own_metadata_name(number)).rpartition("/")[2] in hidden:
            yield Entry(own, 0, False)
        yield Entry(names.stats_name(number), 0, False)
        yield Entry(names.metadata_name(number), 0, False)
        if data := names.data_name(number, extension):
            yield Entry(data, 0, is_folder=extension == "")
    if extension in ("tfrecord", "arrayrecord"):
        yield from (Entry(name, 0, False) for name in (layout.TFDS_FEATURES, layout.TFDS_INFO) if folder.exists(name))
