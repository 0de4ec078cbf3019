"""Grain takes `any2ds.load` as it is."""

import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import grain
import pytest

import any2ds

FORMATS = ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"]


def keys(samples: Any) -> list[str]:
    return [sample["key"] for sample in samples]


class TestGrain:
    @pytest.mark.parametrize("output_format", FORMATS)
    def test_a_shuffled_epoch_has_every_sample(self, output_format: str, dataset: Callable[..., Any]) -> None:
        made = dataset(output_format)
        ds = any2ds.load("dataset")
        shuffled = grain.MapDataset.source(ds).seed(42).shuffle()
        assert {sample["key"]: sample["data"] for sample in shuffled} == made.files
        assert keys(shuffled) != sorted(made.files)
        batches = shuffled.map(lambda sample: sample["label"]).batch(8).to_iter_dataset(ds.read_options())
        assert Counter(int(label) for batch in batches for label in batch) == Counter(
            made.labels[k] for k in made.files
        )

    @pytest.mark.parametrize("output_format", ["webdataset", "arrayrecord"])
    def test_processes_that_read_ahead(self, output_format: str, dataset: Callable[..., Any]) -> None:
        made = dataset(output_format)
        ds = any2ds.load("dataset")
        several = grain.MapDataset.source(ds).seed(1).shuffle().to_iter_dataset(ds.read_options())
        several = several.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
        assert sorted(keys(several)) == sorted(made.files)

    def test_repeat_and_going_on_in_the_middle(self, dataset: Callable[..., Any]) -> None:
        dataset("webdataset")
        ds = any2ds.load("dataset")

        def new() -> Any:
            return iter(grain.MapDataset.source(ds).seed(3).shuffle().repeat(2).to_iter_dataset(ds.read_options()))

        wanted = keys(new())
        assert len(wanted) == 2 * len(ds)
        samples = new()
        first = [next(samples)["key"] for _ in range(30)]
        state = pickle.loads(pickle.dumps(samples.get_state()))
        again = new()
        again.set_state(state)
        assert first + keys(again) == wanted

    def test_a_mixture_with_weights(self, dataset: Callable[..., Any]) -> None:
        dataset("webdataset")
        parts = [any2ds.load("dataset", where=f"label = {label}") for label in (0, 1)]
        sources = [grain.MapDataset.source(part).seed(1).shuffle().repeat() for part in parts]
        mixed = grain.MapDataset.mix(sources, weights=[0.75, 0.25])
        assert Counter(mixed[n]["label"] for n in range(400)) == {0: 300, 1: 100}

    def test_shards_that_are_interleaved_and_shuffled_in_a_window(self, dataset: Callable[..., Any]) -> None:
        made = dataset("webdataset")
        ds = any2ds.load("dataset")
        assert [key for shard in ds.shards for key in keys(shard)] == sorted(made.files)
        shards = grain.MapDataset.source(ds.shards).seed(1).shuffle()
        mixed = grain.experimental.InterleaveIterDataset(
            shards.map(lambda shard: grain.MapDataset.source(shard).to_iter_dataset(ds.read_options())), cycle_length=2
        )
        mixed = grain.experimental.WindowShuffleIterDataset(mixed, window_size=8, seed=1)
        assert sorted(keys(mixed)) == sorted(made.files)

    def test_shards_of_a_part(self, dataset: Callable[..., Any]) -> None:
        dataset("webdataset")
        for part in (any2ds.load("dataset", where="label = 1"), any2ds.load("dataset", split="train[3:12]")):
            assert [key for shard in part.shards for key in keys(pickle.loads(pickle.dumps(shard)))] == keys(part)


@pytest.mark.parametrize("section", ["Loading", "With Grain"])
def test_what_the_page_shows(section: str, dataset: Callable[..., Any], page: Callable[[str], list[str]]) -> None:
    dataset("webdataset")
    for code in page(section):
        exec(compile(code, section, "exec"), {"__name__": "page"})
