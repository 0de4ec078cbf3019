"""PyTorch trains on `any2ds.load`: map-style, as a stream, with several ranks, and resumed."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import any2ds
from any2ds.testing.server import serve

FORMATS = ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"]


def keys(batches: Any) -> list[str]:
    return [sample["key"] for batch in batches for sample in batch]


@pytest.mark.parametrize(
    ("output_format", "method"),
    [*((output_format, "fork") for output_format in FORMATS), ("webdataset", "spawn"), ("webdataset", "forkserver")],
)
def test_a_data_loader_takes_it_as_it_is(output_format: str, method: str, dataset: Callable[..., Any]) -> None:
    made = dataset(output_format)
    ds = any2ds.load("dataset")
    loader = DataLoader(ds, batch_size=5, shuffle=True, num_workers=2, collate_fn=list, multiprocessing_context=method)
    found = {sample["key"]: sample["data"] for batch in loader for sample in batch}
    assert found == made.files


def test_numbers_and_masks_are_tensors(dataset: Callable[..., Any]) -> None:
    dataset("webdataset")
    ds = any2ds.load("dataset")
    assert ds[torch.tensor(3)] == ds[torch.tensor([3])[0]] == ds[3]
    assert ds[torch.tensor([5, 1])] == ds[list(torch.tensor([5, 1]))] == ds[[5, 1]]
    mask = torch.tensor([True, False, True])
    for wrong in (mask, mask[0], list(mask)):
        with pytest.raises(TypeError, match=r"^samples are read by number, .* ds\[numpy\.flatnonzero\(mask\)\]$"):
            ds[wrong]


@pytest.mark.parametrize("output_format", ["webdataset", "arrayrecord"])
def test_a_distributed_sampler(output_format: str, dataset: Callable[..., Any]) -> None:
    made = dataset(output_format)
    ds = any2ds.load("dataset")
    samplers = [DistributedSampler(ds, 3, rank, seed=1) for rank in range(3)]
    loaders = [DataLoader(ds, 4, sampler=sampler, num_workers=2, collate_fn=list) for sampler in samplers]
    epochs = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shares = [keys(loader) for loader in loaders]
        assert {len(share) for share in shares} == {-(-len(made.files) // 3)}
        assert {key for share in shares for key in share} == set(made.files)
        epochs.append(shares)
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize(
    ("output_format", "method"),
    [("webdataset", "fork"), ("webdataset", "spawn"), ("parquet", "fork"), ("tfrecord", "fork")],
)
def test_workers_read_ranges_from_a_server(output_format: str, method: str, dataset: Callable[..., Any]) -> None:
    made = dataset(output_format)
    several: dict[str, Any] = {
        "batch_size": 5,
        "num_workers": 2,
        "collate_fn": list,
        "multiprocessing_context": method,
    }
    with serve(Path.cwd()) as server:
        ds = any2ds.load(server.url("dataset"))
        assert ds[0]["key"] in made.files  # connections that workers must not share
        loader = DataLoader(ds, shuffle=True, **several)
        assert {sample["key"]: sample["data"] for batch in loader for sample in batch} == made.files
        stream = ds.stream(shuffle=True, seed=1, window=10, batch_size=5)
        found = keys(DataLoader(stream, **several))
        assert found == keys(
            DataLoader(any2ds.load("dataset").stream(shuffle=True, seed=1, window=10), 5, collate_fn=list)
        )
        assert sorted(found) == sorted(made.files)


@pytest.mark.parametrize("output_format", ["webdataset", "tfrecord"])
def test_a_stateful_loader_over_the_numbers(output_format: str, dataset: Callable[..., Any]) -> None:
    made = dataset(output_format)
    ds = any2ds.load("dataset")

    def new() -> Any:
        generator = torch.Generator().manual_seed(1)
        return StatefulDataLoader(ds, batch_size=3, shuffle=True, num_workers=2, collate_fn=list, generator=generator)

    loader = new()
    batches = iter(loader)
    first = keys(next(batches) for _ in range(2))
    state = loader.state_dict()
    del batches
    again = new()
    again.load_state_dict(state)
    found = first + keys(again)
    assert found == keys(new())
    assert Counter(found) == Counter(list(made.files))


DDP = """
import contextlib, json, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
import any2ds

even = sys.argv[1] if len(sys.argv) > 1 else None
dist.init_process_group("gloo")
ds = any2ds.load("dataset", split="train[:21]", columns=["key", "data", "label"], decode=True)
stream = ds.stream(shuffle=True, seed=1, batch_size=2, even=even)
model = DistributedDataParallel(torch.nn.Linear(32 * 32 * 3, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
seen = []
with contextlib.nullcontext() if even else model.join():
    for batch in DataLoader(stream, batch_size=2, num_workers=2):
        loss = torch.nn.functional.cross_entropy(model(batch["data"].flatten(1) / 255), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(batch["key"])
json.dump(seen, open(f"seen-{dist.get_rank()}", "w"))
weights = [torch.zeros_like(model.module.bias) for _ in range(2)]
dist.all_gather(weights, model.module.bias.detach())
assert torch.equal(*weights)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("even", [None, "pad"])
def test_two_processes_train_on_all_samples_together(even: str | None, dataset: Callable[..., Any]) -> None:
    """Of 21 samples in batches of two; with `even`, no rank makes a step that the other does not make."""
    made = dataset("webdataset")
    Path("ddp.py").write_text(DDP)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "ddp.py"]
    command += [even] if even else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(Path(f"seen-{rank}").read_text()) for rank in range(2)]
    seen = Counter(key for batches in ranks for batch in batches for key in batch)
    wanted = list(made.files)[:21]
    assert set(seen) <= set(wanted)
    assert seen.total() == {None: 21, "drop": 20, "pad": 24}[even]
    assert [len(batches) for batches in ranks] == {None: [6, 5], "drop": [5, 5], "pad": [6, 6]}[even]


def test_what_the_page_shows(dataset: Callable[..., Any], page: Callable[[str], list[str]]) -> None:
    dataset("webdataset")
    for code in page("With PyTorch"):
        exec(compile(code, "With PyTorch", "exec"), {"__name__": "page"})
