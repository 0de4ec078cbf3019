"""`inspect()`: what is in a dataset, in a moment."""

from __future__ import annotations

from any2ds.config.datasets import InspectOptions
from any2ds.config.options import ParsedOptions
from any2ds.config.signature import command
from any2ds.dataset.dataset import Dataset
from any2ds.dataset.places import located
from any2ds.dataset.shard_sample import ShardSample
from any2ds.describe.summary import Summary, summarize
from any2ds.storage.stores import Stores

SHARDS_OF_METADATA = 4
"""Types, sizes and samples need no more for a first look."""


@command([InspectOptions], "Raises UsageError for a folder that holds no dataset.")
def inspect(options: ParsedOptions) -> Summary:
    """Say what is in a dataset: how many rows, what became of them, how much they take, and some samples."""
    (wanted,) = options.groups
    stores = Stores(wanted.storage_options)
    wanted = located(wanted, stores)
    sample = ShardSample.listed(Dataset(wanted.output_folder, stores))
    return summarize(sample, SHARDS_OF_METADATA, rows=wanted.samples)
