"""docs/pytorch.md: each piece of Python on it runs as it stands, and gives what the page says."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import any2ds
from any2ds.testing.server import serve

PAGE = (Path(__file__).parents[3] / "docs" / "pytorch.md").read_text(encoding="utf-8")
_PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SEVERAL = PAGE.partition("## Several processes\n")[2].partition("\n## ")[0]
# Title of a section -> the code in it that two processes run.
LAUNCHED = {text.partition("\n")[0]: _PYTHON.findall(text)[0] for text in _SEVERAL.split("\n### ")[1:]}
BLOCKS = [code for code in _PYTHON.findall(PAGE) if code not in LAUNCHED.values()]


def block(*parts: str) -> str:
    """The one that has all of these in it."""
    (found,) = (code for code in BLOCKS if all(part in code for part in parts))
    return found


def run(code: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """Its variables, and what it prints."""
    capsys.readouterr()
    variables: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "docs/pytorch.md", "exec"), variables)
    return variables, capsys.readouterr().out


def keys(text: str) -> list[str]:
    return re.findall(r"'(\d{6})'", text)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_it_runs_in_a_process_of_its_own(code: str, dataset: Callable[..., Any]) -> None:
    """As somebody would who copies it into a file."""
    dataset("webdataset")
    Path("page.py").write_text(code, encoding="utf-8")
    done = subprocess.run([sys.executable, "page.py"], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_images_of_several_sizes_and_missing_captions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    media = tmp_path / "media"
    media.mkdir()
    for n in range(6):
        Image.new("RGB", (10 + n, 20)).save(media / f"{n}.png")
    (media / "6.png").write_bytes(b"\x89PNG\r\n\x1a\n damaged")
    with serve(media) as server:
        rows = [{"url": server.url(f"{n}.png"), "caption": None if n == 2 else f"image {n}"} for n in range(7)]
        any2ds.download(rows, output_folder="dataset", output_format="webdataset", caption_col="caption", quiet=True)
    found, _ = run(block("return images, ").replace('load("dataset"', 'load("dataset", split="train[:6]"'), capsys)
    assert sorted(image.shape for image in found["images"]) == [(3, 20, 10 + n) for n in range(6)]
    assert "" in found["captions"]
    found, _ = run(block("def decoded"), capsys)
    assert [image.shape for image in found["images"]] == [(20, 10 + n, 3) for n in range(6)]


def test_streams(dataset: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    made = dataset("webdataset")
    _, shown = run(block("persistent_workers=True"), capsys)
    sizes = list(map(int, re.findall(r"\[(\d+), 32, 32, 3\]", shown)))
    assert sizes == [8, 8, 8] * 2
    assert len(made.files) == 24


def test_each_rank_makes_as_many_steps(dataset: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    made = dataset("webdataset")
    _, shown = run(block('even="drop"'), capsys)
    first, second = map(keys, shown.splitlines())
    assert len(first) == len(second) == 12
    assert sorted(first + second) == sorted(made.files)


def printed(code: str, *launcher: str, **environment: str) -> str:
    """What a script prints that is run by Python, or by a launcher of it."""
    Path("train.py").write_text(code, encoding="utf-8")
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_CPU": "true", "RAY_DEDUP_LOGS": "0"}
    command, environment = [sys.executable, *launcher, "train.py"], {**os.environ, **own, **environment}
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.mark.parametrize("title", LAUNCHED)
def test_two_processes_read_each_sample_once(title: str, dataset: Callable[..., Any]) -> None:
    if title == "Ray Train":
        pytest.importorskip("ray")  # 200 MB
    made = dataset("webdataset")
    first = "def collate(samples):\n"  # which sees the keys, where the loop is that of a framework
    code = LAUNCHED[title].replace(first, f"{first}    print([sample['key'] for sample in samples], flush=True)\n")
    if title == "SLURM":
        shown = "".join(printed(code, SLURM_STEP_NUM_TASKS="2", SLURM_PROCID=str(rank)) for rank in range(2))
    else:
        shown = printed(code, *(() if title in ("Lightning", "Ray Train") else TORCHRUN))
    epochs = 2 if "epoch" in code else 1
    assert Counter(keys(shown)) == dict.fromkeys(made.files, epochs)


PREPARED = """
import any2ds
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
ds = any2ds.load("dataset", columns=["key"])
for workers in (0, 2):
    try:
        next(iter(accelerator.prepare(DataLoader(ds.stream(batch_size=4), batch_size=4, num_workers=workers))))
    except any2ds.UsageError as error:
        print(error)
for batch in accelerator.prepare(DataLoader(ds.stream(rank=0, world_size=1), batch_size=4)):
    print(batch["key"])
"""


def test_accelerate_does_not_share_out_the_part_of_a_rank(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    shown = printed(PREPARED, *TORCHRUN)
    assert shown.count("samples would be lost") == 4
    assert Counter(keys(shown)) == dict.fromkeys(made.files, 1)


def test_what_is_resumed(dataset: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    dataset("webdataset")
    ds = any2ds.load("dataset", columns=["key"])
    wanted = [sample["key"] for sample in ds.stream(shuffle=True, seed=1)]
    _, shown = run(block("checkpoint.pt"), capsys)
    assert keys(shown) == wanted[12:]
    _, shown = run(block("position=steps"), capsys)
    assert keys(shown) == wanted[12::2]
    found, shown = run(block("all_gather_object"), capsys)
    assert keys(shown) == wanted[4:]
    taken = [sample["key"] for batch in found["batches"] for sample in batch]
    assert sorted(taken) == sorted(wanted[:4])
    assert Counter(taken + keys(shown)) == Counter(wanted)


def test_several_datasets(dataset: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    dataset("webdataset")
    _, shown = run(block("WeightedRandomSampler"), capsys)
    labels = list(map(int, re.findall(r"\d", "".join(re.findall(r"\[(.*?)\]", shown)))))
    assert len(labels) == 100
    assert labels.count(0) > 50
    _, shown = run(block("MultiNodeWeightedSampler"), capsys)
    assert set(re.findall(r"\d", shown)) <= {"0", "1", "2"}
    again, _ = run(block("MultiNodeWeightedSampler").partition("for batch")[0], capsys)
    batches = iter(again["loader"])
    first = [next(batches)]
    torch.save(again["loader"].state_dict(), "state.pt")
    first += list(batches)
    last, _ = run(block("MultiNodeWeightedSampler").partition("for batch")[0], capsys)
    last["loader"].load_state_dict(torch.load("state.pt", weights_only=False))
    assert first[1:] == list(last["loader"])
