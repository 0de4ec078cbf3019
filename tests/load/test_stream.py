"""Streams of `any2ds.load`: orders of epochs, sharing them out, going on in the middle. With PyTorch: tests/reading."""

import itertools
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

import any2ds
from any2ds.core.errors import UsageError
from any2ds.load.order import BLOCK, EpochOrder, Partition, StreamState, permuted, position_of
from any2ds.load.source import Source
from any2ds.testing.processes import LONG

COUNT = 500


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dataset")
    with webdataset.ShardWriter(str(folder / "%03d.tar"), maxcount=90, verbose=0) as sink:
        for n in range(COUNT):
            sink.write({"__key__": f"{n:06d}", "bin": str(n).encode()})
    return folder


@pytest.fixture
def ds(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path))
    return any2ds.load(folder)


def numbers(samples: Any) -> list[int]:
    return [int(sample["data"]) for sample in samples]


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 1000, 5000])
@pytest.mark.parametrize("window", [0, 1, 100, 1000, 100_000])
def test_an_epoch_has_each_sample_once(count: int, window: int) -> None:
    order = EpochOrder(count, 1, 0, window)
    assert sorted(order[n] for n in range(count)) == list(range(count))


@given(
    count=st.integers(0, 300),
    runs=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=4
    ),
)
def test_after_any_breaks_each_position_is_taken_once(count: int, runs: list[tuple[int, int, int, int]]) -> None:
    """All ranks make some steps, other numbers of ranks and workers go on, several times; then the last take it."""
    start, seen = 0, list[int]()
    for ranks, workers, batch, steps in (*runs, (*runs[0][:3], count)):
        partition, states = Partition(ranks, workers, batch), []
        for rank, worker in itertools.product(range(ranks), range(workers)):
            taken = min(len(range(worker, steps, workers)) * batch, partition.count(rank, worker, count - start))
            seen += [start + partition.number(rank, worker, each) for each in range(taken)]
            states.append(StreamState(1, count, 0, 0, 0, start, ranks, workers, batch, rank, worker, taken))
        start = position_of(states)
    assert sorted(seen) == list(range(count))


@given(deal=st.builds(Partition, st.integers(1, 5), st.integers(1, 5), st.integers(1, 9)), total=st.integers(0, 200))
def test_batches_are_the_same_with_any_number_of_workers(deal: Partition, total: int) -> None:
    """A loader takes a batch of each worker in turn; the ranks take turns at each position."""
    for rank in range(deal.ranks):
        shares = [
            [deal.number(rank, worker, each) for each in range(deal.count(rank, worker, total))]
            for worker in range(deal.workers)
        ]
        batches = [
            share[start : start + deal.batch]
            for start in range(0, total, deal.batch)
            for share in shares
            if share[start : start + deal.batch]
        ]
        assert [number for batch in batches for number in batch] == list(range(rank, total, deal.ranks))
        assert all(len(batch) == deal.batch for batch in batches[:-1])


def test_permutations_of_few_blocks_are_all_as_likely() -> None:
    found = Counter(tuple(permuted(number, 3, str(key)) for number in range(3)) for key in range(1200))
    assert len(found) == 6
    assert all(150 < times < 250 for times in found.values())  # 200 each, and more than three deviations of room


def test_an_epoch_of_billions_begins_at_once() -> None:
    """With as much work as one of a thousand: nothing is made for all its blocks."""
    order = EpochOrder(10_000_000_000, 1, 0, 1000)
    assert len(set(order.samples(range(5_000_000_000, 5_000_000_500)))) == 500


def test_the_order_depends_on_seed_and_epoch_alone(ds: Source) -> None:
    first = numbers(ds.stream(shuffle=True, seed=1))
    assert sorted(first) == list(range(COUNT)) != first
    assert numbers(pickle.loads(pickle.dumps(ds)).stream(shuffle=True, seed=1)) == first
    assert numbers(ds.stream(shuffle=True, seed=2)) != first
    stream = ds.stream(shuffle=True, seed=1)
    stream.set_epoch(1)
    second = numbers(stream)
    assert sorted(second) == list(range(COUNT))
    assert second != first
    assert numbers(stream) == second
    program = "from any2ds.load.order import EpochOrder; print([EpochOrder(500, 1, 0, 10000)[n] for n in range(500)])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=LONG)
    assert done.stdout.strip() == str(first)


def test_the_order_of_an_epoch_never_changes() -> None:
    """Runs that were saved have to go on with other versions of any2ds and Python."""
    order = EpochOrder(1000, 7, 3, 200)
    assert [order[n] for n in (0, 1, 2, 500, 998, 999)] == ORDER


ORDER = [56, 707, 72, 586, 906, 898]


def test_a_window_is_as_far_as_samples_move(ds: Source) -> None:
    order = EpochOrder(10_000, 1, 0, 4 * BLOCK)
    blocks = [order.block_of(order[n]) for n in range(10_000)]
    for start in range(0, 9_000, 4 * BLOCK):
        assert len(set(blocks[start : start + 4 * BLOCK])) == 4
    with pytest.raises(UsageError, match="window=0"):
        ds.stream(shuffle=True, window=0)


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_ranks_share_it_out(world_size: int, ds: Source) -> None:
    streams = [ds.stream(shuffle=True, rank=rank, world_size=world_size) for rank in range(world_size)]
    shares = [numbers(stream) for stream in streams]
    assert sorted(number for share in shares for number in share) == list(range(COUNT))
    assert [len(stream) for stream in streams] == list(map(len, shares))


def test_ranks_of_torchrun_and_wrong_ones(ds: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="go together"):
        ds.stream(rank=1)
    with pytest.raises(UsageError, match="rank 2 is none of 2"):
        ds.stream(rank=2, world_size=2)
    launchers = (("WORLD_SIZE", "RANK"), ("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"))
    for size, rank in (*launchers, ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")):
        monkeypatch.setenv(size, "2")
        with pytest.raises(
            UsageError, match=rf"{rank} is not set: name the process, as in stream\(rank=0, world_size=2"
        ):
            len(ds.stream())
        monkeypatch.setenv(rank, "1")
        assert numbers(ds.stream()) == list(range(1, COUNT, 2))
        monkeypatch.delenv(size)


def test_the_inner_launcher_decides_also_with_one_process(ds: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert numbers(ds.stream()) == list(range(3, COUNT, 8))
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert numbers(ds.stream()) == list(range(COUNT))


def test_it_goes_on_with_other_numbers_of_ranks(ds: Source) -> None:
    """Nothing twice, nothing left out, also after several changes."""
    seen: Counter[int] = Counter()
    states: Any = None
    for world_size in (3, 1, 4, 2):
        now = []
        for rank in range(world_size):
            stream = ds.stream(shuffle=True, seed=5, window=128, batch_size=8, rank=rank, world_size=world_size)
            if states is not None:
                stream.load_state_dict({"loaders": states})
            samples = iter(stream)
            seen.update(int(next(samples)["data"]) for _ in range(24))
            now.append({"nested": [stream.state_dict()]})
        states = now
    for rank in range(2):
        stream = ds.stream(shuffle=True, seed=5, window=128, batch_size=8, rank=rank, world_size=2)
        stream.load_state_dict(states)
        seen.update(numbers(stream))
    assert seen == Counter(range(COUNT))


def test_ranks_at_different_steps_go_on_as_they_are_alone(ds: Source) -> None:
    streams = [ds.stream(shuffle=True, rank=rank, world_size=2) for rank in range(2)]
    given = [
        [int(next(samples)["data"]) for _ in range(n)] for n, samples in zip((3, 30), map(iter, streams), strict=True)
    ]
    states = [stream.state_dict() for stream in streams]
    with pytest.raises(UsageError, match="the ranks are at different steps"):
        ds.stream(shuffle=True).load_state_dict(states)
    again = [ds.stream(shuffle=True, rank=rank, world_size=2) for rank in range(2)]
    for stream, state in zip(again, states, strict=True):
        stream.load_state_dict(state)
        given.append(numbers(stream))
    assert Counter(number for part in given for number in part) == Counter(range(COUNT))


@pytest.mark.parametrize("even", ["drop", "pad"])
@pytest.mark.parametrize(("world_size", "batch_size"), [(1, None), (3, None), (3, 7), (2, 64), (7, 100)])
def test_ranks_take_equally_many(even: str, world_size: int, batch_size: int | None, ds: Source) -> None:
    options = {"shuffle": True, "even": even, "batch_size": batch_size, "world_size": world_size}
    streams = [ds.stream(rank=rank, **options) for rank in range(world_size)]
    shares = [numbers(stream) for stream in streams]
    step = (batch_size or 1) * world_size
    assert {len(share) for share in shares} == {len(streams[0])}
    assert len(streams[0]) % (batch_size or 1) == 0
    every = Counter(number for share in shares for number in share)
    assert set(every) <= set(range(COUNT))
    if even == "drop":
        assert set(every.values()) <= {1}
        assert COUNT - step < every.total() <= COUNT
    else:
        assert set(every) == set(range(COUNT))
        assert COUNT <= every.total() < COUNT + step


def test_samples_of_a_store_that_come_once_more(folder: Path, tmp_path: Path) -> None:
    """Several times, of a single window, which is read ahead."""
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/stream", recursive=True)
    try:
        ds = any2ds.load("memory://stream", split="train[:70]", cache_dir=tmp_path)
        assert not ds.is_local
        found = Counter(numbers(ds.stream(shuffle=True, even="pad", batch_size=200)))
        assert set(found) == set(range(70))
        assert sorted(found.values()) == [2] * 10 + [3] * 60
        assert numbers(ds.stream(shuffle=True, seed=2)) == numbers(
            any2ds.load(folder, split="train[:70]").stream(shuffle=True, seed=2)
        )
    finally:
        store.rm("/stream", recursive=True)


def test_what_makes_shares_equal_holds_after_a_break(ds: Source) -> None:
    """Of what is left with other ranks; samples that came once more do not count as taken."""
    for even, batch_size in (("drop", 16), ("pad", 16), ("pad", 8)):
        options = {"shuffle": True, "even": even, "batch_size": batch_size}
        seen: Counter[int] = Counter()
        states = []
        for rank in range(3):
            stream = ds.stream(rank=rank, world_size=3, **options)
            samples = iter(stream)
            seen.update(int(next(samples)["data"]) for _ in range(32))
            states.append(stream.state_dict())
        shares = []
        for rank in range(2):
            stream = ds.stream(rank=rank, world_size=2, **options)
            stream.load_state_dict(states)
            shares.append(numbers(stream))
        assert len(shares[0]) == len(shares[1])
        for share in shares:
            seen.update(share)
        if even == "drop":
            assert set(seen.values()) == {1}
            assert COUNT - 2 * 16 < seen.total() <= COUNT
        else:
            assert set(seen) == set(range(COUNT))
            assert seen.total() < COUNT + 2 * (batch_size or 1)


def test_a_padded_epoch_that_was_finished_leaves_nothing(ds: Source) -> None:
    states = []
    for rank in range(3):
        stream = ds.stream(rank=rank, world_size=3, even="pad", batch_size=64)
        numbers(stream)
        states.append(stream.state_dict())
    stream = ds.stream(even="pad", batch_size=64)
    stream.load_state_dict(states)
    assert numbers(stream) == []


def test_an_epoch_goes_on_at_a_position(ds: Source) -> None:
    """All that has to be kept is the number of steps, whatever the ranks are then."""
    stream = ds.stream(shuffle=True, seed=4)
    stream.set_epoch(2)
    wanted = numbers(stream)
    stream = ds.stream(shuffle=True, seed=4)
    stream.set_epoch(2, position=123)
    assert stream.state_dict()["start"] == 123
    assert numbers(stream) == wanted[123:]
    assert numbers(stream) == wanted  # the whole epoch, once it has gone on
    streams = [ds.stream(shuffle=True, seed=4, rank=rank, world_size=2) for rank in range(2)]
    for each in streams:
        each.set_epoch(2, 123)
    assert [numbers(each) for each in streams] == [wanted[123::2], wanted[124::2]]
    stream.set_epoch(3)
    assert len(numbers(stream)) == COUNT
    for position in (COUNT, COUNT + 7):
        stream.set_epoch(2, position)
        assert numbers(stream) == []
    with pytest.raises(UsageError, match="position=-1"):
        stream.set_epoch(2, -1)


def test_another_epoch_passes_over_what_was_loaded(ds: Source) -> None:
    stream = ds.stream(shuffle=True)
    stream.set_epoch(1)
    next(iter(stream))
    state = stream.state_dict()
    stream = ds.stream(shuffle=True)
    stream.load_state_dict(state)
    assert stream.epoch == 1
    stream.set_epoch(1)  # what a loop does that begins with that epoch
    assert len(numbers(stream)) == COUNT - 1
    stream.load_state_dict(state)
    stream.set_epoch(2)
    assert len(numbers(stream)) == COUNT


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("even", [None, "drop", "pad"])
def test_fewer_samples_than_ranks(count: int, even: str | None, folder: Path) -> None:
    ds = any2ds.load(folder, split=f"train[:{count}]")
    for batch_size in (None, 2):
        streams = [ds.stream(shuffle=True, even=even, batch_size=batch_size, rank=n, world_size=4) for n in range(4)]
        shares = [numbers(stream) for stream in streams]
        assert [len(stream) for stream in streams] == list(map(len, shares))
        assert {number for share in shares for number in share} == set(range(0 if even == "drop" else count))
        assert even is None or len(set(map(len, shares))) == 1


def test_options_that_are_not_possible(ds: Source) -> None:
    with pytest.raises(UsageError, match="batch_size=0"):
        ds.stream(batch_size=0)
    with pytest.raises(UsageError, match="shuffle=1000"):
        ds.stream(shuffle=1000)
    with pytest.raises(UsageError, match="invalid even='fair': expected one of drop, pad"):
        ds.stream(even="fair")
    with pytest.raises(UsageError, match="import torch before the stream is made"):
        ds.stream()[0]


def write(folder: Path, count: int, size: int, content: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    with webdataset.ShardWriter(str(folder / "more-%03d.tar"), maxcount=size, verbose=0) as sink:
        for n in range(count):
            sink.write({"__key__": f"{n:06d}", "bin": content or str(n).encode()})
    return folder


def test_a_state_is_of_its_dataset_wherever_that_lies(ds: Source, folder: Path, tmp_path: Path) -> None:
    """And after shards were added behind its samples; another dataset of as many samples is another one."""
    state = ds.stream().state_dict()
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/moved", recursive=True)
    try:
        for place in (moved, "memory://moved"):
            any2ds.load(place, cache_dir=tmp_path / "cache").stream().load_state_dict(state)
            any2ds.load(place, split="all[:50%]+all[50%:]").stream().load_state_dict(state)
    finally:
        store.rm("/moved", recursive=True)
    write(moved, 9, 5)
    with pytest.raises(UsageError, match="of 500 samples, and there are 509"):
        any2ds.load(moved).stream().load_state_dict(state)
    any2ds.load(moved, split=f"train[:{COUNT}]").stream().load_state_dict(state)
    for name, size, content in (("sizes", 80, b""), ("contents", 90, bytes(1000))):
        with pytest.raises(UsageError, match="but others"):
            any2ds.load(write(tmp_path / name, COUNT, size, content)).stream().load_state_dict(state)


def test_states_that_do_not_fit(ds: Source, folder: Path) -> None:
    streams = [ds.stream(rank=rank, world_size=3) for rank in range(3)]
    states = [stream.state_dict() for stream in streams]
    with pytest.raises(UsageError, match=r"of 3 ranks, states of \[1\] are missing"):
        ds.stream().load_state_dict([states[0], states[2]])
    with pytest.raises(UsageError, match="of different epochs"):
        ds.stream().load_state_dict([states[0], {**states[1], "epoch": 1}, states[2]])
    with pytest.raises(UsageError, match="two of rank 1, worker 0"):
        ds.stream().load_state_dict([*states, {**states[1], "taken": 5}])
    with pytest.raises(UsageError, match="not the state of an any2ds stream"):
        ds.stream().load_state_dict({"model": 1})
    with pytest.raises(UsageError, match="of 7 samples, and there are 500"):
        ds.stream().load_state_dict({**states[0], "count": 7})
    with pytest.raises(UsageError, match="with seed=0, and this one has seed=5"):
        ds.stream(seed=5).load_state_dict(states)
    with pytest.raises(UsageError, match="with window=0, and this one has window=10000"):
        ds.stream(shuffle=True).load_state_dict(states)
    with pytest.raises(UsageError, match="a part of it is missing"):
        ds.stream().load_state_dict({name: value for name, value in states[0].items() if name != "start"})
    half = [any2ds.load(folder, split=split).stream() for split in ("train[:50%]", "train[50%:]")]
    with pytest.raises(UsageError, match="another split or condition"):
        half[1].load_state_dict(half[0].state_dict())
    for index in range(0, COUNT, 7):
        others = [any2ds.load(folder, split=f"all[:{n}]+all[{n + 1}:]").stream() for n in (index, index + 1)]
        with pytest.raises(UsageError, match="but others"):
            others[1].load_state_dict(others[0].state_dict())
    stream = ds.stream()
    stream.load_state_dict(states[1])
    assert stream.state_dict() == states[1]
    with pytest.raises(UsageError, match=r"rank 1, worker 0 of .* and this is rank 0"):
        iter(stream)
