"""Cuts the rows of a url list into shard jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from any2ds.core.manifest import URLS, row_urls, urls_sha256
from any2ds.core.on_disk import MOST_IN_MEMORY, on_disk, serialized
from any2ds.core.rows import ShardJob
from any2ds.readers.bad_rows import COLUMN as BAD_ROWS

State = Literal["missing", "short", "done"]
"""Of a shard: not written; written, but the list has further rows for it; written."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows of one shard."""

    shard_id: int
    start: int  # of its first row in the list, from 0
    batches: tuple[pa.RecordBatch, ...]
    is_broken_off: bool = False  # the list could not be read to its end
    url_columns: Sequence[str] = URLS  # of all URLs of a row

    @property
    def rows(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def urls(self) -> list[str | None]:
        return [url for batch in self.batches for url in batch.column("url").to_pylist()]

    def fingerprint(self, rows: int | None = None) -> str:
        """A hash of the URLs of its first `rows`, or of all."""
        return urls_sha256((row_urls(batch, self.url_columns) for batch in self.batches), rows)


def plan(
    cuts: Iterable[Cut], schema: pa.Schema, state: Callable[[Cut], State] = lambda cut: "missing"
) -> Iterator[ShardJob]:
    """The jobs of the shards that are not "done" by their `state`, which may raise."""
    for cut in cuts:
        if (found := state(cut)) != "done":
            rows, size = _serialize(cut.batches, schema)
            redo = () if found == "short" else None
            yield ShardJob(cut.shard_id, rows, cut.rows, redo=redo, size=size, fingerprint=cut.fingerprint())


def cuts(
    batches: Iterable[pa.RecordBatch],
    rows_per_shard: int,
    first_shard: int = 0,
    by_file: bool = False,
    url_columns: Sequence[str] = URLS,
) -> Iterator[Cut]:
    """Shard `first_shard` + i holds the rows from i * `rows_per_shard`; with `by_file`, an empty batch, which ends each
    file, ends a shard too.

    If `batches` raises, the rows before come first; the last shard of them may be short.
    """
    pending: list[pa.RecordBatch] = []
    in_memory = 0  # the last batches of `pending` that are not on disk
    size = 0  # bytes of these
    start, missing = 0, rows_per_shard
    failure: Exception | None = None

    def ended() -> Cut:
        nonlocal start, missing, first_shard, in_memory, size
        cut = Cut(first_shard, start, tuple(pending), failure is not None, url_columns)
        pending.clear()
        in_memory = size = 0
        start, missing, first_shard = start + cut.rows, rows_per_shard, first_shard + 1
        return cut

    try:
        for batch in batches:
            if by_file and not batch.num_rows and pending:
                yield ended()
            while batch.num_rows:
                pending.append(batch.slice(0, missing))
                batch = batch.slice(missing)
                missing -= pending[-1].num_rows
                in_memory, size = in_memory + 1, size + pending[-1].nbytes
                if size > MOST_IN_MEMORY:
                    pending[-in_memory:] = on_disk(pending[-in_memory:])
                    in_memory = size = 0
                if not missing:
                    yield ended()
    except Exception as error:  # what was read before is used first
        failure = error
    if pending:
        yield ended()
    if failure is not None:
        raise failure


def _serialize(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> tuple[bytes, int]:
    """The columns of `schema`, and `BAD_ROWS` if one of the batches has it; and how many bytes these are in memory."""
    rows = list(batches)
    if any(BAD_ROWS in batch.schema.names for batch in rows):
        schema = schema.append(pa.field(BAD_ROWS, pa.string()))
        rows = [
            batch
            if BAD_ROWS in batch.schema.names
            else batch.append_column(BAD_ROWS, pa.nulls(batch.num_rows, pa.string()))
            for batch in rows
        ]
    size = sum(batch.nbytes for batch in rows)
    return serialized((batch.select(schema.names) for batch in rows), schema, size), size
