"""Whatever happens to the files of a dataset, `any2ds.load` gives its samples or one error of ours.

Formats without checksums give files of the same size at least: their hashes are for `any2ds verify` to compare.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import any2ds
from any2ds import download
from any2ds.core.errors import Any2dsError
from any2ds.testing.server import Server, serve

FORMATS = ["webdataset", "parquet", "tfrecord", "arrayrecord", "files"]
WITH_CHECKSUMS = {"tfrecord", "arrayrecord"}  # of the data; the others have none
ROWS, SHARD, CASES = 12, 4, 25
OPTIONS: list[dict[str, Any]] = [{}, {"where": "bytes >= 1"}, {"columns": ["data", "key"]}, {"split": "hash[:50%]"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    media = tmp_path_factory.mktemp("media")
    for n in range(ROWS):
        (media / f"{n}.bin").write_bytes(random.Random(n).randbytes(300))
    with serve(media) as running:
        yield running


def garbled(content: bytes, chance: random.Random) -> bytes:
    place, other = (chance.randrange(len(content) + 1) for _ in range(2))
    how = chance.choice(["bytes", "bytes", "cut", "zeros", "moved", "empty", "twice"])
    if how == "bytes":
        found = bytearray(content)
        for _ in range(min(len(found), 3)):
            found[chance.randrange(len(found))] = chance.randrange(256)
        return bytes(found)
    return {
        "cut": content[:place],
        "zeros": content[:place] + bytes(64) + content[place + 64 :],
        "moved": content[:place] + content[other : other + 32] + content[place + 32 :],
        "empty": b"",
        "twice": content * 2,
    }[how]


@pytest.mark.parametrize("output_format", FORMATS)
def test_samples_as_they_were_or_an_error(
    output_format: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tmp_path / "good"
    download(
        [server.url(f"{n}.bin") for n in range(ROWS)],
        output_folder=good,
        output_format=output_format,
        number_sample_per_shard=SHARD,
        file_ext="bin",
        distributor="inline",
        quiet=True,
        fsync=False,
    )
    wanted = {sample["key"]: sample["data"] for sample in any2ds.load(good)}
    assert len(wanted) == ROWS
    files = sorted(path.relative_to(good) for path in good.rglob("*") if path.is_file() and path.name != "report.html")
    same: Callable[[bytes], Any] = bytes if output_format in WITH_CHECKSUMS else len
    chance = random.Random(output_format)
    errors = 0
    for case in range(CASES):
        monkeypatch.setenv("ANY2DS_CACHE", str(tmp_path / f"cache-{case}"))
        bad = tmp_path / f"bad-{case}"
        shutil.copytree(good, bad)
        path = bad / chance.choice(files)
        path.write_bytes(garbled(path.read_bytes(), chance))
        try:
            ds = any2ds.load(bad, **chance.choice(OPTIONS))
            found = [*ds, *(ds[n] for n in range(len(ds)))]
        except Any2dsError:
            errors += 1
            continue
        for sample in found:
            assert same(wanted[sample["key"]]) == same(sample["data"]), (case, path.name)
        shutil.rmtree(bad)
    assert errors > 3
