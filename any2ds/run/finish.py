"""`finish()`: the files about a dataset as a whole, after several runs made it; and which shards are missing."""

from __future__ import annotations

from dataclasses import dataclass

from any2ds.config.options import FinishOptions, ParsedOptions, StorageOptions, flat
from any2ds.config.signature import command
from any2ds.config.watch import WatchOptions
from any2ds.core.errors import shard_count
from any2ds.dataset.expected import ExpectedShards
from any2ds.dataset.places import located
from any2ds.dataset.run_file import manifest_of, options_of
from any2ds.run.last_report import write_dataset_files
from any2ds.run.session import run_info
from any2ds.storage.folders import OutputFolder
from any2ds.storage.lock.run_lock import locked
from any2ds.storage.opening import open_folder
from any2ds.storage.stores import Stores

_MOST_NAMED = 10


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
    info = run_info("finish", output, flat([asked]), storage, made)
    with locked(output, "finish"):
        write_dataset_files(WatchOptions(report=asked.report), info)
        return Completion.of(output)


@dataclass(frozen=True, slots=True)
class Completion:
    """How complete a dataset is."""

    finished: int  # shards
    missing: tuple[int, ...] = ()  # numbers of the others, as far as their count is known
    is_known: bool = True  # whether a run has read each list to its end, so that nothing else is missing

    @classmethod
    def of(cls, output: OutputFolder) -> Completion:
        """Raises OutputError if its `.any2ds/run` cannot be read."""
        present, manifest = output.finished_shards(), manifest_of(output)
        expected = ExpectedShards(manifest.segments, present, manifest.layout.rows_per_shard)
        return cls(len(present), tuple(expected.missing), not expected.has_unread_list)

    @property
    def is_whole(self) -> bool:
        """Whether no shard is known to be missing."""
        return self.is_known and not self.missing

    def __str__(self) -> str:
        text = shard_count(self.finished, "is finished", "are finished")
        if self.missing:
            named = ", ".join(map(str, self.missing[:_MOST_NAMED])) + (" …" if len(self.missing) > _MOST_NAMED else "")
            text += f", {len(self.missing):,} missing ({named}): run the original download command to complete them"
        if not self.is_known:
            text += ", and no run has come to the end of the url list yet"
        return text
