"""Says what an output folder already holds, and refuses to mix two datasets in one folder."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from any2ds import layout
from any2ds.config import Config
from any2ds.errors import OutputError
from any2ds.layout import Layout
from any2ds.storage import OutputFolder, sweep
from any2ds.version import __version__

# What decides which row is in which shard, what its key is, and what is stored of it.
_DECIDING = (
    "url_col",
    "caption_col",
    "save_additional_columns",
    "output_format",
    "number_sample_per_shard",
    "oom_shard_count",
    "file_ext",
    "compute_md5",
    "compute_hash",
    "dedupe",
    "disable_all_reencoding",
)


class Finished:
    """The shards of `output` that are finished; called with a shard's number and its rows, says whether it is."""

    def __init__(self, output: OutputFolder, names: Layout) -> None:
        self._output, self._layout = output, names
        self.skipped = 0  # shards that were asked for and found finished
        self.shards = set(layout.finished_shards(output.names()))
        # Only the last shard of a list can be short, and it is when the list broke off or has grown since.
        self._last = max(self.shards, default=None)
        self._rows_in_last = self._count(self._last) if self._last is not None else None

    def __call__(self, shard_id: int, rows: int) -> bool:
        if shard_id == self._last and self._rows_in_last != rows:
            # Its mark goes before its data is replaced: at no time does a mark stand beside data of another list.
            self._output.remove(self._layout.stats_name(shard_id))
            self.shards.discard(shard_id)
        self.skipped += shard_id in self.shards
        return shard_id in self.shards

    def _count(self, shard_id: int) -> int | None:
        try:
            return int(orjson.loads(self._output.read(self._layout.stats_name(shard_id)) or b"")["count"])
        except (ValueError, KeyError, TypeError):
            return None


def prepare(output: OutputFolder, config: Config, first_rows: pa.RecordBatch) -> Finished:
    """Make `output` ready for a run: it exists, can be written, and what is in it was made with the same options from
    the same list, which may have grown since.

    Raises OutputError otherwise.
    """
    options = config.output
    if output.is_private and config.run.distributor != "inline":
        raise OutputError(f"{output.url!r} exists in this process only: it needs --distributor=inline")
    finished = Finished(output, Layout(options.number_sample_per_shard, options.oom_shard_count))
    deciding = {name: config.to_options()[name] for name in _DECIDING}
    deciding["save_additional_columns"] = list(deciding["save_additional_columns"] or [])
    beginning = Beginning.of(first_rows)
    if finished.shards:
        beginning = _refuse_other(output, deciding, first_rows)
    output.create()
    sweep(output)
    run = {"any2ds": __version__, "options": deciding, "list": dataclasses.asdict(beginning)}
    output.write(layout.RUN_FILE, orjson.dumps(run, option=orjson.OPT_INDENT_2))
    return finished


@dataclass(frozen=True, slots=True)
class Beginning:
    """What tells one url list from another, even after it has grown: a fingerprint of its first rows."""

    rows: int
    sha256: str  # of their URLs

    @classmethod
    def of(cls, rows: pa.RecordBatch, count: int = 1000) -> Beginning:
        urls = rows.column("url").slice(0, count).to_pylist()
        return cls(len(urls), hashlib.sha256(orjson.dumps(urls)).hexdigest())


def _alike(name: str, before: Any, now: Any) -> bool:
    """Whether shards made with either value of an option may be in one dataset."""
    return bool(before == now or (name == "dedupe" and "run" not in (before, now)))


def _refuse_other(output: OutputFolder, deciding: Mapping[str, Any], first_rows: pa.RecordBatch) -> Beginning:
    content = output.read(layout.RUN_FILE)
    if content is None:
        raise OutputError(f"{output.url!r} holds shards that were not made by any2ds: choose another output_folder")
    try:
        written = orjson.loads(content)
        before, beginning = {"dedupe": "shard", **written["options"]}, Beginning(**written["list"])
        changed = [
            f"{name} was {before[name]!r}, now {now!r}"
            for name, now in deciding.items()
            if not _alike(name, before[name], now)
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise OutputError(f"{output.url!r}: its {layout.RUN_FILE} cannot be read, so it is not touched") from error
    if not changed and Beginning.of(first_rows, beginning.rows) != beginning:
        raise OutputError(
            f"{output.url!r} holds shards of another url list: its first rows were others. "
            "Go on with that list, or choose another output_folder"
        )
    if changed:
        raise OutputError(
            f"{output.url!r} holds shards made with other options ({'; '.join(changed)}): "
            "use the same options to go on, or another output_folder"
        )
    return beginning
