"""How complete a dataset is: which shards of its lists are finished, and which are missing."""

from __future__ import annotations

from dataclasses import dataclass

from any2ds.core import layout
from any2ds.core.errors import OutputError, shard_count
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.dataset.dataset import RunFile
from any2ds.run.resume.compare import read_known
from any2ds.storage.folders import OutputFolder

_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Completion:
    """The shards of a dataset."""

    finished: int
    missing: tuple[int, ...] = ()  # their numbers, as far as it is known how many there are
    # A run has read each list to its end, so that nothing else is missing; None where an earlier version made it, which
    # did not keep account.
    is_known: bool | None = True

    @classmethod
    def of(cls, output: OutputFolder) -> Completion:
        """Raises OutputError if its `.any2ds/run` cannot be read."""
        there = layout.finished_shards(output.names())
        content = output.read(layout.RUN_FILE) or b""
        short: set[int] = set()
        try:
            lists = Manifest.parse(content).lists
        except ValueError:
            _check_earlier_version(output, content)
            last, is_known = 0, None
        else:
            last, is_known = max(segment.end or 0 for segment in lists), all(s.end is not None for s in lists)
            short = _short(output, Manifest.parse(content), there)
        last = max([last, *(shard_id + 1 for shard_id in there)])
        missing = tuple(shard_id for shard_id in range(last) if shard_id not in there or shard_id in short)
        return cls(len(there - short), missing, is_known)

    @property
    def is_whole(self) -> bool:
        """As far as that is known."""
        return self.is_known is not False and not self.missing

    def __str__(self) -> str:
        words = shard_count(self.finished, "is finished", "are finished")
        if self.missing:
            named = ", ".join(map(str, self.missing[:_MOST_NAMED])) + (" …" if len(self.missing) > _MOST_NAMED else "")
            words += f", {len(self.missing):,} missing ({named}): the command that began them makes them"
        if self.is_known is False:
            words += ", and no run has come to the end of the url list yet"
        if self.is_known is None:
            words += f"; how many there should be the {layout.RUN_FILE} of an earlier version does not tell"
        return words


def _check_earlier_version(output: OutputFolder, content: bytes) -> None:
    """Raises OutputError if no version wrote that."""
    try:
        RunFile.parse(content)
    except ValueError as error:
        raise OutputError(f"{output.url!r}: its {layout.RUN_FILE} cannot be read: {error}") from error


def _short(output: OutputFolder, manifest: Manifest, there: frozenset[int]) -> set[int]:
    """The finished shards that are to be made again, because their list has got further rows since."""
    options = manifest.options
    names = Layout(int(options["number_sample_per_shard"]), int(options["oom_shard_count"]))
    found = set()
    for segment in manifest.lists:
        known = read_known(output, names, there.intersection(segment.short))
        for shard_id, stats in known.items():
            rows = segment.rows_in(shard_id, names.rows_per_shard)
            if stats is None or (rows is not None and stats.count < rows):
                found.add(shard_id)
    return found
