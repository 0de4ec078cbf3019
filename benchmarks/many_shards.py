"""What a dataset of very many shards costs whoever opens it: time, CPU and memory of each command.

    python benchmarks/many_shards.py [--shards=100000] [--folder=/tmp] [--only=inspect,report] [--keep]

A real run makes the first shards. The others are links to their files, with statistics of their own that name the right
rows, so that resuming finds them as a run would have left them; `verify` reads the contents of real ones only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from any2ds.core.manifest import urls_sha256

_REAL = 200  # shards that a run makes
_ROWS = 2  # of a shard
_ANY2DS = (sys.executable, "-m", "any2ds")
_LOAD = "import any2ds, sys; found = any2ds.load(sys.argv[1]); print(len(found), found[len(found) - 1]['key'])"


def url(row: int) -> str:
    return f"data:text/plain,{row:09d}"


def make(folder: Path, shards: int) -> Sequence[str]:
    """The dataset; returns the command that resumes it."""
    urls, dataset = folder / "urls.txt", folder / "dataset"
    with urls.open("w", encoding="ascii") as file:
        file.writelines(f"{url(row)}\n" for row in range(_ROWS * shards))
    options = [str(urls), str(dataset), f"--number_sample_per_shard={_ROWS}", "--output_format=webdataset"]
    options += ["--distributor=inline", "--quiet", "--report=false"]
    subprocess.run([*_ANY2DS, *options, f"--limit={_ROWS * _REAL}"], check=True, cwd=folder)
    stats = [json.loads((dataset / f"{number:05d}_stats.json").read_bytes()) for number in range(_REAL)]
    ends = sorted(name.name[5:] for name in dataset.glob("00000.*"))
    for number in range(_REAL, shards):
        model = number % _REAL
        for end in ends:
            os.link(dataset / f"{model:05d}{end}", dataset / f"{number:05d}{end}")
        rows = pa.array([url(row) for row in range(_ROWS * number, _ROWS * (number + 1))])
        own = {**stats[model], "shard_id": number, "urls_sha256": urls_sha256([rows])}
        (dataset / f"{number:05d}_stats.json").write_bytes(json.dumps(own).encode())
    return [*_ANY2DS, *options]


def commands(folder: Path, resume: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    dataset = str(folder / "dataset")
    yield "resume, with no list of shards", resume
    yield "resume", resume
    yield "inspect", [*_ANY2DS, "inspect", dataset]
    yield "report", [*_ANY2DS, "report", dataset]
    yield "card", [*_ANY2DS, "card", dataset]
    yield "verify --sample=20", [*_ANY2DS, "verify", dataset, "--sample=20", "--quiet"]
    yield "load", [sys.executable, "-c", _LOAD, dataset]


def measure(name: str, command: Sequence[str], log: Path) -> None:
    """Run it, and say what it took; the memory is that of its largest process."""
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall, cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    print(f"{name:32} {wall:8.1f} s {cpu:8.1f} s of CPU {usage.ru_maxrss / 1e3:8,.0f} MB", end="", flush=True)
    print(f"   exit code {process.returncode}" if process.returncode else "", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Opens a dataset of very many shards with each command.")
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--folder", default=None, help="for the dataset; the system's temporary one")
    parser.add_argument("--only", default="", help="commands whose names begin so, comma-separated")
    parser.add_argument("--dataset", type=Path, default=None, help="a folder that an earlier call has kept")
    parser.add_argument("--keep", action="store_true", help="leave the dataset there")
    arguments = parser.parse_args()
    folder = arguments.dataset or Path(tempfile.mkdtemp(prefix="any2ds-shards-", dir=arguments.folder))
    try:
        if arguments.dataset is None:
            began = time.monotonic()
            resume = make(folder, arguments.shards)
            (folder / "resume.json").write_text(json.dumps(list(resume)), encoding="utf-8")
            print(f"{arguments.shards:,} shards made in {time.monotonic() - began:.0f} s: {folder}", flush=True)
        resume = json.loads((folder / "resume.json").read_text(encoding="utf-8"))
        for name, command in commands(folder, resume):
            if not arguments.only or name.startswith(tuple(arguments.only.split(","))):
                measure(name, command, folder / f"{name.split()[0].strip(',')}.log")
    finally:
        if not arguments.keep and arguments.dataset is None:
            subprocess.run(["rm", "-rf", str(folder)], check=False)


if __name__ == "__main__":
    main()
