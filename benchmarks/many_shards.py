"""What a dataset of very many shards costs whoever opens it: time, CPU and memory of each command.

    python benchmarks/many_shards.py [--shards=100000] [--folder=/tmp] [--only=inspect,report] [--keep] [--s3]

A real run makes the first shards. The others are links to their files, with statistics of their own that name the right
rows, so that resuming finds them as a run would have left them. The rows in their data are those of the real shards:
`verify` draws its sample among all, finds that, and exits with 1. A million shards take six minutes of CPU to make, and
4 GB on disk.

With `--s3` the commands see a copy in moto's S3 server, which runs in this process, and whose requests are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))  # any2ds, where it is not installed, and tests.support

from any2ds.core.manifest import urls_sha256

_REAL = 200  # shards that a run makes
_ROWS = 2  # of a shard
_ANY2DS = (sys.executable, "-m", "any2ds")
# A process begins with the peak memory of the one that has started it, which is this one with all of a store in it: so
# a small process starts the command.
_MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
open(sys.argv[1], "w").write(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss]))
sys.exit(done.returncode)
"""
_LOAD = "import any2ds, sys; found = any2ds.load(sys.argv[1]); print(len(found), found[0]['key'])"
_LIST = "import sys; from any2ds.dataset.dataset import Dataset; print(len(Dataset(sys.argv[1]).entries))"


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
    models = [_Model.of(dataset, number) for number in range(_REAL)]
    ends = sorted(name.name[5:] for name in dataset.glob("00000.*"))
    place = os.open(dataset, os.O_RDONLY)
    try:
        for number in range(_REAL, shards):
            model = number % _REAL  # ext4 allows 65,000 links to a file
            for end in ends:
                os.link(f"{model:05d}{end}", f"{number:05d}{end}", src_dir_fd=place, dst_dir_fd=place)
            file = os.open(f"{number:05d}_stats.json", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=place)
            os.write(file, models[model].stats_of(number))
            os.close(file)
    finally:
        os.close(place)
    return [*_ANY2DS, *options]


@dataclass(frozen=True)
class _Model:
    """The statistics of a real shard, in which another number and another fingerprint are put."""

    shard_id: int
    urls_sha256: str
    text: str

    @classmethod
    def of(cls, dataset: Path, number: int) -> _Model:
        text = (dataset / f"{number:05d}_stats.json").read_text()
        return cls(number, json.loads(text)["urls_sha256"], text)

    def stats_of(self, number: int) -> bytes:
        rows = pa.array([url(row) for row in range(_ROWS * number, _ROWS * (number + 1))])
        text = self.text.replace(f'"shard_id": {self.shard_id},', f'"shard_id": {number},', 1)
        return text.replace(self.urls_sha256, urls_sha256([rows]), 1).encode()


def commands(dataset: str, resume: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    yield "resume, with no list of shards", resume
    yield "resume", resume
    yield "inspect", [*_ANY2DS, "inspect", dataset]
    yield "report", [*_ANY2DS, "report", dataset]
    yield "card", [*_ANY2DS, "card", dataset]
    yield "verify --sample=20", [*_ANY2DS, "verify", dataset, "--sample=20", "--quiet"]
    yield "load, one sample", [sys.executable, "-c", _LOAD, dataset]
    yield "listing", [sys.executable, "-c", _LIST, dataset]
    yield "compact", [*_ANY2DS, "compact", dataset]


@dataclass(frozen=True)
class Store:
    """A copy of the dataset in a bucket."""

    url: str
    environment: Mapping[str, str]  # in which commands find it
    asked: Sequence[tuple[str, str]]  # method and target of each request


@contextmanager
def copied(dataset: Path) -> Iterator[Store]:
    """A copy in moto's S3 server, which is filled without requests."""
    from moto.s3.models import s3_backends

    from tests.support.s3 import serve_buckets

    with serve_buckets() as new_bucket:
        bucket = new_bucket()
        name, _, root = bucket.url.removeprefix("s3://").partition("/")
        inside = s3_backends["123456789012"]["aws"]
        for path in dataset.rglob("*"):
            if path.is_file():
                inside.put_object(name, f"{root}/{path.relative_to(dataset)}", path.read_bytes())
        with bucket.recording() as asked:
            yield Store(bucket.url, {**os.environ, **bucket.environment}, asked)


def measure(name: str, command: Sequence[str], log: Path, store: Store | None) -> None:
    """Run it, and say what it took; the memory is that of its largest process."""
    began, before = time.monotonic(), len(store.asked) if store else 0
    used = log.with_suffix(".json")
    with log.open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, str(used), *command],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=store.environment if store else None,
            check=False,
        )
    wall = time.monotonic() - began
    cpu, memory = json.loads(used.read_text(encoding="ascii"))
    asked = f" {len(store.asked) - before:8,} requests" if store else ""
    print(f"{name:32} {wall:8.1f} s {cpu:8.1f} s of CPU {memory / 1e3:8,.0f} MB{asked}", end="", flush=True)
    print(f"   exit code {done.returncode}" if done.returncode else "", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Opens a dataset of very many shards with each command.")
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--folder", default=None, help="for the dataset; the system's temporary one")
    parser.add_argument("--only", default="", help="commands whose names begin so, comma-separated")
    parser.add_argument("--dataset", type=Path, default=None, help="a folder that an earlier call has kept")
    parser.add_argument("--keep", action="store_true", help="leave the dataset there")
    parser.add_argument("--s3", action="store_true", help="measure a copy in moto's S3 server; its files are in memory")
    arguments = parser.parse_args()
    folder = arguments.dataset or Path(tempfile.mkdtemp(prefix="any2ds-shards-", dir=arguments.folder))
    try:
        if arguments.dataset is None:
            began = time.monotonic()
            resume = make(folder, arguments.shards)
            (folder / "resume.json").write_text(json.dumps(list(resume)), encoding="utf-8")
            print(f"{arguments.shards:,} shards made in {time.monotonic() - began:.0f} s: {folder}", flush=True)
        resume = json.loads((folder / "resume.json").read_text(encoding="utf-8"))
        dataset = folder / "dataset"
        with copied(dataset) if arguments.s3 else nullcontext() as store:
            if store:
                resume = [store.url if word == str(dataset) else word for word in resume]
                print(f"{len(list(dataset.iterdir())):,} keys in {store.url}", flush=True)
            for name, command in commands(store.url if store else str(dataset), resume):
                if not arguments.only or name.startswith(tuple(arguments.only.split(","))):
                    measure(name, command, folder / f"{name.split()[0].strip(',')}.log", store)
    finally:
        if not arguments.keep and arguments.dataset is None:
            subprocess.run(["rm", "-rf", str(folder)], check=False)


if __name__ == "__main__":
    main()
