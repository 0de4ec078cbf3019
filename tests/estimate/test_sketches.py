"""Samples of long streams: what is drawn stands for all."""

import random
from collections import Counter

import pyarrow as pa
import pytest

from any2ds.estimate.sketches import DistinctSample, Reservoir


def test_each_row_is_drawn_with_the_same_chance() -> None:
    drawn: Counter[int] = Counter()
    for seed in range(400):
        reservoir = Reservoir(10, random.Random(seed))
        for start in range(0, 100, 7):
            reservoir.add(pa.record_batch({"n": list(range(start, min(100, start + 7)))}))
        rows = reservoir.table(pa.schema({"n": pa.int64()}))["n"].to_pylist()
        assert rows == sorted(set(rows))
        assert len(rows) == 10
        drawn.update(rows)
    thirds = [sum(drawn[n] for n in range(start, start + 33)) for start in (0, 33, 66)]
    assert all(abs(count - 1320) < 150 for count in thirds)


@pytest.mark.parametrize("form", ["https://example.org/{:07d}/picture.jpg", "https://h{}.example/a", "{}"])
def test_distinct_values_are_estimated_whatever_they_look_like(form: str) -> None:
    sample = DistinctSample(1000)
    values = [form.format(number) for number in range(40_000)]
    for start in range(0, 40_000, 5000):
        sample.add(dict.fromkeys(values[start : start + 5000], 2))
    assert sample.distinct == pytest.approx(40_000, rel=0.15)
    assert sample.repeated_share == 0.5
