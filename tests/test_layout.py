from hypothesis import given
from hypothesis import strategies as st

from any2ds.layout import Layout, finished_shards


def test_names_are_those_the_ancestors_users_know() -> None:
    names = Layout(rows_per_shard=10000, shard_digits=5)
    assert names.shard_name(1) == "00001"
    assert names.key(1, 5) == "000010005"
    assert names.metadata_name(1) == "00001.parquet"
    assert names.stats_name(1) == "00001_stats.json"


@given(
    st.integers(1, 10**6),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)), min_size=2, max_size=20, unique=True),
)
def test_keys_are_unique_and_sort_as_rows_do(rows_per_shard: int, digits: int, places: list[tuple[int, int]]) -> None:
    names = Layout(rows_per_shard, digits)
    inside = sorted({(shard, position % rows_per_shard) for shard, position in places})
    keys = [names.key(*place) for place in inside]
    assert len(set(keys)) == len(inside)
    fitting = [names.key(*place) for place in inside if place[0] < 10**digits]
    assert fitting == sorted(fitting)


def test_a_position_that_fills_its_width_does_not_collide_with_a_bigger_shard_number() -> None:
    names = Layout(rows_per_shard=10, shard_digits=1)
    assert len({names.key(shard, position) for shard in range(200) for position in range(10)}) == 2000


def test_only_stats_files_mark_a_shard_as_finished() -> None:
    names = ["00000_stats.json", "00001.tar", "00001.parquet", "_run.json", "x_stats.json", "00007_stats.json", "_tmp"]
    assert finished_shards(names) == {0, 7}
