"""`finish()`: the files about a dataset as a whole, after several runs made it; and which shards are missing."""

from __future__ import annotations

from any2ds.config.options import FinishOptions, ParsedOptions, StorageOptions, flat, public
from any2ds.config.signature import command
from any2ds.config.watch import WatchOptions
from any2ds.dataset.places import located
from any2ds.dataset.run_file import options_of
from any2ds.run.last_report import write_dataset_files
from any2ds.run.ranks import Completion
from any2ds.run.reporters._contract import RunInfo
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.opening import open_folder
from any2ds.storage.stores import Stores


@command(
    [FinishOptions],
    "Returns which shards are finished. Raises UsageError if there is no dataset, or others are at work in it.",
)
def finish(options: ParsedOptions) -> Completion:
    """Write the files about a dataset as a whole, which the last of several runs writes if all of them end."""
    (asked,) = options.groups
    asked = located(asked, Stores(asked.storage_options))
    storage = StorageOptions(storage_options=asked.storage_options)
    output = open_folder(asked.output_folder, storage)
    made, _ = options_of(output)
    info = RunInfo("finish", output, public(flat([asked])), storage, output.identity, made)
    with locked(output, "finish"):
        write_dataset_files(WatchOptions(report=asked.report), info)
        return Completion.of(output)
