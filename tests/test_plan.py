"""Any row count, shard size and set of finished shards: the shards are the input, cut, without overlap."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from any2ds.errors import ReadError
from any2ds.plan import plan
from any2ds.types import ShardJob

SCHEMA = pa.schema([("url", pa.string())])


def batches(sizes: list[int]) -> Iterator[pa.RecordBatch]:
    start = 0
    for size in sizes:
        yield pa.record_batch([pa.array([f"http://host/{n}" for n in range(start, start + size)], pa.string())], SCHEMA)
        start += size


def urls(job: ShardJob) -> list[str]:
    found: list[str] = pa.ipc.open_stream(job.rows).read_all()["url"].to_pylist()
    return found


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 40), st.sets(st.integers(0, 10)))
def test_the_union_of_the_shards_is_the_input_without_overlap(sizes: list[int], rows: int, done: set[int]) -> None:
    total = sum(sizes)
    jobs = list(plan(batches(sizes), SCHEMA, rows, lambda shard_id, count: shard_id in done))
    expected = {
        shard: [f"http://host/{n}" for n in range(shard * rows, min(total, (shard + 1) * rows))]
        for shard in range(-(-total // rows))
        if shard not in done
    }
    assert {job.shard_id: urls(job) for job in jobs} == expected
    assert [job.shard_id for job in jobs] == sorted(expected)
    assert all(job.count == len(urls(job)) for job in jobs)


def test_what_was_read_before_a_break_is_planned_and_then_the_break_is_told() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches([5])
        raise ReadError("line 6", "malformed", "urls.csv")

    jobs = plan(broken(), SCHEMA, 2)
    assert [len(urls(next(jobs))) for _ in range(3)] == [2, 2, 1]
    with pytest.raises(ReadError, match=r"urls.csv: could be read only up to line 6"):
        next(jobs)


def test_planning_asks_how_many_rows_a_shard_has_before_it_passes_it_over() -> None:
    asked = []

    def is_done(shard_id: int, rows: int) -> bool:
        asked.append((shard_id, rows))
        return True

    assert list(plan(batches([5]), SCHEMA, 2, is_done)) == []
    assert asked == [(0, 2), (1, 2), (2, 1)]
