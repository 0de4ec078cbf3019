"""Cuts the rows of a url list into shard jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from any2ds.core.layout import Layout
from any2ds.core.manifest import URLS, row_urls, urls_sha256
from any2ds.core.on_disk import Held, serialized
from any2ds.core.rows import JOB_COLUMNS, KEY_COLUMN, SETTLED_COLUMN, ShardJob


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows of one shard."""

    shard_id: int
    start: int  # of its first row in the list, from 0
    rows: int
    batches: tuple[pa.RecordBatch, ...]
    is_broken_off: bool = False  # the list could not be read to its end
    url_columns: Sequence[str] = URLS  # of all URLs of a row, and of its name

    def urls(self) -> list[str | None]:
        return [url for batch in self.batches for url in batch.column("url").to_pylist()]

    def keys(self, layout: Layout) -> Iterator[str]:
        """The key of each row; empty for one without a name."""
        if layout.has_names:
            return (name or "" for batch in self.batches for name in batch.column(KEY_COLUMN).to_pylist())
        return map(layout.keys(self.shard_id), range(self.rows))

    def fingerprint(self) -> str:
        """A hash of the URLs of its rows."""
        return urls_sha256(row_urls(batch, self.url_columns) for batch in self.batches)

    def job(self, schema: pa.Schema, settled: Mapping[int, str] | None = None) -> ShardJob:
        """The job of its shard, with the columns of `schema` and those of JOB_COLUMNS that the batches have.

        The rows at the positions `settled`, from 0, are not fetched, but fail as is said there (SETTLED_COLUMN).
        """
        names = [*schema.names, *(name for name in JOB_COLUMNS if name in self.batches[0].schema.names)]
        batches = [batch.select(names) for batch in self.batches]
        if settled:
            codes = pa.array([settled.get(position) for position in range(self.rows)], pa.string())
            batches = pa.Table.from_batches(batches).append_column(SETTLED_COLUMN, codes).to_batches()
        size = sum(batch.nbytes for batch in batches)
        serial = serialized(batches, batches[0].schema, size)
        return ShardJob(self.shard_id, serial, self.rows, size=size, fingerprint=self.fingerprint())


def cuts(
    batches: Iterable[pa.RecordBatch],
    rows_per_shard: int,
    by_marker: bool = False,
    url_columns: Sequence[str] = URLS,
) -> Iterator[Cut]:
    """Shard i, from 0, holds the rows from i * `rows_per_shard`; with `by_marker`, an empty batch ends a shard too.

    If `batches` raises, the rows before come first; the last shard of them may be short.
    """
    number = start = rows = 0  # of the shard that comes next
    failure: Exception | None = None
    with closing(Held()) as pending:

        def ended() -> Cut:
            nonlocal number, start, rows
            cut = Cut(number, start, rows, tuple(pending.drain()), failure is not None, url_columns)
            number, start, rows = number + 1, start + rows, 0
            return cut

        try:
            for batch in batches:
                if by_marker and not batch.num_rows and rows:
                    yield ended()
                while batch.num_rows:
                    part = batch.slice(0, rows_per_shard - rows)
                    pending.add(part)
                    batch = batch.slice(part.num_rows)
                    rows += part.num_rows
                    if rows == rows_per_shard:
                        yield ended()
        except Exception as error:  # what was read before is used first
            failure = error
        if rows:
            yield ended()
    if failure is not None:
        raise failure
