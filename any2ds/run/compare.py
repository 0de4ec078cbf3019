"""Compares the options of a run, and the rows of its list, with those that finished shards were made from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config import presets
from any2ds.config.command_line import flag
from any2ds.config.media import MEDIA_GROUPS
from any2ds.config.options import InputOptions, OutputOptions
from any2ds.core.errors import OutputError, printable
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.core.metadata import without_credentials
from any2ds.core.stats import Stats
from any2ds.readers.plan import Cut
from any2ds.run.place import ShardRows
from any2ds.storage.folders import OutputFolder

DECIDING_GROUPS = (InputOptions, OutputOptions, *MEDIA_GROUPS)
"""The groups of options that decide which row is in which shard, what its key is, and what is stored of it."""

_MOST_SHOWN = 300  # characters of a URL
_STEPS_OF_ONE_OPTION = ("archive", "text")


def changed_options(before: Manifest, now: Manifest) -> list[str]:
    """The options, steps and columns that decide about shards and differ now, as text."""
    if options := _changed(before, now):  # steps and columns follow from them
        return [f"{name} was {was!r}, now {value!r}" for name, (was, value) in options.items()]
    changed = []
    if (were := _steps_of(before)) != (are := _steps_of(now)):
        changed.append(f"its files went through {were}, and would now go through {are}")
    for name in {**before.columns, **now.columns}:
        was, became = before.columns.get(name), now.columns.get(name)
        if was != became:
            changed.append(f"column {name!r} was {was or 'not there'}, now {became or 'not there'}")
    return changed


def way_back(before: Manifest, now: Manifest) -> str:
    """How to give the options of the dataset: `with --file_ext=jpg, without --preset, --dedupe`; empty if none differs.

    An option that had its default value is left out: given with it, it may need others, and would be refused.
    """
    changed, defaults = _changed(before, now), _defaults(before.options.get("preset"))
    kept = {name: was for name, (was, _) in changed.items() if was not in (None, [], defaults[name])}
    given = " ".join(flag(name, was) for name, was in kept.items())
    left_out = ", ".join(f"--{name}" for name in changed if name not in kept)
    return ", ".join([f"with {given}"] * bool(given) + [f"without {left_out}"] * bool(left_out))


def _changed(before: Manifest, now: Manifest) -> dict[str, tuple[Any, Any]]:
    """Option -> its value before and now, for those that differ; a preset stands for all that it sets."""
    # A dataset from before an option was added was made with what is its default now.
    recorded = {**_defaults(None), **before.options}
    options = {
        name: (recorded[name], value)
        for name, value in now.options.items()
        if not _are_alike(name, recorded[name], value)
    }
    return {"preset": options["preset"]} if "preset" in options else options


def _defaults(preset: str | None) -> dict[str, Any]:
    """The defaults of the deciding options, as `.any2ds/run` has them, with those of a preset."""
    own = {field.name: field.default for group in DECIDING_GROUPS for field in fields(group)}
    part = presets.find(preset)
    defaults = {**own, **(part.defaults if part else {})}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}


def _are_alike(name: str, before: Any, now: Any) -> bool:
    """Whether shards made with either value of an option may be in one dataset."""
    return bool(before == now or name == "row_group_bytes" or (name == "dedupe" and "run" not in (before, now)))


def _steps_of(manifest: Manifest) -> str:
    names = [step.name for step in manifest.first_steps if step.name not in _STEPS_OF_ONE_OPTION]
    return f"the steps {', '.join(names)}" if names else "no step for images, sound or video"


def another_list(output: OutputFolder, text: str, is_shuffled: bool) -> OutputError:
    """The error for a list that differs from that of the dataset as `text` says."""
    anew = "--incremental_mode=overwrite starts anew, and another output_folder holds another dataset"
    if is_shuffled:
        return OutputError(
            f"{output.url!r} is made from another url list: {text}. A shuffled list that has grown or changed comes in "
            "another order. Nothing was changed. Go on with the list as it was, and put new rows into a list of their "
            f"own with --incremental_mode=extend; or {anew}"
        )
    return OutputError(
        f"{output.url!r} is made from another url list: {text}. Nothing was changed. Go on with the list as it was; "
        "or --incremental_mode=extend puts this one, or new rows as a list of their own, behind the shards that are "
        f"there, {anew}"
    )


def read_stats(output: OutputFolder, layout: Layout, shards: Iterable[int]) -> Iterator[tuple[int, Stats | None]]:
    """Each shard with its statistics, which are None if they cannot be read."""
    names = {layout.stats_name(shard_id): shard_id for shard_id in sorted(shards)}
    return ((names[name], _parsed(content)) for name, content in output.read_many(list(names)))


def _parsed(content: bytes | None) -> Stats | None:
    try:
        stats = Stats.parse(content or b"")
    except ValueError:
        return None
    return stats if stats.count and stats.urls_sha256 else None


def difference(output: OutputFolder, layout: Layout, cut: Cut, made: ShardRows) -> str:
    """How rows of the list differ from those that their shard was made from, as text; empty if they do not."""
    if made.urls_sha256 == cut.fingerprint():
        return ""
    name = layout.shard_name(cut.shard_id)
    stored = _stored_urls(output, layout, cut.shard_id)
    for position, now in enumerate(cut.urls()):
        before = stored.get(layout.key(cut.shard_id, position), now) or ""
        if without_credentials(before) != without_credentials(now or ""):  # metadata have none
            number = cut.start + position + 1
            return f"row {number:,} of the list (shard {name}) was {_shown(before)}, and is now {_shown(now)}"
    if made.count != cut.rows:
        return f"shard {name} was made from {made.count:,} rows, and the list has {cut.rows:,} for it now"
    first, last = cut.start + 1, cut.start + cut.rows
    return f"shard {name} (rows {first:,} to {last:,} of the list) was made from other URLs"


def _stored_urls(output: OutputFolder, layout: Layout, shard_id: int) -> dict[str, str | None]:
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
