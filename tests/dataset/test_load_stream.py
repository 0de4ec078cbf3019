"""Streams of `any2ds.load`: orders of epochs, sharing them out, going on in the middle. With PyTorch: tests/reading."""

import pickle
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import webdataset

import any2ds
from any2ds.core.errors import UsageError
from any2ds.dataset.load.order import BLOCK, EpochOrder, Left
from any2ds.dataset.load.source import Source
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


def test_what_is_left_is_what_nobody_took() -> None:
    chance = random.Random(1)
    for _ in range(2000):
        rest = chance.randrange(10)
        left = Left(rest, tuple(sorted(chance.sample(range(rest), chance.randrange(rest + 1)))))
        taken = [chance.randrange(6) for _ in range(chance.randrange(1, 5))]
        before = [left.position(n) for n in range(left.count(100))]
        gone = {before[n * len(taken) + c] for c, own in enumerate(taken) for n in range(own)}
        after = left.without(taken)
        assert [after.position(n) for n in range(after.count(100))] == [each for each in before if each not in gone]


def test_in_order_unless_it_is_shuffled(ds: Source) -> None:
    assert numbers(ds.stream()) == list(range(COUNT))
    assert len(ds.stream()) == COUNT


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
    program = (
        "from any2ds.dataset.load.order import EpochOrder; print([EpochOrder(500, 1, 0, 10000)[n] for n in range(500)])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=LONG)
    assert done.stdout.strip() == str(first)


def test_the_order_of_an_epoch_never_changes() -> None:
    """Runs that were saved have to go on with other versions of any2ds and Python."""
    order = EpochOrder(1000, 7, 3, 200)
    assert [order[n] for n in (0, 1, 2, 500, 998, 999)] == ORDER


ORDER = [276, 523, 169, 886, 985, 977]


def test_a_window_is_as_far_as_samples_move(ds: Source) -> None:
    order = EpochOrder(10_000, 1, 0, 4 * BLOCK)
    blocks = [order[n] // BLOCK for n in range(10_000)]
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
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert numbers(ds.stream()) == list(range(1, COUNT, 2))


def test_a_run_that_is_resumed_gives_what_one_without_a_break_gives(ds: Source) -> None:
    wanted = numbers(ds.stream(shuffle=True, seed=3, window=200))
    stream = ds.stream(shuffle=True, seed=3, window=200)
    samples = iter(stream)
    first = [int(next(samples)["data"]) for _ in range(123)]
    state = pickle.loads(pickle.dumps(stream.state_dict()))
    again = ds.stream(shuffle=True, seed=99)
    again.load_state_dict(state)
    assert again.state_dict()["rest"] == 123
    assert first + numbers(again) == wanted
    assert len(numbers(again)) == COUNT  # the next epoch


def test_it_goes_on_with_other_numbers_of_ranks(ds: Source) -> None:
    """Nothing twice, nothing left out, also after several changes, and with ranks that were not equally far."""
    chance = random.Random(2)
    seen: Counter[int] = Counter()
    states: Any = None
    for world_size in (3, 1, 4, 2):
        now = []
        for rank in range(world_size):
            stream = ds.stream(shuffle=True, seed=5, window=128, rank=rank, world_size=world_size)
            if states is not None:
                stream.load_state_dict({"loaders": states})
            samples = iter(stream)
            seen.update(int(next(samples)["data"]) for _ in range(chance.randrange(40)))
            now.append({"nested": [stream.state_dict()]})
        states = now
    for rank in range(2):
        stream = ds.stream(rank=rank, world_size=2)
        stream.load_state_dict(states)
        seen.update(numbers(stream))
    assert seen == Counter(range(COUNT))


def test_states_that_do_not_fit(ds: Source) -> None:
    streams = [ds.stream(rank=rank, world_size=3) for rank in range(3)]
    states = [stream.state_dict() for stream in streams]
    with pytest.raises(UsageError, match=r"of 3 consumers the states of \[1\] are missing"):
        ds.stream().load_state_dict([states[0], states[2]])
    with pytest.raises(UsageError, match="of different epochs"):
        ds.stream().load_state_dict([states[0], {**states[1], "epoch": 1}, states[2]])
    with pytest.raises(UsageError, match="not the state of an any2ds stream"):
        ds.stream().load_state_dict({"model": 1})
    with pytest.raises(UsageError, match="of 7 samples, and there are 500"):
        ds.stream().load_state_dict({**states[0], "count": 7})
    stream = ds.stream()
    stream.load_state_dict(states[1])
    with pytest.raises(UsageError, match="consumer 1 of 3, and this is 0 of 1"):
        iter(stream)
