"""Compares a URL list with the finished shards of a dataset, and says where they differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.core.errors import DamagedShard, error_text, printable
from any2ds.core.layout import Layout
from any2ds.core.manifest import Segment
from any2ds.core.metadata import without_credentials
from any2ds.core.samples import row_key
from any2ds.core.stats import ANY2DS, Stats
from any2ds.readers.plan import Cut, State
from any2ds.storage.folders import OutputFolder

_MOST_SHOWN = 300  # characters of a URL
_AHEAD = 16  # shards whose metadata is read at once, where there is no fingerprint


class Difference(Exception):
    """The list is not the one that the shards were made from; the message says where."""


def read_known(output: OutputFolder, layout: Layout, shards: Iterable[int]) -> dict[int, Stats | None]:
    """Shard -> its statistics; None if they cannot be read."""
    names = {layout.stats_name(shard_id): shard_id for shard_id in sorted(shards)}
    return {names[name]: _parsed(content) for name, content in output.read_many(list(names))}


def _parsed(content: bytes | None) -> Stats | None:
    try:
        stats = Stats.parse(content or b"")
    except ValueError:
        return None
    return stats if stats.count and stats.maker else None


def incomplete(output: OutputFolder, layout: Layout, expected: Mapping[int, int | None]) -> set[int]:
    """The finished shards that have fewer rows than `expected` (None: any number will do), or unreadable statistics."""
    known = read_known(output, layout, expected)
    return {shard_id for shard_id, found in known.items() if found is None or found.count < (expected[shard_id] or 0)}


def check_growth(segment: Segment, rows: int) -> None:
    """Raises Difference if a list that another one follows has got further rows: there is no place for them."""
    if segment.rows is not None and rows > segment.rows:
        raise Difference(
            f"it had {segment.rows:,} rows and has more now, which would have to come where another list goes on; put "
            "them into a list of their own"
        )


class Comparison:
    """Compares the list with the finished shards, shard by shard in the order of the list.

    Shards with a fingerprint are compared by it, exactly; others (of img2dataset) by the URLs in their metadata, where
    rows that it lacks count as equal, and user names and passwords are ignored.
    """

    def __init__(self, output: OutputFolder, layout: Layout, known: Mapping[int, Stats]) -> None:
        self._output, self._layout, self._known = output, layout, known
        self.last = max(known, default=-1)
        self.compared = -1  # all shards up to this one
        self._unmarked = deque(sorted(shard_id for shard_id, found in known.items() if not found.urls_sha256))
        self._reading: dict[int, Future[dict[int, str | None]]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, cut: Cut) -> State:
        """Raises Difference."""
        known = self._known.get(cut.shard_id)
        state: State = "missing" if known is None else self._state(cut, known)
        self.compared = cut.shard_id
        return state

    def ended(self, next_shard: int, rows: int) -> None:
        """The list ends after `rows` rows, before shard `next_shard`. Raises Difference if finished shards follow."""
        if self.last >= next_shard:
            name = self._layout.shard_name(self.last)
            raise Difference(f"the list ends with row {rows:,}, and shard {name} was made from rows behind it")

    def _state(self, cut: Cut, known: Stats) -> State:
        if not known.urls_sha256:
            return self._state_by_metadata(cut, known)
        if known.urls_sha256 == cut.fingerprint():
            return "done"
        if known.count < cut.rows and known.urls_sha256 == cut.fingerprint(known.count):
            return "short"
        try:
            text = self._first_difference(cut, known, _stored_urls(self._output, self._layout, cut.shard_id))
        except DamagedShard:
            text = ""
        first, last = cut.start + 1, cut.start + max(known.count, cut.rows)
        raise Difference(
            text
            or f"shard {self._layout.shard_name(cut.shard_id)} (rows {first:,} to {last:,} of the list) was made from "
            "other URLs"
        )

    def _state_by_metadata(self, cut: Cut, known: Stats) -> State:
        try:
            stored = self._read_ahead(cut.shard_id)
        except DamagedShard as error:
            raise Difference(str(error)) from error
        if text := self._first_difference(cut, known, stored):
            raise Difference(text)
        if known.count == cut.rows:
            return "done"
        if known.maker != ANY2DS:
            name = self._layout.shard_name(cut.shard_id)
            raise Difference(
                f"shard {name} has {known.count:,} rows, and would have {cut.rows:,}; it was made by {known.maker} and "
                "stays as it is"
            )
        return "short"

    def _first_difference(self, cut: Cut, known: Stats, stored: Mapping[int, str | None]) -> str:
        name = self._layout.shard_name(cut.shard_id)
        for position, now in enumerate(cut.urls()[: known.count]):
            before = stored.get(position, now) or ""
            # Metadata of any2ds has no credentials, that of other tools has.
            if without_credentials(before) != without_credentials(now or ""):
                number = cut.start + position + 1
                return f"row {number:,} of the list (shard {name}) was {_shown(before)}, and is now {_shown(now)}"
        if known.count > cut.rows:
            return f"shard {name} was made from {known.count:,} rows, and the list has {cut.rows:,} for it now"
        return ""

    def _read_ahead(self, shard_id: int) -> dict[int, str | None]:
        """Raises DamagedShard."""
        self._pool = self._pool or ThreadPoolExecutor(_AHEAD, thread_name_prefix="any2ds-compare")
        while self._unmarked and len(self._reading) < _AHEAD:
            ahead = self._unmarked.popleft()
            self._reading[ahead] = self._pool.submit(_stored_urls, self._output, self._layout, ahead)
        return self._reading.pop(shard_id).result()


def _stored_urls(output: OutputFolder, layout: Layout, shard_id: int) -> dict[int, str | None]:
    """Position -> URL, as the metadata of a finished shard has it. Raises DamagedShard."""
    name = layout.metadata_name(shard_id)
    try:
        with output.open(name) as file:
            found = pq.read_table(file, columns=["key", "url"])
        keys, urls = found.column("key").to_pylist(), found.column("url").to_pylist()
    except (pa.ArrowException, KeyError, ValueError, EOFError, OSError) as error:
        raise DamagedShard(f"its metadata {name} cannot be read: {error_text(error)}") from error
    start = layout.shard_name(shard_id)
    keys = [row_key(str(key)) for key in keys]
    for key in keys:
        rest = key.removeprefix(start)
        if not (rest.isdecimal() and len(rest) == layout.position_digits and key == start + rest):
            raise DamagedShard(
                f"its metadata {name} has keys of another form: {printable(str(key)[:50])} where it would be "
                f"{layout.key(shard_id, 0)}, which comes of number_sample_per_shard and oom_shard_count"
            )
    return {int(key[len(start) :]): url for key, url in zip(keys, urls, strict=True)}


def _shown(url: str | None) -> str:
    if not url:
        return "empty"
    shown = printable(without_credentials(url))
    return shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "…"
