"""Shard jobs of rows, for tests of what works on jobs."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from any2ds.core.rows import ShardJob
from any2ds.readers.plan import Cut


def plan(cuts: Iterable[Cut], schema: pa.Schema) -> Iterator[ShardJob]:
    """The jobs of all shards, with the columns of `schema`."""
    return (cut.job(schema) for cut in cuts)
