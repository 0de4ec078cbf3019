"""What it takes to cut a huge parquet list into jobs: memory of the process that does it, and rows per second.

    python benchmarks/planning.py [--rows=100000000] [--shard=10000] [--files=8] [--failing=0] [--folder=/tmp]

It is the command `any2ds` itself, with all that a run keeps account of, but for its workers: in their stead stands
`Scripted`, a distributor that says of each job at once that it is done, and leaves its `_stats.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from any2ds.config.options import RunOptions
from any2ds.core.reports import Event, ShardError, ShardReport
from any2ds.core.rows import ShardJob
from any2ds.distributors._contract import Worker

_MOST_MEMORY = 600_000_000  # bytes that the driver may take
_HEAD, _RANDOM, _END = b"https://images.example.org/media/full/", 14, b".jpg"  # with two digits a byte, 70 bytes
_PART = 1_000_000  # rows made at once, which are a row group
_FAILING = "ANY2DS_BENCH_FAILING"  # of so many shards one fails whenever it is tried; 0: none does
_OUTPUT = "ANY2DS_BENCH_OUTPUT"
_TOLD = "ANY2DS_BENCH_TOLD"  # where the distributor leaves what it saw
_CODES = ("http_404", "connect", "dns", "timeout_total")


class Scripted:
    """The distributor: takes a job, and reports it."""

    def __init__(self, options: RunOptions) -> None:
        """Takes no option."""
        self._failing = int(os.environ[_FAILING])
        self._jobs = self._rows = self._bytes = 0
        self._began = 0.0

    def map(self, worker: Worker, jobs: Iterator[ShardJob]) -> Iterator[Event]:
        folder = Path(os.environ[_OUTPUT])
        self._began = self._began or time.monotonic()
        for job in jobs:
            self._jobs += 1
            if self._failing and job.shard_id % self._failing == 0:
                yield ShardError(job.shard_id, "it was scripted to fail", attempt=job.attempt)
                continue
            self._rows += job.count
            self._bytes += len(job.rows)
            report = _report(job)
            (folder / f"{job.shard_id:05d}_stats.json").write_bytes(json.dumps(report.to_json()).encode())
            yield report
        reported = {
            "jobs": self._jobs,
            "rows": self._rows,
            "bytes": self._bytes,
            "seconds": time.monotonic() - self._began,
        }
        Path(os.environ[_TOLD]).write_text(json.dumps(reported), encoding="utf-8")

    def stop(self, grace: float) -> None:
        """It does not take long."""


PART = Scripted


def _report(job: ShardJob) -> ShardReport:
    """As of a list of which a tenth fails, in some ways."""
    lost = job.count // 10
    each = lost // len(_CODES)
    statuses = {"success": job.count - each * len(_CODES), **dict.fromkeys(_CODES, each)}
    return ShardReport(
        shard_id=job.shard_id,
        count=job.count,
        successes=statuses["success"],
        failed_to_download=job.count - statuses["success"],
        samples=statuses["success"],
        bytes=100_000 * statuses["success"],
        start_time=time.time() - 60,
        end_time=time.time(),
        status_dict=statuses,
        urls_sha256=job.fingerprint,
        exts={"jpg": statuses["success"]},
        attempts=job.count + 3 * each,
        examples={code: f"https://images.example.org/{code}" for code in _CODES},
        latencies=dict.fromkeys(range(20), job.count // 20),
    )


def make_list(folder: Path, rows: int, files: int) -> None:
    """URLs of 70 bytes, each another one, in `files` files; memory holds a million of them."""
    random = np.random.default_rng(0)
    for number in range(files):
        left = rows * (number + 1) // files - rows * number // files
        schema = pa.schema([("url", pa.string())])
        path = folder / f"list-{number:03d}.parquet"
        with pq.ParquetWriter(path, schema, compression="snappy", use_dictionary=False) as file:
            while left:
                count = min(_PART, left)
                file.write_batch(pa.record_batch([_urls(count, random)], schema=schema))
                left -= count


def _urls(count: int, random: np.random.Generator) -> pa.StringArray:
    digits = np.frombuffer(random.bytes(_RANDOM * count).hex().encode(), np.uint8).reshape(count, 2 * _RANDOM)
    size = len(_HEAD) + 2 * _RANDOM + len(_END)
    urls = np.empty((count, size), np.uint8)
    urls[:, : len(_HEAD)] = np.frombuffer(_HEAD, np.uint8)
    urls[:, len(_HEAD) : -len(_END)] = digits
    urls[:, -len(_END) :] = np.frombuffer(_END, np.uint8)
    ends = np.arange(count + 1, dtype=np.int32) * size
    return pa.StringArray.from_buffers(count, pa.py_buffer(ends), pa.py_buffer(urls))


def _with_distributor(scratch: Path) -> dict[str, str]:
    """An environment in which any2ds finds `--distributor=scripted`, as that of another package."""
    about = scratch / "packages" / "any2ds_benchmark-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: any2ds-benchmark\nVersion: 0\n", encoding="utf-8")
    (about / "entry_points.txt").write_text("[any2ds.distributors]\nscripted = planning:PART\n", encoding="utf-8")
    here = Path(__file__).resolve().parent
    paths = [str(about.parent), str(here), str(here.parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])}


def measure(scratch: Path, urls: Path, shard: int, failing: int) -> None:
    """Run it, and say what it took."""
    reported, output = scratch / "told.json", scratch / "output"
    command = [
        *(sys.executable, "-m", "any2ds", f"--url_list={urls}", "--input_format=parquet"),
        *(f"--output_folder={output}", "--output_format=dummy", "--distributor=scripted"),
        *(f"--number_sample_per_shard={shard}", "--quiet=True", "--report=False"),
    ]
    environment = {**_with_distributor(scratch), _FAILING: str(failing), _OUTPUT: str(output), _TOLD: str(reported)}
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, cwd=scratch)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode, wall = os.waitstatus_to_exitcode(status), time.monotonic() - began
    if process.returncode != (1 if failing else 0):
        raise SystemExit(f"any2ds ended with {process.returncode}")
    found = json.loads(reported.read_text(encoding="utf-8"))
    cpu, memory = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    print(
        f"{found['rows']:,} rows in {found['jobs']:,} jobs of {found['bytes'] / found['jobs'] / 1e3:,.0f} KB: "
        f"{found['rows'] / found['seconds']:,.0f} rows/s ({found['seconds']:.1f} s; {wall:.1f} s from start to exit, "
        f"{cpu:.1f} s of CPU), at most {memory / 1e6:,.0f} MB in memory (wanted {_MOST_MEMORY / 1e6:,.0f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Cuts a huge list into jobs.")
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--shard", type=int, default=10_000, help="rows of a job")
    parser.add_argument("--files", type=int, default=8, help="of the list")
    parser.add_argument("--failing", type=int, default=0, help="one shard of so many fails, whenever it is tried")
    parser.add_argument("--folder", default=None, help="for the list, 6 GB; the system's temporary one")
    parser.add_argument("--list", type=Path, default=None, help="a list that is there already, and stays")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="any2ds-planning-", dir=arguments.folder) as name:
        scratch, urls = Path(name), arguments.list
        if urls is None:
            urls = scratch / "list"
            urls.mkdir()
            began = time.monotonic()
            make_list(urls, arguments.rows, arguments.files)
            size = sum(file.stat().st_size for file in urls.iterdir())
            print(f"the list: {size / 1e9:.1f} GB, made in {time.monotonic() - began:.0f} s", flush=True)
        measure(scratch, urls, arguments.shard, arguments.failing)


if __name__ == "__main__":
    main()
