"""Any row count and shard size: the shards are the input, cut, without overlap."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from any2ds.core.errors import ReadError
from any2ds.core.layout import Layout, finished_shards
from any2ds.core.rows import ShardJob
from any2ds.readers.plan import cuts
from tests.support.jobs import plan

SCHEMA = pa.schema([("url", pa.string()), ("number", pa.int64())])


def batches(sizes: list[int]) -> Iterator[pa.RecordBatch]:
    """Rows numbered from 0, in batches of `sizes`; every seventh has no URL."""
    start = 0
    for size in sizes:
        numbers = range(start, start + size)
        urls = [f"http://host/{n % 11}" if n % 7 else None for n in numbers]
        yield pa.record_batch([pa.array(urls, pa.string()), pa.array(numbers, pa.int64())], schema=SCHEMA)
        start += size


def planned(sizes: list[int], rows: int) -> list[ShardJob]:
    return list(plan(cuts(batches(sizes), rows), SCHEMA))


def numbers(job: ShardJob) -> list[int]:
    table = pa.ipc.open_stream(job.rows).read_all()
    assert table.schema == SCHEMA
    found: list[int] = table["number"].to_pylist()
    assert table["url"].to_pylist() == [f"http://host/{n % 11}" if n % 7 else None for n in found]
    return found


many_sizes = st.lists(st.integers(0, 30), max_size=8)
rows_per_shard = st.integers(1, 40)


@given(many_sizes, rows_per_shard)
def test_the_union_of_the_shards_is_the_input_without_overlap(sizes: list[int], rows: int) -> None:
    total = sum(sizes)
    jobs = planned(sizes, rows)
    expected = {n: list(range(n * rows, min(total, (n + 1) * rows))) for n in range(-(-total // rows))}
    assert {job.shard_id: numbers(job) for job in jobs} == expected
    assert [job.shard_id for job in jobs] == sorted(expected)
    assert all(job.count == len(numbers(job)) for job in jobs)


@given(many_sizes, rows_per_shard, st.integers(1, 6))
def test_every_row_has_a_key_of_its_own_that_sorts_as_the_list_and_every_shard_a_name(
    sizes: list[int], rows: int, digits: int
) -> None:
    layout = Layout(rows, digits)
    jobs = planned(sizes, rows)
    keys = [layout.key(job.shard_id, position) for job in jobs for position in range(job.count)]
    assert len(set(keys)) == len(keys)
    fitting = [layout.key(job.shard_id, p) for job in jobs if job.shard_id < 10**digits for p in range(job.count)]
    assert fitting == sorted(fitting)
    assert [int(key) for key in keys] == sorted(map(int, keys))  # as numbers also beyond those digits
    places = [divmod(int(key), 10**layout.position_digits) for key in keys]
    rows_in_list = [number for job in jobs for number in numbers(job)]
    assert [shard * rows + position for shard, position in places] == rows_in_list
    stats = {layout.stats_name(job.shard_id) for job in jobs}
    assert finished_shards(stats) == {job.shard_id for job in jobs}


@given(many_sizes, rows_per_shard, st.integers(0, 8))
def test_what_was_read_before_a_break_is_all_planned(sizes: list[int], rows: int, whole: int) -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(sizes[:whole])
        raise ReadError("line 6", "malformed", "urls.csv")

    jobs = plan(cuts(broken(), rows), SCHEMA)
    total = sum(sizes[:whole])
    found = [number for _ in range(-(-total // rows)) for number in numbers(next(jobs))]
    assert found == list(range(total))
    with pytest.raises(ReadError, match=r"urls.csv: could be read only up to line 6"):
        next(jobs)


@given(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=6), st.integers(1, 12))
def test_where_files_are_cut_no_shard_holds_rows_of_two(files: list[list[int]], rows: int) -> None:
    ended = [batch for sizes in files for batch in (*(size for size in sizes if size), 0)]  # an empty one ends a file
    jobs = list(plan(cuts(batches(ended), rows, by_marker=True), SCHEMA))
    lengths = [sum(sizes) for sizes in files]
    assert [job.shard_id for job in jobs] == list(range(len(jobs)))
    assert [job.count for job in jobs] == [
        min(rows, length - start) for length in lengths for start in range(0, length, rows)
    ]
    assert [number for job in jobs for number in numbers(job)] == list(range(sum(lengths)))


@given(st.lists(st.integers(0, 9), max_size=8), st.lists(st.integers(0, 9), max_size=8), st.integers(1, 12))
def test_fingerprints_tell_shards_and_not_batches(some: list[int], other: list[int], rows: int) -> None:
    jobs, others = list(plan(cuts(batches(some), rows), SCHEMA)), list(plan(cuts(batches(other), rows), SCHEMA))
    urls = {job.fingerprint: tuple(pa.ipc.open_stream(job.rows).read_all()["url"].to_pylist()) for job in jobs}
    assert len(urls) == len(set(urls.values()))  # some have nothing but rows without a URL
    for one, two in zip(jobs, others, strict=False):
        assert (one.fingerprint == two.fingerprint) == (one.count == two.count)
