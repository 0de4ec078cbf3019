"""Grain, Hugging Face's datasets, webdataset, pandas, Polars and DuckDB take `any2ds.load` as it is."""

import io
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import datasets
import duckdb
import grain
import polars
import pytest
from PIL import Image

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


class TestDatasets:
    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
    def test_images_are_decoded(self, output_format: str, streaming: bool, dataset: Callable[..., Any]) -> None:
        made = dataset(output_format)
        found = any2ds.load("dataset", columns=["key", "data", "ext", "caption", "label"]).to_hf(streaming=streaming)
        assert isinstance(found.features["data"], datasets.Image)
        rows = {row["key"]: row for row in found}
        assert rows.keys() == made.files.keys()
        for key, row in rows.items():
            assert row["data"].size == (32, 32)
            assert (row["caption"], row["label"]) == (made.captions[key], made.labels[key])

    def test_other_files_are_bytes(self, dataset: Callable[..., Any]) -> None:
        made = dataset("webdataset", "mixed")
        found = any2ds.load("dataset").to_hf()
        assert {row["key"]: row["data"] for row in found} == made.files


class TestWebdataset:
    @pytest.mark.parametrize("output_format", FORMATS)
    def test_its_stages_follow(self, output_format: str, dataset: Callable[..., Any]) -> None:
        made = dataset(output_format)
        pipeline = any2ds.load("dataset").to_webdataset(shuffle=True).decode("pil").to_tuple("jpg;png", "txt", "json")
        found = list(pipeline)
        assert len(found) == len(made.files)
        for image, caption, described in found:
            key = described["key"]
            assert caption == made.captions[key]
            assert image.tobytes() == Image.open(io.BytesIO(made.files[key])).convert("RGB").tobytes()


class TestMetadata:
    def test_duckdb_polars_and_pandas_take_them(self, dataset: Callable[..., Any]) -> None:
        made = dataset("webdataset")
        metadata = any2ds.load("dataset", where="label = 1").metadata
        wanted = sorted(key for key in made.files if made.labels[key] == 1)
        assert [key for (key,) in duckdb.sql("select key from metadata order by key").fetchall()] == wanted
        assert polars.scan_pyarrow_dataset(metadata).select("key").collect()["key"].to_list() == wanted
        assert metadata.to_table(columns=["key"]).to_pandas()["key"].tolist() == wanted
