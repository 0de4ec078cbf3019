"""Grain with JAX and Orbax over `any2ds.load`: checkpoints, devices, the examples, and what docs/grain.md shows."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

import any2ds

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "grain.md"
Made = Callable[..., Any]


def keys(samples: Any) -> list[str]:
    return [sample["key"] for sample in samples]


def run(*command: str | Path, folder: Path) -> str:
    """What a program prints, on a machine with two devices."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def manager(tmp_path: Path) -> Any:
    with ocp.CheckpointManager(tmp_path / "checkpoints") as opened:
        yield opened


def of_a_map_dataset(ds: Any) -> Any:
    return iter(grain.MapDataset.source(ds).seed(3).shuffle().repeat(2).to_iter_dataset(ds.read_options()))


def of_batches_read_at_once(ds: Any) -> Any:
    batches = grain.MapDataset.range(len(ds)).seed(3).shuffle().repeat(2).batch(1).map(ds.__getitem__)
    return iter(batches.map(lambda samples: samples[0]).to_iter_dataset(ds.read_options()))


def of_shards(ds: Any) -> Any:
    shards = grain.MapDataset.source(ds.shards).seed(3).shuffle()
    streams = shards.map(lambda shard: grain.MapDataset.source(shard).to_iter_dataset(shard.read_options()))
    samples = grain.experimental.InterleaveIterDataset(streams, cycle_length=2)
    return iter(grain.experimental.WindowShuffleIterDataset(samples, window_size=8, seed=3))


def of_a_mixture(ds: Any) -> Any:
    parts = [grain.MapDataset.source(ds).seed(seed).shuffle().to_iter_dataset(ds.read_options()) for seed in (1, 2)]
    return iter(grain.IterDataset.mix(parts, weights=[2, 1]))


def of_a_data_loader(ds: Any) -> Any:
    sampler = grain.samplers.IndexSampler(
        num_records=len(ds), shuffle=True, seed=1, num_epochs=1, shard_options=grain.sharding.NoSharding()
    )
    return iter(grain.DataLoader(data_source=ds, sampler=sampler, read_options=ds.read_options()))


PIPELINES = [of_a_map_dataset, of_batches_read_at_once, of_shards, of_a_mixture, of_a_data_loader]


@pytest.mark.parametrize("new", PIPELINES)
@pytest.mark.parametrize("output_format", ["webdataset", "parquet"])
def test_orbax_restores_an_iterator_together_with_a_model(
    output_format: str, new: Callable[[Any], Any], dataset: Made, manager: Any
) -> None:
    dataset(output_format)
    ds = any2ds.load("dataset")
    wanted = keys(new(ds))
    samples = new(ds)
    first = [next(samples)["key"] for _ in range(7)]
    parameters = {"weights": jnp.arange(3.0)}
    manager.save(
        7,
        args=ocp.args.Composite(model=ocp.args.StandardSave(parameters), data=grain.checkpoint.CheckpointSave(samples)),
    )
    manager.wait_until_finished()
    again = new(any2ds.load("dataset"))
    restored = manager.restore(
        7,
        args=ocp.args.Composite(
            model=ocp.args.StandardRestore(parameters), data=grain.checkpoint.CheckpointRestore(again)
        ),
    )
    assert first + keys(again) == wanted
    np.testing.assert_array_equal(restored["model"]["weights"], [0, 1, 2])


def test_orbax_restores_what_processes_read(dataset: Made, manager: Any) -> None:
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    dataset("webdataset")
    ds = any2ds.load("dataset")
    samples = grain.MapDataset.source(ds).seed(3).shuffle().to_iter_dataset(ds.read_options(num_workers=2))
    several = iter(samples.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
    first = [next(several)["key"] for _ in range(7)]
    manager.save(7, args=grain.checkpoint.CheckpointSave(several))
    manager.wait_until_finished()
    rest = keys(several)
    assert first + rest == keys(samples)
    manager.restore(7, args=grain.checkpoint.CheckpointRestore(several))
    assert keys(several) == rest
    several.close()


def test_batches_arrive_on_a_device_in_order(dataset: Made) -> None:
    dataset("webdataset")
    ds = any2ds.load("dataset", columns=["data", "label"], decode=True)
    batches = grain.MapDataset.source(ds).seed(3).shuffle().batch(8).to_iter_dataset(ds.read_options())
    wanted = list(batches)
    found = list(grain.experimental.device_put(batches, jax.devices()[0], cpu_buffer_size=3, device_buffer_size=2))
    assert len(found) == len(wanted) == 3
    for here, there in zip(wanted, found, strict=True):
        assert isinstance(there["data"], jax.Array)
        np.testing.assert_array_equal(here["data"], there["data"])
        np.testing.assert_array_equal(here["label"], there["label"])


def test_the_tutorial_runs_from_start_to_end(tmp_path: Path) -> None:
    printed = run(ROOT / "examples" / "grain_tutorial.py", folder=tmp_path)
    steps = printed[printed.index("<any2ds ") :].splitlines()[1:]
    results = dict(step.rsplit(": ", 1) if "{" not in step else step.split(": {") for step in steps)
    assert results["mixed until the first of them ends: 17 samples"] == "'tree': 13, 'star': 4}"
    assert results["mixed without end: True"] == "'tree': 100, 'star': 200}"
    assert results["filtered and mixed"] == "'tree': 50, 'star': 50}"
    checks = [result for result in results.values() if not result.endswith("}")]
    assert checks == ["True"] * 11
    assert "batches on 2 device(s)" in results


def test_a_network_learns_and_goes_on(tmp_path: Path) -> None:
    example = ROOT / "examples" / "grain_jax.py"
    printed = run(example, "--steps=40", folder=tmp_path)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert losses[1] < losses[0] / 2
    assert "goes on" not in printed
    resumed = run(example, "--steps=50", folder=tmp_path)
    assert "goes on after 40 steps" in resumed
    assert float(*re.findall(r"step 50: loss ([\d.]+)", resumed)) < losses[0] / 2
    assert re.search(r"of the test images \d+% are named right", resumed)


BLOCKS = {
    f"{title or 'beginning'}": code
    for title, code in re.findall(
        r"(?:^## ([^\n]+)\n|\A)(?:(?!^## ).)*?^```python\n(.*?)^```$",
        PAGE.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
}


def test_each_section_of_the_page_has_a_block() -> None:
    assert len(BLOCKS) == len(re.findall(r"^```python$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)) == 9


@pytest.mark.parametrize("title", BLOCKS)
def test_what_the_page_shows(title: str, dataset: Made, tmp_path: Path) -> None:
    dataset("webdataset")
    (tmp_path / "page.py").write_text(BLOCKS[title], encoding="utf-8")
    assert run("page.py", folder=tmp_path).strip() or title == "Save and restore"
