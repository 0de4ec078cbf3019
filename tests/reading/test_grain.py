"""Grain reads arrayrecord in any order, in one process and in several."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import pytest

import any2ds


def by_key(samples: Any) -> dict[str, bytes]:
    return {sample["key"][0].decode(): sample["data"][0] for sample in samples}


@pytest.mark.parametrize("kind", ["images", "mixed"])
def test_every_sample_in_another_order(kind: str, dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("arrayrecord", kind)
    found = readme("Grain")
    samples, records = found["samples"], found["records"]
    assert len(records) == len(samples) == len(made.files)
    keys = [samples[n]["key"][0].decode() for n in range(len(samples))]
    assert sorted(keys) == sorted(made.files)
    assert keys != sorted(keys)
    for n in (0, len(samples) - 1, 3, 3):
        assert samples[n]["data"] == [made.files[keys[n]]]
        assert samples[n]["caption"][0].decode() == made.captions[keys[n]]
        assert samples[n]["label"] == [made.labels[keys[n]]]


def test_records_by_their_number_are_in_the_order_of_the_list(dataset: Callable[..., Any]) -> None:
    made = dataset("arrayrecord")
    paths = sorted(str(path) for path in Path("dataset").glob("*.arrayrecord"))
    source = grain.sources.ArrayRecordDataSource(paths)
    wanted = list(made.files.items())
    for n in (len(wanted) - 1, 0, 11, 5):
        sample = any2ds.parse_example(source[n])
        assert (sample["key"], sample["data"]) == ([wanted[n][0].encode()], [wanted[n][1]])


def test_a_data_loader_in_processes(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("arrayrecord")
    samples = readme("Grain")["samples"]
    several = samples.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    assert by_key(several) == made.files
    batches = list(samples.map(lambda sample: sample["label"][0]).batch(8))
    assert sorted(label for batch in batches for label in batch.tolist()) == sorted(
        made.labels[key] for key in made.files
    )


def test_a_shard_without_a_sample_is_none(dataset: Callable[..., Any]) -> None:
    """Row 7 has failed; in shards of one row it has one of its own."""
    made = dataset("arrayrecord", number_sample_per_shard=1)
    paths = sorted(str(path) for path in Path("dataset").glob("*.arrayrecord"))
    assert len(paths) == len(made.files) + 1
    source = grain.sources.ArrayRecordDataSource(paths)
    assert [any2ds.parse_example(record)["data"][0] for record in source] == list(made.files.values())
