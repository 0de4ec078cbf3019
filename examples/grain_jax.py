"""From a list of URLs to a network that JAX trains on images that Grain reads, in a minute on a CPU:

pip install 'any2ds[image]' grain jax optax orbax-checkpoint
python examples/grain_jax.py               # 155 images from a server on this machine, into jax_output/
python examples/grain_jax.py --steps=200   # goes on where the last run was, dataset and network alike
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from demo_images import SIDE, download_images

import any2ds

OUTPUT = Path("jax_output").absolute()
TOPICS = ("waves", "tree", "star", "mountains", "sunset", "clock")
# What is trained on: a condition on the metadata, and a part of the keys. Nothing else is read.
WHERE = f"topic in ({', '.join(map(repr, TOPICS))})"
optimizer = optax.adam(2e-3)


def parts() -> tuple[Any, Any]:
    """Images to train with, and others to test with: which is which is decided by a hash of their keys."""
    wanted = {"where": WHERE, "columns": ["data", "topic"], "decode": True}
    return tuple(any2ds.load(OUTPUT / "dataset", split=split, **wanted) for split in ("hash[:75%]", "hash[75%:]"))


def collate(samples: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """N x SIDE x SIDE x 3 uint8, and N numbers of topics."""
    return {
        "image": np.stack([sample["data"] for sample in samples]),
        "label": np.array([TOPICS.index(sample["topic"]) for sample in samples]),
    }


def augment(batch: dict[str, np.ndarray], chance: np.random.Generator) -> dict[str, np.ndarray]:
    """Half of the images mirrored, others each time; `chance` depends on the seed and the position alone."""
    mirrored = chance.random(len(batch["image"])) < 0.5
    images = np.where(mirrored[:, None, None, None], batch["image"][:, :, ::-1], batch["image"])
    return {**batch, "image": images}


def batches_of(ds: Any, size: int) -> grain.IterDataset:
    """Without end, in another order each epoch; the samples of a batch are read at once."""
    numbers = grain.MapDataset.range(len(ds)).seed(7).shuffle().repeat().batch(size)
    batches = numbers.map(ds.__getitem__).map(collate).random_map(augment)
    return grain.experimental.device_put(
        batches.to_iter_dataset(ds.read_options()), jax.devices()[0], cpu_buffer_size=4, device_buffer_size=2
    )


def new_network(key: jax.Array) -> dict[str, jax.Array]:
    sizes = {"first": (3, 3, 3, 16), "second": (3, 3, 16, 32), "last": (32 * (SIDE // 4) ** 2, len(TOPICS))}
    make = jax.nn.initializers.he_normal()
    keys = jax.random.split(key, len(sizes))
    return {name: make(each, size) for (name, size), each in zip(sizes.items(), keys, strict=True)}


def scores(network: dict[str, jax.Array], images: jax.Array) -> jax.Array:
    """Two convolutions, each of which halves the sides, and one layer over all: N x topics."""
    x = images.astype(jnp.float32) / 255 - 0.5
    for name in ("first", "second"):
        x = jax.lax.conv_general_dilated(x, network[name], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x)
    return x.reshape(len(x), -1) @ network["last"]


@jax.jit
def train(network: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[Any, Any, jax.Array]:
    def loss_of(network: Any) -> jax.Array:
        found = scores(network, batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(found, batch["label"]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(network)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(network, updates), state, loss


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--steps", type=int, default=100, help="batches of 16 until the end, those of earlier runs too"
    )
    steps = options.parse_args().steps

    if not (OUTPUT / "dataset").exists():
        download_images(OUTPUT / "dataset")
    training, test = parts()
    print(f"{len(training)} images to train with, {len(test)} to test with")

    network = new_network(jax.random.key(0))
    state, batches = optimizer.init(network), iter(batches_of(training, 16))
    with ocp.CheckpointManager(OUTPUT / "checkpoints") as manager:
        done = manager.latest_step() or 0
        if done:  # the network, and which batch comes next
            kept = manager.restore(
                done,
                args=ocp.args.Composite(
                    network=ocp.args.StandardRestore((network, state)),
                    batches=grain.checkpoint.CheckpointRestore(batches),
                ),
            )
            network, state = kept.network
            print(f"goes on after {done} steps")
        for step in range(done + 1, steps + 1):
            network, state, loss = train(network, state, next(batches))
            if step == done + 1 or step == steps:
                print(f"step {step}: loss {loss:.3f}", flush=True)
        if steps > done:
            manager.save(
                steps,
                args=ocp.args.Composite(
                    network=ocp.args.StandardSave((network, state)), batches=grain.checkpoint.CheckpointSave(batches)
                ),
            )
    batches.close()

    batch = collate(test[:])
    right = (scores(network, batch["image"]).argmax(1) == batch["label"]).mean()
    print(f"of the test images {right:.0%} are named right; a guess would be {1 / len(TOPICS):.0%}")


if __name__ == "__main__":
    main()
