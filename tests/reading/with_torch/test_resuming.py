"""PyTorch loaders over a stream that are left in the middle of an epoch, and go on: in the same order, with other
numbers of workers and ranks, after kills. The order of an epoch is what one process without workers gives."""

import io
import os
import signal
import tarfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import any2ds
from any2ds.core.errors import DamagedShard, UsageError

COUNT = 300
BATCH = 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("dataset")
    for shard, first in enumerate(range(0, COUNT, 90)):
        with tarfile.open(folder / f"{shard:03d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for n in range(first, min(first + 90, COUNT)):
                member = tarfile.TarInfo(f"{n:06d}.bin")
                member.size = len(content := str(n).encode())
                tar.addfile(member, io.BytesIO(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANY2DS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield folder


def numbers(samples: list[dict[str, Any]]) -> list[int]:
    return [int(sample["data"]) for sample in samples]


def new_stream(folder: Path, *ranks: int, batch_size: int | None = BATCH, **options: Any) -> Any:
    rank, world_size = ranks or (0, 1)
    options = {"shuffle": True, "seed": 3, "window": 128, "rank": rank, "world_size": world_size, **options}
    return any2ds.load(folder).stream(batch_size=batch_size, **options)


def new_loader(stream: Any, kind: Any = DataLoader, batch_size: int = BATCH, **options: Any) -> Any:
    return kind(stream, batch_size=batch_size, collate_fn=numbers, **options)


def saved(state: Any, path: Path) -> Any:
    """As a checkpoint gives it back."""
    torch.save(state, path)
    return torch.load(path)


def flat(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch]


def in_turns(shares: Sequence[list[int]]) -> list[int]:
    """What ranks took that take turns."""
    return [share[at] for at in range(max(map(len, shares), default=0)) for share in shares if at < len(share)]


@pytest.mark.parametrize(("workers", "method"), [(1, "fork"), (2, "fork"), (3, "fork"), (2, "spawn")])
def test_batches_are_the_same_with_any_number_of_workers(workers: int, method: str, folder: Path) -> None:
    wanted = list(new_loader(new_stream(folder)))
    loader = new_loader(new_stream(folder), num_workers=workers, multiprocessing_context=method)
    assert len(loader) == len(wanted)
    assert list(loader) == wanted


@settings(
    max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    batch_size=st.integers(1, 40),
    known=st.booleans(),
    window=st.sampled_from([0, 64, 128, 10_000]),
    workers=st.integers(0, 3),
    ranks=st.tuples(st.integers(0, 2), st.just(3)),
    drop_last=st.booleans(),
    breaks=st.lists(st.integers(0, 5), max_size=2),
    prefetch_factor=st.integers(1, 3),
    persistent=st.booleans(),
)
@example(
    batch_size=100,
    known=True,
    window=128,
    workers=2,
    ranks=(0, 1),
    drop_last=True,
    breaks=[1, 1, 1],
    prefetch_factor=2,
    persistent=True,
)
def test_a_loader_goes_on_as_if_there_had_been_no_break(
    batch_size: int,
    known: bool,
    window: int,
    workers: int,
    ranks: tuple[int, int],
    drop_last: bool,
    breaks: list[int],
    prefetch_factor: int,
    persistent: bool,
    folder: Path,
    tmp_path: Path,
) -> None:
    """Wherever it is left, and however often."""
    options: dict[str, Any] = {"num_workers": workers, "drop_last": drop_last}
    if workers:
        options |= {"prefetch_factor": prefetch_factor, "persistent_workers": persistent}

    def new() -> tuple[Any, Any]:
        shuffled = {"shuffle": window > 0, **({"window": window} if window else {})}
        stream = new_stream(folder, *ranks, batch_size=batch_size if known else None, **shuffled)
        return stream, new_loader(stream, StatefulDataLoader, batch_size, **options)

    stream, loader = new()
    wanted = []
    for epoch in (1, 2):
        stream.set_epoch(epoch)
        wanted.append(list(loader))
    found, state = [], None
    for steps in breaks:
        stream, loader = new()
        if state is not None:
            loader.load_state_dict(state)
        stream.set_epoch(1)
        batches = iter(loader)
        found += islice(batches, min(steps, len(wanted[0]) - len(found)))  # beyond it the state is of the next epoch
        state = saved(loader.state_dict(), tmp_path / "state")
        del batches
    stream, loader = new()
    if state is not None:
        loader.load_state_dict(state)
    stream.set_epoch(1)
    found += list(loader)
    assert found == wanted[0]
    stream.set_epoch(2)
    assert list(loader) == wanted[1]


@settings(
    max_examples=3, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    runs=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(1, 16), st.integers(0, 4)), min_size=1, max_size=3
    )
)
@example(runs=[(2, 2, 8, 3), (1, 3, 16, 2), (3, 0, 5, 1)])
def test_the_order_goes_on_with_other_numbers_of_ranks_workers_and_samples(
    runs: list[tuple[int, int, int, int]], folder: Path, tmp_path: Path
) -> None:
    """`runs` are ranks, workers of each, samples of a batch, steps. What ranks that are equally far have taken together
    is the beginning of the epoch, whatever they were."""
    wanted = flat(new_loader(new_stream(folder)))
    found: list[int] = []
    states = None
    for world_size, workers, batch_size, steps in [*runs, (2, 1, 8, COUNT)]:
        shares, now = [], []
        for rank in range(world_size):
            stream = new_stream(folder, rank, world_size, batch_size=batch_size)
            if states is not None:
                stream.load_state_dict(states)
            loader = new_loader(stream, StatefulDataLoader, batch_size, num_workers=workers)
            batches = iter(loader)
            shares.append(flat(islice(batches, steps)))
            now.append(loader.state_dict())
            del batches
        states = saved(now, tmp_path / "state")
        found += in_turns(shares)
        assert found == wanted[: len(found)]
    assert found == wanted


def test_without_its_batch_size_a_state_is_for_a_loader_of_the_same_size(folder: Path) -> None:
    loader = new_loader(new_stream(folder, batch_size=None), StatefulDataLoader, num_workers=2)
    batches = iter(loader)
    first = flat(islice(batches, 3))
    state = loader.state_dict()
    del batches
    with pytest.raises(UsageError, match="has not the batch_size of its loader"):
        new_stream(folder, batch_size=None).load_state_dict(state)
    again = new_loader(new_stream(folder, batch_size=None), StatefulDataLoader, num_workers=2)
    again.load_state_dict(state)
    assert sorted(first + flat(again)) == list(range(COUNT))


def broken_off(folder: Path) -> tuple[list[int], Any]:
    """The samples of five batches, and a stream that goes on behind them."""
    loader = new_loader(new_stream(folder), StatefulDataLoader, num_workers=2)
    batches = iter(loader)
    first = flat(islice(batches, 5))
    state = loader.state_dict()
    del batches
    stream = new_stream(folder)
    stream.load_state_dict(state)
    return first, stream


def test_steps_are_enough_to_go_on(folder: Path) -> None:
    """With PyTorch's own loader, of which nothing is saved but how many steps were made."""
    stream = new_stream(folder, even="drop")
    stream.set_epoch(5)
    wanted = flat(new_loader(stream, num_workers=2))
    assert len(wanted) == COUNT - COUNT % BATCH
    streams = [new_stream(folder, rank, 2, even="drop") for rank in range(2)]
    for each in streams:
        each.set_epoch(5, position=6 * BATCH)
    shares = [flat(new_loader(each, num_workers=3, persistent_workers=True)) for each in streams]
    assert in_turns(shares) == wanted[6 * BATCH : len(wanted) - len(wanted) % (2 * BATCH)]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("says_epoch", [False, True])
def test_the_epoch_after_one_that_was_resumed_is_whole(persistent: bool, says_epoch: bool, folder: Path) -> None:
    first, stream = broken_off(folder)
    loader = new_loader(stream, num_workers=2, persistent_workers=persistent)
    torch.manual_seed(1)  # as some scripts do before each epoch
    if says_epoch:
        stream.set_epoch(0)
    assert sorted(first + flat(loader)) == list(range(COUNT))
    if says_epoch:
        stream.set_epoch(1)
    torch.manual_seed(1)
    assert sorted(flat(loader)) == sorted(flat(loader)) == list(range(COUNT))


@pytest.mark.parametrize("kind", ["stream", "webdataset"])
def test_each_iteration_is_the_next_epoch_for_all_workers(kind: str, folder: Path) -> None:
    """Also after a loop that was left before each of its workers had begun."""
    webdataset = any2ds.load(folder).to_webdataset(shuffle=True, seed=3, batch_size=BATCH)
    renamed = webdataset.map(lambda sample: {"data": sample["bin"]})
    stream = new_stream(folder).advancing() if kind == "stream" else renamed
    orders = []
    for workers in (2, 0, 3, 2):
        loader = new_loader(stream, num_workers=workers)
        next(iter(loader))
        orders += [flat(loader), flat(loader)]
        assert sorted(orders[-1]) == sorted(orders[-2]) == list(range(COUNT))
    assert len({*map(tuple, orders)}) == len(orders)
    stream.set_epoch(1)
    assert flat(new_loader(stream, num_workers=3)) == orders[0]


def test_a_state_of_the_last_step_and_one_of_the_end(folder: Path) -> None:
    loader = new_loader(new_stream(folder), StatefulDataLoader, num_workers=2)
    for _ in loader:
        last = loader.state_dict()
    finished = loader.state_dict()
    for state, expected in ((last, 0), (finished, COUNT)):  # the end of an epoch; the beginning of the next
        again = new_loader(new_stream(folder), StatefulDataLoader, num_workers=2)
        again.load_state_dict(state)
        assert len(flat(again)) == expected
        assert len(flat(again)) == COUNT
    stream = new_stream(folder)
    stream.load_state_dict(finished)
    stream.set_epoch(1)
    assert len(flat(new_loader(stream, num_workers=3))) == COUNT


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("even", [None, "drop", "pad"])
def test_fewer_samples_than_workers(count: int, even: str | None, folder: Path) -> None:
    """Four workers of two ranks; a state is saved after the first batch, if there is one."""
    ds = any2ds.load(folder, split=f"train[:{count}]")
    found, steps, states = [], set(), []
    for rank in range(2):
        stream = ds.stream(even=even, rank=rank, world_size=2)
        loader = new_loader(stream, StatefulDataLoader, 2, num_workers=4)
        batches = iter(loader)
        own = list(islice(batches, 1))
        states.append(loader.state_dict())
        own += list(batches)
        steps.add(len(own))
        found.append(own)
    assert set(flat(found[0]) + flat(found[1])) == set(range(count if even != "drop" else count - count % 2))
    assert even is None or len(steps) == 1
    rest = ds.stream()
    rest.load_state_dict(states)
    before = flat(found[0][:1]) + flat(found[1][:1])
    assert sorted({*flat(new_loader(rest)), *before}) == list(range(count))


def test_a_filtered_source_goes_on(folder: Path) -> None:
    """Its positions are those of the samples that it has."""
    ds = any2ds.load(folder, split="hash[:40%]")
    wanted = flat(new_loader(ds.stream(shuffle=True, batch_size=BATCH)))
    assert len(wanted) == len(ds) < COUNT
    loader = new_loader(ds.stream(shuffle=True, batch_size=BATCH), StatefulDataLoader, num_workers=2)
    batches = iter(loader)
    first = flat(islice(batches, 3))
    state = loader.state_dict()
    del batches
    stream = any2ds.load(folder, split="hash[:40%]").stream(shuffle=True, batch_size=BATCH)
    stream.load_state_dict(state)
    assert first + flat(new_loader(stream, num_workers=3)) == wanted


def test_states_that_a_loader_cannot_go_on_from(folder: Path) -> None:
    stream = new_stream(folder)
    loader = new_loader(stream, StatefulDataLoader, num_workers=2, snapshot_every_n_steps=20)
    batches = iter(loader)
    for _ in range(25):
        next(batches)
    state = loader.state_dict()
    del batches
    with pytest.raises(UsageError, match="5 more batches than its state knows: snapshot_every_n_steps has to be 1"):
        new_stream(folder).load_state_dict(state)
    again = new_loader(new_stream(folder), StatefulDataLoader, num_workers=2)
    again.load_state_dict(state)  # with as many workers, it reads the five again
    assert len(flat(again)) == COUNT - 25 * BATCH

    with pytest.raises(UsageError, match="the workers of a DataLoader take the samples of this stream"):
        stream.state_dict()
    again = new_loader(new_stream(folder, batch_size=8), StatefulDataLoader, 8, num_workers=2)
    again.load_state_dict(state)
    with pytest.raises(UsageError, match="batch=8"):
        next(iter(again))


def test_a_worker_that_is_killed_ends_the_loop_and_the_last_state_goes_on(folder: Path) -> None:
    wanted = flat(new_loader(new_stream(folder)))
    loader = new_loader(new_stream(folder), StatefulDataLoader, num_workers=2)
    first = []
    batches = iter(loader)
    for _ in range(4):
        first += next(batches)
        state = loader.state_dict()
    os.kill(batches._workers[1].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"worker .* exited unexpectedly"):
        list(batches)
    stream = new_stream(folder)
    stream.load_state_dict(state)
    assert first + flat(new_loader(stream, num_workers=3)) == wanted


def test_a_damaged_shard_is_named_in_the_process_that_trains(folder: Path, tmp_path: Path) -> None:
    for tar in folder.glob("*.tar"):
        (tmp_path / tar.name).write_bytes(tar.read_bytes())
    stream = any2ds.load(tmp_path).stream()
    with (tmp_path / "001.tar").open("r+b") as tar:
        tar.truncate(20_000)
    with pytest.raises(DamagedShard, match=r"001\.tar"):
        list(new_loader(stream, num_workers=2))
