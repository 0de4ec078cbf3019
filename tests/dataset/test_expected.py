"""Which shards a dataset should have, by the lists of its run file."""

import pytest

from any2ds.core.manifest import Beginning, Ending, Segment
from any2ds.dataset.expected import ExpectedShards
from any2ds.dataset.shards import ranges_text


def listed(first_shard: int, rows: int | None, shards: int | None) -> Segment:
    ending = None if rows is None or shards is None else Ending(rows, shards)
    return Segment(0, first_shard, (), Beginning(0, ""), ending=ending)


@pytest.mark.parametrize(
    ("lists", "present", "missing", "beyond"),
    [
        ([listed(0, 25, 3)], [0, 1, 2], [], []),
        ([listed(0, 25, 3)], [1], [0, 2], []),
        ([listed(0, 25, 3)], [0, 1, 2, 3], [], [3]),
        ([listed(0, 20, 2), listed(2, 1, 1)], [0, 2], [1], []),
        ([listed(0, None, None)], [0, 3], [1, 2], []),
        ([listed(0, 3, 1), listed(1, None, None)], [0, 1, 2], [], []),
        ([listed(0, None, None)], [], [], []),
        ([listed(0, 0, 0)], [], [], []),
    ],
)
def test_which_shards_there_should_be(
    lists: list[Segment], present: list[int], missing: list[int], beyond: list[int]
) -> None:
    expected = ExpectedShards(lists, present)
    assert (expected.missing, expected.beyond) == (missing, beyond)


def test_numbers_as_ranges() -> None:
    assert ranges_text([3, 7, 8, 9, 12]) == "3, 7-9, 12"
    assert ranges_text(list(range(0, 50, 2))) == "0, 2, 4, 6, 8, 10, 12, 14, 16, 18 … and 15 more"
