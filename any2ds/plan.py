"""Cuts the rows of a url list into shard jobs: which row is in which shard, and which shards are still to be made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from any2ds.types import ShardJob


def never(shard_id: int, rows: int) -> bool:
    """No shard is done yet."""
    return False


def plan(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    rows_per_shard: int,
    is_done: Callable[[int, int], bool] = never,
) -> Iterator[ShardJob]:
    """Shard i holds the rows from i * `rows_per_shard`; those that `is_done(i, rows in it)` are passed over.

    If `batches` raises, the rows before still give their jobs, the last one perhaps short, and then it is raised.
    """
    for shard_id, parts in enumerate(_cut(batches, rows_per_shard)):
        if isinstance(parts, Exception):
            raise parts
        count = sum(part.num_rows for part in parts)
        if not is_done(shard_id, count):
            yield ShardJob(shard_id, _serialize(parts, schema), count)


def _cut(batches: Iterable[pa.RecordBatch], rows_per_shard: int) -> Iterator[list[pa.RecordBatch] | Exception]:
    pending: list[pa.RecordBatch] = []
    missing = rows_per_shard
    stopped: Exception | None = None
    iterator = iter(batches)
    while True:
        try:
            batch = next(iterator, None)
        except Exception as error:  # what was read before is used first
            stopped, batch = error, None
        if batch is None:
            break
        while batch.num_rows:
            part, batch = batch.slice(0, missing), batch.slice(missing)
            pending.append(part)
            missing -= part.num_rows
            if not missing:
                yield pending
                pending, missing = [], rows_per_shard
    if pending:
        yield pending
    if stopped is not None:
        yield stopped


def _serialize(batches: list[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())
