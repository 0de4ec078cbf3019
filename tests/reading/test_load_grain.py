"""Grain takes `any2ds.load` as it is: what its advanced tutorial does, without JAX, over each format.

tests/reading/with_jax has what needs JAX and Orbax, and the page docs/grain.md.
"""

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import pytest

import any2ds
from any2ds import download
from any2ds.testing.server import serve

FORMATS = ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"]
Made = Callable[..., Any]


def keys(samples: Any) -> list[str]:
    return [sample["key"] for sample in samples]


def opened(**options: Any) -> Any:
    return any2ds.load("dataset", **options)


def shuffled(ds: Any, seed: int = 3) -> Any:
    return grain.MapDataset.source(ds).seed(seed).shuffle()


class TestSource:
    @pytest.mark.parametrize("output_format", FORMATS)
    def test_a_shuffled_epoch_has_every_sample(self, output_format: str, dataset: Made) -> None:
        made = dataset(output_format)
        samples = shuffled(opened())
        assert {sample["key"]: sample["data"] for sample in samples} == made.files
        assert keys(samples) != sorted(made.files)

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_batches_of_columns(self, output_format: str, dataset: Made) -> None:
        made = dataset(output_format)
        ds = opened(columns=["data", "label"], decode=True)
        batches = list(shuffled(ds).batch(6, drop_remainder=True).to_iter_dataset(ds.read_options()))
        assert [batch["data"].shape for batch in batches] == [(6, 32, 32, 3)] * (len(ds) // 6)
        found = Counter(int(label) for batch in batches for label in batch["label"])
        assert found <= Counter(made.labels[key] for key in made.files)

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_batches_that_are_read_at_once(self, output_format: str, dataset: Made) -> None:
        """Grain shuffles the numbers; the samples are the ones, in the order, that it would have asked for singly."""
        made = dataset(output_format)
        ds = opened()
        batches = grain.MapDataset.range(len(ds)).seed(3).shuffle().batch(5).map(ds.__getitem__)
        read = list(batches.to_iter_dataset(ds.read_options()))
        assert [len(batch) for batch in read] == [5, 5, 5, 5, 4]
        assert keys(sample for batch in read for sample in batch) == keys(shuffled(ds))
        assert {sample["key"]: sample["data"] for batch in read for sample in batch} == made.files

    def test_grains_own_hook_for_several_samples(self, dataset: Made) -> None:
        dataset("webdataset")
        ds = opened()
        assert ds._getitems([4, 0, 4]) == [ds[4], ds[0], ds[4]]
        assert ds.to_grain()._getitems([4, len(ds), 4]) == [ds[4], ds[0], ds[4]]

    def test_without_grains_counters_it_is_the_same(self, dataset: Made) -> None:
        dataset("webdataset")
        ds = opened()
        assert list(ds.to_grain()) == list(ds)
        assert keys(ds.to_grain()[2:9:3]) == [ds[2]["key"], ds[5]["key"], ds[8]["key"]]
        pipelines = [
            start.seed(3).shuffle().repeat(2).map(lambda sample: sample["key"])
            for start in (ds.to_grain(), grain.MapDataset.source(ds))
        ]
        assert [each[5] for each in pipelines] == [each._getitems([5])[0] for each in pipelines]
        # Grain keeps what it knows of a pipeline of which a sample was looked at.
        ours, theirs = (list(each.to_iter_dataset(ds.read_options())) for each in pipelines)
        assert ours == theirs

    def test_ranks_share_an_epoch(self, dataset: Made) -> None:
        made = dataset("webdataset")
        shares = [keys(shuffled(opened())[rank::3]) for rank in range(3)]
        assert sorted(key for share in shares for key in share) == sorted(made.files)

    def test_nothing_stored_is_a_dataset_without_a_sample(self, dataset: Made) -> None:
        dataset("webdataset")
        assert list(grain.MapDataset.source(opened(where="label = 7")).to_iter_dataset()) == []

    def test_a_damaged_shard_is_named(self, dataset: Made) -> None:
        dataset("webdataset")
        ds = opened()
        os.truncate("dataset/00001.tar", 512)
        with pytest.raises(Exception, match=r"shard 00001\.tar"):
            keys(grain.MapDataset.source(ds).to_iter_dataset(ds.read_options()))
        several = grain.MapDataset.source(ds).to_iter_dataset(ds.read_options(num_workers=1))
        with pytest.raises(Exception, match=r"shard 00001\.tar"):
            keys(several.mp_prefetch(grain.MultiprocessingOptions(num_workers=1)))


class TestOrder:
    """It depends on the seed alone, not on threads, processes, machines or where the dataset lies."""

    @pytest.mark.parametrize("output_format", FORMATS)
    def test_processes_give_what_one_would(self, output_format: str, dataset: Made) -> None:
        made = dataset(output_format)
        ds = opened()
        several = shuffled(ds).to_iter_dataset(ds.read_options(num_workers=2))
        found = list(several.mp_prefetch(grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=4)))
        assert keys(found) == keys(shuffled(ds))
        assert {sample["key"]: sample["data"] for sample in found} == made.files

    @pytest.mark.parametrize("threads", [(0, 0), (1, 16), (16, 500)])
    def test_threads_give_what_one_would(self, threads: tuple[int, int], dataset: Made) -> None:
        dataset("webdataset")
        options = grain.ReadOptions(num_threads=threads[0], prefetch_buffer_size=threads[1])
        assert keys(shuffled(opened()).to_iter_dataset(options)) == keys(shuffled(opened()))

    def test_another_process_and_another_folder(self, dataset: Made) -> None:
        dataset("webdataset")
        wanted = keys(shuffled(opened()))
        Path("dataset").rename("moved")
        code = (
            "import any2ds, grain\n"
            "ds = any2ds.load('moved')\n"
            "for sample in grain.MapDataset.source(ds).seed(3).shuffle(): print(sample['key'])"
        )
        environment = {**os.environ, "PYTHONHASHSEED": "7"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        assert done.stdout.split() == wanted

    def test_each_epoch_has_its_own(self, dataset: Made) -> None:
        made = dataset("webdataset")
        ds = opened()
        epochs = keys(shuffled(ds).repeat(2))
        first, second = epochs[: len(ds)], epochs[len(ds) :]
        assert sorted(first) == sorted(second) == sorted(made.files)
        assert first != second
        assert keys(shuffled(ds).repeat(2, reseed_each_epoch=False)) == first * 2
        assert keys(shuffled(ds, seed=4)) != first

    def test_formats_agree(self, dataset: Made) -> None:
        orders = []
        for output_format in FORMATS:
            dataset(output_format)
            orders.append(keys(shuffled(opened())))
        assert orders == [orders[0]] * len(FORMATS)


def resumed(new: Callable[[], Any], before: int) -> tuple[list[str], list[str]]:
    """All keys of a run without a break, and of one that is saved after so many samples and restored."""
    wanted = keys(new())
    samples = iter(new())
    first = [next(samples)["key"] for _ in range(before)]
    state = json.loads(json.dumps(samples.get_state()))
    samples.close()
    restored = iter(new())
    restored.set_state(state)
    return wanted, first + keys(restored)


class TestGoingOn:
    @pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
    @pytest.mark.parametrize("before", [0, 7, 24, 30, 46])
    def test_in_the_middle_of_an_epoch(self, before: int, output_format: str, dataset: Made) -> None:
        dataset(output_format)
        ds = opened()
        wanted, found = resumed(lambda: shuffled(ds).repeat(2).to_iter_dataset(ds.read_options()), before)
        assert len(wanted) == 2 * len(ds)
        assert found == wanted

    def test_with_processes(self, dataset: Made) -> None:
        dataset("arrayrecord")
        ds = opened()
        options = grain.MultiprocessingOptions(num_workers=2)

        def new() -> Any:
            return shuffled(ds).to_iter_dataset(ds.read_options(num_workers=2)).mp_prefetch(options)

        wanted, found = resumed(new, 9)
        assert found == wanted

    def test_after_the_dataset_was_moved(self, dataset: Made) -> None:
        dataset("webdataset")
        samples = iter(shuffled(opened()).to_iter_dataset())
        first = [next(samples)["key"] for _ in range(9)]
        state = samples.get_state()
        wanted = first + keys(samples)
        Path("dataset").rename("moved")
        restored = iter(shuffled(any2ds.load("moved")).to_iter_dataset())
        restored.set_state(state)
        assert first + keys(restored) == wanted

    def test_after_the_dataset_was_extended(self, growing: Callable[[int], None]) -> None:
        """The state is a position alone: `split` gives the samples from before, else the order is another one."""
        growing(7)
        ds = opened()
        samples = iter(shuffled(ds).to_iter_dataset())
        first = [next(samples)["key"] for _ in range(3)]
        state = samples.get_state()
        wanted = first + keys(samples)
        growing(12)
        assert len(opened()) == 12
        assert keys(shuffled(ds)) == wanted  # which was open before
        restored = iter(shuffled(opened(split=f"train[:{len(ds)}]")).to_iter_dataset())
        restored.set_state(state)
        assert first + keys(restored) == wanted
        other = iter(shuffled(opened()).to_iter_dataset())
        other.set_state(state)
        assert first + keys(other) != wanted


def hierarchically(ds: Any, seed: int = 1) -> Any:
    """Shards in another order, of which some are read in turn, and samples shuffled in a window."""
    shards = grain.MapDataset.source(ds.shards).seed(seed).shuffle()
    streams = shards.map(lambda shard: grain.MapDataset.source(shard).to_iter_dataset(shard.read_options()))
    mixed = grain.experimental.InterleaveIterDataset(streams, cycle_length=2)
    return grain.experimental.WindowShuffleIterDataset(mixed, window_size=8, seed=seed)


class TestShards:
    @pytest.mark.parametrize("output_format", FORMATS)
    def test_hierarchical_shuffle(self, output_format: str, dataset: Made) -> None:
        made = dataset(output_format)
        ds = opened()
        assert [key for shard in ds.shards for key in keys(shard)] == sorted(made.files)
        found = keys(hierarchically(ds))
        assert sorted(found) == sorted(made.files)
        assert found == keys(hierarchically(ds)) != keys(hierarchically(ds, seed=2))

    def test_hierarchical_shuffle_goes_on_in_the_middle(self, dataset: Made) -> None:
        dataset("parquet")
        ds = opened()
        wanted, found = resumed(lambda: hierarchically(ds), 11)
        assert found == wanted

    def test_hierarchical_shuffle_in_processes(self, dataset: Made) -> None:
        made = dataset("tfrecord")
        several = hierarchically(opened()).mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
        assert sorted(keys(several)) == sorted(made.files)

    def test_of_a_part(self, dataset: Made) -> None:
        dataset("webdataset")
        for part in (opened(where="label = 1"), opened(split="train[3:12]")):
            assert [key for shard in part.shards for key in keys(pickle.loads(pickle.dumps(shard)))] == keys(part)


class TestReadingAhead:
    def test_the_options_fit_local_files(self, dataset: Made) -> None:
        dataset("webdataset")
        options = opened().read_options()
        assert (options.num_threads, options.prefetch_buffer_size) == (1, 16)
        options = opened().read_options(num_workers=4)
        assert (options.num_threads, options.prefetch_buffer_size) == (0, 0)

    @pytest.mark.parametrize(("threads", "buffer"), [(0, 0), (1, 16), (12, 24)])
    def test_as_many_threads_as_are_asked_for(self, threads: int, buffer: int, dataset: Made) -> None:
        dataset("webdataset")
        ds = opened()
        options = ds.read_options(num_threads=threads)
        assert (options.num_threads, options.prefetch_buffer_size) == (threads, buffer)
        assert keys(ds.to_grain().to_iter_dataset(options)) == keys(ds)

    @pytest.mark.parametrize(
        ("workers", "threads"),
        [(0, 16), (1, 16), (4, 16), (8, 8), (100, 1)],
    )
    def test_the_options_fit_a_store(self, workers: int, threads: int, dataset: Made) -> None:
        dataset("webdataset")
        import fsspec

        fsspec.filesystem("memory").put("dataset/", "memory://grain/", recursive=True)
        options = any2ds.load("memory://grain").read_options(num_workers=workers)
        assert (options.num_threads, options.prefetch_buffer_size) == (threads, 2 * threads)

    def test_a_process_that_ends_in_the_middle_says_nothing(self, dataset: Made) -> None:
        dataset("webdataset")
        code = (
            "import any2ds, grain\n"
            "ds = any2ds.load('dataset')\n"
            "samples = grain.MapDataset.source(ds).seed(1).shuffle().repeat()\n"
            "samples = iter(samples.to_iter_dataset(ds.read_options()))\n"
            "print(next(samples)['key'])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True)
        assert done.stdout.strip()
        assert "Exception" not in done.stderr


def loader(ds: Any, workers: int = 0) -> grain.DataLoader:
    return grain.DataLoader(
        data_source=ds,
        sampler=grain.samplers.IndexSampler(
            num_records=len(ds), shuffle=True, seed=1, num_epochs=1, shard_options=grain.sharding.NoSharding()
        ),
        worker_count=workers,
        read_options=ds.read_options(num_workers=workers),
    )


class TestDataLoader:
    def test_it_is_a_source_as_grain_declares_it(self, dataset: Made) -> None:
        dataset("webdataset")
        assert isinstance(opened(), grain.sources.RandomAccessDataSource)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_it_goes_on_in_the_middle(self, workers: int, dataset: Made) -> None:
        dataset("webdataset")
        wanted = keys(loader(opened(), workers))
        samples = iter(loader(opened(), workers))
        first = [next(samples)["key"] for _ in range(9)]
        restored = iter(loader(opened(), workers))
        restored.set_state(samples.get_state())
        assert first + keys(restored) == wanted

    def test_it_refuses_a_dataset_that_was_extended(self, growing: Callable[[int], None]) -> None:
        growing(7)
        ds = opened()
        samples = iter(loader(ds))
        first = [next(samples)["key"] for _ in range(3)]
        state = samples.get_state()
        wanted = first + keys(samples)
        growing(12)
        with pytest.raises(ValueError, match="num_records=12"):
            iter(loader(opened())).set_state(state)
        restored = iter(loader(opened(split="train[:7]")))
        restored.set_state(state)
        assert first + keys(restored) == wanted

    def test_it_refuses_a_dataset_that_was_moved(self, dataset: Made) -> None:
        dataset("webdataset")
        samples = iter(loader(opened()))
        next(samples)
        state = samples.get_state()
        Path("dataset").rename("moved")
        with pytest.raises(ValueError, match="moved"):
            iter(loader(any2ds.load("moved"))).set_state(state)
        Path("dataset").symlink_to("moved")
        iter(loader(opened())).set_state(state)


@pytest.fixture
def growing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`growing(7)` makes `dataset/` of seven samples in shards of five, or extends it to so many."""
    monkeypatch.chdir(tmp_path)
    media = tmp_path / "media"
    media.mkdir()
    for n in range(12):
        (media / f"{n}.txt").write_text(f"text {n}")
    with serve(media) as server:

        def grown(count: int) -> None:
            there = len(any2ds.load("dataset")) if Path("dataset").exists() else 0
            download(
                [server.url(f"{n}.txt") for n in range(there, count)],
                output_folder="dataset",
                number_sample_per_shard=5,
                incremental_mode="extend" if there else "incremental",
                distributor="inline",
                quiet=True,
            )

        yield grown
