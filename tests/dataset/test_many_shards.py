"""What a dataset of very many shards costs in memory: little for each of them, whoever opens it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import any2ds
from any2ds import download
from any2ds.core.layout import Layout
from any2ds.dataset.dataset import Dataset
from any2ds.writers.formats._offsets import pack
from any2ds.writers.formats.webdataset import header

SHARDS = 20_000
MOST = 1600  # bytes that a command may take for a shard; the hashes of `inspect` are among them

# Prints the most memory that the statement has taken beyond what it took before.
PROGRAM = """
import sys
import any2ds
from any2ds.dataset.dataset import Dataset
def most():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
few, many, statement = sys.argv[1:]
exec(statement, {"any2ds": any2ds, "folder": few})
before = most()
exec(statement, {"any2ds": any2ds, "folder": many})
print(most() - before)
"""
COMMANDS = {
    "inspect": "any2ds.inspect(folder)",
    "verify": "any2ds.verify(folder, sample=1, seed=1, quiet=True)",
    "load": "len(any2ds.load(folder))",
    "resume": (
        "any2ds.download(folder + '.txt', output_folder=folder, number_sample_per_shard=1, output_format='webdataset',"
        " distributor='inline', report=False, quiet=True)"
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Makes datasets of one row a shard: the first is of a run, the others are links to it with their own numbers."""

    def made(shards: int) -> Path:
        out = tmp_path_factory.mktemp("many") / str(shards)
        urls = out.with_suffix(".txt")
        urls.write_text("".join(f"data:text/plain,{number}\n" for number in range(shards)))
        options = {"number_sample_per_shard": 1, "output_format": "webdataset", "distributor": "inline"}
        download(urls, output_folder=out, limit=1, quiet=True, report=False, **options)
        stats = json.loads((out / "00000_stats.json").read_bytes())
        for number in range(1, shards):
            for end in (".tar", ".tar.idx", ".parquet"):
                os.link(out / f"00000{end}", out / f"{number:05d}{end}")
            (out / f"{number:05d}_stats.json").write_text(json.dumps({**stats, "shard_id": number}))
        (out / ".any2ds/segments/0000.end").write_text(json.dumps({"rows": shards, "shards": shards, "limit": None}))
        assert download(urls, output_folder=out, quiet=True, report=False, **options).shards == 0  # and lists them
        return out

    return made


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system tells there what a process has taken at most")
def test_each_shard_takes_little_memory(folder: Callable[[int], Path]) -> None:
    few, many = folder(2), folder(SHARDS)
    for name, statement in COMMANDS.items():
        command = [sys.executable, "-c", PROGRAM, str(few), str(many), statement]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert int(said.split()[-1]) < MOST * SHARDS, (name, int(said.split()[-1]) / SHARDS)


def of_many_samples(out: Path, shards: int, rows: int = 10_000) -> Path:
    """A dataset of which the first sample of each shard is there; the others are holes in the files."""
    out.mkdir()
    names, size = Layout(rows, 5), 1024  # bytes of a sample
    for shard in range(shards):
        keys, tar = names.keys(shard), out / names.data_name(shard, "tar")
        tar.write_bytes(header(f"{keys(0)}.bin", 4) + b"file")
        os.truncate(tar, size * rows + 1024)
        tar.with_suffix(".tar.idx").write_bytes(pack(array("Q", range(0, size * rows + 1, size))))
        stats = {"count": rows, "successes": rows, "shard_id": shard, "any2ds": any2ds.__version__}
        (out / names.stats_name(shard)).write_text(json.dumps(stats))
        if not shard:
            pq.write_table(pa.table({"key": list(map(keys, range(rows))), "status": ["success"] * rows}), out / "0")
        os.link(out / "0", out / names.metadata_name(shard))
    (out / "0").unlink()
    return out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the system tells there what a process has taken at most")
def test_each_sample_of_open_shards_takes_less_than_24_bytes(tmp_path: Path) -> None:
    """One of each shard is read, whose index then stays in memory."""
    few, many = of_many_samples(tmp_path / "few", 2), of_many_samples(tmp_path / "many", 110)  # 1,080,000 samples more
    statement = (
        "ds = any2ds.load(folder)\n"
        "found = {ds[n]['data'] for n in range(0, len(ds), 10_000)}\n"
        "assert (len(ds._opened._open), found) == (len(ds.shards), {b'file'})"
    )
    command = [sys.executable, "-c", PROGRAM, str(few), str(many), statement]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 4 * 10**6 < int(said.split()[-1]) < 24 * 10**6  # a part fits into what opening few had taken for a moment


def test_files_of_shards_are_known_by_their_names_and_others_as_well(folder: Callable[[int], Path]) -> None:
    out = folder(3)
    (out / "00001_stats.json").unlink()
    for stray in ("000002.tar", "2.tar", "1_stats.json", "00007.unknown", "9" * 30 + ".tar", "notes.txt"):
        (out / stray).touch()
    dataset = Dataset(str(out))
    assert [*dataset.shards.ids] == [0, 1, 2]
    assert [files.shard_id for files in dataset.finished] == [0, 2]
    assert dataset.shards[1].stats is None
    assert dataset.shards[2].present == ("00002_stats.json", "00002.parquet", "00002.tar", "00002.tar.idx")
    strays = {"000002.tar", "2.tar", "1_stats.json", "00007.unknown", "9" * 30 + ".tar", "notes.txt"}
    assert {entry.name for entry in dataset.others()} == strays
    assert dataset.shards[2].sizes["00002.tar"] == (out / "00002.tar").stat().st_size
