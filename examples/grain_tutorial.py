"""What Grain's advanced tutorial does, step by step, with `any2ds.load` in place of `tfds.data_source`:

    pip install 'any2ds[image]' grain jax orbax-checkpoint
    python examples/grain_tutorial.py     # on 155 images from a server on this machine, into grain_output/

docs/grain.md explains the steps.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import flags
from demo_images import SIDE, download_images

import any2ds

OUTPUT = Path("grain_output").absolute()
WORKERS = 2


def main() -> None:
    flags.FLAGS.mark_as_parsed()  # Grain 0.2.18 asks absl for a flag when processes read and JAX is installed
    download_images(OUTPUT / "dataset")
    ds = any2ds.load(OUTPUT / "dataset", columns=["key", "data", "topic"], decode=True)
    print(ds)
    save_and_restore(ds)
    mix_datasets()
    shuffle_everything(ds)
    shuffle_shards(ds)
    read_ahead_in_threads(ds)
    read_ahead_in_processes(ds)
    put_on_devices(ds)


def save_and_restore(ds: Any) -> None:
    """Orbax saves where an iterator is, and sets another one there."""
    shutil.rmtree(OUTPUT / "checkpoints", ignore_errors=True)
    samples = iter(grain.MapDataset.source(ds).seed(45).shuffle().to_iter_dataset(ds.read_options()))
    keys(islice(samples, 4))
    with ocp.CheckpointManager(OUTPUT / "checkpoints") as manager:
        manager.save(4, args=grain.checkpoint.CheckpointSave(samples))
        manager.wait_until_finished()
        after = keys(islice(samples, 4))
        manager.restore(4, args=grain.checkpoint.CheckpointRestore(samples))
    tell("restored by Orbax: the same four samples follow", keys(islice(samples, 4)) == after)


def mix_datasets() -> None:
    """Two datasets, here two conditions on one, with weights; filters need streams."""
    trees, stars = (any2ds.load(OUTPUT / "dataset", where=f"topic = '{topic}'") for topic in ("tree", "star"))
    mixed = grain.MapDataset.mix([grain.MapDataset.source(each) for each in (trees, stars)], weights=[0.75, 0.25])
    tell(f"mixed until the first of them ends: {len(mixed)} samples", topics(mixed))

    endless = [
        grain.MapDataset.source(each).seed(seed).shuffle().repeat() for seed, each in enumerate((trees, stars))
    ]  # each with a seed of its own
    mixed = grain.MapDataset.mix(endless, weights=[1, 2])
    tell(f"mixed without end: {len(mixed) == sys.maxsize}", topics(mixed[n] for n in range(300)))

    filtered = [each.filter(lambda sample: sample["bytes"] % 2 == 0).to_iter_dataset() for each in endless]
    tell("filtered and mixed", topics(islice(grain.IterDataset.mix(filtered, weights=[0.5, 0.5]), 100)))


def shuffle_everything(ds: Any) -> None:
    """A global shuffle: each epoch has an order of its own, which the seed decides."""
    epochs = keys(grain.MapDataset.source(ds).seed(42).shuffle().repeat(2))
    first, second = epochs[: len(ds)], epochs[len(ds) :]
    tell("the epochs have the same samples in another order", sorted(first) == sorted(second) and first != second)
    # The same order, but the samples of a batch are read at once, which costs half as much.
    batches = grain.MapDataset.range(len(ds)).seed(42).shuffle().batch(16).map(ds.__getitem__)
    tell("batches that are read at once", keys(chain.from_iterable(batches)) == first)


def shuffle_shards(ds: Any) -> None:
    """A hierarchical shuffle: shards in another order, three of which are read in turn, and a window of samples."""
    shards = grain.MapDataset.source(ds.shards).seed(42).shuffle()
    streams = shards.map(lambda shard: grain.MapDataset.source(shard).to_iter_dataset(shard.read_options()))
    samples = grain.experimental.InterleaveIterDataset(streams, cycle_length=3)
    samples = grain.experimental.WindowShuffleIterDataset(samples, window_size=50, seed=42)
    found = keys(samples)
    tell("shuffled by shards and in a window", sorted(found) == sorted(ds.keys) and found != ds.keys)


def read_ahead_in_threads(ds: Any) -> None:
    wanted = keys(ds)
    samples = grain.MapDataset.source(ds).to_iter_dataset(ds.read_options())  # a thread for local files, 16 for a store
    tell("read ahead by threads that share the samples out", keys(samples) == wanted)
    ahead = grain.experimental.ThreadPrefetchIterDataset(samples, prefetch_buffer_size=3)
    tell("read ahead by one thread", keys(ahead) == wanted)
    ahead = grain.experimental.multithread_prefetch(samples, num_threads=2, buffer_size=3)
    tell("read ahead by threads with pipelines of their own", keys(ahead) == wanted)
    by_number = grain.MapDataset.source(ds)
    tuned = grain.experimental.pick_performance_config(
        ds=by_number, ram_budget_mb=1024, max_workers=None, max_buffer_size=100
    )
    samples = by_number.to_iter_dataset(tuned.read_options)
    tell(f"read ahead by {tuned.read_options.num_threads} threads, as Grain tunes it", keys(samples) == wanted)


def read_ahead_in_processes(ds: Any) -> None:
    samples = grain.MapDataset.source(ds).seed(42).shuffle().to_iter_dataset(ds.read_options(num_workers=WORKERS))
    tuned = grain.experimental.pick_performance_config(
        ds=samples, ram_budget_mb=1024, max_workers=WORKERS, max_buffer_size=None
    )
    ahead = samples.mp_prefetch(tuned.multiprocessing_options)
    tell(f"read ahead by {tuned.multiprocessing_options.num_workers} processes", keys(ahead) == keys(samples))


def put_on_devices(ds: Any) -> None:
    """Batches are copied to all devices, a part of each batch to one, while the last ones are in use."""
    images = any2ds.load(OUTPUT / "dataset", columns=["data"], decode=True)
    batches = grain.MapDataset.source(images).seed(42).shuffle().batch(16, drop_remainder=True)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    on_devices = grain.experimental.device_put(
        batches.to_iter_dataset(ds.read_options()), sharding, cpu_buffer_size=3, device_buffer_size=2
    )
    shapes = {batch["data"].shape for batch in on_devices}
    tell(f"batches on {len(jax.devices())} device(s)", shapes == {(16, SIDE, SIDE, 3)})
    # The same by hand, for one device: a thread reads ahead, and a copy starts where a batch is taken.
    ahead = grain.experimental.ThreadPrefetchIterDataset(
        batches.to_iter_dataset(ds.read_options()), prefetch_buffer_size=10
    )
    placed = [batch["data"] for batch in ahead.map(jax.device_put)]
    is_there = all(isinstance(batch, jax.Array) and batch.shape == (16, SIDE, SIDE, 3) for batch in placed)
    tell("batches put there one by one", is_there and len(placed) == len(batches))


def keys(samples: Iterable[dict[str, Any]]) -> list[str]:
    return [sample["key"] for sample in samples]


def topics(samples: Iterable[dict[str, Any]]) -> dict[str, int]:
    return dict(Counter(sample["topic"] for sample in samples))


def tell(step: str, result: object) -> None:
    print(f"{step}: {result}", flush=True)


if __name__ == "__main__":
    main()
