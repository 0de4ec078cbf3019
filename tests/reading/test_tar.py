"""Plain tar: what every system has, and one sample by its place in the index."""

import subprocess
import tarfile
from collections.abc import Callable
from typing import Any

import pytest


def test_tar_lists_and_extracts(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    names = subprocess.run(
        ["tar", "-tf", "dataset/00000.tar"], capture_output=True, text=True, check=True
    ).stdout.split()
    assert names[:3] == ["000000.jpg", "000000.txt", "000000.json"]
    subprocess.run(["tar", "-xf", "dataset/00000.tar"], check=True)
    with open("000001.txt", encoding="utf-8") as caption, open("000001.jpg", "rb") as image:
        assert (caption.read(), image.read()) == (made.captions["000001"], made.files["000001"])


def test_python_reads_all_of_it(dataset: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    found = {}
    for shard in range(3):
        with tarfile.open(f"dataset/0000{shard}.tar") as tar:
            found |= {member.name: tar.extractfile(member).read() for member in tar}
    bodies = {name.partition(".")[0]: data for name, data in found.items() if not name.endswith((".txt", ".json"))}
    assert bodies == made.files


@pytest.mark.parametrize("number", [0, 3, 8])
def test_one_sample_is_read_by_its_number(number: int, dataset: Callable[..., Any], readme: Callable[..., Any]) -> None:
    made = dataset("webdataset")
    files = readme("Without any2ds", 1, {"number = 3": f"number = {number}"})["files"]
    key = list(made.files)[number]
    assert {name.partition(".")[0] for name in files} == {key}
    assert made.files[key] in files.values()
    assert files[f"{key}.txt"].decode() == made.captions[key]
