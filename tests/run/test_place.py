"""Where the rows of a list have their shards, however often it has grown and whatever came between."""

from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from any2ds.core.manifest import Beginning, Ending, Manifest, Segment
from any2ds.readers.plan import Cut
from any2ds.run.place import Place

URLS = pa.schema({"url": pa.string()})


def rows(count: int, batch: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, count, batch):
        numbers = range(start, min(count, start + batch))
        yield pa.record_batch([pa.array([f"http://host/{n}" for n in numbers])], schema=URLS)


def placed(segments: list[Segment], rows_per_shard: int) -> Place:
    manifest = Manifest(
        {"number_sample_per_shard": rows_per_shard, "oom_shard_count": 5}, "", {"url": "string"}, tuple(segments)
    )
    return Place(manifest, manifest.parts_of(0), frozenset())


def shards_of(place: Place, count: int, batch: int) -> dict[int, list[str | None]]:
    cuts: list[Cut] = list(place.cuts(place.divided(rows(count, batch)), ("url",)))
    found = {cut.shard_id: cut.urls() for cut in cuts}
    assert len(found) == len(cuts)
    assert [url for cut in cuts for url in cut.urls()] == [f"http://host/{n}" for n in range(count)]
    return found


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_a_shard_number_means_the_same_rows_however_the_list_grows(
    growths: list[tuple[int, int]], rows_per_shard: int, batch: int, other_batch: int
) -> None:
    """Each growth is rows of the list, and then shards of a retry."""
    segments: list[Segment] = []
    before: dict[int, list[str | None]] = {}
    count = next_shard = 0
    for more, retried in growths:
        ending = Ending(more, -(-more // rows_per_shard))
        number = len(segments)
        segments.append(Segment(number, next_shard, (), Beginning(0, ""), start_row=count, ending=ending))
        count, next_shard = count + more, next_shard + ending.shards
        if retried:
            ending = Ending(retried, retried)
            retry = Segment(
                number + 1, next_shard, (), Beginning(0, ""), "retry", list_number=number + 1, ending=ending
            )
            segments.append(retry)
            next_shard += retried
        found = shards_of(placed(segments, rows_per_shard), count, batch)
        assert {shard: found[shard] for shard in before} == before
        assert shards_of(placed(segments, rows_per_shard), count, other_batch) == found
        before = found


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 5))
def test_rows_behind_the_last_segment_are_to_come_behind_all_others(first: int, more: int, rows_per_shard: int) -> None:
    shards = -(-first // rows_per_shard)
    segments = [
        Segment(0, 0, (), Beginning(0, ""), ending=Ending(first, shards)),
        Segment(1, shards, (), Beginning(0, ""), "retry", list_number=1, ending=Ending(2, 2)),
    ]
    place = placed(segments, rows_per_shard)
    new = [shard for shard in shards_of(place, first + more, 3) if place.part_of(shard) is None]
    assert new == list(range(shards + 2, shards + 2 + -(-more // rows_per_shard)))
    part = place.next_part
    assert part is not None
    assert (part.number, part.first_shard, part.start_row) == (2, shards + 2, first)
