"""A dataset as the sample of an estimate: that of an earlier estimate, of a `--limit` run, or a finished one."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from any2ds.config.options import Config, StorageOptions, changed, declared, parse_groups
from any2ds.core import layout
from any2ds.core.errors import OptionError, OutputError
from any2ds.core.failures import DUPLICATE, SUCCESS
from any2ds.core.histogram import PER_DOUBLING
from any2ds.core.reports import RunReport
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.listing import ShardFiles
from any2ds.dataset.places import of_place
from any2ds.dataset.recipe_file import RecipeFile
from any2ds.describe.sums import StatsSums, spread
from any2ds.fetch.profiles import Profiles
from any2ds.forecast.transfers import Cost, Sample, Transfer, parse
from any2ds.storage.stores import Stores

log = logging.getLogger(__name__)

_SHARDS = 8  # whose metadata are read
_MOST_ROWS = 50_000
_COLUMNS = ("url", "status", "error_code", "bytes", "attempts")
_NOT_TAKEN = ("output_folder", "incremental_mode", "limit")
_NOT_TAKEN_OF_RECIPES = (*_NOT_TAKEN, "save_additional_columns")  # their rows have the recipe's own, lists have not


def with_recorded(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of an estimate, with those of the dataset that it takes as its sample, if it does: its list, and how
    it was made. Raises OutputError for what is no dataset."""
    folder = given.get("from_dataset")
    if folder is None or given.get("preset") is not None:
        return given
    storage = parse_groups({"storage_options": given.get("storage_options")}, (StorageOptions,))[0]
    dataset = of_place(Dataset, str(folder), None, Stores(storage.storage_options))
    run = dataset.run
    not_taken = _NOT_TAKEN if RecipeFile.found(dataset.folder, dataset.entries) is None else _NOT_TAKEN_OF_RECIPES
    known = {info.name for info in declared()}
    recorded = {
        name: value
        for name, value in changed(run.options if run is not None else {}).items()
        if name in known and name not in not_taken
    }
    files = [file.name for segment in run.lists for file in segment.files] if run is not None else []
    files = files or _files_of_sample(dataset)
    if files:
        recorded["url_list"] = files[0] if len(files) == 1 else files
    elif "url_list" not in given:
        raise OptionError(f"{folder}: does not say of which list it was made: url_list is missing")
    return {**recorded, **given, "from_dataset": dataset.folder.url}


def _files_of_sample(dataset: Dataset) -> list[str]:
    """Those of the list of an earlier estimate, whose sample was no list of its own."""
    first = (dataset.folder.read(layout.TRANSFERS_FILE) or b"").partition(b"\n")[0]
    return list(orjson.loads(first).get("files", ())) if first else []


def earlier_sample(folder: str, config: Config) -> Sample:
    """What the dataset in `folder` says about its rows. Raises OutputError if that is nothing."""
    folder = os.path.expanduser(folder)
    dataset = Dataset(folder, Stores(config.storage.storage_options))
    stats = StatsSums()
    finished = dataset.finished
    stats.read(dataset, finished)
    if not stats.rows:
        raise OutputError(f"{folder}: holds no finished shard")
    report = RunReport(count=stats.rows, successes=stats.successes, bytes=stats.bytes, status_dict=stats.outcomes)
    if content := dataset.folder.read(layout.TRANSFERS_FILE):
        transfers, cost, left_out = parse(map(orjson.loads, content.splitlines()))
        return Sample(folder, transfers, cost, report, left_out=left_out)
    rows: list[Transfer] = []
    for shard in spread(finished, _SHARDS):
        rows += _transfers(dataset, shard, Profiles(config.fetch))
    rng = random.Random(0)
    if len(rows) > _MOST_ROWS:
        rows = rng.sample(rows, _MOST_ROWS)
    buckets, counts = list(stats.latencies.counts), list(stats.latencies.counts.values())

    def seconds() -> float:
        """Of any transfer: a dataset does not say how long each took."""
        return 2.0 ** ((rng.choices(buckets, counts)[0] + rng.random()) / PER_DOUBLING) if buckets else 0.0

    found = [replace(each, seconds=seconds()) if each.code == SUCCESS else each for each in rows]
    if not found:
        raise OutputError(f"{folder}: its metadata cannot be read")
    return Sample(folder, found, Cost(), report, is_fetched=False)


def _transfers(dataset: Dataset, shard: ShardFiles, profiles: Profiles) -> list[Transfer]:
    """The rows of a shard that were fetched; none if it cannot be read."""
    try:
        with dataset.metadata_file(shard) as file:
            names = [name for name in file.schema_arrow.names if name in _COLUMNS]
            rows = file.read(columns=names).to_pylist()
    except Exception as error:  # of Arrow, of the system and of file systems
        log.warning("%s cannot be read: %s", shard.metadata, error)
        return []
    return [
        Transfer(
            profiles.host_of(row.get("url"))[0],
            row.get("error_code") or SUCCESS,
            0.0,
            row.get("bytes") or 0,
            row.get("attempts") or 1,
        )
        for row in rows
        if row.get("status") != DUPLICATE
    ]
