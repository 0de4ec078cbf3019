"""Compares a URL list with the finished shards of a dataset, and the options of a run with those of the dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config import presets
from any2ds.config.command_line import flag
from any2ds.config.media import MEDIA_GROUPS
from any2ds.config.options import InputOptions, OutputOptions
from any2ds.core.errors import printable
from any2ds.core.layout import Layout
from any2ds.core.manifest import Manifest
from any2ds.core.metadata import without_credentials
from any2ds.core.stats import Stats
from any2ds.readers.plan import Cut
from any2ds.storage.folders import OutputFolder

_MOST_SHOWN = 300  # characters of a URL


class Difference(Exception):
    """The list is not the one that the shards were made from; the message says where."""


def read_stats(output: OutputFolder, layout: Layout, shards: Iterable[int]) -> dict[int, Stats | None]:
    """Shard -> its statistics; None if they cannot be read."""
    names = {layout.stats_name(shard_id): shard_id for shard_id in sorted(shards)}
    return {names[name]: _parsed(content) for name, content in output.read_many(list(names))}


def _parsed(content: bytes | None) -> Stats | None:
    try:
        stats = Stats.parse(content or b"")
    except ValueError:
        return None
    return stats if stats.count and stats.urls_sha256 else None


class Comparison:
    """Compares the rows of a list with the finished shards that were made of it."""

    def __init__(self, output: OutputFolder, layout: Layout, finished: Mapping[int, Stats]) -> None:
        self._output, self._layout, self._finished = output, layout, finished
        self.last = max(finished, default=-1)

    def check(self, cut: Cut) -> None:
        """Raises Difference if the shard with these rows was made from others."""
        known = self._finished.get(cut.shard_id)
        if known is None or known.urls_sha256 == cut.fingerprint():
            return
        name = self._layout.shard_name(cut.shard_id)
        if text := self._first_difference(cut, name):
            raise Difference(text)
        if known.count != cut.rows:
            raise Difference(
                f"shard {name} was made from {known.count:,} rows, and the list has {cut.rows:,} for it now"
            )
        first, last = cut.start + 1, cut.start + cut.rows
        raise Difference(f"shard {name} (rows {first:,} to {last:,} of the list) was made from other URLs")

    def _first_difference(self, cut: Cut, name: str) -> str:
        """Which row differs, as text; empty if the metadata do not show it."""
        stored = _stored_urls(self._output, self._layout, cut.shard_id)
        for position, now in enumerate(cut.urls()):
            before = stored.get(self._layout.key(cut.shard_id, position), now) or ""
            if without_credentials(before) != without_credentials(now or ""):  # metadata have none
                number = cut.start + position + 1
                return f"row {number:,} of the list (shard {name}) was {_shown(before)}, and is now {_shown(now)}"
        return ""


def _stored_urls(output: OutputFolder, layout: Layout, shard_id: int) -> dict[str, str | None]:
    """Key -> URL, as the metadata of a finished shard has it; nothing if they cannot be read."""
    try:
        with output.open(layout.metadata_name(shard_id)) as file:
            found = pq.read_table(file, columns=["key", "url"])
    except (pa.ArrowException, KeyError, ValueError, EOFError, OSError):
        return {}
    return dict(zip(found.column("key").to_pylist(), found.column("url").to_pylist(), strict=True))


def _shown(url: str | None) -> str:
    if not url:
        return "empty"
    shown = printable(without_credentials(url))
    return shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "…"


# --- options ---


def changed_options(before: Manifest, now: Manifest) -> list[str]:
    """What decides about shards and differs now, as text."""
    if others := _other_options(before, now):  # which also decide about keys and columns
        return [f"{name} was {was!r}, now {value!r}" for name, (was, value) in others.items()]
    changed = []
    if (were := _steps_of(before)) != (are := _steps_of(now)):
        changed.append(f"its files went through {were}, and would now go through {are}")
    if before.key_format != now.key_format:
        changed.append(f"keys were made as {before.key_format}, now {now.key_format}")
    for name in {**before.columns, **now.columns}:
        was, became = before.columns.get(name), now.columns.get(name)
        if was != became:
            changed.append(f"column {name!r} was {was or 'not there'}, now {became or 'not there'}")
    return changed


def way_back(before: Manifest, now: Manifest) -> str:
    """How to give the options of the dataset: `with --file_ext=jpg, without --preset, --dedupe`; empty if none differs.

    An option that had its default value is left out: given with it, it may need others, and would be refused.
    """
    others = _other_options(before, now)
    defaults = _defaults(before.options.get("preset"))
    kept = {name: was for name, (was, _) in others.items() if was is not None and was != defaults[name]}
    given = " ".join(flag(name, was) for name, was in kept.items())
    left_out = ", ".join(f"--{name}" for name in others if name not in kept)
    return ", ".join([f"with {given}"] * bool(given) + [f"without {left_out}"] * bool(left_out))


def _other_options(before: Manifest, now: Manifest) -> dict[str, tuple[Any, Any]]:
    """Option -> its value before and now, for those that differ; a preset stands for all that it sets."""
    # A dataset from before an option was added was made with what is its default now.
    options = {**_defaults(None), **before.options}
    others = {
        name: (options.get(name), value)
        for name, value in now.options.items()
        if not _are_alike(name, options.get(name), value)
    }
    return {"preset": others["preset"]} if "preset" in others else others


def _are_alike(name: str, before: Any, now: Any) -> bool:
    """Whether shards made with either value of an option may be in one dataset."""
    return bool(before == now or name == "row_group_bytes" or (name == "dedupe" and "run" not in (before, now)))


def _steps_of(manifest: Manifest) -> str:
    """The steps that files go through, as text."""
    # Archive and text have one option each, which is compared.
    names = [step.name for step in manifest.first_steps if step.name not in ("archive", "text")]
    return f"the steps {', '.join(names)}" if names else "no step for images, sound or video"


def _defaults(preset: str | None) -> dict[str, Any]:
    """The defaults of the options, as `.any2ds/run` has them, with those of a preset."""
    groups = (InputOptions, OutputOptions, *MEDIA_GROUPS)
    own = {f.name: f.default for group in groups for f in dataclasses.fields(group)}
    part = presets.find(preset)
    defaults = {**own, **(part.defaults if part else {})}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
