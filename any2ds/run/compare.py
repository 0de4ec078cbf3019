"""Compares the options of a run, and the rows of its list, with those that finished shards were made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.errors import OutputError, printable
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.core.metadata import without_credentials
from any2ds.core.stats import Stats
from any2ds.readers.plan import Cut
from any2ds.storage.folders import OutputFolder

_MOST_SHOWN = 300  # characters of a URL
_STEPS_OF_ONE_OPTION = ("archive", "text")


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The rows of a finished shard, by its statistics, in few bytes: there may be millions of shards."""

    count: int
    urls_sha256: str


def changed_options(before: Manifest, now: Manifest) -> list[str]:
    """The options, steps and columns that decide about shards and differ now, as text."""
    were, are = before.options, now.options
    names = [name for name in are if not _fit_together(name, were.get(name), are[name])]
    if "preset" in names:  # other options follow from it
        names = ["preset"]
    if names:  # steps and columns follow from options
        return [f"{name} was {were.get(name)!r}, now {are[name]!r}" for name in names]
    changed = []
    if (steps := _steps_of(before)) != (steps_now := _steps_of(now)):
        changed.append(f"its files went through {steps}, and would now go through {steps_now}")
    for name in {**before.columns, **now.columns}:
        was, became = before.columns.get(name), now.columns.get(name)
        if was != became:
            changed.append(f"column {name!r} was {was or 'not there'}, now {became or 'not there'}")
    return changed


def _fit_together(name: str, before: object, now: object) -> bool:
    """Whether shards made with either value of an option may be in one dataset."""
    return before == now or name == "row_group_bytes" or (name == "dedupe" and "run" not in (before, now))


def _steps_of(manifest: Manifest) -> str:
    names = [step.name for step in manifest.first_steps if step.name not in _STEPS_OF_ONE_OPTION]
    return f"the steps {', '.join(names)}" if names else "no step for images, sound or video"


def another_list(output: OutputFolder, text: str, is_shuffled: bool) -> OutputError:
    """The error for a list that differs from that of the dataset as `text` says."""
    order = " A shuffled list that has grown or changed comes in another order." if is_shuffled else ""
    return OutputError(
        f"{output.url!r} is made from another url list: {text}.{order} Nothing was changed. Go on with the list as it "
        "was; --incremental_mode=extend puts new rows, as a list of their own, behind the shards that are there, "
        "--incremental_mode=overwrite starts anew, and another output_folder holds another dataset"
    )


def read_stats(output: OutputFolder, layout: Layout, shards: Iterable[int]) -> Iterator[tuple[int, Stats | None]]:
    """Each shard with its statistics, which are None if they cannot be read."""
    names = {layout.stats_name(shard_id): shard_id for shard_id in sorted(shards)}
    for name, content in output.read_many(list(names)):
        try:
            stats = Stats.parse(content or b"")
        except ValueError:
            stats = Stats()
        yield names[name], stats if stats.count and stats.urls_sha256 else None


def difference(output: OutputFolder, layout: Layout, cut: Cut, made: ShardRows) -> str:
    """How rows of the list differ from those that their shard was made from, as text; empty if they do not."""
    if made.urls_sha256 == cut.fingerprint():
        return ""
    name = layout.shard_name(cut.shard_id)
    stored = stored_urls(output, layout, cut.shard_id)
    for position, (key, now) in enumerate(zip(cut.keys(layout), cut.urls(), strict=True)):
        before = stored.get(key, now) or ""
        if without_credentials(before) != without_credentials(now or ""):  # metadata have none
            number = cut.start + position + 1
            return f"row {number:,} of the list (shard {name}) was {_shown(before)}, and is now {_shown(now)}"
    if made.count != cut.rows:
        return f"shard {name} was made from {made.count:,} rows, and the list has {cut.rows:,} for it now"
    first, last = cut.start + 1, cut.start + cut.rows
    what = "URLs or keys" if layout.has_names else "URLs"
    return f"shard {name} (rows {first:,} to {last:,} of the list) was made from other {what}"


def stored_urls(output: OutputFolder, layout: Layout, shard_id: int) -> dict[str, str | None]:
    """Key -> URL, as the metadata of a finished shard has it; nothing if they cannot be read."""
    try:
        with output.open(layout.metadata_name(shard_id)) as file:
            stored = pq.read_table(file, columns=["key", "url"])
    except (pa.ArrowException, KeyError, ValueError, EOFError, OSError):
        return {}
    return dict(zip(stored["key"].to_pylist(), stored["url"].to_pylist(), strict=True))


def _shown(url: str | None) -> str:
    shown = printable(without_credentials(url or "")) or "empty"
    return shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "…"
