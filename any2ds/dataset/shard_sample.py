"""Which shards of a dataset are looked at by those who tell of it, and what is known of all of them.

There may be a million shards, and as many files with figures: the list of shards is read once, in a stream, and a
random choice of shards is looked at in their stead.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from any2ds.core import layout, plugins
from any2ds.core.errors import OutputError
from any2ds.core.manifest import Manifest
from any2ds.dataset.dataset import Dataset, Entry
from any2ds.storage.folders import OutputFolder
from any2ds.storage.stores import Stores

MOST_SHARDS = 10_000
"""Looked at of any dataset; below it, all of them are."""
_PIECE = 1 << 20  # bytes read at once


@dataclass(frozen=True, slots=True)
class Totals:
    """What the list of shards says of all of them."""

    shards: int = 0
    rows: int = 0
    samples: int = 0
    bytes: int = 0  # of the files stored
    exts: Mapping[str, int] = field(default_factory=dict)  # extension -> files


@dataclass(frozen=True, slots=True)
class Survey:
    """Some shards of a dataset, or all."""

    dataset: Dataset  # which knows of these alone
    shards: int  # that there are, finished
    samples: Mapping[int, int]  # in the shards that are looked at; empty where the list of shards does not tell
    totals: Totals | None  # None where it does not
    pattern: str | None = None  # of all data files, where it does; see `shardlist`

    @property
    def is_whole(self) -> bool:
        return len(self.dataset.finished) == self.shards

    @classmethod
    def of(cls, url: str, stores: Stores | None = None, most: int = MOST_SHARDS, seed: int = 0) -> Survey:
        """The same shards each time. Raises OutputError for a folder that holds no dataset."""
        folder = OutputFolder(url, stores=stores)
        chance = random.Random(seed)
        try:
            found = _listed(url, stores, folder, most, chance)
        except Exception:  # there is no such list, or it is none; any file system has exceptions of its own
            found = None
        if found is not None:
            return found
        dataset = Dataset(url, stores)
        count = len(dataset.finished)
        if count > most:
            keep = set(chance.sample([files.shard_id for files in dataset.finished], most))
            dataset.shards = {number: files for number, files in dataset.shards.items() if number in keep}
        return cls(dataset, count, {}, None)


def _listed(url: str, stores: Stores | None, folder: OutputFolder, most: int, chance: random.Random) -> Survey | None:
    """By `.any2ds/shards`; None if it does not tell all, because a run is at work. Raises whatever is wrong with it."""
    run = Manifest.parse_any(folder.read(layout.RUN_FILE) or b"")
    names = run.layout
    writer = plugins.load("writers", str(run.options.get("output_format")))
    kept: list[tuple[int, int]] = []  # shard and its samples, a random choice among those so far
    rows = samples = size = shards = 0
    exts: Counter[str] = Counter()
    with folder.open(layout.SHARDS_FILE) as raw, io.BufferedReader(raw, _PIECE) as file:  # type: ignore[type-var]
        head = orjson.loads(file.readline().rstrip().removesuffix(b',"shardlist":[') + b"}")
        if head["open"]:
            return None
        for entry in _entries(file):
            shards += 1
            rows += entry["count"]
            samples += entry["nsamples"]
            size += entry["bytes"]
            exts.update(entry["exts"])
            if shards <= most:
                kept.append((entry["shard_id"], entry["nsamples"]))
            elif (place := chance.randrange(shards)) < most:
                kept[place] = entry["shard_id"], entry["nsamples"]
    if shards != head["shards"]:
        raise OutputError(f"{layout.SHARDS_FILE} breaks off")
    entries = [Entry(layout.RUN_FILE, 0, False)]
    fuller = set(folder.names(layout.METADATA_FOLDER)) if names.hides else set[str]()
    own = (names.own_metadata_name(number) for number, _ in kept)
    entries += [Entry(name, 0, False) for name in own if name.rpartition("/")[2] in fuller]
    for number, _ in kept:
        entries += [Entry(names.stats_name(number), 0, False), Entry(names.metadata_name(number), 0, False)]
        if (data := names.data_name(number, writer.extension)) and data != entries[-1].name:
            entries.append(Entry(data, 0, is_folder=writer.extension == ""))
    totals = Totals(shards, rows, samples, size, dict(exts.most_common()))
    if writer.extension in ("tfrecord", "arrayrecord"):
        entries += [Entry(name, 0, False) for name in (layout.TFDS_FEATURES, layout.TFDS_INFO) if folder.exists(name)]
    return Survey(Dataset(url, stores, entries), shards, dict(sorted(kept)), totals, head["pattern"])


def _entries(file: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """One for each line of the list. Memory holds one of them."""
    for line in file:
        if not line.startswith(b"]"):
            yield orjson.loads(line.rstrip().rstrip(b","))
