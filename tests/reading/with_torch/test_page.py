"""docs/pytorch.md: each piece of Python on it runs as it stands, and gives what the page says."""

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
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


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
