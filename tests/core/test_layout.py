from hypothesis import example, given
from hypothesis import strategies as st

from any2ds.core.layout import RUN_FILE, Layout, finished_shards

layouts = st.builds(Layout, st.integers(1, 10**6), st.integers(1, 8))
shards = st.integers(0, 10**9)


def test_names_are_those_the_ancestors_users_know() -> None:
    names = Layout(rows_per_shard=10000, shard_digits=5)
    assert names.shard_name(1) == "00001"
    assert names.key(1, 5) == "000010005"
    assert names.metadata_name(1) == "00001.parquet"
    assert names.stats_name(1) == "00001_stats.json"


@given(layouts, st.sets(st.tuples(shards, st.integers(0, 10**6)), min_size=2, max_size=20))
def test_keys_are_unique_and_sort_as_rows_do(names: Layout, places: set[tuple[int, int]]) -> None:
    inside = sorted({(shard, position % names.rows_per_shard) for shard, position in places})
    keys = [names.key(*place) for place in inside]
    assert len(set(keys)) == len(inside)
    fitting = [names.key(*place) for place in inside if place[0] < 10**names.shard_digits]
    assert fitting == sorted(fitting)
    assert [int(key) for key in keys] == sorted(map(int, keys))


@given(layouts, shards, st.integers(0, 10**6))
@example(Layout(10, 1), 10**9, 9)
@example(Layout(1, 8), 0, 0)
def test_a_key_tells_its_shard_and_its_position(names: Layout, shard: int, position: int) -> None:
    position %= names.rows_per_shard
    key = names.key(shard, position)
    assert key.startswith(names.shard_name(shard))
    assert divmod(int(key), 10**names.position_digits) == (shard, position)


@given(layouts, st.sets(shards, max_size=20), st.sets(shards, max_size=20))
def test_names_of_stats_tell_which_shards_are_finished_and_no_other_file_does(
    names: Layout, done: set[int], others: set[int]
) -> None:
    marks = [names.stats_name(shard) for shard in sorted(done)]
    assert len(set(marks)) == len(done)
    data = [f"{names.shard_name(shard)}{suffix}" for shard in others for suffix in ("", ".tar", ".parquet")]
    assert not set(data) & set(marks)
    temporary = [f"{mark}{suffix}" for mark in marks for suffix in (".tmp", "~")] + [f".{mark}" for mark in marks]
    assert finished_shards([*data, *temporary, *marks, RUN_FILE]) == done
