"""PyTorch: a DataLoader with workers over a stream of tar files, over their indexes, and over `files`; wids."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wids

README = Path(__file__).parents[3] / "README.md"
KEY = re.compile(r"'(\d{6})'")


def keys_in(stdout: str) -> list[str]:
    return sorted(KEY.findall(stdout))


def test_a_stream_of_tar_files(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    found = readme("PyTorch")
    assert all(repr(made.captions[key]) in found["stdout"] for key in made.files)
    assert "torch.Size([8, 3, 32, 32])" in found["stdout"]
    assert found["images"].max() <= 1.0


def test_any_sample_at_any_time_out_of_tar_files(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    found = readme("PyTorch", 1)
    assert keys_in(found["stdout"]) == list(made.files)
    samples = found["samples"]
    assert len(samples) == len(made.files)
    for number, key in enumerate(made.files):
        image, metadata = samples[number]
        assert (image, metadata["key"], metadata["label"]) == (made.files[key], key, made.labels[key])


def test_folders_of_files(dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("files")
    shown = readme("PyTorch", 2)["stdout"]
    assert shown.count("torch.Size([8, 32, 32, 3])") == len(made.files) // 8
    assert all(repr(made.captions[key]) in shown for key in made.files)


def test_folders_of_files_after_a_retry(eventful: Callable[..., Any], readme: Callable[..., Any]) -> None:
    kept = eventful("files")
    shown = readme("PyTorch", 2, replace={"row.caption": "row.key"})["stdout"]
    assert keys_in(shown) == sorted(kept)


def test_wids_opens_the_list_of_shards(
    dataset: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "cache"))
    made = dataset("webdataset", number_sample_per_shard=1)  # the shard of the row that failed is empty
    samples = wids.ShardListDataset("dataset/.any2ds/shards", transformations=[])
    assert len(samples) == len(made.files)
    for number, image in enumerate(made.files.values()):
        sample = samples[number]
        assert image in [file.read() for name, file in sample.items() if name.startswith(".")]


def test_batches_as_the_readme_has_them(
    dataset: Callable[..., Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (command,) = re.findall(r"^any2ds .*\\\n +(--file_size=.*)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    given = (option.removeprefix("--").partition("=") for option in command.split())
    options = {name: value or True for name, _, value in given}
    made = dataset("webdataset", **options)
    code = re.findall(r"^```python\n([^`]*DataLoader[^`]*)^```$", README.read_text(encoding="utf-8"), re.MULTILINE)
    shapes = ([len(made.files), 256, 256, 3], [len(made.files), 3, 256, 256])  # any2ds.load, webdataset
    for block, shape in zip(code, shapes, strict=True):
        block = block.replace("{00000..00041}", "{00000..00002}").replace('"photos', '"dataset')
        exec(compile(block, README.name, "exec"), {})
        assert f"torch.Size({shape})" in capsys.readouterr().out
